"""The scheduler: timed actions in virtual time."""

import pytest

from tarry.tools.simulator.scheduler import START, Scheduler, Timer


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


def test_actions_run_in_the_order_of_their_times_then_first_in_first_out(scheduler: Scheduler) -> None:
    ran: list[tuple[str, float]] = []
    for name, seconds in [("second", 20), ("first", 10), ("third", 20), ("now", 0)]:
        scheduler.after(seconds, lambda name=name: ran.append((name, scheduler.now - START)))
    assert scheduler.run() == "idle"
    assert ran == [("now", 0), ("first", 10), ("second", 20), ("third", 20)]


def test_an_action_for_a_time_that_has_passed_runs_now(scheduler: Scheduler) -> None:
    scheduler.after(10, lambda: scheduler.at(START, lambda: None) and None)
    scheduler.run()
    assert scheduler.now == START + 10


def test_a_cancelled_action_does_not_run_and_time_does_not_advance_to_it(scheduler: Scheduler) -> None:
    timer = scheduler.after(10, lambda: pytest.fail("the action ran"))
    timer.cancel()
    timer.cancel()
    assert scheduler.run() == "idle"
    assert scheduler.now == START


def test_an_action_may_cancel_another_of_the_same_time(scheduler: Scheduler) -> None:
    timers: list[Timer] = []

    def cancel_the_other() -> None:
        timers[0].cancel()

    scheduler.after(10, cancel_the_other)
    timers.append(scheduler.after(10, lambda: pytest.fail("the action ran")))
    scheduler.run()


def test_cancelled_timers_are_removed_from_the_heap() -> None:
    scheduler = Scheduler()
    kept = scheduler.after(1_000_000, lambda: None)
    for _ in range(20_000):
        scheduler.after(900, lambda: None).cancel()
    assert len(scheduler._heap) < 5_000
    scheduler.run()
    assert scheduler.now == kept.when


def test_a_run_until_a_time_ends_at_that_time_and_one_with_a_limit_at_its_last_action(scheduler: Scheduler) -> None:
    ran: list[float] = []
    for seconds in (10, 20, 30):
        scheduler.after(seconds, lambda: ran.append(scheduler.now - START))
    assert scheduler.run(START + 20) == "until"
    assert (ran, scheduler.now) == ([10, 20], START + 20)
    assert scheduler.run(START + 25) == "until"
    assert scheduler.now == START + 25
    assert scheduler.run(limit=START + 28) == "limit"
    assert (ran, scheduler.now) == ([10, 20], START + 28)
    assert scheduler.run(limit=START + 1_000) == "idle"
    assert (ran, scheduler.now) == ([10, 20, 30], START + 30)
    assert scheduler.run(START + 100) == "until"
    assert scheduler.now == START + 100


def test_a_run_until_a_condition_ends_as_soon_as_it_is_true(scheduler: Scheduler) -> None:
    ran: list[int] = []
    for seconds in (10, 20, 30):
        scheduler.after(seconds, lambda: ran.append(1))
    assert scheduler.run(lambda: len(ran) == 2) == "until"
    assert scheduler.now == START + 20
    assert scheduler.run(lambda: len(ran) == 9) == "idle"


def test_an_exception_ends_the_run_and_the_next_run_continues_after_it(scheduler: Scheduler) -> None:
    ran: list[int] = []
    scheduler.after(10, lambda: 1 / 0)
    scheduler.after(20, lambda: ran.append(1))
    with pytest.raises(ZeroDivisionError):
        scheduler.run()
    scheduler.run()
    assert ran == [1]


def test_an_action_cannot_run_the_scheduler(scheduler: Scheduler) -> None:
    scheduler.after(10, scheduler.run)
    with pytest.raises(RuntimeError, match="is running"):
        scheduler.run()
