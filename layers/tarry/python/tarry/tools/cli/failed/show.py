"""`tarry failed` without a verb, and `tarry failed show`: dead letters, their groups, and what waits for a retry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tarry import failed
from tarry.failed import DeadLetterMessage, DeadLetterQueue, Selection
from tarry.failed.groups import Group, GroupBy, GroupCounts, causes, counting, period
from tarry.failed.pending import Record, is_due, pending, tables_of_stack, why
from tarry.failed.queue_names import queue_name
from tarry.failed.selection import MAX_SHOWN
from tarry.failed.text import count_of, printable
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import MAX_ENTRIES
from tarry.tools.cli.errors import note, refusals, refuse
from tarry.tools.cli.failed.rendering import (
    cause_table,
    details,
    group_json,
    group_options,
    group_table,
    print_lines,
    queue_options,
    result_console,
    rounded,
    shortened_ids,
    table,
)
from tarry.tools.cli.failed.session import CommandSession, ProgressReport, session, write_json
from tarry.tools.cli.failed.targets import AwsAccess, in_project
from tarry.tools.cli.options import AS_JSON, KEEPALIVE, Grouping, Selected, TargetOptions, option


def show_pending(where: TargetOptions, table: str | None, most: int, *, as_json: bool) -> None:
    """Print the messages that wait for a retry, those that are tried next first. Raises `UsageError`."""
    where = where if table else in_project(where)
    account = AwsAccess(where)
    account.say_place("dynamodb")
    if table is None and where.stack is None:
        raise UsageError("--pending reads the table of attempts=: name it (--table NAME), or its stack (--stack NAME)")
    tables = (table,) if table else tables_of_stack(account.client("cloudformation"), str(where.stack))
    found = pending(tables, account.client("dynamodb"), where.queue and queue_name(where.queue))
    shown = found[:most]
    if as_json:
        for record in shown:
            write_json(record)
    elif shown:
        console = result_console()
        console.print(_rendered(shown, console.width))
    more = f"; {len(found) - most:,} more (--max)" if len(found) > most else ""
    note(f"{', '.join(tables)}: {len(shown):,} message{'s'[: len(shown) != 1]} pending{more}")


def _rendered(records: Sequence[Record], width: int) -> Table:
    ids = [printable(str(record["id"])) for record in records]
    found = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("id", "queue", "attempt", "error", "next try (UTC)"):
        wraps = title == "error"
        found.add_column(title, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis", ratio=1 if wraps else None)
    for own_id, record in zip(ids if width > 120 else shortened_ids(ids), records, strict=True):
        when = "due" if is_due(record) else record["next_try"][:19].replace("T", " ")
        row = map(printable, (str(record["queue"]), str(record["attempt"]), why(record), when))
        found.add_row(Text(own_id), *map(Text, row))
    return found


EXAMPLE = """\
tarry failed show --queue orders-dlq
tarry failed show 636e0ad2 --queue orders-dlq
tarry failed show 636e0ad2 --queue orders-dlq --pytest > tests/test_1.py
tarry failed show --queue orders-dlq --group-by fingerprint --since 2h
tarry failed show --pending --stack shop"""


def show(  # noqa: PLR0913 the options of the command
    *,
    options: TargetOptions,
    chosen: Selected,
    group_by: Grouping | None = option(
        "--group-by fingerprint|error|type|queue|reason", "Count the dead letters in groups, instead of listing them."
    ),
    sample: int | None = option("--sample N", "With --group-by: look at about N of each queue.", min=1),
    most: int = option("--max N", "Show at most N dead letters of each queue.", MAX_SHOWN, min=1),
    as_json: bool = AS_JSON,
    as_event: bool = option("--event", "Print the SQS event that the function would get.", False),
    as_test: bool = option("--pytest", "With ids: print a test file that fails as the message did.", False),
    is_pending: bool = option(
        "--pending", "Show the messages that wait for a retry, from the table of attempts=.", False
    ),
    attempts_table: str | None = option("--table NAME", "The table of --pending; by default that of the stack."),
    keepalive: float = KEEPALIVE,
) -> None:
    """Show the dead letters in a queue and why they failed; with ids, all details of each.

    With --group-by, count them in groups, with the command to type next.

    SQS can show a message only by delivering it: dead letters are invisible to
    other consumers during the inspection, and released when it ends.

    Exit code: 0 success, 1 an id or a group was not found, 2 wrong usage.
    """
    with refusals(aws=True):
        selection = chosen.selection()
        formats = {"--json": as_json, "--event": as_event, "--pytest": as_test}
        form = _checked_form(selection, group_by, sample, [name for name, is_given in formats.items() if is_given])
        if attempts_table and not is_pending:
            raise UsageError("--table is the table of --pending: add --pending, or leave it out")
        if is_pending:
            if selection.ids or selection.is_filter or group_by or form not in {"", "--json"}:
                raise UsageError("--pending takes only --table, --stack, --queue, --max and --json")
            return show_pending(options, attempts_table, most, as_json=as_json)
    with session(options, keepalive=keepalive, needs_handlers=as_test) as run:
        if selection.ids:
            run.exit(_show_found(run, selection.ids, form))
        if group_by is not None:
            count = show_groups(run, group_by.value, selection, sample=sample, as_json=as_json)
            run.exit(run.report_no_match(selection, count))
        shown: list[DeadLetterMessage] = []
        for found in run.queues:
            with run.opened(found) as inspection:
                dead_letters = failed.show(inspection, selection, most).dead_letters
            shown += dead_letters
            if not as_event:
                _print(dead_letters, found.name, as_json=as_json)
            if run.stopping():
                break
        if as_event:
            write_json(failed.as_event(shown))
        run.exit(run.report_no_match(selection, len(shown)))


def _checked_form(selection: Selection, group_by: Grouping | None, sample: int | None, given: list[str]) -> str:
    """Return the option for the form of the output, or an empty text. Raises `UsageError` for a wrong combination."""
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined: give one of them")
    form = given[0] if given else ""
    if group_by is None and sample is not None:
        raise UsageError("--sample needs --group-by: --max limits a list")
    if group_by is not None and selection.ids:
        raise UsageError("--group-by counts dead letters: it cannot be combined with ids")
    if group_by is not None and form not in {"", "--json"}:
        raise UsageError(f"--group-by counts dead letters: it cannot be combined with {form}")
    if form == "--pytest" and not selection.ids:
        raise UsageError("--pytest needs ids: name the dead letters that become tests")
    return form


def _show_found(run: CommandSession, ids: tuple[str, ...], form: str) -> int:
    """Show the dead letters with these ids; return the exit code."""
    with run.found(ids) as found:
        dead_letters = list(dict.fromkeys(each.dead_letter for each in found.values()))
    if form == "--event":
        write_json(failed.as_event(dead_letters))
    elif form == "--pytest":
        from tarry.tools.local.dead_letter_tests import test_file

        if dead_letters:
            sys.stdout.write(test_file(dead_letters, run.targets.template, run.targets.template_names))
    elif form == "--json":
        for dead_letter in dead_letters:
            write_json(failed.as_json(dead_letter))
    else:
        console = result_console()
        for dead_letter in dead_letters:
            console.print(details(dead_letter))
            console.print()
    missing = [] if run.stopping() else [each for each in ids if each not in found]
    for each in missing:
        note(f"tarry: dead letter {each!r} was not found in {run.queue_names}")
    return bool(missing)


def _print(dead_letters: Sequence[DeadLetterMessage], queue: str, *, as_json: bool) -> None:
    if as_json:
        for dead_letter in dead_letters:
            write_json(failed.as_json(dead_letter))
    elif dead_letters:
        console = result_console()
        console.print(Text(queue, "bold"))
        console.print(table(dead_letters, console.width))
    else:
        note(f"{queue}: no dead letters to show")


# groups

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
    sources = {source.name for queue, _ in counted for source in queue.sources or ()}
    for name, text in () if as_json else run.account.suspensions().items():
        if name in sources:
            result_console().print(Text(f"{name}: {text}"))
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
        note("To look at one; and, after the fix, to retry the group, with ten of its messages first:")
        note(f"  tarry failed show {group.example} {where}")
        note(f"  tarry failed retry {group_options(group)} --canary 10 {where}")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
