"""asyncio in virtual time."""

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

import pytest

from tarry.simulator.errors import WaitsForEver
from tarry.simulator.stage import Stage

T = TypeVar("T")


def play(stage: Stage, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine that an actor runs on a virtual loop."""
    results: list[T] = []

    def work() -> None:
        loop = stage.threads.new_event_loop()
        try:
            results.append(loop.run_until_complete(main()))
        finally:
            loop.close()

    stage.threads.start(work)
    stage.timeline.run()
    return results[0]


def test_sleeps_take_no_real_time_and_run_side_by_side(stage: Stage) -> None:
    async def main() -> float:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3600))
            group.create_task(stage.clock.asleep(7200))
        return stage.clock.monotonic()

    began = time.process_time()
    assert play(stage, main) == 7200
    assert time.process_time() - began < 10


async def by_wait_for() -> None:
    await asyncio.wait_for(asyncio.sleep(100), 7.5)


async def by_timeout() -> None:
    async with asyncio.timeout(7.5):
        await asyncio.sleep(100)


@pytest.mark.parametrize("wait", [by_wait_for, by_timeout])
def test_timeouts_come_in_virtual_time(stage: Stage, wait: Callable[[], Awaitable[None]]) -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await wait()
        return stage.clock.monotonic()

    assert play(stage, main) == 7.5


def test_tasks_take_turns_the_same_way_each_time() -> None:
    def order() -> list[tuple[str, float]]:
        stage, told = Stage(), []

        async def step(name: str, seconds: float) -> None:
            for _ in range(3):
                await asyncio.sleep(seconds)
                told.append((name, stage.clock.monotonic()))

        async def main() -> None:
            await asyncio.gather(step("a", 0.1), step("b", 0.2), step("c", 0.1))

        play(stage, main)
        stage.close()
        return told

    assert order() == order()
    assert [name for name, _ in order()][:2] == ["a", "c"]
    assert len(order()) == 9


def test_loops_of_several_actors_share_the_time(stage: Stage) -> None:
    told: list[tuple[str, float]] = []

    def work(name: str, seconds: float) -> None:
        async def main() -> None:
            for _ in range(2):
                await asyncio.sleep(seconds)
                told.append((name, stage.clock.monotonic()))

        asyncio.run(main())

    stage.threads.start(lambda: work("slow", 3))
    stage.threads.start(lambda: work("fast", 2))
    stage.timeline.run()
    assert told == [("fast", 2), ("slow", 3), ("fast", 4), ("slow", 6)]


def test_asyncio_run_in_an_actor_takes_virtual_time(stage: Stage) -> None:
    stage.threads.start(lambda: asyncio.run(asyncio.sleep(3600)))
    stage.timeline.run()
    assert stage.clock.monotonic() == 3600


def test_asyncio_run_elsewhere_is_as_it_was(stage: Stage) -> None:
    stage.threads.start(lambda: asyncio.run(asyncio.sleep(1)))
    stage.timeline.run()

    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert not asyncio.run(main()).startswith("tarry")


async def in_a_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def in_the_default_executor(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def in_an_executor(work: Callable[[], T]) -> T:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, work)


@pytest.mark.parametrize("run", [in_a_thread, in_the_default_executor, in_an_executor])
def test_a_function_given_to_a_thread_runs_as_an_actor(
    stage: Stage, run: Callable[[Callable[[], float]], Awaitable[float]]
) -> None:
    def work() -> float:
        stage.clock.sleep(10)
        return stage.clock.monotonic()

    async def main() -> tuple[float, float]:
        beside = asyncio.create_task(asyncio.sleep(4, stage.clock.monotonic()))
        result = await run(work)
        return await beside, result

    assert play(stage, main) == (0, 10)


def test_an_error_in_a_thread_is_raised_where_it_is_awaited(stage: Stage) -> None:
    async def main() -> str:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return "caught"

    assert play(stage, main) == "caught"


def test_a_thread_sees_the_context_it_was_started_from(stage: Stage) -> None:
    colour: ContextVar[str] = ContextVar("colour")

    async def main() -> str:
        colour.set("red")
        return await asyncio.to_thread(colour.get)

    assert play(stage, main) == "red"


def test_a_result_that_nobody_awaits_any_more_is_dropped(stage: Stage) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(lambda: stage.clock.sleep(10)), 1)

    play(stage, main)
    assert stage.clock.monotonic() == 10


def test_there_is_no_network_in_virtual_time(stage: Stage) -> None:
    async def main() -> str:
        with pytest.raises(NotImplementedError, match="create_connection: there are no sockets") as error:
            await asyncio.open_connection("example.com", 80)
        return str(error.value)

    assert "stand-in" in play(stage, main)


def test_a_test_can_run_a_virtual_loop_itself(stage: Stage) -> None:
    loop = stage.threads.new_event_loop()
    stage.timeline.after(5, lambda: stage.threads.start(lambda: None) and None)
    loop.run_until_complete(asyncio.sleep(10))
    assert stage.clock.monotonic() == 10
    with pytest.raises(WaitsForEver):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_the_clock_waits_in_virtual_time_on_a_real_loop_too(stage: Stage) -> None:
    asyncio.run(stage.clock.asleep(3600))
    assert stage.clock.monotonic() == 3600


def test_an_actor_that_is_killed_in_its_loop_leaves_no_complaint(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(asyncio.sleep(100)) for _ in range(3)]
        await asyncio.gather(*tasks)

    def work() -> None:
        stage.threads.new_event_loop().run_until_complete(main())

    actor = stage.actors.start(work)
    stage.timeline.after(10, actor.process.kill)
    stage.timeline.run()
    assert (actor.is_alive(), stage.clock.monotonic()) == (False, 10)
    assert caplog.messages == []
