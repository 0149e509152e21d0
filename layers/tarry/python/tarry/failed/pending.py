"""The messages that wait for a retry, from the tables of ``attempts=``."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from tarry.failed.queue_names import stack_resources
from tarry.failed.usage import UsageError
from tarry.record.attempt_store import DynamoDBAttempts
from tarry.record.attribute import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Record = dict[str, Any]

LATEST = 253_402_300_799
"""The last second of the year 9999, in epoch seconds."""
KIND = "AWS::DynamoDB::Table"


def tables_of_stack(cloudformation: Any, stack: str) -> tuple[str, ...]:
    """Return the names of a deployed stack's tables of attempts. Raises `UsageError`."""
    if not (found := attempts_tables(stack_resources(cloudformation, stack, KIND))):
        raise UsageError(f"stack {stack} has no table with Attempts in its logical id: name the table (--table NAME)")
    return found


def attempts_tables(tables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the tables of attempts among tables by logical id."""
    return tuple(name for logical_id, name in tables.items() if "attempts" in logical_id.lower())


def pending(tables: Iterable[str], dynamodb: Any, queue: str | None = None) -> list[Record]:
    """Return the messages that wait for a retry, as JSON objects; those that are tried next come first.

    Args:
        tables: The names of the tables.
        dynamodb: A boto3 client, which scans the tables.
        queue: The name of the only queue whose messages are returned.

    Raises:
        UsageError: A table does not exist.
    """
    records = (record for each in tables for record in _records_of(each, dynamodb))
    found = [record for record in records if _is_pending(record) and queue in (None, record.get("queue"))]
    found.sort(key=lambda record: record["next_try"])
    return [_as_json(record) for record in found]


def is_due(record: Record) -> bool:
    """Return whether a pending message may be delivered at any time."""
    return bool(record["next_try"] <= timestamp(time.time()))


def why(record: Record) -> str:
    return " ".join((record["error"] or str(record["state"]).lower()).split())


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


def _as_json(record: Mapping[str, Any]) -> Record:
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
