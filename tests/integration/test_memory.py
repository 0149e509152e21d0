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
    Consumer,
    DeadLetter,
    Defer,
    Discard,
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
from tests.handlers import WAYS, awaiting
from tests.records import Context, batch_of
from tests.wire import Queue, Wire

ALLOWED_BLOCKS = 150
"""One block for every two invocations; a leak is at least one block per invocation."""
MAX_THREADS = 10


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


@pytest.fixture
def _without_log() -> Iterator[None]:
    """Disable logging, because pytest keeps every line."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


DROPS = {"on_failure": [lambda failure, next_step: Outcome.discard()], "timeout": 5}
RENEWS = {"timeout": 5, "keepalive": 60, "backoff": Fixed(60)}


@pytest.mark.usefixtures("_without_log")
@pytest.mark.parametrize(
    ("handler", "queue", "receives"),
    [
        (consumer(**DROPS)(sync_handler), "orders", 1),
        (consumer(**DROPS)(async_handler), "orders", 1),
        (consumer(ack="eager", backoff=Fixed(60))(sync_handler), "orders.fifo", 2),
        (consumer(ack="eager", concurrency=3, **RENEWS)(sync_handler), "orders", 2),
        (consumer(concurrency=3, **RENEWS)(async_handler), "orders", 2),
    ],
    ids=["sync", "async", "eager deletes on FIFO", "threads with leases", "tasks with leases"],
)
def test_memory_stays_flat_over_many_invocations(handler: Any, queue: str, receives: int) -> None:  # SPEC A6
    """Of three messages, one of which fails, with the threads of their requests. Allocated blocks are exact."""
    threads, context = threading.active_count(), Context()
    batch = batch_of(3, queue, receives=receives)
    with use(World(client_factory=ForgetfulClient)):
        for invocation in range(400):
            if invocation == 100:  # all is warm
                gc.collect()
                before = sys.getallocatedblocks()
            handler(batch, context)
        gc.collect()
        assert sys.getallocatedblocks() - before < ALLOWED_BLOCKS
    assert threading.active_count() - threads < MAX_THREADS


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


@pytest.mark.usefixtures("_without_collection")
def test_the_messages_of_a_batch_are_freed_after_their_invocation_without_garbage_collection() -> None:
    """Reference cycles of messages, deliveries, and invocations would keep whole batches in memory."""
    seen: list[weakref.ref[Message]] = []

    @consumer
    def handler(message: Message) -> None:
        assert message.attempt == 1  # creates the delivery
        seen.append(weakref.ref(message))

    handler(batch_of(10), Context())
    assert [message() for message in seen] == [None] * 10


@pytest.mark.usefixtures("_without_collection", "_without_log")
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("way", WAYS)
def test_the_locals_of_a_handler_are_freed_whatever_ends_it(way: str, queue: str) -> None:  # SPEC A6
    kept = {name: kept_after(WAYS[way](handle), queue) for name, handle in ENDS.items()}
    if "batch" in way:
        for name in ("an error", "a Defer with a context", "a returned Defer", "a SystemExit"):
            function = awaiting(ENDS[name])
            handler = function if way == "async batch" else lambda batch, end=ENDS[name]: end(batch)
            kept[f"{name} of the batch"] = kept_after(batch_consumer(handler), queue)
    else:
        retried = WAYS[way](ENDS["an error"], on_failure=[LocalRetry(2), RetryInPlace()])
        kept["a local retry"] = kept_after(retried, queue)
    assert kept == dict.fromkeys(kept, 0)


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
