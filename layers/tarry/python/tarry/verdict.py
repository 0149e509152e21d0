"""The verdict on a message: what its handler asked for, or the error with which it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.signals import Defer, Discard, Reject, Retry, delay_of, reason_of
from tarry.support.causes import is_a, name_of
from tarry.support.value import Value

if TYPE_CHECKING:
    from tarry.outcome import Outcome


class Ack:
    """The verdict of an acknowledged message; the only one that is not an exception, since no handler raises it."""

    def __repr__(self) -> str:
        return "ACK"


ACK = Ack()
Verdict = Ack | BaseException
"""`ACK`, a `Signal`, or the error with which the handler failed."""


class BatchVerdict:
    """The verdict of a batch handler on its batch as a whole, and the answer it returned."""

    __slots__ = ("answer", "deletes_at_once", "verdict")

    def __init__(self, *, deletes_at_once: bool = False) -> None:
        self.deletes_at_once = deletes_at_once
        """Whether `Batch.ack_all` deletes the messages while the handler runs (``ack="eager"``)."""
        self.verdict: Verdict | None = None
        """By `Batch.ack_all` or `Batch.retry_all`. It holds for each message without a verdict of its own."""
        self.answer: Answer | None = None
        """The ``batchItemFailures`` that the handler returned."""


class Answer(Value):
    """The messages that a batch handler has named as failed."""

    named: frozenset[str] = frozenset()
    """Their delivery ids."""
    refusal: str | None = None
    """Why Lambda would reject the answer, and with it the whole batch; None if it would not."""


def outcome_of(verdict: Verdict) -> Outcome | None:
    """The outcome that a verdict asks for; None for an error, whose outcome the policy decides."""
    from tarry.outcome import Outcome

    if verdict is ACK:
        return Outcome.ack()
    if is_a(verdict, Retry):
        return Outcome.retry(delay_of(verdict))
    if is_a(verdict, Defer):
        return Outcome.defer(delay_of(verdict))  # type: ignore[arg-type]  # None is no delay: refused
    if is_a(verdict, Reject):
        return Outcome.dead_letter(reason_of(verdict) or "rejected")
    if is_a(verdict, Discard):
        return Outcome.discard(reason_of(verdict))
    return None


def name_of_verdict(verdict: Verdict) -> str:
    """The class name of a verdict, for the log."""
    return name_of(type(verdict)).rpartition(".")[2]
