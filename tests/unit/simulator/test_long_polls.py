"""Who waits for a message, and whose turn it is."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tarry.simulator.history import History
from tarry.simulator.http.long_polls import LongPolls
from tarry.simulator.sqs import Sqs
from tarry.simulator.wall import LoopTimeline

Poll = asyncio.Task[dict[str, Any]]


class Site:
    """A queue, and polls of it that wait ten seconds."""

    def __init__(self) -> None:
        timeline = LoopTimeline()
        self.sqs = Sqs(lambda: timeline.now, Random(1), History(lambda: timeline.now))
        self.url = self.sqs.call("CreateQueue", {"QueueName": "orders"})["QueueUrl"]
        self.waiting = LongPolls(self.sqs, timeline)

    def poll(self, *, gone: bool = False) -> Poll:
        request = {"QueueUrl": self.url, "WaitTimeSeconds": 10, "AttributeNames": ["All"]}
        return asyncio.ensure_future(self.waiting.receive(request, lambda: gone))

    def send(self) -> None:
        self.sqs.call("SendMessage", {"QueueUrl": self.url, "MessageBody": "x"})

    def receives(self) -> list[int]:
        """How often each message in the queue was received."""
        return [message.receive_count for message in self.sqs.peek("orders")]


def play(story: Callable[[Site], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(5):
            await story(Site())

    asyncio.run(whole())


def count(answer: dict[str, Any]) -> int:
    return len(answer.get("Messages", []))


def test_the_first_in_line_is_served_first() -> None:
    async def story(site: Site) -> None:
        first, second = site.poll(), site.poll()
        await asyncio.sleep(0.01)
        site.send()
        assert count(await first) == 1
        assert not second.done()
        site.send()
        assert count(await second) == 1

    play(story)


def test_one_that_goes_away_at_its_turn_leaves_it_to_the_next() -> None:
    async def story(site: Site) -> None:
        first, second = site.poll(), site.poll()
        await asyncio.sleep(0.01)
        site.send()
        first.cancel()
        assert count(await second) == 1
        assert site.receives() == [1]

    play(story)


def test_one_whose_client_has_hung_up_receives_nothing() -> None:
    async def story(site: Site) -> None:
        first, second = site.poll(gone=True), site.poll()
        await asyncio.sleep(0.01)
        site.send()
        assert count(await first) == 0
        assert count(await second) == 1
        assert site.receives() == [1]

    play(story)


def test_one_that_looks_in_vain_keeps_its_place() -> None:
    async def story(site: Site) -> None:
        first, second = site.poll(), site.poll()
        await asyncio.sleep(0.01)
        site.send()
        site.sqs.call("ReceiveMessage", {"QueueUrl": site.url})  # somebody was faster
        await asyncio.sleep(0.01)
        site.send()
        assert count(await first) == 1
        assert not second.done()
        second.cancel()

    play(story)
