"""Writing the `Tarry` attribute of a dead letter, of a copy, and of a copy that waits.

It is cut so that it fits beside its message, the least important keys first (SPEC F3).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from tarry.record.attribute import (
    ERROR_IN_HISTORY_CHARACTERS,
    ESSENTIAL,
    FAILURE_KEYS,
    MAX_COUNT,
    MAX_TOTAL,
    VERSION,
    body_sum,
    dump,
    next_history,
    timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tarry.message.delivery import Delivery, Failure


def dead_letter_record(
    failure: Failure,
    reason: str,
    failed_at: float,
    *,
    include_traceback: bool,
    origin: str | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    """Return the attribute of a dead letter, uncut. It carries no attempts: once redriven, the message starts anew."""
    # ``origin``: the queue to which a retry sends it, by default its source. ``text``: its message, if it had no error.
    part = failure_part(failure, reason, failed_at, failure.attempt, include_traceback)
    if text is not None and "message" not in part["failure"]:
        part["failure"]["message"] = text
    return _base(failure.delivery, origin or failure.delivery.source.text) | part


def waiting_record(
    delivery: Delivery, carried: int, *, due: float | None, note: Mapping[str, int | str]
) -> dict[str, Any]:
    """Return the attribute of a copy that only waits: it has not failed now, and keeps its earlier failures."""
    envelope, earlier, stored = delivery.envelope, delivery.failure, delivery.stored or {}
    part: dict[str, Any] = {}
    if stored.get("failure"):
        part = {"failure": {**stored["failure"]}, "history": [*stored["history"]]}
    elif envelope is not None and earlier is not None:
        part = {name: envelope.fields[name] for name in FAILURE_KEYS if name in envelope.fields}
        part |= {"failure": dict(part["failure"]), "history": list(earlier.history)}
    if part and part["failure"].get("attempts") is not None:  # with those that this copy carries, not earlier copies
        part["failure"]["attempts"] = min(MAX_TOTAL, _attempts_before(delivery) + carried)
    return _copy_base(delivery, carried, due, note) | part


def copy_record(
    failure: Failure,
    failed_at: float,
    *,
    carried: int,
    note: Mapping[str, int | str],
    due: float | None,
    delay: int | None,
    include_traceback: bool,
) -> dict[str, Any]:
    """Return the attribute of a copy of a failed message. ``delay``: the seconds that it waits, if not the queue's."""
    base = _copy_base(failure.delivery, carried, due, note)
    return base | failure_part(failure, failure.reason, failed_at, carried, include_traceback, delay)


def trace_record(failure: Failure, failed_at: float, delay: int) -> dict[str, Any]:
    """Return what an attempt store keeps of a failed message that stays in its queue: no traceback, a short message."""
    part = failure_part(failure, failure.reason, failed_at, failure.attempt, include_traceback=False, delay=delay)
    if "message" in part["failure"]:
        part["failure"]["message"] = part["failure"]["message"][:ERROR_IN_HISTORY_CHARACTERS]
    return _base(failure.delivery, failure.delivery.source.text) | part


def edited(record: dict[str, Any], body: str, now: float) -> dict[str, Any]:
    """Return the attribute of a copy that has another body, ``body``, or other attributes than its message."""
    return {**record, "sum": body_sum(body), "edited": timestamp(now)}


def _copy_base(delivery: Delivery, carried: int, due: float | None, note: Mapping[str, int | str]) -> dict[str, Any]:
    """Return the keys of every copy, and the unknown ones of its message, which a later version of tarry wrote."""
    envelope = delivery.envelope
    origin = (envelope.origin if envelope else None) or delivery.source.text
    written: dict[str, int | str] = {**envelope.steps, **envelope.notes, **note} if envelope else {**note}
    steps = {name: value for name, value in written.items() if isinstance(value, int)}
    notes = {name: value for name, value in written.items() if isinstance(value, str)}
    read = envelope.fields if envelope else {}
    unknown = {name: value for name, value in read.items() if name not in ESSENTIAL and name not in FAILURE_KEYS}
    return {
        **unknown,
        **_base(delivery, origin),
        "carried": min(MAX_COUNT, carried),
        **({} if due is None else {"due": due}),
        "hops": hops_of(delivery) + 1,
        **({"steps": steps} if steps else {}),
        **({"notes": notes} if notes else {}),
    }


def hops_of(delivery: Delivery) -> int:
    return min(MAX_COUNT - 1, delivery.envelope.hops) if delivery.envelope else 0


def _base(delivery: Delivery, origin: str) -> dict[str, Any]:
    envelope, sent = delivery.envelope, delivery.sent_to_queue_at
    if envelope is not None and (earlier := delivery.sent_at) is not None:
        sent = earlier.timestamp()
    edited = envelope.edited if envelope else None
    return {
        "v": VERSION,
        "sum": body_sum(delivery.body),
        "id": delivery.id,
        "origin": origin,
        **({} if sent is None else {"sent": timestamp(sent)}),
        **({"edited": edited} if edited else {}),
    }


