"""The scheduler in real time, on an asyncio loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tarry.tools.simulator import scheduler as asyncio_scheduler
from tarry.tools.simulator.scheduler import AsyncioScheduler


def on_a_loop(scenario: Callable[[AsyncioScheduler], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await scenario(AsyncioScheduler())

    return asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true, as long as a busy machine may take."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 there is no event to wait for
            await asyncio.sleep(0.001)


def test_actions_run_in_order_when_they_are_due() -> None:
    ran: list[tuple[str, float]] = []

    async def scenario(scheduler: AsyncioScheduler) -> None:
        began, now = time.monotonic(), scheduler.now
        scheduler.at(now + 0.04, lambda: ran.append(("second", time.monotonic() - began)))
        scheduler.at(now + 0.02, lambda: ran.append(("first", time.monotonic() - began)))
        await until(lambda: len(ran) == 2)

    on_a_loop(scenario)
    assert [name for name, _ in ran] == ["first", "second"]
    assert ran[0][1] >= 0.02
    assert ran[1][1] >= 0.04


def test_an_action_never_runs_before_its_time() -> None:
    early: list[float] = []

    async def scenario(scheduler: AsyncioScheduler) -> None:
        for step in range(200):
            when = scheduler.now + step / 10_000
            scheduler.at(when, lambda when=when: early.append(scheduler.now - when))  # type: ignore[misc]
        await until(lambda: len(early) == 200)

    on_a_loop(scenario)
    assert min(early) >= 0


def test_a_cancelled_action_does_not_run_and_a_later_one_does() -> None:
    ran: list[str] = []

    async def scenario(scheduler: AsyncioScheduler) -> None:
        now = scheduler.now
        timer = scheduler.at(now + 0.01, lambda: ran.append("cancelled"))
        scheduler.at(now + 0.02, lambda: ran.append("kept"))
        timer.cancel()
        await until(lambda: ran)

    on_a_loop(scenario)
    assert ran == ["kept"]


def test_now_is_the_time_of_day() -> None:
    async def scenario(scheduler: AsyncioScheduler) -> tuple[float, ...]:
        first = scheduler.now
        await asyncio.sleep(0.02)
        return first, time.time(), scheduler.now, time.time()

    first, before, second, after = on_a_loop(scenario)
    assert before - 0.01 <= second <= after + 0.01
    assert second - first >= 0.02


def test_actions_that_became_due_while_the_machine_slept_run_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = 0.0
    real = time.time
    monkeypatch.setattr(asyncio_scheduler, "MAX_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(time, "time", lambda: real() + slept)
    ran: list[str] = []

    async def scenario(scheduler: AsyncioScheduler) -> None:
        nonlocal slept
        scheduler.after(3_600, lambda: ran.append("after an hour"))
        await asyncio.sleep(0.03)
        assert not ran
        slept = 7_200
        await until(lambda: ran)

    on_a_loop(scenario)
    assert ran == ["after an hour"]


def test_a_clock_that_is_set_back_delays_no_action(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    ran: list[str] = []

    async def scenario(scheduler: AsyncioScheduler) -> None:
        scheduler.after(0.02, lambda: ran.append("in time"))
        before = scheduler.now
        monkeypatch.setattr(time, "time", lambda: real() - 3_600)
        assert scheduler.now >= before
        await until(lambda: ran)

    on_a_loop(scenario)
    assert ran == ["in time"]


def test_an_exception_goes_to_the_loop_and_the_next_action_still_runs() -> None:
    ran: list[Any] = []

    async def scenario(scheduler: AsyncioScheduler) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: ran.append(repr(context["exception"])))
        scheduler.after(0.01, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        scheduler.after(0.01, lambda: ran.append("next"))
        await until(lambda: "next" in ran)

    on_a_loop(scenario)
    assert ran == ["ZeroDivisionError('division by zero')", "next"]


def test_a_closed_scheduler_runs_no_actions() -> None:
    async def scenario(scheduler: AsyncioScheduler) -> None:
        scheduler.after(0.01, lambda: pytest.fail("the action ran"))
        scheduler.close()
        scheduler.after(0, lambda: pytest.fail("the action ran"))
        await asyncio.sleep(0.03)

    on_a_loop(scenario)


def test_a_chain_of_actions_does_not_block_the_loop() -> None:
    async def scenario(scheduler: AsyncioScheduler) -> int:
        turns = 0

        def repeat() -> None:
            nonlocal turns
            turns += 1
            scheduler.after(0, repeat)

        scheduler.after(0, repeat)
        await asyncio.sleep(0.01)
        return turns

    assert on_a_loop(scenario) > 1
