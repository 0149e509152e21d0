"""The schedulers: timed actions in virtual time, and in real time on an asyncio loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tarry.tools.simulator import scheduler as asyncio_scheduler
from tarry.tools.simulator.scheduler import START, AsyncioScheduler, Scheduler, Timer


class Noted:
    """A scheduler, and what its actions note, with the seconds since the start."""

    def __init__(self) -> None:
        self.scheduler, self.ran = Scheduler(), []

    def after(self, seconds: float, name: Any = "") -> Timer:
        return self.scheduler.after(seconds, lambda: self.ran.append((name, self.now)))

    @property
    def now(self) -> float:
        return self.scheduler.now - START


@pytest.fixture
def virtual() -> Noted:
    return Noted()


def test_actions_run_in_the_order_of_their_times_then_first_in_first_out_and_late_ones_now(virtual: Noted) -> None:
    for name, seconds in [("second", 20), ("first", 10), ("third", 20), ("now", 0), ("late", -5)]:
        virtual.after(seconds, name)
    assert virtual.scheduler.run() == "idle"
    assert virtual.ran == [("now", 0), ("late", 0), ("first", 10), ("second", 20), ("third", 20)]


def test_a_cancelled_action_does_not_run_and_time_does_not_advance_to_it(virtual: Noted) -> None:
    timers = [virtual.after(10)]
    for _ in range(2):
        timers[0].cancel()
    assert (virtual.scheduler.run(), virtual.now) == ("idle", 0)
    virtual.scheduler.after(10, lambda: timers.pop().cancel())
    timers.append(virtual.after(10))
    assert (virtual.scheduler.run(), virtual.now, virtual.ran) == ("idle", 10, [])


def test_cancelled_timers_are_removed_from_the_heap(virtual: Noted) -> None:
    virtual.after(1_000_000)
    for _ in range(20_000):
        virtual.after(900).cancel()
    assert len(virtual.scheduler._heap) < 5_000
    virtual.scheduler.run()
    assert virtual.now == 1_000_000


def test_a_run_ends_at_its_time_with_its_condition_or_at_the_last_action_within_its_limit(virtual: Noted) -> None:
    for seconds in (10, 20, 30):
        virtual.after(seconds)
    for reason, ran, now, until in [
        ("until", 1, 10, lambda: len(virtual.ran) == 1), ("until", 2, 20, START + 20), ("until", 2, 25, START + 25),
        ("limit", 2, 28, {"limit": START + 28}), ("idle", 3, 30, {"limit": START + 1_000}),
        ("idle", 3, 30, lambda: len(virtual.ran) == 9), ("until", 3, 100, START + 100),
    ]:  # fmt: skip
        stopped = virtual.scheduler.run(**until) if isinstance(until, dict) else virtual.scheduler.run(until)
        assert (stopped, len(virtual.ran), virtual.now) == (reason, ran, now)


def test_an_exception_ends_the_run_and_the_next_run_continues_after_it(virtual: Noted) -> None:
    virtual.scheduler.after(10, lambda: 1 / 0)
    virtual.scheduler.after(15, virtual.scheduler.run)  # an action cannot run the scheduler
    virtual.after(20, "next")
    for error, text in ((ZeroDivisionError, "division"), (RuntimeError, "is running")):
        with pytest.raises(error, match=text):
            virtual.scheduler.run()
    virtual.scheduler.run()
    assert virtual.ran == [("next", 20)]


# in real time


def on_a_loop(scenario: Callable[[AsyncioScheduler], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await scenario(AsyncioScheduler())

    return asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true, as long as a busy machine may take."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 there is no event to wait for
            await asyncio.sleep(0.001)


def test_actions_run_in_order_when_they_are_due_unless_they_are_cancelled() -> None:
    async def scenario(scheduler: AsyncioScheduler) -> None:
        ran: list[tuple[float, float]] = []
        now = scheduler.now
        scheduler.at(now + 0.01, partial(pytest.fail, "the action ran")).cancel()
        for step in reversed(range(200)):  # the earliest is added last
            timers: list[Timer] = []
            timers.append(
                scheduler.at(now + step / 10_000, lambda own=timers: ran.append((own[0].when, scheduler.now)))
            )
        await until(lambda: len(ran) == 200)
        assert ran == sorted(ran)
        assert min(at - when for when, at in ran) >= 0, "an action never runs before its time"

    on_a_loop(scenario)


def test_now_is_the_time_of_day() -> None:
    async def scenario(scheduler: AsyncioScheduler) -> tuple[float, ...]:
        first = scheduler.now
        await asyncio.sleep(0.02)
        return first, time.time(), scheduler.now, time.time()

    first, before, second, after = on_a_loop(scenario)
    assert before - 0.01 <= second <= after + 0.01
    assert second - first >= 0.02


def test_actions_that_became_due_while_the_machine_slept_run_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, real, ran = [0.0], time.time, []
    monkeypatch.setattr(asyncio_scheduler, "MAX_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(time, "time", lambda: real() + slept[0])

    async def scenario(scheduler: AsyncioScheduler) -> None:
        scheduler.after(3_600, lambda: ran.append("after an hour"))
        await asyncio.sleep(0.03)
        assert not ran
        slept[0] = 7_200
        await until(lambda: ran)

    on_a_loop(scenario)


def test_a_clock_that_is_set_back_delays_no_action(monkeypatch: pytest.MonkeyPatch) -> None:
    real, ran = time.time, []

    async def scenario(scheduler: AsyncioScheduler) -> None:
        scheduler.after(0.02, lambda: ran.append("in time"))
        before = scheduler.now
        monkeypatch.setattr(time, "time", lambda: real() - 3_600)
        assert scheduler.now >= before
        await until(lambda: ran)

    on_a_loop(scenario)


def test_an_exception_goes_to_the_loop_and_the_next_action_still_runs() -> None:
    ran: list[Any] = []

    async def scenario(scheduler: AsyncioScheduler) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: ran.append(repr(context["exception"])))
        scheduler.after(0.01, lambda: 1 / 0)
        scheduler.after(0.01, lambda: ran.append("next"))
        await until(lambda: "next" in ran)

    on_a_loop(scenario)
    assert ran == ["ZeroDivisionError('division by zero')", "next"]


def test_a_closed_scheduler_runs_no_actions_and_a_chain_of_them_does_not_block_the_loop() -> None:
    async def scenario(scheduler: AsyncioScheduler) -> int:
        turns = 0

        def repeat() -> None:
            nonlocal turns
            turns += 1
            scheduler.after(0, repeat)

        scheduler.after(0, repeat)
        await asyncio.sleep(0.01)
        scheduler.close()
        closed_at = turns
        scheduler.after(0, partial(pytest.fail, "the action ran"))
        await asyncio.sleep(0.03)
        return closed_at if turns == closed_at else 0

    assert on_a_loop(scenario) > 1
