"""Interrupting the main thread by SIGALRM: the real thing, in fractions of a second.

A timer may ring late on a busy machine, and a test may be late to wait for it: `Stops` waits for the test, and what is
left of a timer is compared with the time that has passed.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from tarry.world import RealThreads

LONG = 60
"""Seconds that nothing here really takes."""
AGAIN_SECONDS = 0.005


class Stop(BaseException):
    """What the tests raise."""


class Stops:
    """Raises `Stop` once, in the block of a test; until the test is there, the interruption is to ask again."""

    def __init__(self) -> None:
        self._waits = False
        self.asked = 0
        """How often the interruption has asked within a block."""

    def __call__(self, frame: FrameType | None) -> BaseException | float:
        if not self._waits or frame is None or not frame.f_code.co_name.startswith("test_"):
            return AGAIN_SECONDS
        self.asked += 1
        answer = self.answer(frame)
        self._waits = not isinstance(answer, BaseException)
        return answer

    def answer(self, _: FrameType | None) -> BaseException | float:
        return Stop()

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        self._waits = True
        with pytest.raises(Stop):
            yield


@pytest.fixture(autouse=True)
def _alarm_as_it_was() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def stop() -> Stops:
    return Stops()


def interrupt(seconds: float, fire: Any = None) -> Any:
    interruption = RealThreads().interrupt(seconds, fire or Stops())
    assert interruption is not None
    return interruption


def test_a_sleep_is_interrupted(stop: Stops) -> None:  # SPEC I3
    interruption = interrupt(0.05, stop)
    began = time.monotonic()
    with stop.here():
        time.sleep(LONG)
    interruption.cancel()
    assert time.monotonic() - began < LONG / 2


def test_what_swallows_an_interruption_is_interrupted_again(stop: Stops) -> None:  # SPEC I3
    interruption = interrupt(0.01, stop)
    for _ in range(3):
        with stop.here():
            time.sleep(LONG)
    interruption.cancel()
    assert stop.asked == 3


def test_who_is_asked_may_want_to_be_asked_later() -> None:
    asked: list[float] = []

    class Later(Stops):
        def answer(self, _: FrameType | None) -> BaseException | float:
            asked.append(time.monotonic())
            return 0.05 if len(asked) == 1 else Stop()

    later = Later()
    interruption = interrupt(0.01, later)
    with later.here():
        time.sleep(LONG)
    interruption.cancel()
    assert len(asked) == 2
    assert asked[1] - asked[0] >= 0.05


def test_the_frame_is_the_one_that_is_interrupted() -> None:
    seen: list[str] = []

    class Looks(Stops):
        def answer(self, frame: FrameType | None) -> BaseException | float:
            assert frame is not None
            seen.append(frame.f_code.co_name)
            return Stop()

    looks = Looks()
    interruption = interrupt(0.01, looks)
    with looks.here():
        time.sleep(LONG)
    interruption.cancel()
    assert seen == ["test_the_frame_is_the_one_that_is_interrupted"]


def test_a_cancelled_interruption_does_not_come() -> None:
    interrupt(0.02).cancel()
    time.sleep(0.05)


def test_a_handler_of_the_users_is_put_back() -> None:  # SPEC I3
    rung: list[int] = []

    def own(number: int, _: FrameType | None) -> None:
        rung.append(number)

    signal.signal(signal.SIGALRM, own)
    interrupt(LONG).cancel()
    assert signal.getsignal(signal.SIGALRM) is own
    signal.raise_signal(signal.SIGALRM)
    assert rung == [signal.SIGALRM]


def test_a_timer_of_the_users_goes_on_where_it_would_be() -> None:  # SPEC I3
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


def test_a_timer_of_the_users_that_has_run_out_meanwhile_rings_at_once() -> None:  # SPEC I3
    rung: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    interruption = interrupt(LONG)
    time.sleep(0.15)
    interruption.cancel()
    ends_at = time.monotonic() + LONG
    while not rung and time.monotonic() < ends_at:
        time.sleep(0.001)
    assert rung == [signal.SIGALRM]


def test_who_has_taken_the_signal_meanwhile_keeps_it() -> None:
    def own(*_: Any) -> None: ...

    interruption = interrupt(LONG)
    signal.signal(signal.SIGALRM, own)
    signal.setitimer(signal.ITIMER_REAL, 600)
    interruption.cancel()
    assert signal.getsignal(signal.SIGALRM) is own
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 500


def test_a_handler_of_tarrys_that_somebody_puts_back_later_interrupts_nothing() -> None:  # SPEC A6
    interruption = interrupt(LONG)
    left = signal.getsignal(signal.SIGALRM)
    interruption.cancel()
    signal.signal(signal.SIGALRM, left)
    signal.raise_signal(signal.SIGALRM)


def test_nor_does_it_in_a_later_invocation(stop: Stops) -> None:  # SPEC A6
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


def test_one_within_another_puts_that_back(stop: Stops) -> None:
    outer = interrupt(0.05, stop)
    interrupt(LONG).cancel()
    with stop.here():
        time.sleep(LONG)
    outer.cancel()


def test_a_thread_that_is_not_the_main_one_cannot_be_interrupted() -> None:  # SPEC I3
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(RealThreads().interrupt(0.01, Stops())))
    thread.start()
    thread.join()
    assert results == [None]


def test_a_timer_that_somebody_has_stopped_is_renewed(stop: Stops) -> None:  # SPEC I3
    interruption = interrupt(LONG, stop)
    signal.alarm(0)
    interruption.renew()
    with stop.here():
        time.sleep(LONG)
    interruption.cancel()


def test_a_signal_that_somebody_has_taken_is_taken_back_until_the_end(stop: Stops) -> None:  # SPEC I3
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


def test_one_that_still_comes_is_left_as_it_is() -> None:
    interruption = interrupt(600)
    interruption.renew()
    assert 500 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600
    interruption.cancel()


def test_a_handler_of_somebody_elses_is_not_rung_by_our_timer() -> None:  # SPEC A6
    interruption = interrupt(LONG)
    signal.signal(signal.SIGALRM, lambda *_: None)
    interruption.cancel()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_nor_when_it_was_taken_back_meanwhile() -> None:  # SPEC A6
    interruption = interrupt(LONG)
    signal.signal(signal.SIGALRM, lambda *_: None)
    interruption.renew()
    interruption.cancel()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
