"""The verdict on a message: what its handler asked for, or the error with which it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.signals import Defer, Discard, Reject, Retry, delay_of, reason_of
from tarry.support.causes import is_a, name_of

if TYPE_CHECKING:
    from tarry.outcome import Outcome


class Ack:
    """The verdict of an acknowledged message; the only one that is not an exception, since no handler raises it."""

    def __repr__(self) -> str:
        return "ACK"


ACK = Ack()
Verdict = Ack | BaseException
"""`ACK`, a `Signal`, or the error with which the handler failed."""


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
