"""What is wrong with a batch request as a whole, and what with one entry of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs.errors import SqsError
from tarry.sqs.limits import MAX_ENTRIES, MAX_REQUEST_BYTES, message_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PREFIX = "AWS.SimpleQueueService."
_ENTRY_ID = re.compile("[A-Za-z0-9_-]{1,80}")

Entry = dict[str, Any]


def check_batch(entries: Sequence[Mapping[str, Any]], entry_type: str) -> None:
    """Raises `SqsError` for a batch that is refused as a whole."""
    if not entries:
        text = f"There should be at least one {entry_type} in the request."
        raise SqsError(_PREFIX + "EmptyBatchRequest", text)
    if len(entries) > MAX_ENTRIES:
        text = f"Maximum number of entries per request are {MAX_ENTRIES}. You have sent {len(entries)}."
        raise SqsError(_PREFIX + "TooManyEntriesInBatchRequest", text)
    seen: set[str] = set()
    for entry in entries:
        if not _ENTRY_ID.fullmatch(entry["Id"]):
            text = (
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long."
            )
            raise SqsError(_PREFIX + "InvalidBatchEntryId", text)
        if entry["Id"] in seen:
            raise SqsError(_PREFIX + "BatchEntryIdsNotDistinct", f"Id {entry['Id']} repeated.")
        seen.add(entry["Id"])


def check_batch_size(entries: Sequence[Mapping[str, Any]]) -> None:
    """Raises `SqsError` for messages that are too large together."""
    size_bytes = sum(message_size(entry["MessageBody"], _sizable(entry)) for entry in entries)
    if size_bytes > MAX_REQUEST_BYTES:
        text = f"Batch requests cannot be longer than {MAX_REQUEST_BYTES} bytes. You have sent {size_bytes} bytes."
        raise SqsError(_PREFIX + "BatchRequestTooLong", text)


def _sizable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Its attributes that have a value; one without is the entry's own fault, found later."""
    attributes: dict[str, Any] = entry.get("MessageAttributes") or {}
    return {name: each for name, each in attributes.items() if "StringValue" in each or "BinaryValue" in each}


def each_by_itself(entries: Sequence[Entry], act: Callable[[Entry], Entry]) -> dict[str, list[Entry]]:
    """The answer to a batch: what ``act`` makes of each entry, and those that it refuses as ``Failed``."""
    successful: list[Entry] = []
    failed: list[Entry] = []
    for entry in entries:
        try:
            successful.append({"Id": entry["Id"], **act(entry)})
        except SqsError as error:
            fault = {"SenderFault": error.sender_fault, "Code": error.code, "Message": error.message}
            failed.append({"Id": entry["Id"], **fault})
    return {"Successful": successful, "Failed": failed}
