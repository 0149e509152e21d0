"""Interrupting handlers whose time is up; they have failed even if they swallow the interruption."""

from __future__ import annotations

import sys
from os.path import dirname, join
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.message.message import Message, delivery_of, mark_forked
from tarry.run.handlers import is_cancelled_error
from tarry.support.causes import is_a, traceback_of
from tarry.world import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from tarry.message.batch import Batch
    from tarry.message.delivery import Delivery
    from tarry.run.deadline import Deadline
    from tarry.world import Interruption

_HERE = join(dirname(__file__), "")
_OBSERVING = join(dirname(dirname(__file__)), "observe", "")
RECHECK_SECONDS = 0.05
"""The interval of checks while no handler runs."""


def close_verdicts(subject: Message[Any] | Batch[Any], error: BaseException) -> None:
    """Set ``error`` as the verdict on each message without one, so that later verdicts are ignored."""
    for delivery in _deliveries(subject):
        of_batch = delivery.invocation.batch
        if delivery.verdict is None and (of_batch is None or of_batch.verdict is None):
            delivery.verdict = error


def effective_error(
    subject: Message[Any] | Batch[Any], raised: BaseException | None, error: BaseException | None
) -> BaseException | None:
    """Return the error of a run that ended with ``raised`` after it was interrupted with ``error``."""
    if error is None:
        return raised
    was_closed = any(delivery.verdict is error for delivery in _deliveries(subject))
    if was_closed and isinstance(subject, Message):
        delivery_of(subject).verdict = None  # the message may run again within this delivery
    return error if was_closed or (raised is not None and is_interruption(raised)) else raised


def is_interruption(raised: BaseException) -> bool:
    """Return whether ``raised`` is an error that interrupts a handler."""
    return is_a(raised, Interrupted) or is_cancelled_error(raised)


def _deliveries(subject: Message[Any] | Batch[Any]) -> Iterator[Delivery]:
    return map(delivery_of, (subject,) if isinstance(subject, Message) else subject)


class Watch:
    """Interrupts the handler that runs on the main thread when its time is up."""

    # Defaults of the class, and no __slots__: most invocations interrupt nothing.
    _interrupted: Message[Any] | Batch[Any] | None = None
    _error: TimeoutError | None = None
    _raised: Interrupted | None = None
    is_claiming = False
    """Whether the message is being claimed: the time of its handler has not begun."""

    def __init__(self, deadline: Deadline, monotonic: Callable[[], float]) -> None:
        self.running: Message[Any] | Batch[Any] | None = None
        """The message or batch of the running handler, which is interrupted only while this is set."""
        self.interruption: Interruption | None = None
        """The interruption that calls `fire`; None if none is needed or possible."""
        self._deadline = deadline
        self._monotonic = monotonic

    def fire(self, frame: FrameType | None) -> BaseException | float:
        """Return the error to raise in the thread, or the seconds to the next call. Implements `tarry.world.Fire`."""
        if self.running is None or is_deciding(frame) or is_ending(frame):
            return RECHECK_SECONDS
        now = self._monotonic()
        started_at = now if self.is_claiming else self._deadline.checked_at
        if (seconds := self._deadline.due(started_at) - now) > 0:
            return seconds
        if self.is_claiming and now < self._deadline.last_moment:
            return RECHECK_SECONDS  # a claim ends soon by itself, and its message must not fail without a run
        if is_tracing_end(frame):
            return Interrupted("The exporter of spans took too long.")
        if self._interrupted is self.running:
            return Interrupted(str(self._error))
        self._interrupted, self._error = self.running, self._deadline.timed_out(started_at, now)
        self._raised = Interrupted(str(self._error))
        close_verdicts(self.running, self._error)
        return self._raised

    def forked(self) -> None:
        """Mark the message that runs: this is a forked child, which ends after its handler."""
        if isinstance(self.running, Message):
            mark_forked(self.running)

    def on_end(self, subject: Message[Any] | Batch[Any], raised: BaseException | None) -> BaseException | None:
        """Return the error of a run that ended with ``raised``, in case its time was up."""
        error, self._error, self._interrupted = self._error, None, None
        if error is not None and self._raised is not None:
            error.__traceback__ = handler_traceback(self._raised)
        return effective_error(subject, raised, error)


def is_deciding(frame: FrameType | None) -> bool:
    """Return whether tarry is deciding on a batch handler's verdict in this frame, which must not be interrupted."""
    return _is_within(frame, "_on_verdict", _HERE)


def is_ending(frame: FrameType | None) -> bool:
    """Return whether the end of a run is being noted in this frame: it is not stopped any more."""
    return _is_within(frame, "_handler_ended", _HERE, _OBSERVING)


def is_tracing_end(frame: FrameType | None) -> bool:
    """Return whether a span is being closed in this frame: its run or send has ended, so the message does not fail."""
    return _is_within(frame, "_end", _OBSERVING)


def _is_within(frame: FrameType | None, function: str, *folders: str) -> bool:
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename.startswith(folders):
            return True
        frame = frame.f_back
    return False


def handler_traceback(raised: BaseException) -> TracebackType | None:
    """Return the traceback of an interruption, down to the handler's frame, without the frame that raised it."""
    before, last = None, traceback_of(raised)
    while last is not None and last.tb_next is not None:
        before, last = last, last.tb_next
    if before is not None and last is not None and last.tb_frame.f_code.co_filename == world.__file__:
        before.tb_next = None
    return traceback_of(raised)


def current_traceback(thread: int | None) -> TracebackType | None:
    """Return a traceback of the handler that a thread is running, by the thread's ident."""
    frame = sys._current_frames().get(thread or 0)
    trace: TracebackType | None = None
    while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return trace
