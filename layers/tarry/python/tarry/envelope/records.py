"""The records that travel with messages sent on: why one died, what a copy brings along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.envelope.attribute import (
    ERROR_IN_HISTORY_CHARACTERS,
    ESSENTIAL,
    MAX_COUNT,
    MAX_TOTAL,
    TOLD,
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
    died_at: float,
    *,
    include_traceback: bool,
    origin: str | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    """The record of a death, whole. Without what was carried: redriven by whatever means, the message begins anew.

    ``origin``: the ARN of the queue it goes back to, where that is not the one it came from now. ``text``: what is told
    of a message that no error of its handler's ended.
    """
    told = _told(failure, reason, died_at, failure.attempt, include_traceback)
    if text is not None and "message" not in told["failure"]:
        told["failure"]["message"] = text
    return _base(failure.delivery, origin or failure.delivery.source.text) | told


def waiting_record(delivery: Delivery, carried: int, *, due: float | None) -> dict[str, Any]:
    """The record of a copy that only waits: it has not failed, and keeps what is known of earlier failures."""
    envelope = delivery.envelope
    told: dict[str, Any] = {}
    if envelope is not None and envelope.failure is not None:
        earlier = envelope.failure
        told = {name: envelope.told[name] for name in TOLD if name in envelope.told}
        told |= {"failure": dict(told["failure"]), "history": list(earlier.history)}
        if earlier.attempts is not None:  # those of this copy's life begin where the copy's do
            total = max(0, earlier.attempts - envelope.carried) + carried
            told["failure"]["attempts"] = min(MAX_TOTAL, total)
    return _travelling(delivery, carried, due, {}) | told


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
    """The record of a copy of a message that failed: with the attempts so far, and the notes of the steps.

    ``delay``: the seconds that the copy waits, None if the queue sets them.
    """
    travelling = _travelling(failure.delivery, carried, due, note)
    return travelling | _told(failure, failure.reason, failed_at, carried, include_traceback, delay)


def edited(record: dict[str, Any], body: str, now: float) -> dict[str, Any]:
    """The record of a copy whose body is ``body``, or whose attributes are not the message's."""
    return {**record, "sum": body_sum(body), "edited": timestamp(now)}


def _travelling(delivery: Delivery, carried: int, due: float | None, note: Mapping[str, int | str]) -> dict[str, Any]:
    """What a copy lives on: whose it is, how often it was tried and sent, what the steps wrote, until when it waits.

    A key that this version does not know travels along: a later version of the consumer wrote it.
    """
    envelope = delivery.envelope
    origin = (envelope.origin if envelope else None) or delivery.source.text
    written: dict[str, int | str] = {**envelope.steps, **envelope.notes, **note} if envelope else {**note}
    steps = {name: value for name, value in written.items() if isinstance(value, int)}
    notes = {name: value for name, value in written.items() if isinstance(value, str)}
    read = envelope.told if envelope else {}
    unknown = {name: value for name, value in read.items() if name not in ESSENTIAL and name not in TOLD}
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
    """How often it was sent again so far."""
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


def _told(
    failure: Failure,
    reason: str,
    failed_at: float,
    attempts: int,
    include_traceback: bool,
    delay: int | None = None,
) -> dict[str, Any]:
    """The latest failure, when the first one was, and the history with this one.

    ``attempts`` are those of this life: one that was deferred after all is none. ``delay``: the seconds before the next
    attempt, None if there is none or the queue sets them.
    """
    delivery, earlier = failure.delivery, failure.delivery.failure
    carried = delivery.envelope.carried if delivery.envelope else 0
    lives_before = max(0, ((earlier.attempts if earlier else 0) or 0) - carried)
    told: dict[str, Any] = {"reason": reason[:200], "attempts": min(MAX_TOTAL, lives_before + attempts)}
    diagnosis = failure.diagnosis
    if diagnosis is not None:
        told |= {"type": diagnosis.type, "message": diagnosis.message, "fingerprint": diagnosis.fingerprint}
        if include_traceback:
            told["traceback"] = diagnosis.traceback
    told |= {
        "said": failure.said,
        "first_failed_at": (earlier.first_failed_at if earlier else None) or _first_failed_at(delivery, failed_at),
        "failed_at": timestamp(failed_at),
        "function": delivery.invocation.function_name,
        "request_id": delivery.invocation.request_id,
    }
    error = None if diagnosis is None else diagnosis.line(ERROR_IN_HISTORY_CHARACTERS)
    history = earlier.history if earlier else ()
    return {
        "failure": {name: value for name, value in told.items() if value not in (None, "")},
        "history": next_history(history, failure.attempt, timestamp(failed_at), error, delay),
    }


def _first_failed_at(delivery: Delivery, failed_at: float) -> str:
    """The moment itself on a first attempt; later the first delivery, the nearest to it that SQS remembers."""
    received_at = delivery.first_received_at
    if delivery.receive_count == 1 or received_at is None or received_at > failed_at:
        return timestamp(failed_at)
    return timestamp(received_at)
