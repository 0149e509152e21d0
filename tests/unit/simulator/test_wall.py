"""The timeline under the wall clock, on an asyncio loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tarry.simulator import wall
from tarry.simulator.wall import LoopTimeline


def on_a_loop(story: Callable[[LoopTimeline], Awaitable[Any]]) -> Any:
    async def play() -> Any:
        return await story(LoopTimeline())

    return asyncio.run(play())


async def until(condition: Callable[[], object]) -> None:
    """Watch, for as long as a busy machine may take."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 it is not known what will make it so
            await asyncio.sleep(0.001)


def test_events_happen_in_their_order_when_they_are_due() -> None:
    happened: list[tuple[str, float]] = []

    async def story(timeline: LoopTimeline) -> None:
        began, now = time.monotonic(), timeline.now
        timeline.at(now + 0.04, lambda: happened.append(("second", time.monotonic() - began)))
        timeline.at(now + 0.02, lambda: happened.append(("first", time.monotonic() - began)))
        await until(lambda: len(happened) == 2)

    on_a_loop(story)
    assert [name for name, _ in happened] == ["first", "second"]
    assert happened[0][1] >= 0.02
    assert happened[1][1] >= 0.04


def test_now_is_at_no_event_before_its_time() -> None:
    early: list[float] = []

    async def story(timeline: LoopTimeline) -> None:
        for step in range(200):
            when = timeline.now + step / 10_000
            timeline.at(when, lambda when=when: early.append(timeline.now - when))  # type: ignore[misc]
        await until(lambda: len(early) == 200)

    on_a_loop(story)
    assert min(early) >= 0


def test_a_cancelled_event_does_not_happen_and_a_later_one_does() -> None:
    happened: list[str] = []

    async def story(timeline: LoopTimeline) -> None:
        now = timeline.now
        timer = timeline.at(now + 0.01, lambda: happened.append("cancelled"))
        timeline.at(now + 0.02, lambda: happened.append("kept"))
        timer.cancel()
        await until(lambda: happened)

    on_a_loop(story)
    assert happened == ["kept"]


def test_its_time_is_the_time_of_day_at_each_look() -> None:
    async def story(timeline: LoopTimeline) -> tuple[float, ...]:
        first = timeline.now
        await asyncio.sleep(0.02)
        return first, time.time(), timeline.now, time.time()

    first, before, second, after = on_a_loop(story)
    assert before - 0.01 <= second <= after + 0.01
    assert second - first >= 0.02


def test_a_machine_that_slept_finds_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = 0.0
    real = time.time
    monkeypatch.setattr(wall, "LOOK_AT_THE_CLOCK_SECONDS", 0.01)
    monkeypatch.setattr(time, "time", lambda: real() + slept)
    happened: list[str] = []

    async def story(timeline: LoopTimeline) -> None:
        nonlocal slept
        timeline.after(3_600, lambda: happened.append("after an hour"))
        await asyncio.sleep(0.03)
        assert not happened
        slept = 7_200
        await until(lambda: happened)

    on_a_loop(story)
    assert happened == ["after an hour"]


def test_a_clock_that_is_set_back_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    happened: list[str] = []

    async def story(timeline: LoopTimeline) -> None:
        timeline.after(0.02, lambda: happened.append("in time"))
        before = timeline.now
        monkeypatch.setattr(time, "time", lambda: real() - 3_600)
        assert timeline.now >= before
        await until(lambda: happened)

    on_a_loop(story)
    assert happened == ["in time"]


def test_an_event_that_raises_is_told_to_the_loop_and_the_next_one_happens() -> None:
    happened: list[Any] = []

    async def story(timeline: LoopTimeline) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: happened.append(repr(about["exception"])))
        timeline.after(0.01, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        timeline.after(0.01, lambda: happened.append("next"))
        await until(lambda: "next" in happened)

    on_a_loop(story)
    assert happened == ["ZeroDivisionError('division by zero')", "next"]


def test_after_the_end_nothing_happens() -> None:
    async def story(timeline: LoopTimeline) -> None:
        timeline.after(0.01, lambda: pytest.fail("it happened"))
        timeline.close()
        timeline.after(0, lambda: pytest.fail("it happened"))
        await asyncio.sleep(0.03)

    on_a_loop(story)


def test_events_that_follow_one_another_leave_the_loop_to_others() -> None:
    async def story(timeline: LoopTimeline) -> int:
        turns = 0

        def again() -> None:
            nonlocal turns
            turns += 1
            timeline.after(0, again)

        timeline.after(0, again)
        await asyncio.sleep(0.01)
        return turns

    assert on_a_loop(story) > 1
