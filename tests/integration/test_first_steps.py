"""The first step of an async handler, which it takes when its task is made: on Python 3.11 with tarry's own tasks."""

import asyncio
import time
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

import pytest

from tarry import Fixed, Message, consumer
from tarry.run.eager_tasks import EagerTasks
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, failed
from tests.settled import orders
from tests.wire import RunningClock

number: ContextVar[str] = ContextVar("number", default="none")


def outcome_of(handler: Any, size: int, **settings: Any) -> list[str]:
    """Handle a batch in two tasks at once; return the ids that are reported as failed."""
    made: Any = consumer(concurrency=2, backoff=Fixed(60), **settings)
    with orders(clock=RunningClock()):
        return failed(made(handler)(batch_of(size), Context()))


def test_a_handler_that_waits_has_a_task_of_its_own_from_its_first_step_on() -> None:
    tasks: dict[str, list[Any]] = {}

    async def handler(message: Message) -> None:
        mine = tasks.setdefault(message.id, [asyncio.current_task()])
        await asyncio.sleep(0)
        mine.append(asyncio.current_task())

    assert outcome_of(handler, 3) == []
    assert all(first is second for first, second in tasks.values())
    assert len({id(first) for first, _ in tasks.values()}) == 3


def test_a_context_variable_lasts_for_all_steps_of_its_message_and_no_longer() -> None:
    seen: list[str] = []

    async def handler(message: Message) -> None:
        seen.append(number.get())
        number.set(message.id)
        if message.id != "m1":
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        assert number.get() == message.id

    assert outcome_of(handler, 4) == []
    assert seen == ["none"] * 4


def test_a_timeout_and_a_task_group_of_the_first_step_concern_their_own_message_only() -> None:
    async def handler(message: Message) -> None:
        if message.id == "m1":
            return
        async with asyncio.timeout(0.01 if message.id == "m0" else 5), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(9 if message.id == "m0" else 0))

    assert outcome_of(handler, 4) == ["m0"]


def test_a_handler_that_cancels_its_own_task_and_does_not_wait_cancels_no_other_message() -> None:
    """It has returned, so it has succeeded."""
    ran: list[str] = []

    async def handler(message: Message) -> None:
        ran.append(message.id)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        task.cancel()
        if message.id == "m2":
            await asyncio.sleep(0)

    assert (outcome_of(handler, 4), ran) == (["m2"], ["m0", "m1", "m2", "m3"])


def test_a_cancellation_before_the_first_turn_cancels_what_the_handler_awaits() -> None:
    awaited: list[asyncio.Task[None]] = []

    async def handler(message: Message) -> None:
        if message.id == "m0":
            awaited.append(asyncio.create_task(asyncio.sleep(9)))
            await awaited[0]
        for task in asyncio.all_tasks() - {asyncio.current_task(), *awaited}:
            task.cancel()

    assert outcome_of(handler, 2) == ["m0"]
    assert awaited[0].cancelled()


def test_two_handlers_may_await_the_same_future_and_one_that_is_done() -> None:
    futures: list[asyncio.Future[str]] = []

    async def handler(message: Message) -> None:
        if not futures:
            futures.append(asyncio.get_running_loop().create_future())
            futures[0].get_loop().call_later(0.005, futures[0].set_result, "done")
        assert await futures[0] == "done"
        await futures[0]

    assert outcome_of(handler, 4) == []


@pytest.mark.parametrize("yielded", ["text", 7], ids=str)
def test_a_handler_that_awaits_what_asyncio_does_not_know_fails_alone(yielded: object, caplog: Caplog) -> None:
    class Foreign:
        def __await__(self) -> Generator[Any, Any, None]:
            yield yielded

    async def handler(message: Message) -> None:
        if message.id == "m1":
            await Foreign()

    assert outcome_of(handler, 3) == ["m1"]
    assert "RuntimeError" in field(lines(caplog, "waiting_retry")[0], "error")


def test_a_handler_that_blocks_its_first_step_is_interrupted_and_the_others_run_as_themselves() -> None:
    tasks: list[Any] = []

    async def handler(message: Message) -> None:
        tasks.append(mine := asyncio.current_task())
        if message.id == "m0":
            time.sleep(9)  # noqa: ASYNC251 blocking is the point
        await asyncio.sleep(0)
        assert asyncio.current_task() is mine

    began = time.monotonic()
    assert outcome_of(handler, 3, timeout=0.2) == ["m0"]
    assert time.monotonic() - began < 5
    assert None not in tasks


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError])
def test_whatever_the_first_step_raises_fails_its_message_and_the_next_batch_runs(error: type[BaseException]) -> None:
    async def handler(message: Message) -> None:
        if message.id == "m1":
            raise error
        await asyncio.sleep(0)

    assert "m1" in outcome_of(handler, 2)
    assert asyncio.run(returned()) == "fine"


async def returned() -> str:
    await asyncio.sleep(0)
    return "fine"


def test_coroutines_that_do_not_wait_share_a_task_until_it_has_its_turn() -> None:
    async def waits(future: asyncio.Future[None]) -> None:
        await future

    async def steps() -> list[Any]:
        eager, here = EagerTasks(asyncio.get_running_loop()), asyncio.current_task()
        future = asyncio.get_running_loop().create_future()
        first, second, third = (eager.start(each) for each in (waits(future), returned_at_once(), returned_at_once()))
        future.set_result(None)
        assert asyncio.current_task() is here
        await asyncio.sleep(0)
        fourth = eager.start(returned_at_once())
        await asyncio.wait([first, second, fourth], timeout=5)
        return [first.done(), second is third, first is second, fourth is third, fourth.done()]

    assert asyncio.run(steps()) == [True, True, False, False, True]


async def returned_at_once() -> None: ...
