"""State that a handler, a validator or a hook sets, and memory: neither is left for the next invocation."""

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pydantic
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
from tarry.support import guards
from tarry.world import World, use
from tests.handlers import WAYS, awaiting
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, event, record
from tests.settled import fails, orders, settle
from tests.wire import TestClock

# state

tenant: ContextVar[str] = ContextVar("tenant", default="unset")
seen: list[str] = []


def set_tenant(*_: Any) -> None:
    seen.append(tenant.get())
    tenant.set("acme")


class OrderWithContext(pydantic.BaseModel):
    id: int

    @pydantic.model_validator(mode="after")
    def remember(self) -> "OrderWithContext":
        set_tenant()
        return self


def raises(make: Callable[[], BaseException]) -> Any:
    _local = made()
    raise make()


STEP = {"on_failure": [lambda failure, next_step: (set_tenant(), next_step(failure))[1], RetryInPlace()]}
SETTING = {
    "a handler": consumer(set_tenant),
    "a handler in a thread": consumer(concurrency=2)(set_tenant),
    "an async handler": consumer(awaiting(set_tenant)),
    "a batch handler": batch_consumer(set_tenant),
    "an async batch handler": batch_consumer(awaiting(set_tenant)),
    "an awaitable of a batch handler": batch_consumer(lambda batch: [awaiting(set_tenant)(batch)][0]),
    "a validator": consumer(model=OrderWithContext)(lambda message: None),
    "a validator in a thread": consumer(model=OrderWithContext, concurrency=2)(lambda message: None),
    "a validator of a batch": batch_consumer(model=OrderWithContext)(lambda batch: None),
    "a failure step": consumer(**STEP, backoff=Fixed(60))(fails),
    "a hook": consumer(retry_when=set_tenant, backoff=Fixed(60))(fails),
    "a hook of a dead letter": consumer(on_failure=[DeadLetter(redact=set_tenant)])(fails),
}


@pytest.mark.parametrize("name", SETTING)
def test_a_context_variable_is_not_visible_to_the_next_invocation(name: str) -> None:  # SPEC A6
    """One that a validator sets is not visible to the next message either (I1)."""
    seen.clear()
    for _ in range(3):
        settle(SETTING[name], event(record({"id": 1})))
    if "validator" in name:
        settle(SETTING[name], event(*(record({"id": number}, f"m{number}") for number in range(3))))
    assert seen == ["unset"] * (6 if "validator" in name else 3)
    assert tenant.get() == "unset"


def test_a_context_variable_that_a_caller_sets_is_visible_in_the_handler() -> None:  # SPEC A6, A9
    seen.clear()
    token = tenant.set("outer")
    try:
        settle(SETTING["a batch handler"])
    finally:
        tenant.reset(token)
    assert seen == ["outer"]


class AdjustedClock(TestClock):
    """A wall clock that is adjusted while a handler runs; on the monotonic clock no time passes."""

    offset = 0.0

    def time(self) -> float:
        return super().time() + self.offset


@pytest.mark.parametrize("by", [3_600, -3_600], ids=["ahead", "back"])
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_an_adjustment_of_the_wall_clock_does_not_change_a_delay_or_end_a_lease(queue: str, by: float) -> None:
    clock = AdjustedClock()  # SPEC C6, E6

    @consumer
    def handler(message: Message) -> None:
        clock.offset = by
        message.reject() if message.id == "rejects" else message.retry(43_000)

    batch = event(*(record("{}", name, queue, group=name) for name in ("retries", "rejects")))
    reported, wire = settle(handler, batch, orders(clock=clock))
    assert (reported, wire.visibilities(), len(wire.sent_entries())) == (["retries"], {"handle-retries": 43_000}, 1)


# the end of a batch


def exits(message: Message) -> None:
    if message.delivery_id == "m1":
        raise SystemExit
    raise ValueError


LOCALLY = LocalRetry(3, delay=5)


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("handler", [exits, awaiting(exits)], ids=["sync", "async"])
def test_a_message_that_waits_for_a_local_retry_at_the_end_of_the_batch_goes_to_the_next_failure_step(
    handler: Any, concurrency: int
) -> None:  # SPEC A5, C8, E4, I5
    """Without another step, it is unhandled; at its last attempt, it is dead-lettered."""
    make = consumer(concurrency=concurrency, backoff=Fixed(5), isolate=False)
    reported, wire = settle(make(handler).replace(on_failure=[LOCALLY, RetryInPlace()]), batch_of(2))
    assert (reported, wire.visibilities()) == (["m0", "m1"], {"handle-m0": 5, "handle-m1": 5})
    reported, wire = settle(make(handler).replace(on_failure=[LOCALLY], backoff=None), batch_of(2))
    assert (reported, wire.visibilities()["handle-m0"]) == (["m0", "m1"], 900)
    last = make(handler).replace(on_failure=[LOCALLY, RetryInPlace(), DeadLetter()])
    reported, wire = settle(last, batch_of(2, receives=15))
    assert (reported, sorted(entry["MessageBody"] for entry in wire.sent_entries())) == ([], ["0", "1"])


