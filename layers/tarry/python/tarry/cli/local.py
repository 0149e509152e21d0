"""`tarry local`: run a template's consumers on this machine."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from tarry.outcome import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.local.plan import Plan, Settings
    from tarry.local.report import Report

EXAMPLE = "[bold]Example[/]: tarry local --event events/orders.json --skip-time --expect committed=8,dead_lettered=2"


def local(  # noqa: PLR0917 the options of the command
    event: Annotated[
        Path, typer.Option("--event", "-e", metavar="FILE", help="An SQS event; its records are what is sent.")
    ],
    template: Annotated[
        Path, typer.Option("--template", "-t", metavar="FILE", help="The SAM template with queues and functions.")
    ] = Path("template.yaml"),
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="A template parameter's value; repeatable."),
    ] = None,
    skip_time: Annotated[
        bool, typer.Option("--skip-time", help="Skip all waits: hours of retries are told in a second or two.")
    ] = False,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect", metavar="STATE=N,...", help="How many messages should end in which state; else exit 1."
        ),
    ] = None,
    give_up: Annotated[
        float | None,
        typer.Option(
            "--give-up",
            metavar="SECONDS",
            min=0,
            help="Wait no longer than this for all to settle: 300 s, or with --skip-time 15 days.",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show tarry's log lines with tracebacks.")] = False,
) -> None:
    """Run an event's messages through their handlers, and tell what becomes of each.

    The queues are made in this process, nothing reaches AWS. Waits are real,
    or skipped with --skip-time.

    Exit code: 0 every message settled, 1 one was lost or still waits, or the
    end is not as expected, 2 something given is wrong, 130 after Ctrl-C.
    """
    with _libraries():
        from tarry.local.errors import UsageError
        from tarry.local.plan import Settings, make_plan
        from tarry.local.summary import print_summary
        from tarry.local.view import note
        from tarry.template import TemplateError

        import_module("tarry.local.virtual" if skip_time else "tarry.local.run")

    console = Console(file=sys.stdout, highlight=False)  # stdout as it is now: it is turned aside while a handler runs
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    settings = Settings(
        event,
        template,
        _pairs(parameter or []),
        region,
        give_up_seconds=give_up,
        verbose=verbose,
        skip_time=skip_time,
        expected=_numbers(expect or ""),
    )
    try:
        plan = make_plan(settings, note)
        report = (_play if skip_time else _run)(plan, settings, console)
    except UsageError as error:
        note(error.details)
        _refuse(str(error))
    except TemplateError as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print_summary(console, report)
    raise typer.Exit(report.exit_code)


def _run(plan: Plan, settings: Settings, console: Console) -> Report:
    """In real time, shown while it happens."""
    from tarry.local.run import run
    from tarry.local.story import Board
    from tarry.local.view import LineView, TableView, View, note

    view: View = TableView(console) if console.is_terminal and not console.is_dumb_terminal else LineView(console)
    board = Board(view.step)
    with view.showing(board):
        return run(plan, settings, board, note)


def _play(plan: Plan, settings: Settings, console: Console) -> Report:
    """In virtual time, told when it is over: that is soon."""
    from tarry.local.timeline import print_timeline
    from tarry.local.view import note
    from tarry.local.virtual import play

    played = play(plan, settings, note)
    print_timeline(console, played.report.stories, played.said, played.began)
    if played.problem:
        _refuse(f"{played.problem}\nWithout --skip-time a run takes real time.", 1)
    return played.report


@contextmanager
def _libraries() -> Iterator[None]:
    """What is imported here may want libraries that are not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "tarry":
            raise
        _refuse(f'tarry local needs {library}: pip install "tarry[local,local-aws]"')


def _pairs(given: list[str]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise typer.BadParameter(f"--parameter takes NAME=VALUE, got {each!r}")
    return {name: value for name, _, value in (each.partition("=") for each in given)}


def _numbers(given: str) -> dict[str, int]:
    """How many messages are expected in each state: ``committed=8,dead_lettered=2``."""
    expected: dict[str, int] = {}
    for each in filter(None, given.split(",")):
        state, _, number = (part.strip() for part in each.partition("="))
        if state.upper() not in State.__members__ or not number.isdecimal():
            states = ", ".join(state.lower() for state in State)
            raise typer.BadParameter(f"--expect takes STATE=N, got {each!r}; the states are {states}")
        expected[state.upper()] = int(number)
    return expected


def _refuse(text: str, code: int = 2) -> NoReturn:
    typer.echo(f"tarry: {text}", err=True)
    raise typer.Exit(code)
