"""`tarry local`: run a template's consumers on this machine."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

EXAMPLE = "[bold]Example[/]: tarry local --event events/orders.json --parameter Stage=test"


def local(
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
    give_up: Annotated[
        float, typer.Option("--give-up", metavar="SECONDS", min=0, help="Wait no longer than this for all to settle.")
    ] = 300,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show tarry's log lines with tracebacks.")] = False,
) -> None:
    """Run an event's messages through their handlers, and tell what becomes of each.

    The queues are made in this process, nothing reaches AWS. Waits are real.

    Exit code: 0 every message settled, 1 one was lost or still waits,
    2 something given is wrong, 130 after Ctrl-C.
    """
    try:
        from tarry.local.errors import UsageError
        from tarry.local.plan import Settings, make_plan
        from tarry.local.run import run
        from tarry.local.story import Board
        from tarry.local.summary import print_summary
        from tarry.local.view import LineView, TableView, View, note
        from tarry.template import TemplateError
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "tarry":
            raise
        _refuse(f'tarry local needs {library}: pip install "tarry[local,local-aws]"')

    console = Console(file=sys.stdout, highlight=False)  # stdout as it is now: it is turned aside while a handler runs
    view: View = TableView(console) if console.is_terminal and not console.is_dumb_terminal else LineView(console)
    board = Board(view.step)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    try:
        settings = Settings(event, template, _pairs(parameter or []), region, give_up, verbose)
        plan = make_plan(settings, note)
        with view.showing(board):
            report = run(plan, settings, board, note)
    except UsageError as error:
        note(error.details)
        _refuse(str(error))
    except TemplateError as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print_summary(console, report)
    raise typer.Exit(report.exit_code)


def _pairs(given: list[str]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise typer.BadParameter(f"--parameter takes NAME=VALUE, got {each!r}")
    return {name: value for name, _, value in (each.partition("=") for each in given)}


def _refuse(text: str) -> NoReturn:
    typer.echo(f"tarry: {text}", err=True)
    raise typer.Exit(2)
