"""asyncio in virtual time."""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

import pytest

from tarry.tools.simulator.simulation import Simulation, WaitsForEver

T = TypeVar("T")


def run_on_a_loop(simulation: Simulation, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a virtual loop in an actor; return its result."""
    results: list[T] = []

    def work() -> None:
        loop = simulation.threads.new_event_loop()
        try:
            results.append(loop.run_until_complete(main()))
        finally:
            loop.close()

    simulation.threads.start(work)
    simulation.scheduler.run()
    return results[0]


def test_sleeps_take_no_real_time_and_run_concurrently(simulation: Simulation) -> None:
    async def main() -> float:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3600))
            group.create_task(simulation.clock.asleep(7200))
        return simulation.clock.monotonic()

    assert run_on_a_loop(simulation, main) == 7200


async def by_wait_for() -> None:
    await asyncio.wait_for(asyncio.sleep(100), 7.5)


async def by_timeout() -> None:
    async with asyncio.timeout(7.5):
        await asyncio.sleep(100)


@pytest.mark.parametrize("wait", [by_wait_for, by_timeout])
def test_timeouts_expire_in_virtual_time(simulation: Simulation, wait: Callable[[], Awaitable[None]]) -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await wait()
        return simulation.clock.monotonic()

    assert run_on_a_loop(simulation, main) == 7.5


def test_tasks_take_turns_in_a_reproducible_order() -> None:
    def order() -> list[tuple[str, float]]:
        simulation, observed = Simulation(), []

        async def step(name: str, seconds: float) -> None:
            for _ in range(3):
                await asyncio.sleep(seconds)
                observed.append((name, simulation.clock.monotonic()))

        async def main() -> None:
            await asyncio.gather(step("a", 0.1), step("b", 0.2), step("c", 0.1))

        run_on_a_loop(simulation, main)
        simulation.close()
        return observed

    assert order() == order()
    assert [name for name, _ in order()][:2] == ["a", "c"]
    assert len(order()) == 9


def test_the_loops_of_several_actors_share_virtual_time(simulation: Simulation) -> None:
    observed: list[tuple[str, float]] = []

    def work(name: str, seconds: float) -> None:
        async def main() -> None:
            for _ in range(2):
                await asyncio.sleep(seconds)
                observed.append((name, simulation.clock.monotonic()))

        asyncio.run(main())

    simulation.threads.start(lambda: work("slow", 3))
    simulation.threads.start(lambda: work("fast", 2))
    simulation.scheduler.run()
    assert observed == [("fast", 2), ("slow", 3), ("fast", 4), ("slow", 6)]


def test_asyncio_run_outside_of_actors_uses_a_real_loop(simulation: Simulation) -> None:
    simulation.threads.start(lambda: asyncio.run(asyncio.sleep(1)))
    simulation.scheduler.run()

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
    simulation: Simulation, run: Callable[[Callable[[], float]], Awaitable[float]]
) -> None:
    def work() -> float:
        simulation.clock.sleep(10)
        return simulation.clock.monotonic()

    async def main() -> tuple[float, float]:
        beside = asyncio.create_task(asyncio.sleep(4, simulation.clock.monotonic()))
        result = await run(work)
        return await beside, result

    assert run_on_a_loop(simulation, main) == (0, 10)


def test_a_thread_has_the_context_of_its_starter_and_its_error_is_raised_where_it_is_awaited(
    simulation: Simulation,
) -> None:
    colour: ContextVar[str] = ContextVar("colour")

    async def main() -> str:
        colour.set("red")
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return await asyncio.to_thread(colour.get)

    assert run_on_a_loop(simulation, main) == "red"


def test_a_result_that_is_no_longer_awaited_is_dropped(simulation: Simulation) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(lambda: simulation.clock.sleep(10)), 1)

    run_on_a_loop(simulation, main)
    assert simulation.clock.monotonic() == 10


def test_there_is_no_network_in_virtual_time(simulation: Simulation) -> None:
    async def main() -> str:
        with pytest.raises(NotImplementedError) as error:
            await asyncio.open_connection("example.com", 80)
        return str(error.value)

    text = run_on_a_loop(simulation, main)
    assert text.startswith("create_connection is not supported: there are no sockets")
    assert "replace it in the test" in text


def test_a_test_can_run_a_virtual_loop_itself(simulation: Simulation) -> None:
    loop = simulation.threads.new_event_loop()
    simulation.scheduler.after(5, lambda: simulation.threads.start(lambda: None) and None)
    loop.run_until_complete(asyncio.sleep(10))
    assert simulation.clock.monotonic() == 10
    with pytest.raises(WaitsForEver):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_the_clock_waits_in_virtual_time_on_a_real_loop_too(simulation: Simulation) -> None:
    asyncio.run(simulation.clock.asleep(3600))
    assert simulation.clock.monotonic() == 3600


def test_killing_an_actor_in_its_loop_logs_no_warning(simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(asyncio.sleep(100)) for _ in range(3)]
        await asyncio.gather(*tasks)

    def work() -> None:
        simulation.threads.new_event_loop().run_until_complete(main())

    actor = simulation.actors.start(work)
    simulation.scheduler.after(10, actor.process.kill)
    simulation.scheduler.run()
    assert (actor.is_alive(), simulation.clock.monotonic()) == (False, 10)
    assert caplog.messages == []
