"""Runs of the runtime in the simulator: SQS, the event source mapping and Lambda together, in virtual time."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tarry import (
    Exponential,
    Fixed,
    LocalRetry,
    Message,
    Queue,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tarry.tools.simulator.functions import current_call
from tarry.tools.simulator.sqs import Realism
from tarry.world import Interrupted, current, use
from tests.integration.simulator.system import TIMEOUT, VISIBILITY, system


def crash() -> None:
    """End the process of the invocation at once."""
    call = current_call()
    assert call is not None
    call.crash()


def test_a_message_without_failures_is_deleted_by_the_mapping_alone() -> None:
    @consumer
    def handler(message: Message) -> None: ...

    with system(handler) as sut:
        message_id = sut.send({"id": 1})
        sut.run()
        assert sut.recorded("request") == []
        assert [event["delivery_id"] for event in sut.recorded("deleted")] == [message_id]


def test_after_a_crash_the_batch_is_redelivered_when_its_visibility_timeout_ends() -> None:  # PLATFORM 11
    crashes = 2

    @consumer(isolate=False)
    def handler(message: Message) -> None:
        nonlocal crashes
        if crashes:
            crashes -= 1
            crash()

    with system(handler) as sut:
        sut.send({"id": 1})
        sut.send({"id": 2})
        sut.run()
        assert [event["kind"] for event in sut.recorded("answered")] == ["crash", "crash", "returned"]
        assert [event["cold"] for event in sut.recorded("invoked")] == [True, True, True]
        first, second, _ = (event["at"] for event in sut.recorded("invoked"))
        assert second - first == pytest.approx(VISIBILITY, abs=1)
        assert {event["receive_count"] for event in sut.recorded("deleted")} == {3}


def test_a_message_that_always_kills_its_process_is_dead_lettered_by_sqs() -> None:  # PLATFORM 7
    @consumer
    def handler(message: Message) -> None:
        crash()

    with system(handler, max_receive_count=3) as sut:
        sut.send({"id": 1})
        sut.run()
        assert len(sut.recorded("invoked")) == 3
        assert sut.sqs.depth("orders-dead").ready == 1


def test_at_the_timeout_the_process_is_killed_and_the_batch_is_redelivered() -> None:  # PLATFORM 11, 28
    survived: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        while message.receive_count == 1:
            with suppress(Interrupted):
                current().clock.sleep(3600)
                survived.append("survived")

    with system(handler) as sut:
        sut.send({"id": 1})
        sut.run()
        first, second = sut.recorded("answered")
        assert (first["kind"], first["why"]) == ("timeout", "Task timed out after 30.00 seconds")
        assert second["kind"] == "returned"
        assert survived == []
        at = [each["at"] for each in sut.recorded("request")]  # the second delivery looks up its queues
        assert all(each > first["at"] for each in at), "a killed process makes no requests"


def test_a_fifo_group_keeps_its_order_through_failures() -> None:
    handled: list[tuple[str, int]] = []

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        number: int = message.json()
        if number == 2 and message.attempt < 4:
            raise ValueError("not yet")
        handled.append((str(message.group_id), number))

    with system(handler, queue="orders.fifo") as sut:
        for number in range(5):
            sut.send(number, group="a", MessageDeduplicationId=f"a{number}")
            sut.send(number, group="b", MessageDeduplicationId=f"b{number}")
        sut.run()
        for group in ("a", "b"):
            assert [number for of, number in handled if of == group] == [0, 1, 2, 3, 4]


def test_a_window_gathers_the_messages_that_arrive_within_it() -> None:  # PLATFORM 13
    sizes: list[int] = []

    @batch_consumer
    def handler(batch: Any) -> None:
        sizes.append(len(batch))

    with system(handler, batch_size=100, window_seconds=60) as sut:
        for second in range(0, 120, 2):
            sut.simulation.scheduler.after(second, lambda: sut.send({}))
        sut.run()
        assert sum(sizes) == 60
        assert len(sizes) in {2, 3}


def test_messages_stay_invisible_during_a_window_longer_than_the_visibility_timeout_of_the_queue() -> None:
    @consumer
    def handler(message: Message) -> None: ...

    with system(handler, window_seconds=300) as sut:
        sut.send({"id": 1})
        sut.run()
        assert [event["receive_count"] for event in sut.recorded("received")] == [1]


def test_the_remaining_time_of_an_async_handler_decreases_while_it_waits_in_virtual_time() -> None:
    left: list[int] = []

    @consumer
    async def handler(message: Message) -> None:
        await asyncio.sleep(20)
        left.append(message.context.get_remaining_time_in_millis())

    with system(handler) as sut:
        sut.send({"id": 1})
        sut.run()
        assert left == [(TIMEOUT - 20) * 1000]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_local_retry_waits_in_virtual_time(is_async: bool) -> None:
    tried: list[float] = []

    def behave(message: Message) -> None:
        tried.append(round(current().clock.time() - sut.began, 1))
        if len(tried) < 3:
            raise ValueError("not yet")

    async def behave_async(message: Message) -> None:
        behave(message)

    handler = consumer(on_failure=[LocalRetry(3, 5), RetryInPlace()])(behave_async if is_async else behave)
    with system(handler) as sut:
        sut.send({"id": 1})
        sut.run()
        assert [at - tried[0] for at in tried] == [0, 5, 10]


def test_a_handler_can_send_many_messages_in_threads_of_the_simulation() -> None:
    """Two environments at once share one `Queue`, as a module-level object is shared."""
    other_queue = Queue("orders-dead")

    @consumer
    def handler(message: Message) -> None:
        other_queue.send_batch({"n": number} for number in range(100))

    with system(handler, batch_size=1) as sut:
        sut.send({"id": 1})
        sut.send({"id": 2})
        sut.run()
        assert sut.sqs.depth("orders-dead").ready == 200
        sends = [event["at"] for event in sut.recorded("request") if event["operation"] == "SendMessageBatch"]
        assert len(sends) == 20
        assert max(sends) - min(sends) < 0.1, "ten requests at once"


def test_a_test_can_send_many_messages_outside_of_any_handler() -> None:
    handled: list[list[int]] = []

    @consumer
    def handler(message: Message) -> None:
        handled.append(message.json())

    with system(handler) as sut:
        with use(sut.world()):
            Queue("orders").send_batch([number] for number in range(95))
        sut.run()
        assert sorted(handled) == [[number] for number in range(95)]


def test_the_receive_count_of_a_throttled_message_rises_without_a_run() -> None:  # PLATFORM 15
    counts: list[int] = []

    @consumer
    def handler(message: Message) -> None:
        counts.append(message.receive_count)
        if message.json() == "busy":
            current().clock.sleep(TIMEOUT - 1)

    with system(handler, concurrency=0) as sut:
        sut.send("first")
        sut.simulation.scheduler.run(sut.began + VISIBILITY + 20)
        sut.function.settings = replace(sut.function.settings, reserved_concurrency=None)
        sut.run()
        assert counts == [2]


def test_all_messages_are_handled_despite_reordering_partial_receives_and_duplicates() -> None:
    handled: list[int] = []

    @consumer(backoff=Exponential(1, 2))
    def handler(message: Message) -> None:
        handled.append(message.json())
        if message.json() % 7 == 0 and message.attempt == 1:
            raise ValueError("not yet")

    with system(handler, realism=Realism(reorder=True, partial=True, duplicate=0.1)) as sut:
        for number in range(200):
            sut.send(number)
        sut.run()
        assert set(handled) == set(range(200))
        assert sut.sqs.peek("orders") == []


def test_the_mapping_of_a_deleted_queue_becomes_idle() -> None:
    @consumer
    def handler(message: Message) -> None: ...

    with system(handler) as sut:
        sut.send({"id": 1})
        sut.run()
        sut.call("DeleteQueue", QueueUrl=sut.sqs.url("orders"))
        assert sut.simulation.scheduler.run(limit=sut.now() + 3600) == "idle"


def random_run(seed: int) -> list[str]:
    """Run a hundred messages that fail, crash and take time at random; return the history."""

    @consumer(max_attempts=4, backoff=Exponential(10, 3, jitter="full"))
    def handler(message: Message) -> None:
        chance = sut.random.random()
        current().clock.sleep(sut.random.random())
        if chance < 0.3:
            raise ValueError("no")
        if chance < 0.33:
            crash()

    with system(handler, seed=seed, realism=Realism(reorder=True, partial=True, duplicate=0.05)) as sut:
        for number in range(100):
            sut.send(number)
        sut.run()
        return [repr(event) for event in sut.history.events]


def test_the_same_seed_gives_the_same_history_to_the_byte() -> None:
    first, second, other = random_run(3), random_run(3), random_run(4)
    assert first == second
    assert first != other
    assert len(first) > 500
