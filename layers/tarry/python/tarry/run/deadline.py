"""The deadline of an invocation: how much of its time is for messages and for settling; interrupting a late handler."""

from __future__ import annotations

import math
import sys
from os.path import dirname, join
from types import TracebackType

from tarry import world
from tarry.message.message import Message, delivery_of, mark_forked
from tarry.run.handlers import is_cancelled_error
from tarry.support.guards import is_a, traceback_of
from tarry.world import Interrupted, seconds_to_load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any

    from tarry.message.batch import Batch
    from tarry.message.delivery import Delivery
    from tarry.world import Interruption, World

MARGIN_SECONDS = 1.0  # to settle after the last message has run; more if requests are slow in this process
REQUESTS = 4  # the requests for which there must be time: two look-ups, then a send with its delete
MARGIN_SHARE = 1 / 3  # the largest share of the invocation's time that is kept
RELEASE_SHARE = 1 / 3  # the share of the time left for releasing messages that were not started, possibly thousands
LAST_SECONDS = 0.5  # the part of the margin, at most half of it, in which claims and stopped runs may end
MINIMUM_SECONDS = 0.2  # the least time with which an invocation runs messages; with less it could not settle one
ANSWER_SECONDS = 0.5  # the time in which no hook runs: it is kept for the response; less in a short invocation
ANSWER_SHARE = 0.05  # the largest share of the invocation's time in which no hook runs
LATE_HOOK_SHARE = 0.1  # the share of the time left for a hook that is called when the time for hooks is over
HOOKLESS_SHARE = 1 / 4  # the part of the time kept for settling that such hooks leave, however many of them hang
CHECK_SECONDS = 0.001  # the interval of reading the clock between messages: shorter messages run without reading it


class Deadline:
    """The times until which messages may start and run. Callers pass the time in (`Clock.monotonic`)."""

    # Defaults of the class: each store at the start of an invocation takes time, and most set none of these.
    owed = 0.0  # the seconds kept in addition for settling the messages that have failed so far
    ending = most_ending = 0.0
    """The seconds kept in addition for ending the claims on messages that run (`tarry.run.idempotency`), and the most
    that they may become."""
    _longest = 0.0  # A message is assumed to need its timeout, or else the longest time that one took here
    checked_at = -math.inf  # at most a millisecond before the running message started
    in_hooks = 0.0  # the seconds that the user's hooks have taken
    hook_share = 1.0  # the largest share of the time left for one hook: less than 1 if async handlers wait for it

    def __init__(
        self, ends_at: float, began_with: float, wanted: float = MARGIN_SECONDS, timeout: float | None = None
    ) -> None:
        self.ends_at = ends_at  # when Lambda kills the process; infinite if it never does
        self.timeout = timeout
        self._began_with = began_with
        self.keep(wanted)
        self.check_at = math.inf if ends_at == math.inf and timeout is None else -math.inf
        """When to call `check` next, at the earliest."""

    def keep(self, wanted: float) -> None:
        share = self._began_with * MARGIN_SHARE
        self.margin = share if share < wanted else wanted  # noqa: FURB136 a call of min() costs time
        """The seconds kept for settling: fewer than wanted in a short invocation."""
        self.is_timeout_cut = self.timeout is not None and self.timeout > self._began_with - self.margin
        """Whether the timeout exceeds the time of an invocation: messages start anyway, with the time left."""

    @property
    def interrupt_at(self) -> float:
        """When running messages must end, so that there is time to settle them."""
        return self.ends_at - self.margin - self.ending

    @property
    def last_moment(self) -> float:
        """When claims and runs that were stopped must have ended."""
        return self.interrupt_at + min(LAST_SECONDS, self.margin / 2)

    def check(self, now: float, waiting: int = 0) -> bool:
        """Return whether the next message may start (`may_start`), after the one before; the first one always may."""
        since, self.checked_at = self.checked_at, now
        self.check_at = now + CHECK_SECONDS
        if since == -math.inf:
            return True
        self.took(now - since)
        return self.may_start(now, waiting)

    def resume(self, now: float) -> None:
        """Do not count the time since the last check as that of a message."""
        self.checked_at = now
        self.check_at = now + CHECK_SECONDS

    def took(self, seconds: float) -> None:
        self._longest = max(self._longest, seconds)

    def may_start(self, now: float, waiting: int = 0) -> bool:
        """Return whether there is time for a message and ``waiting`` others, which take precedence if time is short."""
        # The others need as much as the longest so far, not their timeout: else hardly any would start before them.
        one = self._longest if self.timeout is None or self.is_timeout_cut else self.timeout
        return self.ends_at - now >= self.margin + self.ending + self.owed + one + self._longest * waiting

    def release_until(self, now: float) -> float:
        """Return when to stop releasing messages: most of the time left is for settling."""
        return now + (self.ends_at - now) * RELEASE_SHARE

    def hook_seconds(self, now: float) -> float:
        """Return for how many seconds a hook of the user's may run: the time left, less what settling takes."""
        left = self.ends_at - now - min(ANSWER_SECONDS, self._began_with * ANSWER_SHARE)
        kept = self.margin + self.ending + self.owed
        # A hook that is called later, as `DeadLetter`'s are, has a share of the time left: settling goes on after it.
        return max((left - kept) * self.hook_share, (left - kept * HOOKLESS_SHARE) * LATE_HOOK_SHARE)

    def settled(self) -> None:
        self.margin = self.ending = self.owed = 0.0

    def due(self, started_at: float) -> float:
        interrupt_at = self.ends_at - self.margin - self.ending
        return interrupt_at if self.timeout is None else min(interrupt_at, started_at + self.timeout)

    def first_due(self, started_at: float) -> float:
        """Return the earliest that `due` may become: the time for ending claims grows while messages are claimed."""
        return min(self.due(started_at), self.interrupt_at - self.most_ending)

    def timed_out(self, started_at: float, now: float) -> TimeoutError:
        """Return the error of a handler that exceeded its time; the text says after how long, and what to set."""
        if self.timeout is not None and started_at + self.timeout <= self.interrupt_at:
            text = f"the handler took longer than its timeout of {self.timeout:g} s: raise timeout=, or make it faster"
        else:
            text = (
                f"the handler was still running after {now - started_at:.1f} s, {max(0.0, self.ends_at - now):.1f} s "
                "before the function's own timeout: give the function a longer Timeout, or the handler a timeout="
            )
        return TimeoutError(text)


