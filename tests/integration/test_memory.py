"""The memory of one process over many invocations."""

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import (
    Batch,
    Consumer,
    DeadLetter,
    Defer,
    Discard,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tarry.world import World, use
from tests.records import Context, batch_of
from tests.wire import Queue, Wire

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


class Local:
    """A large object among the locals of a handler or a hook."""


alive: list[weakref.ref[Local]] = []


def made() -> Local:
    local = Local()
    alive.append(weakref.ref(local))
    return local


def raises(make: Callable[[], BaseException]) -> Any:
    _local = made()
    raise make()


def defers_while_it_handles_another(_: Message) -> None:
    _local = made()
    try:
        raise KeyError
    except KeyError:
        raise Defer(5)  # noqa: B904 its context is the other


def raises_from_a_cause(_: Message) -> None:
    _local = made()
    try:
        raise KeyError
    except KeyError as error:
        raise Retry(5) from error


def returns_a_signal(_: Message) -> Any:
    try:
        raises(lambda: Defer(5))
    except Defer as signal:
        return signal


def fails_with_what_it_caught(message: Message) -> None:
    try:
        raises(KeyError)
    except KeyError as error:
        message.fail(error)


ENDS: dict[str, Any] = {
    "an error": lambda _: raises(ValueError),
    "a Defer": lambda _: raises(lambda: Defer(5)),
    "a Discard": lambda _: raises(lambda: Discard("x")),
    "a Reject": lambda _: raises(lambda: Reject("x")),
    "a Retry with a cause": raises_from_a_cause,
    "a Defer with a context": defers_while_it_handles_another,
    "an error after ack()": lambda message: (message.ack(), raises(ValueError)),
    "an error after discard()": lambda message: (message.discard(), raises(ValueError)),
    "an error after defer()": lambda message: (message.defer(5), raises(ValueError)),
    "an error after retry()": lambda message: (message.retry(5), raises(ValueError)),
    "an error given to fail()": fails_with_what_it_caught,
    "a returned Defer": returns_a_signal,
    "a SystemExit": lambda _: raises(SystemExit),
}


def in_tasks(handle: Any) -> Any:
    async def handler(subject: Any) -> Any:
        return handle(subject)

    return handler


def in_a_batch(handle: Any) -> Any:
    def handler(batch: Batch) -> Any:
        return next(handle(message) for message in batch)

    return handler


WAYS: dict[str, Any] = {
    "one by one": lambda handle, **settings: consumer(**settings)(handle),
    "threads": lambda handle, **settings: consumer(concurrency=2, **settings)(handle),
    "tasks": lambda handle, **settings: consumer(concurrency=2, **settings)(in_tasks(handle)),
    "batch": lambda handle, **settings: batch_consumer(**settings)(in_a_batch(handle)),
    "async batch": lambda handle, **settings: batch_consumer(**settings)(in_tasks(in_a_batch(handle))),
}


def kept_after(handler: Consumer[Any], queue: str) -> int:
    """Return the number of locals that are alive after an invocation, without garbage collection."""
    alive.clear()
    with Wire(queues={queue: Queue(dead_letter="orders-dlq" + queue[6:])}):
        handler(batch_of(2, queue), Context())
    assert alive
    return sum(local() is not None for local in alive)


@pytest.fixture
def _without_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_collection", "_without_log")
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("way", WAYS)
def test_the_locals_of_a_handler_are_freed_whatever_ends_it(way: str, queue: str) -> None:  # SPEC A6
    kept = {name: kept_after(WAYS[way](handle), queue) for name, handle in ENDS.items()}
    assert kept == dict.fromkeys(ENDS, 0)


HOOKS: dict[str, dict[str, Any]] = {
    "retry_when": {"retry_when": lambda _: raises(KeyError)},
    "a step": {"on_failure": [lambda *_: raises(KeyError), RetryInPlace()]},
    "the queue of a dead letter": {"on_failure": [DeadLetter(queue=lambda _: raises(KeyError))]},
    "enrich": {"on_failure": [DeadLetter(enrich=lambda _: raises(KeyError))]},
    "redact": {"on_failure": [DeadLetter(redact=lambda _: raises(KeyError))]},
    "on_outcome": {"on_outcome": lambda *_: raises(KeyError)},
}


@pytest.mark.usefixtures("_without_collection", "_without_log")
@pytest.mark.parametrize("way", WAYS)
def test_the_locals_of_a_hook_that_raises_are_freed(way: str) -> None:  # SPEC A6
    kept = {name: kept_after(WAYS[way](ENDS["an error"], **settings), "orders") for name, settings in HOOKS.items()}
    assert kept == dict.fromkeys(HOOKS, 0)


@pytest.mark.usefixtures("_without_collection", "_without_log")
def test_the_locals_of_a_local_retry_are_freed() -> None:  # SPEC A6, I5
    handler = consumer(on_failure=[LocalRetry(2), RetryInPlace()])(lambda message: raises(ValueError))
    assert kept_after(handler, "orders") == 0
