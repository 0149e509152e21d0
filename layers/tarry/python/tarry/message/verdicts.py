"""The verdict on a message: the handler's request, such as `ACK` or a signal, or the error that it raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.message.signals import Defer, Discard, Reject, Retry, delay_of, reason_of
from tarry.support.causes import is_a, name_of
from tarry.support.values import Value

if TYPE_CHECKING:
    from tarry.message.outcomes import Outcome


class Ack:
    """The verdict of an acknowledged message; the only verdict that is not an exception, since no handler raises it."""

    def __repr__(self) -> str:
        return "ACK"


ACK = Ack()
Verdict = Ack | BaseException
"""`ACK`, a `Signal`, or the error that the handler raised."""


class BatchVerdict:
    """A batch handler's verdict on the whole batch, and its return value."""

    __slots__ = ("answer", "deletes_at_once", "verdict")

    def __init__(self, *, deletes_at_once: bool = False) -> None:
        self.deletes_at_once = deletes_at_once
        """Whether `Batch.ack_all` deletes the messages while the handler runs (``ack="eager"``)."""
        self.verdict: Verdict | None = None
        """The verdict of `Batch.ack_all` or `Batch.retry_all`, for each message without a verdict of its own."""
        self.answer: Answer | None = None
        """The ``batchItemFailures`` that the handler returned."""


class Answer(Value):
    """The messages that a batch handler's ``batchItemFailures`` name."""

    named: frozenset[str] = frozenset()
    """The delivery ids of the messages."""
    refusal: str | None = None
    """Why Lambda would reject the answer and return the whole batch; None if it would not."""


def outcome_of(verdict: Verdict) -> Outcome | None:
    """Return the outcome that a verdict asks for; None for an error, whose outcome the policy decides."""
    from tarry.message.outcomes import Outcome

    if verdict is ACK:
        return Outcome.ack()
    if is_a(verdict, Retry):
        return Outcome.retry(delay_of(verdict))
    if is_a(verdict, Defer):
        return Outcome.defer(delay_of(verdict))  # type: ignore[arg-type]  # None is refused
    if is_a(verdict, Reject):
        return Outcome.dead_letter(reason_of(verdict) or "rejected")
    if is_a(verdict, Discard):
        return Outcome.discard(reason_of(verdict))
    return None


def name_of_verdict(verdict: Verdict) -> str:
    """Return the class name of a verdict, for the log."""
    return name_of(type(verdict)).rpartition(".")[2]
