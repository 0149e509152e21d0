"""`tarry failed show`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tarry import failed
from tarry.failed.pending import Record, is_due, pending, tables_of_stack, why
from tarry.failed.queue_names import queue_name
from tarry.failed.selection import MAX_SHOWN
from tarry.failed.text import printable
from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import note, refusals
from tarry.tools.cli.failed.groups import show_groups
from tarry.tools.cli.failed.rendering import details, result_console, shortened_ids, table
from tarry.tools.cli.failed.reporting import write_json
from tarry.tools.cli.failed.session import CommandSession, session
from tarry.tools.cli.failed.targets import AwsAccess, in_project
from tarry.tools.cli.options import AS_JSON, KEEPALIVE, Grouping, Selected, TargetOptions, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.failed import DeadLetterMessage, Selection


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
