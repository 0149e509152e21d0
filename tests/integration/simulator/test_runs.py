"""Runs of consumers in the sandbox: SQS, the event source mapping and Lambda together, in virtual time.

`tests/unit/simulator` tests the parts; `tests/simulation` plays far more of these runs, with faults.
"""

import asyncio
from typing import Any

import pytest

from tarry import Consumer, LocalRetry, Message, Queue, RetryInPlace, consumer
from tarry.testing import Sandbox
from tarry.world import use
from tests.sandboxes import work

TIMEOUT = 30


@consumer
def well(message: Message) -> None: ...


def recorded(sandbox: Sandbox, what: str) -> list[dict[str, Any]]:
    return [{"at": event.at, **event.fields} for event in sandbox.history.events if event.what == what]


def run(sandbox: Sandbox, handler: Consumer[Any], *bodies: object, **settings: Any) -> list[str]:
    """Run messages to their ends; return their ids."""
    ids = work(sandbox, handler, *map(str, bodies), visibility_timeout=180, timeout=TIMEOUT, **settings)
    sandbox.run()
    return ids


def test_the_remaining_time_of_an_async_handler_decreases_while_it_waits_in_virtual_time(sandbox: Sandbox) -> None:
    left: list[int] = []

    @consumer
    async def handler(message: Message) -> None:
        await asyncio.sleep(20)
        left.append(message.context.get_remaining_time_in_millis())

    run(sandbox, handler, 1)
    assert left == [(TIMEOUT - 20) * 1000]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_local_retry_waits_in_virtual_time(sandbox: Sandbox, is_async: bool) -> None:
    tried: list[float] = []

    def behave(message: Message) -> None:
        tried.append(round(sandbox.elapsed, 1))
        if len(tried) < 3:
            raise ValueError("not yet")

    async def behave_async(message: Message) -> None:
        behave(message)

    run(sandbox, consumer(on_failure=[LocalRetry(3, 5), RetryInPlace()])(behave_async if is_async else behave), 1)
    assert [at - tried[0] for at in tried] == [0, 5, 10]


def test_messages_are_sent_in_threads_of_the_simulation_by_handlers_and_outside_of_them(sandbox: Sandbox) -> None:
    """Two environments at once share one `Queue`, as a module-level object is shared."""
    other_queue = Queue("orders-dlq")

    @consumer
    def handler(message: Message) -> None:
        other_queue.send_batch({"n": number} for number in range(100))

    work(sandbox, handler, batch_size=1)
    with use(sandbox.world):
        Queue("orders").send_batch([number] for number in range(2))
    sandbox.run()
    assert len(sandbox.messages("orders-dlq")) == 200
    sends = [each["at"] for each in recorded(sandbox, "request") if each["operation"] == "SendMessageBatch"]
    assert len(sends) == 1 + 20
    assert max(sends[1:]) - min(sends[1:]) < 0.1, "ten requests at once"


def test_the_mapping_of_a_deleted_queue_becomes_idle(sandbox: Sandbox) -> None:
    run(sandbox, well, 1)
    sandbox.sqs.call("DeleteQueue", {"QueueUrl": sandbox.sqs.url("orders")})
    assert sandbox._simulation.scheduler.run(limit=sandbox.now + 3600) == "idle"
