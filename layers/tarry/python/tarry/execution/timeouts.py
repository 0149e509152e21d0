"""Handlers whose time is up: they are interrupted, and have failed even if they swallow the interruption."""

from __future__ import annotations

import sys
from os.path import dirname, join
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.execution.handlers import is_cancelled_error
from tarry.message import Message, delivery_of, mark_forked
from tarry.support.causes import is_a, traceback_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from tarry.batch import Batch
    from tarry.delivery import Delivery
    from tarry.execution.deadline import Deadline
    from tarry.world import Interruption

_HERE = join(dirname(__file__), "")
ASK_AGAIN_SECONDS = 0.05
"""While no handler runs."""


class Interrupted(BaseException):
    """Raised in a handler whose time is up. Not an `Exception`, so that it also ends a loop that retries after any."""


def close(subject: Message[Any] | Batch[Any], error: BaseException) -> None:
    """Give ``error`` as the verdict on each message without one: later verdicts come too late."""
    for delivery in _deliveries(subject):
        of_batch = delivery.invocation.batch
        if delivery.verdict is None and (of_batch is None or of_batch.verdict is None):
            delivery.verdict = error


def taken_for(
    subject: Message[Any] | Batch[Any], raised: BaseException | None, error: BaseException | None
) -> BaseException | None:
    """Return what a run that has ended with ``raised`` counts as, if it was told to end with ``error``."""
    if error is None:
        return raised
    was_closed = any(delivery.verdict is error for delivery in _deliveries(subject))
    if was_closed and isinstance(subject, Message):
        delivery_of(subject).verdict = None  # it may be tried again within this delivery
    return error if was_closed or (raised is not None and was_told(raised)) else raised


def was_told(raised: BaseException) -> bool:
    """Whether ``raised`` is an error by which a handler is told to end."""
    return is_a(raised, Interrupted) or is_cancelled_error(raised)


def _deliveries(subject: Message[Any] | Batch[Any]) -> Iterator[Delivery]:
    return map(delivery_of, (subject,) if isinstance(subject, Message) else subject)


class Watch:
    """Interrupts the handler that runs on the main thread when its time is up."""

    # Defaults of the class, and no __slots__: most invocations interrupt nothing.
    _interrupted: Message[Any] | Batch[Any] | None = None
    _error: TimeoutError | None = None
    _raised: Interrupted | None = None

    def __init__(self, deadline: Deadline, monotonic: Callable[[], float]) -> None:
        self.running: Message[Any] | Batch[Any] | None = None
        """What the handler runs for at the moment. It is interrupted only while this is set."""
        self.interruption: Interruption | None = None
        """What calls `fire`; None if nothing can, or has to."""
        self._deadline = deadline
        self._monotonic = monotonic

    def fire(self, frame: FrameType | None) -> BaseException | float:
        """Return the error to raise in the thread, or the seconds after which to ask again. `tarry.world.Fire`."""
        if self.running is None or deals_with_verdict(frame):
            return ASK_AGAIN_SECONDS
        now, started_at = self._monotonic(), self._deadline.looked_at
        if (seconds := self._deadline.due(started_at) - now) > 0:
            return seconds
        if self._interrupted is self.running:
            return Interrupted(str(self._error))
        self._interrupted, self._error = self.running, self._deadline.timed_out(started_at, now)
        self._raised = Interrupted(str(self._error))
        close(self.running, self._error)
        return self._raised

    def forked(self) -> None:
        """Mark the message that runs: this is a forked child, which ends after its handler."""
        if isinstance(self.running, Message):
            mark_forked(self.running)

    def over(self, subject: Message[Any] | Batch[Any], raised: BaseException | None) -> BaseException | None:
        """Return what a run that has ended with ``raised`` counts as: its time may have been up."""
        error, self._error, self._interrupted = self._error, None, None
        if error is not None and self._raised is not None:
            error.__traceback__ = where(self._raised)
        return taken_for(subject, raised, error)


def deals_with_verdict(frame: FrameType | None) -> bool:
    """Whether tarry decides on a verdict of a batch handler in this frame, which must not be interrupted half way."""
    while frame is not None:
        if frame.f_code.co_name == "_on_verdict" and frame.f_code.co_filename.startswith(_HERE):
            return True
        frame = frame.f_back
    return False


def where(raised: BaseException) -> TracebackType | None:
    """The traceback of what a handler was told to end with, down to where it stood: what raised it explains nothing."""
    before, last = None, traceback_of(raised)
    while last is not None and last.tb_next is not None:
        before, last = last, last.tb_next
    if before is not None and last is not None and last.tb_frame.f_code.co_filename == world.__file__:
        before.tb_next = None
    return traceback_of(raised)


def standing(thread: int | None) -> TracebackType | None:
    """A traceback of where the handler stands that a thread runs, by the thread's ident."""
    frame = sys._current_frames().get(thread or 0)
    trace: TracebackType | None = None
    while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return trace
