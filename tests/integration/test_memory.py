"""One warm environment over many invocations."""

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import Consumer, Failure, Fixed, Message, Outcome, consumer
from tarry.world import World, use
from tests.records import Context, batch_of
from tests.wire import Wire

INVOCATIONS = 1_500
WARM = 600
ALLOWED_BLOCKS = 200
"""One in two invocations at most: what each of them leaves is at least one block."""
MOST_THREADS = 10


class Drop:
    """A failure step that takes everything, at no request's cost."""

    def handle(self, failure: Failure, _: Any) -> Outcome:
        return Outcome.discard()


def sync_handler(message: Message) -> None:
    if message.id == "m1":
        raise ValueError


async def async_handler(message: Message) -> None:
    await asyncio.sleep(0)
    sync_handler(message)


class Client:
    """An SQS that does what it is asked for and remembers nothing: the wire of other tests keeps all requests."""

    meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))

    def __getattr__(self, _: str) -> Any:
        return lambda **request: {"Successful": [{"Id": entry["Id"]} for entry in request["Entries"]], "Failed": []}

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return {"Attributes": {"VisibilityTimeout": "180"}}

    def get_queue_url(self, **_: Any) -> dict[str, Any]:
        return {"QueueUrl": "https://sqs.us-east-1.amazonaws.com/123456789012/orders"}


CONSUMERS = {
    "sync": consumer(on_failure=[Drop()], timeout=5)(sync_handler),
    "async": consumer(on_failure=[Drop()], timeout=5)(async_handler),
    "tasks": consumer(on_failure=[Drop()], timeout=5, concurrency=3)(async_handler),
    "threads": consumer(on_failure=[Drop()], timeout=5, concurrency=3)(sync_handler),
}


@pytest.mark.usefixtures("_without_log")
@pytest.mark.parametrize("name", CONSUMERS)
def test_memory_stays_flat_over_many_invocations(name: str) -> None:  # SPEC A6
    """Counted in blocks that Python has allocated: exact, and no slower."""
    with Wire():
        assert growth(CONSUMERS[name], batch_of(3)) < ALLOWED_BLOCKS


WITH_REQUESTS = {
    "eager": consumer(ack="eager", backoff=Fixed(60))(sync_handler),
    "threads": consumer(ack="eager", concurrency=3, timeout=5, keepalive=60, backoff=Fixed(60))(sync_handler),
    "tasks": consumer(concurrency=3, timeout=5, keepalive=60, backoff=Fixed(60))(async_handler),
}


@pytest.fixture
def _without_log() -> Iterator[None]:
    """pytest keeps every line."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_without_log")
@pytest.mark.parametrize(("name", "queue"), [("eager", "orders.fifo"), ("threads", "orders"), ("tasks", "orders")])
def test_memory_stays_flat_with_all_that_a_batch_may_take(name: str, queue: str) -> None:
    """SPEC A6. Deletes, leases, retries and their threads, for messages that were delivered before; one fails."""
    threads = threading.active_count()
    with use(World(client_factory=Client)):
        assert growth(WITH_REQUESTS[name], batch_of(3, queue, receives=2), 500, 100) < ALLOWED_BLOCKS
    assert threading.active_count() - threads < MOST_THREADS


def growth(handler: Consumer[Any], given: dict[str, Any], invocations: int = INVOCATIONS, warm: int = WARM) -> int:
    """Blocks that are allocated after so many invocations, and were not when it was warm."""
    context = Context()
    for _ in range(warm):
        handler(given, context)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(invocations - warm):
        handler(given, context)
    gc.collect()
    return sys.getallocatedblocks() - before


def test_a_batch_is_let_go_of_with_its_invocation_without_a_garbage_collection() -> None:
    """A delivery knows its message and its invocation: such cycles would keep whole batches in memory."""
    seen: list[weakref.ref[Message]] = []

    @consumer
    def handler(message: Message) -> None:
        assert message.attempt == 1  # asks for the delivery
        seen.append(weakref.ref(message))

    gc.collect()
    gc.disable()
    try:
        with Wire():
            handler(batch_of(10), Context())
        assert [message() for message in seen] == [None] * 10
    finally:
        gc.enable()
