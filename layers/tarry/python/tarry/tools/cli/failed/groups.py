"""`tarry failed` without a verb, and `tarry failed show --group-by`: what died, how many, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.padding import Padding
from rich.text import Text

from tarry.failed.groups import Group, GroupBy, GroupCounts, causes, counting
from tarry.failed.wording import count_of, period
from tarry.sqs.refusals import MAX_ENTRIES
from tarry.tools.cli.errors import note, refuse
from tarry.tools.cli.failed.rendering import (
    cause_table,
    group_json,
    group_options,
    group_table,
    print_lines,
    queue_options,
    result_console,
    rounded,
)
from tarry.tools.cli.failed.reporting import ProgressReport, write_json
from tarry.tools.cli.failed.session import CommandSession, session
from tarry.tools.cli.options import AS_JSON, KEEPALIVE, TargetOptions, option

if TYPE_CHECKING:
    from tarry.failed import DeadLetterQueue, Selection

SAMPLE = 1_000
"""The dead letters of each queue that a summary looks at."""
SHOWN_IN_SUMMARY = 5
"""The groups of each queue that a summary shows."""
SHOWN_CAUSES = 10
MANY = 10_000
"""The number of dead letters from which the cost of a scan is said before it."""


def summary(
    context: typer.Context,
    options: TargetOptions,
    sample: int = option("--sample N", "Look at about N dead letters of each queue.", SAMPLE, min=1),
    as_json: bool = AS_JSON,
    keepalive: float = KEEPALIVE,
) -> None:
    """Inspect dead letters, send them back to their queues, remove and restore them.

    Without a command: what died, how many, since when, and how often, for all
    dead-letter queues of the template or the stack.

    Without --local, --aws, --stack or --endpoint-url: the queues of the `tarry local`
    that runs the template in this directory, or else of AWS. The first line says which.
    """
    if context.invoked_subcommand is not None:
        if any(_is_given(context, name) for name in context.params):
            refuse(f"options go after the command: tarry failed {context.invoked_subcommand} [OPTIONS]")
        return
    with session(options, keepalive=keepalive) as run:
        _summarize(run, sample, as_json=as_json)
        run.exit(0)


def _summarize(run: CommandSession, sample: int, *, as_json: bool) -> None:
    counted: list[tuple[DeadLetterQueue, list[Group]]] = []
    for queue in run.queues:
        groups, scanned = _counted(run, queue, "fingerprint", None, sample) if queue.about else ([], 0)
        if as_json:
            write_json(_summary_json(queue, scanned, groups))
        elif queue.about:
            _print_summary(queue, scanned, groups)
        counted.append((queue, groups))
        if run.stopping():
            break
    if not as_json and (empty := [queue.name for queue, _ in counted if not queue.about]):
        result_console().print(Text(f"no dead letters: {', '.join(empty)}", "dim"))
    _conclude(run, counted, as_json=as_json)


def show_groups(run: CommandSession, by: GroupBy, selection: Selection, *, sample: int | None, as_json: bool) -> int:
    """Write the groups of the selected dead letters of each queue; return how many were counted."""
    counted: list[tuple[DeadLetterQueue, list[Group]]] = []
    for queue in run.queues:
        if sample is None and queue.about >= MANY:
            requests = -(-queue.about // MAX_ENTRIES)
            note(
                f"{queue}: about {requests:,} requests to receive about {queue.about:,} dead letters, and as many to "
                f"release them; for a first look: --sample {SAMPLE}"
            )
        groups, scanned = _counted(run, queue, by, selection, sample)
        if as_json:
            for group in groups:
                write_json(group_json(queue.name, group))
        elif groups:
            about = "" if scanned >= queue.about else f" (of a sample of {scanned:,})"
            console = result_console()
            console.print(Text(f"{queue}: {count_of(sum(each.count for each in groups))} by {by}{about}", "bold"))
            print_lines(console, group_table(groups))
        else:
            note(f"{queue}: no dead letters to show")
        counted.append((queue, groups))
        if run.stopping():
            break
    _conclude(run, counted, as_json=as_json)
    return sum(group.count for _, groups in counted for group in groups)


def _counted(
    run: CommandSession, queue: DeadLetterQueue, by: GroupBy, selection: Selection | None, sample: int | None
) -> tuple[list[Group], int]:
    """Receive the dead letters of a queue into groups; return these, the largest first, and how many were received."""
    found, progress = GroupCounts(by), ProgressReport(run.guidance)
    with run.opened(queue) as inspection:
        try:
            for _ in counting(inspection, found, selection, sample=sample):
                progress.show(queue.name, inspection.scanned, min(queue.about, sample or queue.about))
        finally:
            progress.clear()
    return found.largest_first(), inspection.scanned


def _print_summary(queue: DeadLetterQueue, scanned: int, groups: list[Group]) -> None:
    console = result_console()
    console.print(Text(f"{queue}: about {count_of(max(queue.about, scanned))}", "bold"))
    if groups:
        console.print(Text(period(_together(groups, queue.about, scanned))))
        if scanned < queue.about:
            console.print(Text(f"Of a sample of {scanned:,}:", "dim"))
        print_lines(console, Padding(group_table(groups[:SHOWN_IN_SUMMARY]), (0, 0, 0, 2)))
    if len(groups) > SHOWN_IN_SUMMARY:
        console.print(Text(f"and {len(groups) - SHOWN_IN_SUMMARY} more groups", "dim"))


def _together(groups: list[Group], about: int, scanned: int) -> Group:
    """Return all groups as one; of a sample, with the number that the queue has."""
    count = about if scanned < about else sum(group.count for group in groups)
    first = min(filter(None, (group.first for group in groups)), default=None)
    last = max(filter(None, (group.last for group in groups)), default=None)
    return Group(groups[0].by, None, count, first, last, groups[0].example, None)


def _summary_json(queue: DeadLetterQueue, scanned: int, groups: list[Group]) -> dict[str, Any]:
    together = _together(groups, queue.about, scanned) if groups else None
    return {
        "queue": queue.name,
        "about": max(queue.about, scanned),
        "scanned": scanned,
        "first": together and together.first,
        "last": together and together.last,
        "per_minute": together and rounded(together.per_minute),
        "groups": [group_json(queue.name, group) for group in groups],
    }


def _conclude(run: CommandSession, counted: list[tuple[DeadLetterQueue, list[Group]]], *, as_json: bool) -> None:
    """Write the causes and the total, if several queues have dead letters, and the commands to type next.

    These show one dead letter of the largest group, and retry some of the group.
    """
    if not as_json and sum(bool(groups) for _, groups in counted) > 1:
        found = causes((queue.name, groups) for queue, groups in counted)
        by = found[0].groups[0][1].by
        console, total = result_console(), sum(cause.count for cause in found)
        scope = "all queues" if total >= sum(queue.about for queue, _ in counted) else "the samples of all queues"
        console.print(Text(f"{count_of(total)} in {scope}, by {'cause' if by == 'fingerprint' else by}", "bold"))
        print_lines(console, Padding(cause_table(found[:SHOWN_CAUSES]), (0, 0, 0, 2)))
        if len(found) > SHOWN_CAUSES:
            console.print(Text(f"and {len(found) - SHOWN_CAUSES} more", "dim"))
    largest = [(queue, groups[0]) for queue, groups in counted if groups]
    if largest:
        queue, group = max(largest, key=lambda each: each[1].count)
        where = queue_options(queue.name, run.where)
        note("To look at one, and to retry the group after the fix, ten of it first:")
        note(f"  tarry failed show {group.example} {where}")
        note(f"  tarry failed retry {group_options(group)} --canary 10 {where}")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
