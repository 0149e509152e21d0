"""Cutting a `Tarry` attribute so that it fits beside its message, the least important keys first (SPEC F3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tarry.envelope.attribute import ESSENTIAL, dump

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_CHARACTER_BYTES = 12
"""The longest escape of one character in ASCII JSON: two of six bytes for a character beyond U+FFFF."""
FLOORS_BYTES = ((1_024, 256), (512, 128), (256, 64), (0, 0))
"""The sizes down to which the traceback and the message are cut, so that both keep a part."""


def fit(record: Mapping[str, Any], room_bytes: int) -> str | None:
    """Return ``record`` as JSON of at most ``room_bytes``; None if even the smallest version does not fit.

    First the top of the traceback is cut, so that the innermost frames stay; then the end of the message and of a
    verdict's text. Each keeps a minimum size, so that a huge text does not displace the frames. Then the history is
    left out, then the dict of ``enrich``; then the minimum sizes shrink.
    """
    record = _without_excess(record, room_bytes)
    text = dump(record)
    if len(text) <= room_bytes:
        return text
    return next((text for shorter in _cut(record, room_bytes) if len(text := dump(shorter)) <= room_bytes), None)


def _without_excess(record: Mapping[str, Any], room_bytes: int) -> Mapping[str, Any]:
    """Return the record with its message cut to the characters that would fit if nothing else were in the record.

    An error's message may be far larger than the room, and each of the next steps writes it as JSON.
    """
    failure = record.get("failure")
    if not isinstance(failure, dict) or room_bytes <= 0:
        return record
    message = failure.get("message")
    if not isinstance(message, str) or len(message) * MAX_CHARACTER_BYTES <= room_bytes:
        return record
    most = _most(message, room_bytes) + 1  # one too many, so that a later step cuts it and adds an ellipsis
    return record if len(message) <= most else {**record, "failure": {**failure, "message": message[:most]}}


def _cut(record: Mapping[str, Any], room_bytes: int) -> Iterator[Mapping[str, Any]]:
    """Yield smaller and smaller versions of the record."""
    without_history = {name: value for name, value in record.items() if name != "history"}
    bare = {name: record[name] for name in (*ESSENTIAL, "failure") if name in record}
    for kept in (record, without_history, bare):
        yield _shortened(kept, *FLOORS_BYTES[0], room_bytes)
    for floors in FLOORS_BYTES[1:]:
        yield _shortened(bare, *floors, room_bytes)
    yield smallest(record)


def smallest(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest version of a record: id, origin, counters, and the reason without texts."""
    failure = record.get("failure") or {}
    kept = {name: failure[name] for name in ("reason", "attempts", "attempts_at_most", "failed_at") if name in failure}
    return {name: record[name] for name in ESSENTIAL if name in record} | {"failure": kept}


def _shortened(
    record: Mapping[str, Any], traceback_floor: int, message_floor: int, room_bytes: int
) -> Mapping[str, Any]:
    """Return the record with its traceback, then its message, cut as far as needed, at most to their floors."""
    failure = dict(record.get("failure") or {})
    shorter = {**record, "failure": failure}
    for field, floor, cut in (
        ("traceback", traceback_floor, _last_frames),
        ("message", message_floor, _beginning),
        ("said", message_floor, _beginning),
    ):
        text = failure.get(field)
        excess = len(dump(shorter)) - room_bytes
        if excess > 0 and isinstance(text, str):
            failure[field] = cut(text, max(floor, _json_bytes(text) - excess))
            if not failure[field]:
                del failure[field]
    return shorter


def _json_bytes(text: str) -> int:
    return len(json.dumps(text)) - 2


def _beginning(text: str, budget_bytes: int) -> str:
    if len(text) <= budget_bytes and _json_bytes(text) <= budget_bytes:
        return text
    kept = _most(text, budget_bytes - len("..."))
    return text[:kept] + "..." if kept else ""


_FRAME = '  File "'


def _last_frames(text: str, budget_bytes: int) -> str:
    """Return the innermost frames; of a single frame that is too long, the beginning if it contains the place."""
    if len(text) <= budget_bytes and _json_bytes(text) <= budget_bytes:
        return text
    kept = _most(text[::-1], budget_bytes - _json_bytes("...\n"))
    tail = text[len(text) - kept :]
    frame = f"\n{tail}".find(f"\n{_FRAME}")
    if frame >= 0:
        return f"...\n{tail[frame:]}"
    innermost = f"\n{text}".rfind(f"\n{_FRAME}")
    beginning = _beginning(text[max(0, innermost) :], budget_bytes)
    return beginning if "\n" in beginning else ""


def _most(text: str, budget_bytes: int) -> int:
    """Return how many characters from the beginning fit the budget as JSON; the text is read once, in blocks."""
    kept = 0
    while kept < len(text) and (size := _json_bytes(text[kept : kept + BLOCK_CHARACTERS])) <= budget_bytes:
        budget_bytes -= size
        kept = min(len(text), kept + BLOCK_CHARACTERS)
    low, high = 0, min(BLOCK_CHARACTERS, len(text) - kept)
    while low < high:
        middle = (low + high + 1) // 2
        if _json_bytes(text[kept : kept + middle]) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return kept + low


BLOCK_CHARACTERS = 4_096
