"""`tarry plan`: the timeline of a retry policy, and the queue during an outage."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tarry.tools.cli.errors import libraries, note, refusals
from tarry.tools.cli.options import ProjectOptions, argument, option

if TYPE_CHECKING:
    from tarry.tools.plan.request import PlanSubject
    from tarry.tools.plan.simulation import Load, LoadResult, LoadRun

EXAMPLE = """\
tarry plan OrdersFunction
tarry plan --backoff 'Exponential(30, 3, 900, jitter="equal")'
tarry plan OrdersFunction --rate 50/s --failing 20% --outage 15m
tarry plan OrdersFunction --rate 50/s --outage 45m --guard
tarry plan OrdersFunction --svg plan.svg"""


def plan(  # noqa: PLR0913 the options of the command
    *,
    function: str | None = argument(
        "FUNCTION",
        "The logical id or name of a function of the template, or module.attribute of a consumer; by default "
        "the template's only function with a queue.",
    ),
    backoff: str | None = option(
        "--backoff EXPRESSION",
        "A backoff instead of a function: Fixed, Linear, Exponential or Schedule with its arguments.",
    ),
    max_attempts: int | None = option(
        "--max-attempts N", "With --backoff: the attempts; by default 5.", min=1, max=1000
    ),
    queue: str | None = option("--queue -q NAME", "Only this queue of the function."),
    rate: str | None = option("--rate RATE", "Simulate a load, such as 50/s or 3000/h; with --outage."),
    failing: str = option("--failing SHARE", "The share of messages that fail during the outage.", "100%"),
    outage: str | None = option("--outage TIME", "How long they fail, such as 90s, 15m or 2h."),
    handler_time: str = option("--handler-time TIME", "The time of the handler for a message.", "100ms"),
    guard: bool = option("--guard", "Simulate the load with the outage guard as well; with --rate.", False),
    svg: Path | None = option("--svg FILE", "Write the picture to FILE, as SVG."),
    as_json: bool = option("--json", "Print one JSON object for each queue.", False),
    project: ProjectOptions,
) -> None:
    """Show when a message that fails is tried again, and where it ends.

    The function's code is imported in a process of its own, and its handler does
    not run. The times are those of the delays alone. A function without tarry is
    shown as it is, and below that with tarry's defaults.

    With --rate and --outage, the queue is simulated during an outage, with five
    seeds: how many messages wait, when the queue is drained, what is
    dead-lettered, and what it costs in requests and dollars. After the outage,
    all attempts succeed. --guard adds the same load with the function that
    suspends the consumer during an outage.

    Exit code: 0 success, 2 wrong usage, or code that cannot be imported.
    """
    with libraries("tarry plan", "local"):
        import samtranslator  # noqa: F401 reading a SAM template needs it, later

        from tarry.failed.usage import UsageError
        from tarry.tools.plan.drawing import check_directory
        from tarry.tools.plan.request import check_load, load_of, subjects_of

    try:
        with refusals():
            check_directory(svg)
            load = load_of(rate, failing, outage, handler_time)
            if guard and load is None:
                raise UsageError("--guard needs a load and an outage: add --rate 50/s --outage 45m")
            subjects = subjects_of(
                function,
                backoff,
                max_attempts,
                queue,
                template=project.template,
                parameters=project.parameters,
                config_env=project.config_env,
                env=project.env or [],
                note=note,
            )
            check_load(load, subjects, has_svg=svg is not None)
            _show(subjects, load, svg, guard=guard, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _show(subjects: "list[PlanSubject]", load: "Load | None", svg: Path | None, *, guard: bool, as_json: bool) -> None:
    from tarry.tools.plan.text import document, load_text, timeline_text

    for place, subject in enumerate(subjects):
        if not as_json:
            typer.echo(("\n\n" if place else "") + timeline_text(subject.timeline, subject.today))
        result = None if load is None else _simulated(subject, load)
        guarded = _simulated(subject, load, guard=True) if load is not None and guard else None
        if as_json:
            typer.echo(json.dumps(document(subject, result, guarded)))
        else:
            for each in (result, guarded):
                if each is not None:
                    typer.echo(f"\n{load_text(each)}")
        if not as_json:
            sys.stdout.flush()
            warnings = subject.warnings(result)
            for warning in warnings:
                note(f"\nWarning: {warning}" if warning == warnings[0] else f"Warning: {warning}")
        if svg is not None:
            from tarry.tools.plan.drawing import write_picture

            write_picture(svg, subject, result, guarded)


def _simulated(subject: "PlanSubject", load: "Load", *, guard: bool = False) -> "LoadResult":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from tarry.guard.decision import GuardLimits
    from tarry.tools.plan.simulation import SEEDS, LoadResult, longest_recovery, simulate

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    expected = longest_recovery(load, subject.timeline)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("Simulating", total=SEEDS * expected)

        def run(seed: int) -> "LoadRun":
            def follow(seconds: float) -> None:
                progress.update(task, completed=seed * expected + min(seconds, expected))

            limits = GuardLimits() if guard else None
            return simulate(load, subject.timeline, subject.consuming, seed, follow, guard=limits)

        runs = [run(seed) for seed in range(SEEDS)]
    return LoadResult(load, subject.consuming, runs, guard)
