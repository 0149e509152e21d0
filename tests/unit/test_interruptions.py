"""Interrupting the main thread by SIGALRM: the real thing, in fractions of a second."""

import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from tarry.world import RealThreads


class Stop(BaseException):
    """What the tests raise."""


@pytest.fixture(autouse=True)
def _alarm_as_it_was() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def stop(_: FrameType | None) -> BaseException | float:
    return Stop()


def interrupt(seconds: float, fire: Any = stop) -> Any:
    interruption = RealThreads().interrupt(seconds, fire)
    assert interruption is not None
    return interruption


def test_a_sleep_is_interrupted() -> None:  # SPEC I3
    interruption = interrupt(0.05)
    began = time.monotonic()
    with pytest.raises(Stop):
        time.sleep(60)
    interruption.cancel()
    assert time.monotonic() - began < 50


def test_what_swallows_an_interruption_is_interrupted_again() -> None:  # SPEC I3
    interruption, times = interrupt(0.01), 0
    while times < 3:
        try:
            time.sleep(10)
        except Stop:
            times += 1
    interruption.cancel()


def test_who_is_asked_may_want_to_be_asked_later() -> None:
    asked: list[float] = []

    def later(_: FrameType | None) -> BaseException | float:
        asked.append(time.monotonic())
        return 0.05 if len(asked) == 1 else Stop()

    interruption = interrupt(0.01, later)
    with pytest.raises(Stop):
        time.sleep(10)
    interruption.cancel()
    assert asked[1] - asked[0] >= 0.05


def test_the_frame_is_the_one_that_is_interrupted() -> None:
    seen: list[str] = []

    def look(frame: FrameType | None) -> BaseException | float:
        assert frame is not None
        seen.append(frame.f_code.co_name)
        return Stop()

    interruption = interrupt(0.01, look)
    with pytest.raises(Stop):
        time.sleep(10)
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
    interrupt(10).cancel()
    assert signal.getsignal(signal.SIGALRM) is own
    signal.raise_signal(signal.SIGALRM)
    assert rung == [signal.SIGALRM]


def test_a_timer_of_the_users_goes_on_where_it_would_be() -> None:  # SPEC I3
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 60, 7)
    interruption = interrupt(10)
    time.sleep(0.02)
    interruption.cancel()
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 59 < left <= 59.98
    assert interval == 7


def test_a_timer_of_the_users_that_has_run_out_meanwhile_rings_at_once() -> None:  # SPEC I3
    rung: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    interruption = interrupt(10)
    time.sleep(0.03)
    interruption.cancel()
    time.sleep(0.03)
    assert rung == [signal.SIGALRM]


def test_who_has_taken_the_signal_meanwhile_keeps_it() -> None:
    def own(*_: Any) -> None: ...

    interruption = interrupt(10)
    signal.signal(signal.SIGALRM, own)
    signal.setitimer(signal.ITIMER_REAL, 60)
    interruption.cancel()
    assert signal.getsignal(signal.SIGALRM) is own
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 59


def test_a_handler_of_tarrys_that_somebody_puts_back_later_interrupts_nothing() -> None:  # SPEC A6
    interruption = interrupt(10)
    left = signal.getsignal(signal.SIGALRM)
    interruption.cancel()
    signal.signal(signal.SIGALRM, left)
    signal.raise_signal(signal.SIGALRM)


def test_nor_does_it_in_a_later_invocation() -> None:  # SPEC A6
    earlier = interrupt(10)
    left = signal.getsignal(signal.SIGALRM)
    earlier.cancel()
    later = interrupt(10)
    signal.signal(signal.SIGALRM, left)
    signal.raise_signal(signal.SIGALRM)
    later.renew()
    with pytest.raises(Stop):
        time.sleep(10)
    later.cancel()


def test_one_within_another_puts_that_back() -> None:
    outer = interrupt(0.05)
    interrupt(10).cancel()
    with pytest.raises(Stop):
        time.sleep(10)
    outer.cancel()


def test_a_thread_that_is_not_the_main_one_cannot_be_interrupted() -> None:  # SPEC I3
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(RealThreads().interrupt(0.01, stop)))
    thread.start()
    thread.join()
    assert results == [None]


def test_a_timer_that_somebody_has_stopped_is_renewed() -> None:  # SPEC I3
    interruption = interrupt(10)
    signal.alarm(0)
    interruption.renew()
    with pytest.raises(Stop):
        time.sleep(10)
    interruption.cancel()


def test_a_signal_that_somebody_has_taken_is_taken_back_until_the_end() -> None:  # SPEC I3
    def own(*_: Any) -> None: ...

    interruption = interrupt(10)
    signal.signal(signal.SIGALRM, own)
    signal.alarm(60)
    interruption.renew()
    with pytest.raises(Stop):
        time.sleep(10)
    interruption.cancel()
    assert signal.getsignal(signal.SIGALRM) is own
    assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60


def test_one_that_still_comes_is_left_as_it_is() -> None:
    interruption = interrupt(10)
    interruption.renew()
    assert 9 < signal.getitimer(signal.ITIMER_REAL)[0] <= 10
    interruption.cancel()


def test_a_handler_of_somebody_elses_is_not_rung_by_our_timer() -> None:  # SPEC A6
    interruption = interrupt(10)
    signal.signal(signal.SIGALRM, lambda *_: None)
    interruption.cancel()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_nor_when_it_was_taken_back_meanwhile() -> None:  # SPEC A6
    interruption = interrupt(10)
    signal.signal(signal.SIGALRM, lambda *_: None)
    interruption.renew()
    interruption.cancel()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
