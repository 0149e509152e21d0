"""Long polls: the order in which waiting requests get messages."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tarry.tools.simulator.history import History
from tarry.tools.simulator.http.server import LongPolls
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.simulator.sqs import Sqs

Poll = asyncio.Task[dict[str, Any]]


class PollRig:
    """A queue, and long polls of it that wait ten seconds."""

    def __init__(self) -> None:
        scheduler = AsyncioScheduler()
        self.sqs = Sqs(lambda: scheduler.now, Random(1), History(lambda: scheduler.now))
        self.url = self.sqs.call("CreateQueue", {"QueueName": "orders"})["QueueUrl"]
        self.long_polls = LongPolls(self.sqs, scheduler)

    def poll(self, url: str | None = None, *, gone: bool = False) -> Poll:
        request = {"QueueUrl": url or self.url, "WaitTimeSeconds": 10, "AttributeNames": ["All"]}
        return asyncio.ensure_future(self.long_polls.receive(request, lambda: gone))

    def send(self) -> None:
        self.sqs.call("SendMessage", {"QueueUrl": self.url, "MessageBody": "x"})

    def receives(self) -> list[int]:
        """Return the receive counts of the messages in the queue."""
        return [message.receive_count for message in self.sqs.peek("orders")]


def run(scenario: Callable[[PollRig], Awaitable[None]]) -> None:
    async def with_timeout() -> None:
        async with asyncio.timeout(5):
            await scenario(PollRig())

    asyncio.run(with_timeout())


def count(answer: dict[str, Any]) -> int:
    return len(answer.get("Messages", []))


def test_the_long_poll_that_waits_longest_gets_the_message() -> None:
    async def scenario(rig: PollRig) -> None:
        first, second = rig.poll(), rig.poll()
        await asyncio.sleep(0.01)
        rig.send()
        assert count(await first) == 1
        assert not second.done()
        rig.send()
        assert count(await second) == 1

    run(scenario)


def test_a_cancelled_long_poll_leaves_the_message_to_the_next() -> None:
    async def scenario(rig: PollRig) -> None:
        first, second = rig.poll(), rig.poll()
        await asyncio.sleep(0.01)
        rig.send()
        first.cancel()
        assert count(await second) == 1
        assert rig.receives() == [1]

    run(scenario)


def test_a_long_poll_whose_client_has_disconnected_receives_no_message() -> None:
    async def scenario(rig: PollRig) -> None:
        first, second = rig.poll(gone=True), rig.poll()
        await asyncio.sleep(0.01)
        rig.send()
        assert count(await first) == 0
        assert count(await second) == 1
        assert rig.receives() == [1]

    run(scenario)


def test_a_long_poll_that_finds_no_message_keeps_its_place() -> None:
    async def scenario(rig: PollRig) -> None:
        first, second = rig.poll(), rig.poll()
        await asyncio.sleep(0.01)
        rig.send()
        rig.sqs.call("ReceiveMessage", {"QueueUrl": rig.url})  # another receive was faster
        await asyncio.sleep(0.01)
        rig.send()
        assert count(await first) == 1
        assert not second.done()
        second.cancel()

    run(scenario)


def test_a_long_poll_of_a_fifo_queue_wakes_when_a_delete_lets_the_next_message_be_received() -> None:  # PLATFORM 34
    async def scenario(rig: PollRig) -> None:
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        url = rig.sqs.call("CreateQueue", {"QueueName": "ledger.fifo", "Attributes": attributes})["QueueUrl"]
        for body in ("first", "second"):
            rig.sqs.call("SendMessage", {"QueueUrl": url, "MessageBody": body, "MessageGroupId": "a"})
        [first] = rig.sqs.call("ReceiveMessage", {"QueueUrl": url})["Messages"]
        waiting = rig.poll(url)
        await asyncio.sleep(0.01)
        rig.sqs.call("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": first["ReceiptHandle"]})
        [second] = (await waiting)["Messages"]
        assert second["Body"] == "second"

    run(scenario)
