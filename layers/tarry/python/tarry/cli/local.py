"""`tarry local`: run a template's system on this machine."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tarry.cli.errors import libraries, note, refusals, refuse
from tarry.cli.options import Env, Parameters, Template, expected_states, pairs

if TYPE_CHECKING:
    from tarry.local.plan import RunPlan, RunSettings
    from tarry.local.runs.report import RunReport
    from tarry.local.show.board import View

EXAMPLE = (
    "[bold]Examples[/]: tarry local --watch; "
    "tarry local --event events/orders.json --skip-time --expect committed=8,dead_lettered=2"
)


def local(  # noqa: PLR0913, PLR0917 the options of the command
    function: Annotated[
        list[str] | None,
        typer.Argument(metavar="FUNCTION", help="Functions to run; else all that a queue feeds.", show_default=False),
    ] = None,
    event: Annotated[
        Path | None,
        typer.Option(
            "--event", "-e", metavar="FILE", help="An SQS event: its records are sent, and the run ends with them."
        ),
    ] = None,
    template: Template = Path("template.yaml"),
    parameter: Parameters = None,
    env: Env = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Where SQS answers: 4576, with --event any that is free.",
            show_default=False,
        ),
    ] = None,
    endpoint_url: Annotated[
        str | None,
        typer.Option("--endpoint-url", metavar="URL", help="Another SQS; missing queues are made there."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Load a function anew when its code changes.")] = False,
    skip_time: Annotated[
        bool, typer.Option("--skip-time", help="With --event: skip all waits, hours of retries take a second or two.")
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
    """Run the template's queues and functions on this machine, until Ctrl-C.

    SQS is served at http://127.0.0.1:4576 for any AWS SDK or CLI, each
    function runs in processes of its own, as on Lambda. Nothing reaches AWS.

    With --event, until its messages have settled. Exit code then: 0 every
    message settled, 1 one was lost or still waits, or the end is not as
    expected, 130 after Ctrl-C. Always: 2 something given is wrong.
    """
    with libraries("tarry local", "local,local-aws"):
        from tarry.local.aws.client import endpoint_of, region
        from tarry.local.functions.variables import read_overrides
        from tarry.local.plan import RunSettings, make_plan

        import_module("tarry.local.runs.virtual" if skip_time else "tarry.local.session")

    _check_together(
        event=event,
        skip_time=skip_time,
        expect=expect,
        give_up=give_up,
        watch=watch,
        endpoint_url=endpoint_url,
        port=port,
    )
    console = Console(file=sys.stdout, highlight=False)  # stdout as it is now: it is turned aside while a handler runs
    try:
        with refusals():
            settings = RunSettings(
                template,
                event,
                functions=tuple(function or ()),
                parameters=pairs(parameter or [], "--parameter"),
                overrides=read_overrides(env or []),
                region=region(),
                endpoint_url=endpoint_of(endpoint_url, {}) if endpoint_url else None,
                port=port,
                watch=watch,
                give_up_seconds=give_up,
                verbose=verbose,
                skip_time=skip_time,
                expected=expected_states(expect or ""),
            )
            plan = make_plan(settings, note)
            report = (_play if skip_time else _run)(plan, settings, console)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if report is not None:
        from tarry.local.runs.printing import print_summary

        print_summary(console, report)
        raise typer.Exit(report.exit_code)


def _run(plan: RunPlan, settings: RunSettings, console: Console) -> RunReport | None:
    """In real time, shown while it happens."""
    from tarry.local.runs.report import RunReport
    from tarry.local.session import run
    from tarry.local.show.screen import PlainView, Screen

    if settings.event is not None and not plan.samples:
        return RunReport(expected=settings.expected)
    view: View = Screen(console) if console.is_terminal and not console.is_dumb_terminal else PlainView(sys.stdout)
    return run(plan, settings, view, note)


def _play(plan: RunPlan, settings: RunSettings, console: Console) -> RunReport:
    """In virtual time, told when it is over: that is soon."""
    from tarry.local.runs.printing import print_timeline
    from tarry.local.runs.virtual import play

    played = play(plan, settings, note)
    print_timeline(console, played.report.messages, played.output, played.began)
    if played.problem:
        refuse(f"{played.problem}\nWithout --skip-time a run takes real time.", 1)
    return played.report


def _check_together(
    *,
    event: Path | None,
    skip_time: bool,
    expect: str | None,
    give_up: float | None,
    watch: bool,
    endpoint_url: str | None,
    port: int | None,
) -> None:
    for given, name in ((skip_time, "--skip-time"), (expect, "--expect"), (give_up is not None, "--give-up")):
        if given and event is None:
            raise typer.BadParameter(f"{name} is about the messages of an event: give it by --event FILE")
    for given, name in ((endpoint_url, "--endpoint-url"), (port is not None, "--port")):
        if given and skip_time:
            raise typer.BadParameter(f"{name} is for real time: with --skip-time SQS is in this process, at no address")
    if watch and event is not None:
        raise typer.BadParameter("--watch is for a cloud that goes on: leave --event out")
