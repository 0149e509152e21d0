"""The model of SQS over HTTP, served from a thread of its own."""

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

from tarry.tools.local.aws.client import sqs_client
from tarry.tools.simulator.history import History, HistoryEvent
from tarry.tools.simulator.http.server import CONTENT_TYPE, serve
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.simulator.sqs import Sqs

T = TypeVar("T")
PATIENCE_SECONDS = 60.0
"""The limit that ends a hanging server. No test needs this long, even on a busy machine."""


class Served:
    """A server and its boto3 client."""

    def __init__(self, url: str, sqs: Sqs, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.sqs = sqs
        self.client: Any = sqs_client(url)
        self._loop = loop

    def queue(self, name: str, **attributes: str) -> str:
        """Create a queue and return its URL."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        url: str = self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def on_the_loop(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the event loop of the server; return its result, or raise its error."""

        async def do() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(PATIENCE_SECONDS)

    def events(self, what: str) -> list[HistoryEvent]:
        return self.on_the_loop(lambda: [event for event in self.sqs.history.events if event.what == what])


@contextmanager
def served(seed: int = 1) -> Iterator[Served]:
    """Serve a model without queues until the end of the block."""
    started: Future[Served] = Future()
    ended: Future[asyncio.Event] = Future()

    async def main() -> None:
        timeline, end = AsyncioScheduler(), asyncio.Event()
        sqs = Sqs(lambda: timeline.now, Random(seed), History(lambda: timeline.now))
        async with serve(sqs, timeline) as url:
            ended.set_result(end)
            started.set_result(Served(url, sqs, asyncio.get_running_loop()))
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    here = started.result(PATIENCE_SECONDS)
    try:
        yield here
    finally:
        end = ended.result()
        here._loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE_SECONDS)


def post(server: Served, body: bytes, path: str = "/", **headers: str) -> tuple[int, dict[str, str], str]:
    """Make a request without an SDK, by default in SQS's JSON protocol; return the status, the headers and the body."""
    named = {name.replace("_", "-"): value for name, value in ({"Content_Type": CONTENT_TYPE} | headers).items()}
    request = urllib.request.Request(f"{server.url}{path}", body, named)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()
