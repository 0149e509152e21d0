"""The memory of one process over many invocations."""

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

INVOCATIONS = 600
WARM = 300
ALLOWED_BLOCKS = 150
"""One block for every two invocations; a leak is at least one block per invocation."""
MAX_THREADS = 10


class DropsFailures:
    """A failure step that discards every message, which takes no request."""

    def handle(self, failure: Failure, _: Any) -> Outcome:
        return Outcome.discard()


def sync_handler(message: Message) -> None:
    if message.id == "m1":
        raise ValueError


async def async_handler(message: Message) -> None:
    await asyncio.sleep(0)
    sync_handler(message)


class ForgetfulClient:
    """An SQS client whose requests all succeed and which, unlike `Wire`, does not keep them."""

    meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))

    def __getattr__(self, _: str) -> Any:
        return lambda **request: {"Successful": [{"Id": entry["Id"]} for entry in request["Entries"]]}

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return {"Attributes": {"VisibilityTimeout": "180"}}

    def get_queue_url(self, **_: Any) -> dict[str, Any]:
        return {"QueueUrl": "https://sqs.us-east-1.amazonaws.com/123456789012/orders"}


CONSUMERS = {
    "sync": consumer(on_failure=[DropsFailures()], timeout=5)(sync_handler),
    "async": consumer(on_failure=[DropsFailures()], timeout=5)(async_handler),
    "tasks": consumer(on_failure=[DropsFailures()], timeout=5, concurrency=3)(async_handler),
    "threads": consumer(on_failure=[DropsFailures()], timeout=5, concurrency=3)(sync_handler),
}


@pytest.mark.usefixtures("_without_log")
@pytest.mark.parametrize("name", CONSUMERS)
def test_memory_stays_flat_over_many_invocations(name: str) -> None:  # SPEC A6
    """Memory is counted in allocated blocks of Python, which is exact."""
    with Wire():
        assert growth(CONSUMERS[name], batch_of(3)) < ALLOWED_BLOCKS


WITH_REQUESTS = {
    "eager": consumer(ack="eager", backoff=Fixed(60))(sync_handler),
    "threads": consumer(ack="eager", concurrency=3, timeout=5, keepalive=60, backoff=Fixed(60))(sync_handler),
    "tasks": consumer(concurrency=3, timeout=5, keepalive=60, backoff=Fixed(60))(async_handler),
}


@pytest.fixture
def _without_log() -> Iterator[None]:
    """Disable logging, because pytest keeps every line."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_without_log")
@pytest.mark.parametrize(("name", "queue"), [("eager", "orders.fifo"), ("threads", "orders"), ("tasks", "orders")])
def test_memory_stays_flat_with_deletes_leases_and_retries(name: str, queue: str) -> None:
    """SPEC A6. Three redelivered messages, one of which fails, with the threads of their requests."""
    threads = threading.active_count()
    with use(World(client_factory=ForgetfulClient)):
        assert growth(WITH_REQUESTS[name], batch_of(3, queue, receives=2), 400, 100) < ALLOWED_BLOCKS
    assert threading.active_count() - threads < MAX_THREADS


def growth(handler: Consumer[Any], batch: dict[str, Any], invocations: int = INVOCATIONS, warm: int = WARM) -> int:
    """Return the number of blocks allocated between the end of the warm-up and the last invocation."""
    context = Context()
    for _ in range(warm):
        handler(batch, context)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(invocations - warm):
        handler(batch, context)
    gc.collect()
    return sys.getallocatedblocks() - before


def test_the_messages_of_a_batch_are_freed_after_their_invocation_without_garbage_collection() -> None:
    """Reference cycles of messages, deliveries, and invocations would keep whole batches in memory."""
    seen: list[weakref.ref[Message]] = []

    @consumer
    def handler(message: Message) -> None:
        assert message.attempt == 1  # creates the delivery
        seen.append(weakref.ref(message))

    gc.collect()
    gc.disable()
    try:
        with Wire():
            handler(batch_of(10), Context())
        assert [message() for message in seen] == [None] * 10
    finally:
        gc.enable()
