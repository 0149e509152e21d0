"""`tarry local`: run the queues and functions of a template on this machine."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import libraries, note, refusals, refuse, warn
from tarry.tools.cli.options import CONFIG_ENV, ENV, PARAMETERS, TEMPLATE, argument, expected_states, option, pairs
from tarry.tools.cli.queues import say_endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tarry.tools.local.plan import RunPlan, RunSettings
    from tarry.tools.local.runs.report import RunReport
    from tarry.tools.local.session import Beside
    from tarry.tools.local.show.board import Outlook, View

EXAMPLE = """\
tarry local --watch
tarry local --watch --console
tarry local --event events/orders.json --skip-time
tarry local --event events/orders.json --expect committed=8,dead_lettered=2"""


PRINT_ENV = "env"
"""The argument with which the command prints variables; the name of a function that cannot be run alone."""


@dataclass(frozen=True)
class LocalOptions:
    """The functions to run, the SQS that they use, and the end of the run."""

    function: list[str] | None = argument(
        "FUNCTION", "The functions to run; by default all that consume a queue. env: see above."
    )
    event: Path | None = option("--event -e FILE", "An SQS event: send its records, and stop when they have settled.")
    queue: str | None = option(
        "--queue -q NAME",
        "With --event: the queue for records of other queues; by default the only one with a function.",
    )
    template: Path | None = TEMPLATE
    parameter: list[str] | None = PARAMETERS
    config_env: str | None = CONFIG_ENV
    strict_parameters: bool = option(
        "--strict-parameters", "Refuse a parameter without a value, rather than make one up.", False
    )
    env: list[str] | None = ENV
    seed: Path | None = option(
        "--seed FILE", "AWS calls to make before the first message: JSON lines with service, operation and parameters."
    )
    port: int | None = option("--port", "The port of SQS; by default 4576, with --event a free one.", min=0, max=65535)
    allow_host: list[str] | None = option(
        "--allow-host HOST", "Also answer requests to this host name, such as host.docker.internal; repeatable."
    )
    cors: list[str] | None = option(
        "--cors ORIGIN", "Let the web pages of this origin use SQS and the other services; repeatable."
    )
    queues_only: bool = option("--queues-only", "Serve the queues, and run no function.", False)
    endpoint_url: str | None = option("--endpoint-url URL", "Use another SQS; missing queues are created there.")
    watch: bool = option("--watch -w", "Run changed code, and a changed template, at once.", False)
    skip_time: bool = option("--skip-time", "With --event: run in virtual time; hours of retries take seconds.", False)
    expect: str | None = option("--expect STATE=N,...", "The expected final states; exit 1 if they differ.")
    give_up: float | None = option(
        "--give-up SECONDS", "Stop waiting after this time; by default 300 s, with --skip-time 15 days.", min=0
    )
    keep: Path | None = option(
        "--keep FILE", "At the end, write the messages left in the queues, dead letters too, to FILE, as an SQS event."
    )
    with_console: bool = option("--console", "Serve tarry console too: prints its address, which works once.", False)
    console_port: int | None = option(
        "--console-port N", "With --console: its port; by default a free one.", min=0, max=65535
    )
    verbose: bool = option("--verbose -v", "Show the log lines of tarry, with tracebacks.", False)


def local(given: LocalOptions) -> None:
    """Run the queues and functions of a template on this machine, until Ctrl-C.

    SQS is served at http://127.0.0.1:4576 for any AWS SDK or CLI. Each function
    runs in processes of its own, as on Lambda. Nothing reaches AWS, unless
    --endpoint-url names it.

    tarry local env prints the variables with which AWS SDKs use a tarry local
    that runs: eval "$(tarry local env)".

    With --event, the command ends when the messages of the event have settled.

    Exit code with --event: 0 all messages settled, 1 a message was lost or did
    not settle, or the states are not as expected, 130 after Ctrl-C or SIGTERM.
    Without --event: 0 after Ctrl-C or SIGTERM. In all cases: 2 wrong usage.
    """
    if given.function == [PRINT_ENV]:
        _print_env(given.port)
        return
    with libraries("tarry local", "local"):
        import samtranslator  # noqa: F401 reading a SAM template needs it, later

        from tarry.tools.check.start import findings_at_start
        from tarry.tools.local.aws.client import endpoint_of, given_region
        from tarry.tools.local.functions.code import read_overrides
        from tarry.tools.local.plan import RunSettings, make_plan
        from tarry.tools.local.project import template_path
        from tarry.tools.local.runs.report import check_keep
        from tarry.tools.local.samples import read_seed
        from tarry.tools.simulator.http.admission import admission_of

        import_module("tarry.tools.local.runs.virtual" if given.skip_time else "tarry.tools.local.session")
    if given.with_console:
        with libraries("tarry local --console", "console"):
            import jinja2  # noqa: F401

    _check_together(given)
    console = Console(file=sys.stdout, highlight=False)  # bound now: stdout is redirected while a handler runs
    try:
        with refusals():
            other_sqs = endpoint_of(given.endpoint_url, {}) if given.endpoint_url else None
            if other_sqs is not None:
                say_endpoint(other_sqs)
            admission = admission_of(given.allow_host or (), given.cors or ())
            settings = RunSettings(
                template_path(given.template, note),
                given.event,
                functions=tuple(given.function or ()),
                queue=given.queue,
                queues_only=given.queues_only,
                parameters=pairs(given.parameter or [], "--parameter"),
                config_env=given.config_env,
                strict_parameters=given.strict_parameters,
                overrides=read_overrides(given.env or []),
                region=given_region(),
                endpoint_url=other_sqs,
                port=given.port,
                admission=admission,
                watch=given.watch,
                give_up_seconds=given.give_up,
                verbose=given.verbose,
                skip_time=given.skip_time,
                seed=read_seed(given.seed) if given.seed is not None else (),
                keep=given.keep,
                expected=expected_states(given.expect or ""),
            )
            if given.keep is not None:
                check_keep(given.keep)
            plan = make_plan(settings, note)
            warn(findings_at_start(plan.template, plan.all_mappings))
            beside = partial(_serve_console, port=given.console_port or 0) if given.with_console else None
            report = _play(plan, settings, console) if given.skip_time else _run(plan, settings, console, beside)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if report is not None:
        from tarry.tools.local.runs.printing import print_summary

        print_summary(console, report)
        note(report.left)
        if report.missed:
            refuse(report.missed, report.exit_code)
        raise typer.Exit(report.exit_code)


def _print_env(port: int | None) -> None:
    """Print the command that lets AWS SDKs use a `tarry local` that runs."""
    with libraries("tarry local", "local"):
        from tarry.tools.local.aws.client import HOST, endpoint_of, exports_at
        from tarry.tools.local.instances import instance_here

    with refusals():
        url = endpoint_of(f"http://{HOST}:{port}" if port else None, {}, running=instance_here)
        typer.echo(exports_at(str(url)))


def _run(plan: RunPlan, settings: RunSettings, console: Console, beside: Beside | None) -> RunReport | None:
    """Run in real time, with a live view."""
    from tarry.tools.local.runs.report import RunReport
    from tarry.tools.local.session import run
    from tarry.tools.local.show.screen import PlainView, Screen

    if settings.event is not None and not plan.samples:
        return RunReport(expected=settings.expected)
    view: View = Screen(console) if console.is_terminal and not console.is_dumb_terminal else PlainView(sys.stdout)
    return run(plan, settings, view, note, beside)


@asynccontextmanager
async def _serve_console(running: Outlook, *, port: int) -> AsyncIterator[None]:
    """Serve the console of a `tarry local` within the context, and print its address."""
    from tarry.tools.cli.console import on_enter
    from tarry.tools.console.beside import serving_beside
    from tarry.tools.simulator.http.server import PortTaken

    async with AsyncExitStack() as stack:
        try:
            served = await stack.enter_async_context(serving_beside(running, port))
        except PortTaken as error:
            raise UsageError(f"{error}; give the console another port (--console-port N)") from error

        def print_address() -> None:
            running.cloud.note(
                f"Console, at an address that works once (press Enter for another):\n{served.address()}", ""
            )

        loop = asyncio.get_running_loop()
        loop.call_soon(print_address)  # after the hints for the terminal: the last lines stay on a small screen
        on_enter(print_address, loop)
        yield


def _play(plan: RunPlan, settings: RunSettings, console: Console) -> RunReport:
    """Run in virtual time, then print the timeline."""
    from tarry.tools.local.runs.printing import print_timeline
    from tarry.tools.local.runs.virtual import play
    from tarry.tools.local.stories import keep_stories

    began = time.monotonic()
    played = play(plan, settings, note)
    print_timeline(console, played.report.messages, played.output, played.began)
    keep_stories(plan.template.path, played.stories)
    if played.problem:
        refuse(f"{played.problem}\nTo run in real time, leave out --skip-time.", 1)
    return replace(played.report, seconds=time.monotonic() - began)


def _check_together(given: LocalOptions) -> None:  # noqa: C901 the options that exclude each other
    for is_set, name in (
        (given.queue, "--queue"),
        (given.skip_time, "--skip-time"),
        (given.expect, "--expect"),
        (given.give_up is not None, "--give-up"),
    ):
        if is_set and given.event is None:
            raise typer.BadParameter(f"{name} needs an event: add --event FILE")
    for is_set, name in (
        (given.endpoint_url, "--endpoint-url"),
        (given.port is not None, "--port"),
        (bool(given.allow_host or given.cors), "--allow-host and --cors"),
    ):
        if is_set and given.skip_time:
            raise typer.BadParameter(f"{name} cannot be combined with --skip-time, which needs no address for SQS")
    if given.queues_only and (given.event is not None or given.function):
        raise typer.BadParameter("--queues-only runs no function: leave out --event and the names of functions")
    if given.watch and given.event is not None:
        raise typer.BadParameter("--watch cannot be combined with --event, which ends when its messages have settled")
    if given.keep is not None and given.endpoint_url is not None:
        raise typer.BadParameter("--keep cannot be combined with --endpoint-url: the messages stay in that SQS")
    if given.seed is not None and given.endpoint_url is not None:
        raise typer.BadParameter("--seed cannot be combined with --endpoint-url: make the calls there yourself")
    if given.console_port is not None and not given.with_console:
        raise typer.BadParameter("--console-port needs --console: add it")
    if given.with_console and given.event is not None:
        raise typer.BadParameter("--console cannot be combined with --event, which ends when its messages have settled")
    if given.with_console and given.endpoint_url is not None:
        raise typer.BadParameter(
            "--console cannot be combined with --endpoint-url: use tarry console --endpoint-url URL"
        )
    if given.keep is not None and given.keep == given.event:
        raise typer.BadParameter("--keep would overwrite the event: name another file")
