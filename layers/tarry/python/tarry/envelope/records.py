"""Writing the `Tarry` attribute of a dead letter, of a copy, and of a copy that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.envelope.attribute import (
    ERROR_IN_HISTORY_CHARACTERS,
    ESSENTIAL,
    FAILURE_KEYS,
    MAX_COUNT,
    MAX_TOTAL,
    VERSION,
    body_sum,
    next_history,
    timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.delivery import Delivery
    from tarry.policy.failure import Failure


def dead_letter_record(
    failure: Failure,
    reason: str,
    failed_at: float,
    *,
    include_traceback: bool,
    origin: str | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    """Return the attribute of a dead letter, uncut. It carries no attempts: once redriven, the message starts anew.

    ``origin``: the ARN of the queue to which a retry sends it; by default the source queue. ``text``: the message of
    the failure record if there was no error.
    """
    part = _failure_part(failure, reason, failed_at, failure.attempt, include_traceback)
    if text is not None and "message" not in part["failure"]:
        part["failure"]["message"] = text
    return _base(failure.delivery, origin or failure.delivery.source.text) | part


def waiting_record(
    delivery: Delivery, carried: int, *, due: float | None, note: Mapping[str, int | str]
) -> dict[str, Any]:
    """Return the attribute of a copy that only waits: it has not failed now, and keeps its earlier failures."""
    envelope = delivery.envelope
    part: dict[str, Any] = {}
    if envelope is not None and envelope.failure is not None:
        earlier = envelope.failure
        part = {name: envelope.fields[name] for name in FAILURE_KEYS if name in envelope.fields}
        part |= {"failure": dict(part["failure"]), "history": list(earlier.history)}
        if earlier.attempts is not None:  # with the attempts that this copy carries, not those of earlier copies
            total = max(0, earlier.attempts - envelope.carried) + carried
            part["failure"]["attempts"] = min(MAX_TOTAL, total)
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
    """Return the attribute of a copy of a failed message, with the attempts so far and the notes of failure steps.

    ``delay``: the seconds that the copy waits; None if the queue sets the delay.
    """
    base = _copy_base(failure.delivery, carried, due, note)
    return base | _failure_part(failure, failure.reason, failed_at, carried, include_traceback, delay)


def edited(record: dict[str, Any], body: str, now: float) -> dict[str, Any]:
    """Return the attribute of a copy that has another body, ``body``, or other attributes than its message."""
    return {**record, "sum": body_sum(body), "edited": timestamp(now)}


def _copy_base(delivery: Delivery, carried: int, due: float | None, note: Mapping[str, int | str]) -> dict[str, Any]:
    """Return the keys of every copy: identity, counters, notes of failure steps, due time.

    Unknown keys are kept: a later version of tarry wrote them.
    """
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
    """Return how often the message was sent again so far."""
    return min(MAX_COUNT - 1, delivery.envelope.hops) if delivery.envelope else 0


def _base(delivery: Delivery, origin: str) -> dict[str, Any]:
    sent = delivery.sent_at
    edited = delivery.envelope.edited if delivery.envelope else None
    return {
        "v": VERSION,
        "sum": body_sum(delivery.body),
        "id": delivery.id,
        "origin": origin,
        **({"sent": timestamp(sent.timestamp())} if sent else {}),
        **({"edited": edited} if edited else {}),
    }


def _failure_part(
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
    delivery, earlier = failure.delivery, failure.delivery.failure
    carried = delivery.envelope.carried if delivery.envelope else 0
    attempts_before = max(0, ((earlier.attempts if earlier else 0) or 0) - carried)
    part: dict[str, Any] = {"reason": reason[:200], "attempts": min(MAX_TOTAL, attempts_before + attempts)}
    diagnosis = failure.diagnosis
    if diagnosis is not None:
        part |= {"type": diagnosis.type, "message": diagnosis.message, "fingerprint": diagnosis.fingerprint}
        if include_traceback:
            part["traceback"] = diagnosis.traceback
    part |= {
        "said": failure.said,
        "first_failed_at": (earlier.first_failed_at if earlier else None) or _first_failed_at(delivery, failed_at),
        "failed_at": timestamp(failed_at),
        "function": delivery.invocation.function_name,
        "request_id": delivery.invocation.request_id,
    }
    error = None if diagnosis is None else diagnosis.line(ERROR_IN_HISTORY_CHARACTERS)
    history = earlier.history if earlier else ()
    return {
        "failure": {name: value for name, value in part.items() if value not in (None, "")},
        "history": next_history(history, failure.attempt, timestamp(failed_at), error, delay),
    }


def _first_failed_at(delivery: Delivery, failed_at: float) -> str:
    """Return ``failed_at`` for a first delivery, else the time of the first receive, which is the nearest SQS knows."""
    received_at = delivery.first_received_at
    if delivery.receive_count == 1 or received_at is None or received_at > failed_at:
        return timestamp(failed_at)
    return timestamp(received_at)
