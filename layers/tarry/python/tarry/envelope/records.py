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
    part = failure_part(failure, reason, failed_at, failure.attempt, include_traceback)
    if text is not None and "message" not in part["failure"]:
        part["failure"]["message"] = text
    return _base(failure.delivery, origin or failure.delivery.source.text) | part


def waiting_record(
    delivery: Delivery, carried: int, *, due: float | None, note: Mapping[str, int | str]
) -> dict[str, Any]:
    """Return the attribute of a copy that only waits: it has not failed now, and keeps its earlier failures."""
    envelope, stored = delivery.envelope, delivery.stored or {}
    part: dict[str, Any] = {}
    if stored.get("failure"):
        part = {"failure": {**stored["failure"]}, "history": [*stored["history"]]}
        part["failure"]["attempts"] = min(MAX_TOTAL, _attempts_before(delivery) + carried)
    elif envelope is not None and envelope.failure is not None:
        earlier = envelope.failure
        part = {name: envelope.fields[name] for name in FAILURE_KEYS if name in envelope.fields}
        part |= {"failure": dict(part["failure"]), "history": list(earlier.history)}
        if earlier.attempts is not None:  # with the attempts that this copy carries, not those of earlier copies
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
    """Return the attribute of a copy of a failed message, with the attempts so far and the notes of failure steps.

    ``delay``: the seconds that the copy waits; None if the queue sets the delay.
    """
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
    earlier = delivery.failure
    carried = delivery.envelope.carried if delivery.envelope else 0
    return max(0, ((earlier.attempts if earlier else 0) or 0) - carried)


def _first_failed_at(delivery: Delivery, failed_at: float, at: str) -> str:
    """Return ``at``, the text of ``failed_at``, for a first delivery, else the time of the first receive.

    That is the nearest that SQS knows. If an attempt store knows of no earlier failure, this is the first one.
    """
    received_at = delivery.first_received_at
    if delivery.stored is not None or delivery.receive_count == 1 or received_at is None or received_at > failed_at:
        return at
    return timestamp(received_at)
