"""The verdict on a message: `ACK`, a signal, or the error that the handler raised.

Signals are exceptions that carry a verdict, raised at any depth below a handler: ``raise Retry(60) from error`` (the
failure record then has the error), or ``class CardDeclined(Reject)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.support.causes import cause_of, is_a, leaves_of, name_of, text_of
from tarry.support.delays import Delay, moment_of, whole_seconds
from tarry.support.values import Value

if TYPE_CHECKING:
    from tarry.message.outcomes import Outcome


class Signal(Exception):
    """The base of the signals. They can be subclassed."""


class Retry(Signal):
    """The attempt failed; retry the message.

    Args:
        delay: Seconds, a ``timedelta`` or an aware ``datetime``; None is the delay of the backoff.

    Raises:
        ValueError: ``delay`` is not a delay.
    """

    delay: int | None = None  # for a subclass that sets its own, or does not call super().__init__
    until: float | None = None

    def __init__(self, delay: Delay | None = None) -> None:
        super().__init__(*(() if delay is None else (delay,)))
        delay = type(self).delay if delay is None else delay
        self.delay = None if delay is None else whole_seconds(delay)
        self.until = moment_of(delay)


class Reject(Signal):
    """Dead-letter the message now. ``reason`` goes into the failure record."""

    reason: str | None = None

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(*(() if reason is None else (reason,)))
        self.reason = type(self).reason if reason is None else reason


class Discard(Signal):
    """Delete the message without a dead letter. ``reason`` goes into the log."""

    reason: str | None = None

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(*(() if reason is None else (reason,)))
        self.reason = type(self).reason if reason is None else reason


class Defer(Signal):
    """Deliver the message again after a delay. This is neither a failure nor an attempt.

    Args:
        delay: Seconds, a ``timedelta`` or an aware ``datetime``; less than a second is a second.

    Raises:
        ValueError: ``delay`` is not a delay.
    """

    delay: int = 1
    until: float | None = None
    """The epoch seconds of a delay that was given as a ``datetime``."""

    def __init__(self, delay: Delay) -> None:
        super().__init__(delay)
        self.delay = max(1, whole_seconds(delay))
        self.until = moment_of(delay)


for _public in (Retry, Reject, Discard, Defer):
    _public.__module__ = "tarry"  # the name that users import it by, in records and logs

MAX_REASON_CHARACTERS = 1_000

_MOST_CAUTIOUS_FIRST = (Retry, Defer, Reject, Discard)


def find_signal(error: BaseException) -> Signal | None:
    """Return the signal that ``error`` is or was raised from; None if there is none.

    Explicit causes (``raise ... from signal``) are searched, and the outermost signal wins. An exception group counts
    only if every leaf has a signal; then the most cautious one wins. An implicit ``__context__`` is not searched: it is
    another error, which was being handled.
    """
    if cause_of(error) is None and not is_a(error, (Signal, BaseExceptionGroup)):
        return None
    found: list[Signal] = []
    groups = set[int]()
    todo = [error]
    while todo:
        link = _first_of_causes(todo.pop())
        if link is None:
            return None
        if is_a(link, Signal):
            found.append(link)
        elif id(link) not in groups:  # several errors may share a group, and groups may form a cycle
            groups.add(id(link))
            todo += reversed(leaves_of(link))  # type: ignore[arg-type]  # it is a group
    return next((signal for kind in _MOST_CAUTIOUS_FIRST for signal in found if is_a(signal, kind)), None)


def _first_of_causes(error: BaseException) -> Signal | BaseExceptionGroup[BaseException] | None:
    """Return the first signal or group among an error and its explicit causes."""
    seen = set[int]()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if is_a(link, Signal) or is_a(link, BaseExceptionGroup):
            return link
        seen.add(id(link))
        link = cause_of(link)
    return None


def delay_of(signal: Retry | Defer) -> int | None:
    """Return the delay that a signal asks for, in whole seconds; None if the policy sets it. It may raise anything."""
    delay: object = signal.delay
    return None if delay is None else whole_seconds(delay)  # type: ignore[arg-type]


def until_of(signal: Retry | Defer) -> float | None:
    """Return the epoch seconds of a delay given as a ``datetime``, else None. A broken subclass may raise anything."""
    until: object = signal.until
    return until if isinstance(until, float) else None


def reason_of(signal: Reject | Discard) -> str | None:
    """Return the reason of a signal as text. A broken subclass may raise anything."""
    reason: object = signal.reason
    return None if reason is None else text_of(reason, MAX_REASON_CHARACTERS) or None


class Ack:
    """The verdict of an acknowledged message; the only verdict that is not an exception, since no handler raises it."""

    def __repr__(self) -> str:
        return "ACK"


ACK = Ack()
Verdict = Ack | BaseException


class BatchVerdict:
    """A batch handler's verdict on the whole batch, and its return value."""

    __slots__ = ("answer", "deletes_at_once", "verdict")

    def __init__(self, *, deletes_at_once: bool = False) -> None:
        self.deletes_at_once = deletes_at_once  # whether `Batch.ack_all` deletes at once (``ack="eager"``)
        self.verdict: Verdict | None = None  # of `Batch.ack_all` or `retry_all`, for messages without one of their own
        self.answer: Answer | None = None  # the ``batchItemFailures`` that the handler returned


class Answer(Value):
    """The messages that a batch handler's ``batchItemFailures`` name."""

    named: frozenset[str] = frozenset()  # the delivery ids of the messages
    refusal: str | None = None  # why Lambda would reject the answer and return the whole batch


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
    return name_of(type(verdict)).rpartition(".")[2]
