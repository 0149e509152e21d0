"""Signals: exceptions that carry a verdict. Raise one at any depth below a handler.

class CardDeclined(Reject):
    pass

raise Retry(60) from error       # the error is kept in the record
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.delay import Delay, moment_of, whole_seconds
from tarry.support.causes import cause_of, is_a, leaves_of, text_of

if TYPE_CHECKING:
    from tarry.message import Message


class Signal(Exception):
    """The base of the signals. They can be subclassed."""


class Retry(Signal):
    """The attempt failed; retry the message.

    Args:
        delay: Seconds, a ``timedelta`` or an aware ``datetime``; None is the delay of the backoff.

    Raises:
        ValueError: ``delay`` is not a delay.
    """

    delay: int | None = None  # a subclass may set its own, or forget super().__init__
    until: float | None = None
    """The epoch seconds of a delay that was given as a ``datetime``."""

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


class BatchError(Exception):
    """Raised by a batch handler to name the message that failed.

    The messages before it are acknowledged, and the messages after it are released. A verdict on a single message
    holds. ``raise BatchError(index=3) from error`` records the error.

    Args:
        text: The text of the exception.
        index: The index of the message in the batch.
        message: The message itself.

    Raises:
        ValueError: Not exactly one of ``index`` and ``message`` is given.
    """

    def __init__(self, text: str = "", *, index: int | None = None, message: Message[Any] | None = None) -> None:
        if (index is None) == (message is None):
            raise ValueError("BatchError names one message: give either index= or message=")
        super().__init__(text or (f"message {index} of the batch failed" if message is None else "this message failed"))
        self.index = index
        self.message = message


for _public in (Retry, Reject, Discard, Defer, BatchError):
    _public.__module__ = "tarry"  # the name that users import it by, in records and logs

MAX_REASON_CHARACTERS = 1_000

_MOST_CAUTIOUS_FIRST = (Retry, Defer, Reject, Discard)


def find_signal(error: BaseException) -> Signal | None:
    """The verdict that ``error`` carries, if any.

    It is looked for along explicit causes (``raise ... from signal``), the outermost winning, and in exception
    groups, where it counts only if every leaf carries one; then the most cautious wins. Never along an implicit
    ``__context__``: that is another error, one that was being handled.
    """
    found: list[Signal] = []
    groups = set[int]()
    todo = [error]
    while todo:
        link = _first_of_causes(todo.pop())
        if link is None:
            return None
        if is_a(link, Signal):
            found.append(link)
        elif id(link) not in groups:  # many errors may be from one group, and a group from itself
            groups.add(id(link))
            todo += reversed(leaves_of(link))  # type: ignore[arg-type]  # a group, since it is no signal
    return next((signal for kind in _MOST_CAUTIOUS_FIRST for signal in found if is_a(signal, kind)), None)


def reason_beside(verdict: BaseException, error: BaseException | None) -> str | None:
    """Return the reason of a `Reject` whose record tells another error: ``raise Reject("text") from error``."""
    return reason_of(verdict) if is_a(verdict, Reject) and verdict is not error else None


def _first_of_causes(error: BaseException) -> Signal | BaseExceptionGroup[BaseException] | None:
    """The first signal or group among an error and its explicit causes."""
    seen = set[int]()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if is_a(link, Signal) or is_a(link, BaseExceptionGroup):
            return link
        seen.add(id(link))
        link = cause_of(link)
    return None


def delay_of(signal: Retry | Defer) -> int | None:
    """The delay that a signal asks for, in whole seconds; None if it leaves that to the policy.

    Raises `ValueError` for a value that is no delay, and whatever an odd subclass raises.
    """
    delay: object = signal.delay
    return None if delay is None else whole_seconds(delay)  # type: ignore[arg-type]


def until_of(signal: Retry | Defer) -> float | None:
    """The epoch seconds of a delay given as a ``datetime``; None for any other. Raises what an odd subclass raises."""
    until: object = signal.until
    return until if isinstance(until, float) else None


def reason_of(signal: Reject | Discard) -> str | None:
    """The reason that a signal gives, as text; None if it gives none. Raises whatever an odd subclass raises."""
    reason: object = signal.reason
    return None if reason is None else text_of(reason, MAX_REASON_CHARACTERS) or None
