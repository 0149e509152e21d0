"""The timeline: scheduled actions in virtual time."""

import time

import pytest

from tarry.simulator.timeline import START, Timeline, Timer


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


def test_actions_run_in_the_order_of_their_times_then_first_in_first_out(timeline: Timeline) -> None:
    ran: list[tuple[str, float]] = []
    for name, seconds in [("second", 20), ("first", 10), ("third", 20), ("now", 0)]:
        timeline.after(seconds, lambda name=name: ran.append((name, timeline.now - START)))
    assert timeline.run() == "idle"
    assert ran == [("now", 0), ("first", 10), ("second", 20), ("third", 20)]


def test_time_jumps_to_the_next_action(timeline: Timeline) -> None:
    timeline.after(12 * 3600, lambda: None)
    began = time.process_time()
    timeline.run()
    assert timeline.now == START + 12 * 3600
    assert time.process_time() - began < 10


def test_an_action_for_a_time_that_has_passed_runs_now(timeline: Timeline) -> None:
    timeline.after(10, lambda: timeline.at(START, lambda: None) and None)
    timeline.run()
    assert timeline.now == START + 10


def test_a_cancelled_action_does_not_run_and_time_does_not_advance_to_it(timeline: Timeline) -> None:
    timer = timeline.after(10, lambda: pytest.fail("the action ran"))
    timer.cancel()
    timer.cancel()
    assert timeline.run() == "idle"
    assert timeline.now == START


def test_an_action_may_cancel_another_of_the_same_time(timeline: Timeline) -> None:
    timers: list[Timer] = []

    def cancel_the_other() -> None:
        timers[0].cancel()

    timeline.after(10, cancel_the_other)
    timers.append(timeline.after(10, lambda: pytest.fail("the action ran")))
    timeline.run()


def test_cancelled_timers_are_removed_from_the_heap() -> None:
    timeline = Timeline()
    kept = timeline.after(1_000_000, lambda: None)
    for _ in range(100_000):
        timeline.after(900, lambda: None).cancel()
    assert len(timeline._heap) < 10_000
    timeline.run()
    assert timeline.now == kept.when


def test_a_run_until_a_time_ends_at_that_time(timeline: Timeline) -> None:
    ran: list[float] = []
    for seconds in (10, 20, 30):
        timeline.after(seconds, lambda: ran.append(timeline.now - START))
    assert timeline.run(START + 20) == "until"
    assert (ran, timeline.now) == ([10, 20], START + 20)
    assert timeline.run(START + 25) == "until"
    assert timeline.now == START + 25
    assert timeline.run(START + 100) == "until"
    assert timeline.now == START + 100


def test_a_run_until_a_condition_ends_as_soon_as_it_is_true(timeline: Timeline) -> None:
    ran: list[int] = []
    for seconds in (10, 20, 30):
        timeline.after(seconds, lambda: ran.append(1))
    assert timeline.run(lambda: len(ran) == 2) == "until"
    assert timeline.now == START + 20
    assert timeline.run(lambda: len(ran) == 9) == "idle"


def test_no_action_runs_after_the_limit(timeline: Timeline) -> None:
    timeline.after(10, lambda: None)
    timeline.after(50, lambda: pytest.fail("the action ran"))
    assert timeline.run(limit=START + 20) == "limit"
    assert timeline.now == START + 20


def test_a_run_without_actions_does_not_advance_to_its_limit(timeline: Timeline) -> None:
    timeline.after(10, lambda: None)
    assert timeline.run(limit=START + 1_000) == "idle"
    assert timeline.now == START + 10


def test_an_exception_ends_the_run_and_the_next_run_continues_after_it(timeline: Timeline) -> None:
    ran: list[int] = []
    timeline.after(10, lambda: 1 / 0)
    timeline.after(20, lambda: ran.append(1))
    with pytest.raises(ZeroDivisionError):
        timeline.run()
    timeline.run()
    assert ran == [1]


def test_an_action_cannot_run_the_timeline(timeline: Timeline) -> None:
    timeline.after(10, timeline.run)
    with pytest.raises(RuntimeError, match="is running"):
        timeline.run()


def test_a_hundred_thousand_actions_take_seconds_at_most() -> None:
    timeline = Timeline()
    left = 100_000

    def repeat() -> None:
        nonlocal left
        left -= 1
        if left:
            timeline.after(1, repeat)

    timeline.after(1, repeat)
    began = time.process_time()
    timeline.run()
    assert time.process_time() - began < 10
