"""asyncio in virtual time."""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import pytest

from tarry.tools.simulator.simulation import Simulation, WaitsForEver
from tests.unit.simulator.conftest import Stage

T = TypeVar("T")


def run_on_a_loop(stage: Stage, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a virtual loop in an actor; return its result."""
    results: list[T] = []

    def work() -> None:
        loop = stage.actors.new_event_loop()
        try:
            results.append(loop.run_until_complete(main()))
        finally:
            loop.close()

    stage.run(work)
    return results[0]


async def by_wait_for() -> None:
    await asyncio.wait_for(asyncio.sleep(100), 7.5)


async def by_timeout() -> None:
    async with asyncio.timeout(7.5):
        await asyncio.sleep(100)


@pytest.mark.parametrize("wait", [by_wait_for, by_timeout])
def test_sleeps_run_concurrently_and_timeouts_expire_in_virtual_time(
    stage: Stage, wait: Callable[[], Awaitable[None]]
) -> None:
    async def main() -> float:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3600))
            group.create_task(stage.simulation.clock.asleep(7200))
        with pytest.raises(TimeoutError):
            await wait()
        return stage.now

    assert run_on_a_loop(stage, main) == 7207.5


def test_tasks_take_turns_in_a_reproducible_order() -> None:
    def order() -> list[tuple[str, float]]:
        stage = Stage(Simulation())

        async def step(name: str, seconds: float) -> None:
            for _ in range(3):
                await asyncio.sleep(seconds)
                stage.note(name)

        async def main() -> None:
            await asyncio.gather(step("a", 0.1), step("b", 0.2), step("c", 0.1))

        run_on_a_loop(stage, main)
        stage.simulation.close()
        return stage.noted

    assert order() == order()
    assert [name for name, _ in order()][:2] == ["a", "c"]
    assert len(order()) == 9


def test_the_loops_of_several_actors_share_virtual_time_and_others_are_real(stage: Stage) -> None:
    def work(name: str, seconds: float) -> None:
        async def main() -> None:
            for _ in range(2):
                await asyncio.sleep(seconds)
                stage.note(name)

        asyncio.run(main())

    woken = stage.run(partial(work, "slow", 3), partial(work, "fast", 2))
    assert woken == [("fast", 2), ("slow", 3), ("fast", 4), ("slow", 6)]

    async def outside_of_actors() -> str:
        await stage.simulation.clock.asleep(3600)  # on a real loop it blocks, and takes no real time either
        return type(asyncio.get_running_loop()).__module__

    assert not asyncio.run(outside_of_actors()).startswith("tarry")
    assert stage.now == 3606


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
        stage.sleep(10)
        return stage.now

    async def main() -> tuple[float, float]:
        beside = asyncio.create_task(asyncio.sleep(4, stage.now))
        result = await run(work)
        return await beside, result

    assert run_on_a_loop(stage, main) == (0, 10)


def test_a_thread_has_the_context_of_its_starter_and_its_error_is_raised_where_it_is_awaited(stage: Stage) -> None:
    colour: ContextVar[str] = ContextVar("colour")

    async def main() -> str:
        colour.set("red")
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return await asyncio.to_thread(colour.get)

    assert run_on_a_loop(stage, main) == "red"


def test_a_result_that_is_no_longer_awaited_is_dropped(stage: Stage) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(lambda: stage.sleep(10)), 1)

    run_on_a_loop(stage, main)
    assert stage.now == 10


def test_there_is_no_network_in_virtual_time(stage: Stage) -> None:
    async def main() -> None:
        await asyncio.open_connection("example.com", 80)

    text = "^create_connection is not supported: there are no sockets.* replace it in the test"
    with pytest.raises(NotImplementedError, match=text):
        run_on_a_loop(stage, main)


def test_a_test_can_run_a_virtual_loop_itself(stage: Stage) -> None:
    loop = stage.actors.new_event_loop()
    stage.scheduler.after(5, lambda: stage.actors.start(lambda: None) and None)
    loop.run_until_complete(asyncio.sleep(10))
    assert stage.now == 10
    with pytest.raises(WaitsForEver):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_killing_an_actor_in_its_loop_logs_no_warning(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await asyncio.gather(*(asyncio.create_task(asyncio.sleep(100)) for _ in range(3)))

    actor = stage.kill_at(10, lambda: stage.actors.new_event_loop().run_until_complete(main()))
    assert (actor.is_alive(), stage.now, caplog.messages) == (False, 10, [])
