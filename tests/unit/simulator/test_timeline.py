"""The timeline: what happens when, in virtual time."""

import time

import pytest

from tarry.simulator.timeline import START, Timeline, Timer


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


def test_events_happen_in_the_order_of_their_times_and_equal_ones_as_they_were_added(timeline: Timeline) -> None:
    happened: list[tuple[str, float]] = []
    for name, seconds in [("late", 20), ("early", 10), ("late too", 20), ("now", 0)]:
        timeline.after(seconds, lambda name=name: happened.append((name, timeline.now - START)))
    assert timeline.run() == "idle"
    assert happened == [("now", 0), ("early", 10), ("late", 20), ("late too", 20)]


def test_time_jumps_to_the_next_event(timeline: Timeline) -> None:
    timeline.after(12 * 3600, lambda: None)
    began = time.process_time()
    timeline.run()
    assert timeline.now == START + 12 * 3600
    assert time.process_time() - began < 10


def test_what_is_added_for_a_time_that_has_passed_happens_now(timeline: Timeline) -> None:
    timeline.after(10, lambda: timeline.at(START, lambda: None) and None)
    timeline.run()
    assert timeline.now == START + 10


def test_a_cancelled_event_does_not_happen_and_time_does_not_go_there(timeline: Timeline) -> None:
    timer = timeline.after(10, lambda: pytest.fail("it happened"))
    timer.cancel()
    timer.cancel()
    assert timeline.run() == "idle"
    assert timeline.now == START


def test_an_event_may_cancel_one_of_the_same_time(timeline: Timeline) -> None:
    timers: list[Timer] = []

    def cancel_the_other() -> None:
        timers[0].cancel()

    timeline.after(10, cancel_the_other)
    timers.append(timeline.after(10, lambda: pytest.fail("it happened")))
    timeline.run()


def test_cancelled_events_are_not_kept() -> None:
    timeline = Timeline()
    kept = timeline.after(1_000_000, lambda: None)
    for _ in range(100_000):
        timeline.after(900, lambda: None).cancel()
    assert len(timeline._heap) < 10_000
    timeline.run()
    assert timeline.now == kept.when


def test_a_run_until_a_time_ends_at_that_time_whatever_is_left(timeline: Timeline) -> None:
    happened: list[float] = []
    for seconds in (10, 20, 30):
        timeline.after(seconds, lambda: happened.append(timeline.now - START))
    assert timeline.run(START + 20) == "until"
    assert (happened, timeline.now) == ([10, 20], START + 20)
    assert timeline.run(START + 25) == "until"
    assert timeline.now == START + 25
    assert timeline.run(START + 100) == "until"
    assert timeline.now == START + 100


def test_a_run_until_a_condition_ends_as_soon_as_it_holds(timeline: Timeline) -> None:
    happened: list[int] = []
    for seconds in (10, 20, 30):
        timeline.after(seconds, lambda: happened.append(1))
    assert timeline.run(lambda: len(happened) == 2) == "until"
    assert timeline.now == START + 20
    assert timeline.run(lambda: len(happened) == 9) == "idle"


def test_nothing_happens_beyond_the_limit(timeline: Timeline) -> None:
    timeline.after(10, lambda: None)
    timeline.after(50, lambda: pytest.fail("it happened"))
    assert timeline.run(limit=START + 20) == "limit"
    assert timeline.now == START + 20


def test_a_run_that_is_idle_before_its_limit_stays_where_it_became_idle(timeline: Timeline) -> None:
    timeline.after(10, lambda: None)
    assert timeline.run(limit=START + 1_000) == "idle"
    assert timeline.now == START + 10


def test_what_an_event_raises_ends_the_run_and_the_next_run_goes_on_behind_it(timeline: Timeline) -> None:
    happened: list[int] = []
    timeline.after(10, lambda: 1 / 0)
    timeline.after(20, lambda: happened.append(1))
    with pytest.raises(ZeroDivisionError):
        timeline.run()
    timeline.run()
    assert happened == [1]


def test_an_event_cannot_run_the_timeline(timeline: Timeline) -> None:
    timeline.after(10, timeline.run)
    with pytest.raises(RuntimeError, match="is running"):
        timeline.run()


def test_a_hundred_thousand_events_take_seconds_at_most() -> None:
    timeline = Timeline()
    left = 100_000

    def again() -> None:
        nonlocal left
        left -= 1
        if left:
            timeline.after(1, again)

    timeline.after(1, again)
    began = time.process_time()
    timeline.run()
    assert time.process_time() - began < 10
