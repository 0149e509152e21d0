"""`tarry failed show --pending`: the messages that wait for a retry, from the table of ``attempts=``."""

from __future__ import annotations

import math
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tarry.attempts.dynamodb import DynamoDBAttempts
from tarry.cli.errors import note
from tarry.cli.failed.rendering import result_console, shortened_ids
from tarry.cli.failed.reporting import write_json
from tarry.cli.failed.targets import AwsAccess, in_project
from tarry.envelope.attribute import timestamp
from tarry.tooling.errors import UsageError
from tarry.tooling.logical_ids import stack_resources
from tarry.tooling.queues import queue_name
from tarry.tooling.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tarry.cli.failed.targets import TargetOptions

Record = dict[str, Any]

LATEST = 253_402_300_799
"""The last second of the year 9999, in epoch seconds."""


def show_pending(where: TargetOptions, table: str | None, most: int, *, as_json: bool) -> None:
    """Print the messages that wait for a retry, those that are tried next first.

    Raises:
        UsageError: The table is not known.
    """
    where = where if table else in_project(where)
    account = AwsAccess(where)
    tables = (table,) if table else _tables_of(where.stack, account)
    client, queue = account.client("dynamodb"), where.queue and queue_name(where.queue)
    records = (record for each in tables for record in _records_of(each, client))
    found = [record for record in records if _is_pending(record) and queue in (None, record.get("queue"))]
    found.sort(key=lambda record: record["next_try"])
    shown = list(islice(map(_shown, found), most))
    if as_json:
        for record in shown:
            write_json(record)
    elif shown:
        console = result_console()
        console.print(_rendered(shown, console.width))
    more = f"; {len(found) - most:,} more (--max)" if len(found) > most else ""
    note(f"{', '.join(tables)}: {len(shown):,} message{'s'[: len(shown) != 1]} pending{more}")


def _records_of(table: str, client: Any) -> Iterator[Mapping[str, Any]]:
    try:
        yield from DynamoDBAttempts(table, client=client).open_records()
    except client.exceptions.ResourceNotFoundException as error:
        raise UsageError(
            f"there is no table {table} in {client.meta.region_name}: check the name, and --region"
        ) from error


def _is_pending(record: Mapping[str, Any]) -> bool:
    """Return whether tarry wrote a record, and its message may still be in the queue: DynamoDB expires items late."""
    next_try, expires = record.get("next_try"), record.get("expires", math.inf)
    if not (isinstance(next_try, int | float) and isinstance(expires, int | float)):
        return False
    return 0 <= next_try <= LATEST and expires > time.time()


def _tables_of(stack: str | None, account: AwsAccess) -> tuple[str, ...]:
    if stack is None:
        raise UsageError("--pending reads the table of attempts=: name it (--table NAME), or its stack (--stack NAME)")
    tables = stack_resources(account.client("cloudformation"), stack, "AWS::DynamoDB::Table")
    if not (found := tuple(name for logical_id, name in tables.items() if "attempts" in logical_id.lower())):
        raise UsageError(f"stack {stack} has no table with Attempts in its logical id: name the table (--table NAME)")
    return found


def _shown(record: Mapping[str, Any]) -> Record:
    """Return a record as ``--json`` has it."""
    failure: Any = record.get("failure")
    failure = failure if isinstance(failure, dict) else {}
    error = ": ".join(str(failure[name]) for name in ("type", "message") if failure.get(name))
    return {
        "id": record.get("message"),
        "queue": record.get("queue"),
        "state": record.get("state"),
        "attempt": record.get("attempt"),
        "error": error or None,
        "fingerprint": failure.get("fingerprint"),
        "next_try": timestamp(record["next_try"]),
        "history": record.get("history") or [],
    }


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
    now = timestamp(time.time())
    for record in records:
        why = record["error"] or str(record["state"]).lower()
        when = "due" if record["next_try"] <= now else record["next_try"][:19].replace("T", " ")
        yield tuple(map(printable, (str(record["queue"]), str(record["attempt"]), " ".join(why.split()), when)))
