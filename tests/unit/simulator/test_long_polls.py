"""Long polls: the order in which waiting requests get messages."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from random import Random
from typing import Any

from tarry.tools.simulator.history import History
from tarry.tools.simulator.http.server import LongPolls
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.simulator.sqs import Sqs

Poll = asyncio.Task[dict[str, Any]]
FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}


class PollRig:
    """A queue, and long polls of it that wait ten seconds."""

    def __init__(self, queue: str = "orders", **attributes: str) -> None:
        scheduler = AsyncioScheduler()
        self.sqs = Sqs(lambda: scheduler.now, Random(1), History(lambda: scheduler.now))
        self.url = self.sqs.call("CreateQueue", {"QueueName": queue, "Attributes": attributes})["QueueUrl"]
        self.long_polls = LongPolls(self.sqs, scheduler)

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return self.sqs.call(operation, {"QueueUrl": self.url, **parameters})

    async def polls(self, *, first_is_gone: bool = False) -> tuple[Poll, Poll]:
        """Start two long polls, and wait until they wait."""
        request = {"QueueUrl": self.url, "WaitTimeSeconds": 10, "AttributeNames": ["All"]}
        gone = (first_is_gone, False)
        first, second = (
            asyncio.ensure_future(self.long_polls.receive(request, lambda each=each: each)) for each in gone
        )
        await asyncio.sleep(0.01)
        return first, second

    def send(self, body: str = "x", **more: str) -> None:
        self.call("SendMessage", MessageBody=body, **more)

    def receives(self) -> list[int]:
        """Return the receive counts of the messages in the queue."""
        return [message.receive_count for message in self.sqs.peek("orders")]


def within_seconds(scenario: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(scenario)
    def test() -> None:
        async def with_timeout() -> None:
            async with asyncio.timeout(5):
                await scenario()

        asyncio.run(with_timeout())

    return test


async def bodies(poll: Poll) -> list[str]:
    return [message["Body"] for message in (await poll).get("Messages", [])]


@within_seconds
async def test_the_long_poll_that_waits_longest_gets_the_message() -> None:
    rig = PollRig()
    first, second = await rig.polls()
    rig.send("1")
    assert await bodies(first) == ["1"]
    assert not second.done()
    rig.send("2")
    assert await bodies(second) == ["2"]


@within_seconds
async def test_a_cancelled_long_poll_leaves_the_message_to_the_next() -> None:
    rig = PollRig()
    first, second = await rig.polls()
    rig.send()
    first.cancel()
    assert (await bodies(second), rig.receives()) == (["x"], [1])


@within_seconds
async def test_a_long_poll_whose_client_has_disconnected_receives_no_message() -> None:
    rig = PollRig()
    first, second = await rig.polls(first_is_gone=True)
    rig.send()
    assert (await bodies(first), await bodies(second), rig.receives()) == ([], ["x"], [1])


@within_seconds
async def test_a_long_poll_that_finds_no_message_keeps_its_place() -> None:
    rig = PollRig()
    first, second = await rig.polls()
    rig.send()
    rig.call("ReceiveMessage")  # another receive was faster
    await asyncio.sleep(0.01)
    rig.send("next")
    assert await bodies(first) == ["next"]
    assert not second.done()
    second.cancel()


@within_seconds
async def test_a_long_poll_of_a_fifo_queue_wakes_when_a_delete_lets_the_next_message_be_received() -> (
    None
):  # PLATFORM 34
    rig = PollRig("ledger.fifo", **FIFO)
    for body in ("first", "second"):
        rig.send(body, MessageGroupId="a")
    [head] = rig.call("ReceiveMessage")["Messages"]
    waiting, other = await rig.polls()
    rig.call("DeleteMessage", ReceiptHandle=head["ReceiptHandle"])
    assert await bodies(waiting) == ["second"]
    other.cancel()
