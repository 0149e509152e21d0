"""Interrupting the main thread by SIGALRM: with real signals, in fractions of a second.

On a busy machine a timer may fire late, and a test may be late to wait for it. So `StopOnce` waits for the test, and
the remaining time of a timer is compared with the time that has passed.
"""

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from tarry import Message, consumer
from tarry.message.invocation import Invocation
from tarry.run.jobs import Job
from tarry.run.tasks import TaskExecutor
from tarry.world import RealThreads
from tests.records import Context, record
from tests.wire import Wire

LONG = 60
"""Seconds that no test here really waits."""
RETRY_SECONDS = 0.005


class StopTest(BaseException):
    """The interruption of a test's block."""


class StopOnce:
    """A callback that raises `StopTest` once, in the block of a test; before that, the interruption retries."""

    def __init__(self) -> None:
        self._waits = False
        self.calls = 0
        """How often the interruption called this object within a block."""

    def __call__(self, frame: FrameType | None) -> BaseException | float:
        if not self._waits or frame is None or not frame.f_code.co_name.startswith("test_"):
            return RETRY_SECONDS
        self.calls += 1
        answer = self.answer(frame)
        self._waits = not isinstance(answer, BaseException)
        return answer

    def answer(self, _: FrameType | None) -> BaseException | float:
        return StopTest()

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        self._waits = True
        with pytest.raises(StopTest):
            yield


@pytest.fixture(autouse=True)
def _restore_alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def stop() -> StopOnce:
    return StopOnce()


def interrupt(seconds: float, fire: Any = None) -> Any:
    interruption = RealThreads().interrupt(seconds, fire or StopOnce())
    assert interruption is not None
    return interruption


def test_a_sleep_is_interrupted(stop: StopOnce) -> None:  # SPEC I3
    interruption = interrupt(0.05, stop)
    began = time.monotonic()
    with stop.here():
        time.sleep(LONG)
    interruption.cancel()
    assert time.monotonic() - began < LONG / 2


def test_code_that_swallows_an_interruption_is_interrupted_repeatedly(stop: StopOnce) -> None:  # SPEC I3
    interruption = interrupt(0.01, stop)
    for _ in range(3):
        with stop.here():
            time.sleep(LONG)
    interruption.cancel()
    assert stop.calls == 3


def test_a_signal_that_a_system_call_did_not_see_is_repeated(stop: StopOnce) -> None:
    """SPEC I7. One that comes just before a call blocks is handled after it, and the call may hang."""
    interruption = interrupt(0.01, stop)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.sigwait({signal.SIGALRM})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    with stop.here():
        time.sleep(LONG)
    interruption.cancel()


def test_a_callback_can_postpone_the_interruption() -> None:
    calls: list[float] = []

    class Postpones(StopOnce):
        def answer(self, _: FrameType | None) -> BaseException | float:
            calls.append(time.monotonic())
            return 0.05 if len(calls) == 1 else StopTest()

    postpones = Postpones()
    interruption = interrupt(0.01, postpones)
    with postpones.here():
        time.sleep(LONG)
    interruption.cancel()
    assert len(calls) == 2
    assert calls[1] - calls[0] >= 0.05


def test_the_frame_is_the_one_that_is_interrupted() -> None:
    seen: list[str] = []

    class RecordsFrame(StopOnce):
        def answer(self, frame: FrameType | None) -> BaseException | float:
            assert frame is not None
            seen.append(frame.f_code.co_name)
            return StopTest()

    records_frame = RecordsFrame()
    interruption = interrupt(0.01, records_frame)
    with records_frame.here():
        time.sleep(LONG)
    interruption.cancel()
    assert seen == ["test_the_frame_is_the_one_that_is_interrupted"]


def test_a_cancelled_interruption_does_not_happen() -> None:
    interrupt(0.02).cancel()
    time.sleep(0.05)


def test_a_signal_handler_of_the_user_is_restored() -> None:  # SPEC I3
    received: list[int] = []

    def own(number: int, _: FrameType | None) -> None:
        received.append(number)

    signal.signal(signal.SIGALRM, own)
    interrupt(LONG).cancel()
    assert signal.getsignal(signal.SIGALRM) is own
    signal.raise_signal(signal.SIGALRM)
    assert received == [signal.SIGALRM]


def test_a_timer_of_the_user_continues_with_the_time_it_has_left() -> None:  # SPEC I3
    signal.signal(signal.SIGALRM, lambda *_: None)
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 600, 7)
    interruption = interrupt(300)
    time.sleep(0.02)
    interruption.cancel()
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    passed = time.monotonic() - began
    assert 600 - passed - 0.01 <= left <= 599.98
    assert interval == 7


def test_a_timer_of_the_user_that_expires_meanwhile_fires_at_once() -> None:  # SPEC I3
    received: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: received.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    interruption = interrupt(LONG)
    time.sleep(0.15)
    interruption.cancel()
    ends_at = time.monotonic() + LONG
    while not received and time.monotonic() < ends_at:
        time.sleep(0.001)
    assert received == [signal.SIGALRM]


@pytest.mark.parametrize("seconds", [1e12, sys.maxsize, -1.0])
def test_any_time_can_be_waited_for(seconds: float, stop: StopOnce) -> None:
    """The operating system refuses a timer beyond its range; the callback is called early, and then again."""
    before = signal.getsignal(signal.SIGALRM)
    interruption = interrupt(seconds, stop)
    signal.raise_signal(signal.SIGALRM)
    interruption.cancel()
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_signal_handler_set_meanwhile_stays() -> None:
    def own(*_: Any) -> None: ...

    interruption = interrupt(LONG)
    signal.signal(signal.SIGALRM, own)
    signal.setitimer(signal.ITIMER_REAL, 600)
    interruption.cancel()
    assert signal.getsignal(signal.SIGALRM) is own
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 500


