"""Verdicts as exceptions: raise one from any depth below a handler, and it is what becomes of the message.

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
    """The base of the verdicts. They can be subclassed."""


class Retry(Signal):
    """This attempt failed; try again in ``delay``, or when the policy says if it is None.

    Raises `ValueError` if ``delay`` is no delay (`tarry.delay`).
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
    """Dead-letter this message now, for ``reason``."""

    reason: str | None = None

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(*(() if reason is None else (reason,)))
        self.reason = type(self).reason if reason is None else reason


class Discard(Signal):
    """Done with this message; keep nothing of it. ``reason`` goes to the log."""

    reason: str | None = None

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(*(() if reason is None else (reason,)))
        self.reason = type(self).reason if reason is None else reason


class Defer(Signal):
    """Not now: try again in ``delay``, without blame.

    Raises `ValueError` if ``delay`` is no delay (`tarry.delay`). Less than a second is a second.
    """

    delay: int = 1
    until: float | None = None
    """The epoch seconds of a delay that was given as a ``datetime``."""

    def __init__(self, delay: Delay) -> None:
        super().__init__(delay)
        self.delay = max(1, whole_seconds(delay))
        self.until = moment_of(delay)


class BatchError(Exception):
    """Raised by a batch handler to name the message that stopped it, by its index in the batch or itself.

    Those before it are acknowledged, it has failed, those after it are released; verdicts given on single
    messages hold. ``raise BatchError(index=3) from error`` keeps the error as the reason.
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