def reserve(world: World) -> float:
    """Return the seconds to keep for settling, as loading boto3 and requests are known to cost in this process."""
    seconds = REQUESTS * world.request_seconds
    wanted = seconds if seconds > MARGIN_SECONDS else MARGIN_SECONDS  # noqa: FURB136 as above
    return wanted if world.is_loaded else wanted + seconds_to_load()


_HERE = join(dirname(__file__), "")
_OBSERVING = join(dirname(dirname(__file__)), "observe", "")
RECHECK_SECONDS = 0.05  # the interval of checks while no handler runs


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
    return is_a(raised, Interrupted) or is_cancelled_error(raised)


def _deliveries(subject: Message[Any] | Batch[Any]) -> Iterator[Delivery]:
    return map(delivery_of, (subject,) if isinstance(subject, Message) else subject)


class Watch:
    """Interrupts the handler that runs on the main thread when its time is up."""

    # Defaults of the class, and no __slots__: most invocations interrupt nothing.
    _interrupted: Message[Any] | Batch[Any] | None = None
    _error: TimeoutError | None = None
    _raised: Interrupted | None = None
    is_claiming = False  # whether the message is being claimed: the time of its handler has not begun
    interruption: Interruption | None = None  # calls `fire`; None if none is needed or possible

    def __init__(self, deadline: Deadline, monotonic: Callable[[], float]) -> None:
        self._deadline = deadline
        self._monotonic = monotonic
        self.running: Message[Any] | Batch[Any] | None = None  # no default of the class: set for each message
        """The message or batch of the running handler, which is interrupted only while this is set."""

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


def current_traceback(thread: int) -> TracebackType | None:
    """Return a traceback of the handler that a thread is running, by the thread's ident."""
    frame = sys._current_frames().get(thread)
    trace: TracebackType | None = None
    while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return trace
