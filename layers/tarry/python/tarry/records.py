"""The records that travel with messages sent on: why one died, what a copy brings along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.envelope import ERROR_IN_HISTORY_CHARACTERS, MAX_COUNT, MAX_TOTAL, VERSION, body_sum, next_history, timestamp

if TYPE_CHECKING:
    from tarry.failure import Failure
    from tarry.message import Message


def dead_letter_record(
    failure: Failure, reason: str, died_at: float, *, include_traceback: bool, origin: str | None = None
) -> dict[str, Any]:
    """The record of a death, whole. Without what was carried: redriven by whatever means, the message begins anew.

    ``origin``: the ARN of the queue it goes back to, where that is not the one it came from now.
    """
    told = _told(failure, reason, died_at, failure.attempt, include_traceback)
    return _base(failure.message, origin or failure.message._source.text) | told


def waiting_record(message: Message[Any], carried: int, *, due: float | None) -> dict[str, Any]:
    """The record of a copy that only waits: it has not failed, and keeps what is known of earlier failures."""
    envelope = message._envelope
    told: dict[str, Any] = {}
    if envelope is not None and envelope.failure is not None:
        earlier = envelope.failure
        names = (name for name in earlier.__slots__ if name != "history" and getattr(earlier, name) is not None)
        told = {"failure": {name: getattr(earlier, name) for name in names}, "history": list(earlier.history)}
        if earlier.attempts is not None:  # those of this copy's life begin where the copy's do
            total = max(0, earlier.attempts - envelope.carried) + carried
            told["failure"]["attempts"] = min(MAX_TOTAL, total)
    return _travelling(message, carried, due, {}) | told


def copy_record(
    failure: Failure,
    failed_at: float,
    *,
    carried: int,
    note: dict[str, int],
    due: float | None,
    include_traceback: bool,
) -> dict[str, Any]:
    """The record of a copy of what has failed: with the attempts so far, and what the steps wrote."""
    travelling = _travelling(failure.message, carried, due, note)
    return travelling | _told(failure, failure.reason, failed_at, carried, include_traceback)


def _travelling(message: Message[Any], carried: int, due: float | None, note: dict[str, int]) -> dict[str, Any]:
    """What a copy lives on: whose it is, how often it was tried and sent, what the steps wrote, until when it waits."""
    envelope = message._envelope
    origin = (envelope.origin if envelope else None) or message._source.text
    steps = {**(envelope.steps if envelope else {}), **note}
    return {
        **_base(message, origin),
        "carried": min(MAX_COUNT, carried),
        **({} if due is None else {"due": due}),
        "hops": hops_of(message) + 1,
        **({"steps": steps} if steps else {}),
    }


def hops_of(message: Message[Any]) -> int:
    """How often it was sent again so far."""
    return min(MAX_COUNT - 1, message._envelope.hops) if message._envelope else 0


def _base(message: Message[Any], origin: str) -> dict[str, Any]:
    sent = message.sent_at
    edited = message._envelope.edited if message._envelope else None
    return {
        "v": VERSION,
        "sum": body_sum(message.body),
        "id": message.id,
        "origin": origin,
        **({"sent": timestamp(sent.timestamp())} if sent else {}),
        **({"edited": edited} if edited else {}),
    }


def _told(failure: Failure, reason: str, failed_at: float, attempts: int, include_traceback: bool) -> dict[str, Any]:
    """The latest failure, when the first one was, and the history with this one.

    ``attempts`` are those of this life: one that was deferred after all is none.
    """
    message, earlier = failure.message, failure.message.failure
    carried = message._envelope.carried if message._envelope else 0
    lives_before = max(0, ((earlier.attempts if earlier else 0) or 0) - carried)
    told: dict[str, Any] = {"reason": reason[:200], "attempts": min(MAX_TOTAL, lives_before + attempts)}
    diagnosis = None if failure.error is None else message._invocation.diagnoses.of(failure.error)
    if diagnosis is not None:
        told |= {"type": diagnosis.type, "message": diagnosis.message, "fingerprint": diagnosis.fingerprint}
        if include_traceback:
            told["traceback"] = diagnosis.traceback
    told |= {
        "first_failed_at": (earlier.first_failed_at if earlier else None) or _first_failed_at(message, failed_at),
        "failed_at": timestamp(failed_at),
        "function": message._invocation.function_name,
        "request_id": message._invocation.request_id,
    }
    error = None if diagnosis is None else diagnosis.line(ERROR_IN_HISTORY_CHARACTERS)
    return {
        "failure": {name: value for name, value in told.items() if value not in (None, "")},
        "history": next_history(earlier.history if earlier else (), failure.attempt, timestamp(failed_at), error),
    }


def _first_failed_at(message: Message[Any], failed_at: float) -> str:
    """The moment itself on a first attempt; later the first delivery, the nearest to it that SQS remembers."""
    received_at = message._first_received_at
    if message.receive_count == 1 or received_at is None or received_at > failed_at:
        return timestamp(failed_at)
    return timestamp(received_at)