def test_a_verdict_that_a_hook_gives_on_another_message_of_an_ended_batch_is_ignored(caplog: Caplog) -> None:
    batches: list[Batch[Any]] = []  # SPEC B4, H2

    def reject_all(failure: Failure, next_step: Any) -> Outcome:
        for message in batches[0]:
            message.reject("late")
        return Outcome.retry(60)

    @batch_consumer(on_failure=[reject_all, DeadLetter()])
    def handler(batch: Batch) -> None:
        batches.append(batch)
        raise ValueError("no")

    with caplog.at_level("DEBUG", "tarry"):
        reported, wire = settle(handler, batch_of(2))
    assert (reported, wire.sent_entries()) == (["m0", "m1"], [])
    texts = [field(line, "text") for line in lines(caplog, "ignored")]
    assert texts == ["Reject is ignored: its handler had ended"] * 4


# memory

ALLOWED_BLOCKS = 40
"""One block for every two invocations; a leak is at least one block per invocation."""
MAX_THREADS = 10


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


@pytest.fixture
def _without_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def second_fails(message: Message) -> None:
    if message.id == "m1":
        raise ValueError


DROPS = {"on_failure": [lambda failure, next_step: Outcome.discard()], "timeout": 5}
RENEWS = {"timeout": 5, "keepalive": 60, "backoff": Fixed(60)}


@pytest.mark.usefixtures("_without_log")
@pytest.mark.parametrize(
    ("handler", "queue", "receives"),
    [
        (consumer(**DROPS)(second_fails), "orders", 1),
        (consumer(**DROPS)(awaiting(second_fails)), "orders", 1),
        (consumer(ack="eager", backoff=Fixed(60))(second_fails), "orders.fifo", 2),
        (consumer(ack="eager", concurrency=3, **RENEWS)(second_fails), "orders", 2),
        (consumer(concurrency=3, **RENEWS)(awaiting(second_fails)), "orders", 2),
    ],
    ids=["sync", "async", "eager deletes on FIFO", "threads with leases", "tasks with leases"],
)
def test_memory_stays_flat_over_many_invocations(handler: Any, queue: str, receives: int) -> None:  # SPEC A6
    """Of three messages, one of which fails, with the threads of their requests. Allocated blocks are exact.

    A slow machine may start one more thread at any time, once: memory must be flat in one of three periods.
    """
    threads, context = threading.active_count(), Context()
    batch = batch_of(3, queue, receives=receives)
    growth = []
    with use(World(client_factory=ForgetfulClient)):
        for _ in range(40):  # all is warm then
            handler(batch, context)
        while len(growth) < 3 and not (growth and growth[-1] < ALLOWED_BLOCKS):
            gc.collect()
            before = sys.getallocatedblocks()
            for _ in range(80):
                handler(batch, context)
            gc.collect()
            growth.append(sys.getallocatedblocks() - before)
    assert growth[-1] < ALLOWED_BLOCKS, growth
    assert threading.active_count() - threads < MAX_THREADS


class Local:
    """A large object among the locals of a handler or a hook."""


alive: list[weakref.ref[Any]] = []


def made() -> Local:
    local = Local()
    alive.append(weakref.ref(local))
    return local


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
        kept = Retry(5)  # the frame and the error refer to each other
        raise kept from error


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
    settle(handler, batch_of(2, queue))
    assert alive
    return sum(local() is not None for local in alive)


@pytest.mark.usefixtures("_without_collection")
def test_messages_and_locals_are_freed_without_garbage_collection_while_their_batch_runs_and_after_it() -> None:
    """SPEC I2. Reference cycles of messages, deliveries, and invocations would keep whole batches in memory."""
    messages, kept = list[weakref.ref[Message]](), list[int]()
    alive.clear()

    @consumer
    def handler(message: Message) -> None:
        assert message.attempt == 1  # creates the delivery
        messages.append(weakref.ref(message))
        kept.append(sum(local() is not None for local in alive))
        raises_from_a_cause(message)

    assert {*settle(handler, batch_of(10))[1].visibilities().values()} == {5}
    assert [message() for message in messages] == [None] * 10
    assert kept == [0] * 10


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


@pytest.mark.usefixtures("_without_collection")
def test_the_locals_of_an_error_without_memory_are_freed_and_those_of_a_coroutine_from_python_3_13_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, to free them would end one that is suspended."""

    async def handler() -> None:
        _local = made()
        raise MemoryError

    for version, is_freed in (((3, 12), False), ((3, 13), True)):
        monkeypatch.setattr(guards, "sys", SimpleNamespace(version_info=version))
        with pytest.raises(MemoryError) as raised:
            handler().send(None)
        guards.free_memory_of(raised.value)
        assert (alive[-1]() is None) == is_freed
    error = ValueError()
    with pytest.raises(MemoryError) as raised:
        raises(MemoryError)
    error.__context__, error.__suppress_context__ = raised.value, True
    guards.free_memory_of(error)
    assert alive[-1]() is None


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