def test_a_handler_of_tarry_that_user_code_restores_later_does_not_interrupt() -> None:  # SPEC A6
    interruption = interrupt(LONG)
    left = signal.getsignal(signal.SIGALRM)
    interruption.cancel()
    signal.signal(signal.SIGALRM, left)
    signal.raise_signal(signal.SIGALRM)


def test_a_handler_of_tarry_that_user_code_restores_does_not_interrupt_a_later_invocation(
    stop: StopOnce,
) -> None:  # SPEC A6
    earlier = interrupt(LONG)
    left = signal.getsignal(signal.SIGALRM)
    earlier.cancel()
    later = interrupt(LONG, stop)
    signal.signal(signal.SIGALRM, left)
    signal.raise_signal(signal.SIGALRM)
    later.renew()
    with stop.here():
        time.sleep(LONG)
    later.cancel()


def test_an_interruption_within_another_restores_it(stop: StopOnce) -> None:
    outer = interrupt(0.05, stop)
    interrupt(LONG).cancel()
    with stop.here():
        time.sleep(LONG)
    outer.cancel()


def test_only_the_main_thread_can_be_interrupted() -> None:  # SPEC I3
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(RealThreads().interrupt(0.01, StopOnce())))
    thread.start()
    thread.join()
    assert results == [None]


def test_a_timer_that_user_code_has_stopped_is_renewed(stop: StopOnce) -> None:  # SPEC I3
    interruption = interrupt(LONG, stop)
    signal.alarm(0)
    interruption.renew()
    with stop.here():
        time.sleep(LONG)
    interruption.cancel()


def test_a_signal_that_user_code_has_taken_is_taken_back_until_the_end(stop: StopOnce) -> None:  # SPEC I3
    def own(*_: Any) -> None: ...

    interruption = interrupt(LONG, stop)
    signal.signal(signal.SIGALRM, own)
    signal.alarm(600)
    interruption.renew()
    with stop.here():
        time.sleep(LONG)
    interruption.cancel()
    assert signal.getsignal(signal.SIGALRM) is own
    assert 500 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600


def test_renewing_a_running_timer_does_not_change_it() -> None:
    interruption = interrupt(600)
    interruption.renew()
    assert 500 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600
    interruption.cancel()


def test_cancelling_stops_the_timer_if_user_code_has_set_a_handler() -> None:  # SPEC A6
    interruption = interrupt(LONG)
    signal.signal(signal.SIGALRM, lambda *_: None)
    interruption.cancel()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_cancelling_stops_the_timer_if_the_signal_was_taken_back_meanwhile() -> None:  # SPEC A6
    interruption = interrupt(LONG)
    signal.signal(signal.SIGALRM, lambda *_: None)
    interruption.renew()
    interruption.cancel()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_cancelling_stops_the_timer_that_has_rung_for_a_handler_of_user_code() -> None:  # SPEC A6
    rings: list[int] = []
    interruption = interrupt(0.01)
    signal.signal(signal.SIGALRM, lambda number, _: rings.append(number))
    while not rings:
        time.sleep(RETRY_SECONDS)
    interruption.cancel()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_thread_that_starts_unless_an_event_is_set_does_its_work_only_without_the_event() -> None:
    threads, ran, worked = RealThreads(), [], threading.Event()
    is_set = threads.event()
    is_set.set()
    threads.start_unless(is_set, 0.001, lambda: ran.append("never"))
    threads.start_unless(threads.event(), 0.001, worked.set)
    assert worked.wait(LONG)
    assert ran == []


# which handler blocks the event loop


def frame_in(file: str) -> FrameType:
    """Return a frame of code in a file."""
    found: dict[str, Any] = {"sys": sys}
    exec(compile("frame = sys._getframe()", file, "exec"), found)
    frame: FrameType = found["frame"]
    return frame


def answers() -> dict[str, Any]:
    """Run a job; return it, and what `TaskExecutor.is_blocked_by` answers at each place."""
    invocation = Invocation(Wire().world, Context(30), lambda _: None, consumer(print).log)
    message: Message = Message(record(), "m1", invocation)
    found: dict[str, Any] = {}

    async def coordinate() -> None:
        executor = TaskExecutor(invocation)
        here = executor.is_blocked_by

        async def left_behind() -> None:
            found["a task of the handler"] = here(frame_in("app.py"))

        async def handler(_: Message) -> None:
            found["first step"] = here(frame_in("app.py"))
            await asyncio.sleep(0)
            found["later step"] = here(frame_in("app.py"))
            found["unknown frame"] = here(None)
            found["in asyncio"] = here(frame_in(asyncio.__file__))
            await asyncio.create_task(left_behind())
            job.has_ended = True
            found["its end is noted"] = here(frame_in("app.py"))

        found["job"] = job = Job(handler, message)
        if not executor.start(job):
            await executor.ended(60)
        found["the coordinator"] = here(frame_in("app.py"))
        executor.close()

    asyncio.run(coordinate())
    return found


def test_a_handler_blocks_the_loop_in_its_own_code_only() -> None:  # SPEC I3
    found = answers()
    job = found.pop("job")
    assert found == {
        "first step": job,
        "later step": job,
        "unknown frame": job,
        "in asyncio": False,
        "a task of the handler": True,
        "its end is noted": False,
        "the coordinator": False,
    }
