"""`tarry failed show --pending`: the messages that wait for a retry, from the table of ``attempts=``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tarry.failed.pending import Record, is_due, pending, tables_of_stack, why
from tarry.failed.queue_names import queue_name
from tarry.failed.text import printable
from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import note
from tarry.tools.cli.failed.rendering import result_console, shortened_ids
from tarry.tools.cli.failed.reporting import write_json
from tarry.tools.cli.failed.targets import AwsAccess, in_project

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tarry.tools.cli.failed.targets import TargetOptions


def show_pending(where: TargetOptions, table: str | None, most: int, *, as_json: bool) -> None:
    """Print the messages that wait for a retry, those that are tried next first.

    Raises:
        UsageError: The table is not known.
    """
    where = where if table else in_project(where)
    account = AwsAccess(where)
    account.say_place("dynamodb")
    tables = (table,) if table else _tables_of(where.stack, account)
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


def _tables_of(stack: str | None, account: AwsAccess) -> tuple[str, ...]:
    if stack is None:
        raise UsageError("--pending reads the table of attempts=: name it (--table NAME), or its stack (--stack NAME)")
    return tables_of_stack(account.client("cloudformation"), stack)


def _rendered(records: Sequence[Record], width: int) -> Table:
    ids = [printable(str(record["id"])) for record in records]
    found = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("id", "queue", "attempt", "error", "next try (UTC)"):
        wraps = title == "error"
        found.add_column(title, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis", ratio=1 if wraps else None)
    for own_id, row in zip(ids if width > 120 else shortened_ids(ids), _rows(records), strict=True):
        found.add_row(Text(own_id), *map(Text, row))
    return found


def _rows(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    for record in records:
        when = "due" if is_due(record) else record["next_try"][:19].replace("T", " ")
        yield tuple(map(printable, (str(record["queue"]), str(record["attempt"]), why(record), when)))