def failure_part(
    failure: Failure,
    reason: str,
    failed_at: float,
    attempts: int,
    include_traceback: bool,
    delay: int | None = None,
) -> dict[str, Any]:
    """Return the keys ``failure`` and ``history`` with this failure.

    ``attempts``: the attempts since the message was last redriven; a deferral is not one. ``delay``: the seconds before
    the next attempt; None if there is none, or the queue sets the delay.
    """
    delivery, at = failure.delivery, timestamp(failed_at)
    earlier = delivery.failure
    stored: Mapping[str, Any] = delivery.stored or {}
    total = min(MAX_TOTAL, _attempts_before(delivery) + attempts)
    part: dict[str, Any] = {"reason": reason[:200], "attempts": total}
    if delivery.attempts_at_most or (earlier is not None and earlier.attempts_at_most):
        part["attempts_at_most"] = True
    if delivery.crashes:
        part["crashes"] = delivery.crashes
    diagnosis = failure.diagnosis
    if diagnosis is not None:
        part |= {"type": diagnosis.type, "message": diagnosis.message, "fingerprint": diagnosis.fingerprint}
        if include_traceback:
            part["traceback"] = diagnosis.traceback
    part |= {
        "said": failure.said,
        "first_failed_at": (stored.get("failure") or {}).get("first_failed_at")
        or (earlier.first_failed_at if earlier else None)
        or _first_failed_at(delivery, failed_at, at),
        "failed_at": at,
        "function": delivery.invocation.function_name,
        "request_id": delivery.invocation.request_id,
    }
    if failure.was_deferral and not (stored.get("failure") or earlier):
        del part["first_failed_at"]  # the message waited until now, and has never failed
    error = None if diagnosis is None else diagnosis.line(ERROR_IN_HISTORY_CHARACTERS)
    history = stored.get("history") or (earlier.history if earlier else ())
    return {
        "failure": {name: value for name, value in part.items() if value not in (None, "")},
        "history": next_history(history, failure.attempt, at, error, delay),
    }


def _attempts_before(delivery: Delivery) -> int:
    """Return the attempts of the failure record that are not carried: those before the message was last redriven."""
    envelope = delivery.envelope
    if envelope is None or envelope.failure is None:
        return 0
    return max(0, (envelope.failure.attempts or 0) - envelope.carried)


def _first_failed_at(delivery: Delivery, failed_at: float, at: str) -> str:
    """Return ``at``, the text of ``failed_at``, for a first failure, else the time of the first receive."""
    # SQS knows nothing nearer than the first receive. If a store knows of no earlier failure, this is the first one.
    received_at = delivery.first_received_at
    if delivery.stored is not None or delivery.receive_count == 1 or received_at is None:
        return at
    return timestamp(min(received_at, failed_at))


FLOORS_BYTES = (1_024, 512, 256, 0)
"""The sizes down to which the traceback is cut; the message keeps a quarter as much, so that both keep a part."""


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
    """Return the record with an error's message that alone exceeds the room cut: each next step writes it as JSON."""
    failure = record.get("failure")
    if not (isinstance(failure, dict) and isinstance(message := failure.get("message"), str)):
        return record
    if len(message) < BLOCK_CHARACTERS:  # as most are
        return record
    # Since the record has other keys too, a later step cuts a message that is cut here, and adds an ellipsis.
    return {**record, "failure": {**failure, "message": message[: _most(message, room_bytes)]}}


def _cut(record: Mapping[str, Any], room_bytes: int) -> Iterator[Mapping[str, Any]]:
    """Yield smaller and smaller versions of the record."""
    without_history = {name: value for name, value in record.items() if name != "history"}
    bare = {name: record[name] for name in (*ESSENTIAL, "failure") if name in record}
    first, *others = FLOORS_BYTES
    for kept in (record, without_history, bare):
        yield _shortened(kept, first, room_bytes)
    for floor in others:
        yield _shortened(bare, floor, room_bytes)
    yield smallest(record)


def smallest(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest version of a record: id, origin, counters, and the reason without texts."""
    failure = record.get("failure") or {}
    kept = {name: failure[name] for name in ("reason", "attempts", "attempts_at_most", "failed_at") if name in failure}
    return {name: record[name] for name in ESSENTIAL if name in record} | {"failure": kept}


def _shortened(record: Mapping[str, Any], floor_bytes: int, room_bytes: int) -> Mapping[str, Any]:
    """Return the record with its traceback, then its message, cut as far as needed, at most to their floors."""
    failure = dict(record.get("failure") or {})
    shorter = {**record, "failure": failure}
    for field, floor, cut in (
        ("traceback", floor_bytes, _last_frames),
        ("message", floor_bytes // 4, _beginning),
        ("said", floor_bytes // 4, _beginning),
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
    for start in range(0, len(text), BLOCK_CHARACTERS):
        block = text[start : start + BLOCK_CHARACTERS]
        if (size := _json_bytes(block)) > budget_bytes:
            lengths = range(1, BLOCK_CHARACTERS)
            return start + bisect_right(lengths, budget_bytes, key=lambda length: _json_bytes(block[:length]))
        budget_bytes -= size
    return len(text)


BLOCK_CHARACTERS = 4_096
