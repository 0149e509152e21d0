"""No state leaks from one invocation to the next, whether a handler, a validator, or a hook sets it."""

from contextvars import ContextVar
from typing import Any

import pydantic
import pytest

from tarry import (
    Batch,
    Consumer,
    DeadLetter,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, TestClock, Wire

tenant: ContextVar[str] = ContextVar("tenant", default="unset")


def orders(**more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, **more)


class OrderWithContext(pydantic.BaseModel):
    id: int

    @pydantic.model_validator(mode="after")
    def remember(self) -> "OrderWithContext":
        seen.append(tenant.get())
        tenant.set("acme")
        return self


seen: list[str] = []


def set_tenant(*_: Any) -> None:
    seen.append(tenant.get())
    tenant.set("acme")


async def set_tenant_async(_: Any) -> None:
    set_tenant()


class SetsContextVariable:
    def handle(self, failure: Failure, next_step: Any) -> Outcome:
        set_tenant()
        outcome: Outcome = next_step(failure)
        return outcome


def fails(_: Message) -> None:
    raise ValueError


HANDLERS = {
    "a handler": consumer(set_tenant),
    "a handler in a thread": consumer(concurrency=2)(set_tenant),
    "an async handler": consumer(set_tenant_async),
    "a batch handler": batch_consumer(set_tenant),
    "an async batch handler": batch_consumer(set_tenant_async),
    "an awaitable of a batch handler": batch_consumer(lambda batch: [set_tenant_async(batch)][0]),
    "a validator": consumer(model=OrderWithContext)(lambda message: None),
    "a validator in a thread": consumer(model=OrderWithContext, concurrency=2)(lambda message: None),
    "a validator of a batch": batch_consumer(model=OrderWithContext)(lambda batch: None),
    "a failure step": consumer(on_failure=[SetsContextVariable(), RetryInPlace()], backoff=Fixed(60))(fails),
    "a hook": consumer(retry_when=set_tenant, backoff=Fixed(60))(fails),
    "a hook of a dead letter": consumer(on_failure=[DeadLetter(redact=set_tenant)])(fails),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("name", HANDLERS)
def test_a_context_variable_is_not_visible_to_the_next_invocation(name: str) -> None:  # SPEC A6
    seen.clear()
    with orders():
        for _ in range(3):
            HANDLERS[name](event(record({"id": 1})), Context())
    assert seen == ["unset"] * 3
    assert tenant.get() == "unset"


@pytest.mark.parametrize("make", [consumer, batch_consumer])
def test_a_context_variable_that_a_validator_sets_is_not_visible_to_the_next_message(make: Any) -> None:  # SPEC I1
    seen.clear()
    with orders():
        make(model=OrderWithContext)(lambda _: None)(event(*(record({"id": n}, f"m{n}") for n in range(3))), Context())
    assert seen == ["unset"] * 3


def test_a_context_variable_that_a_caller_sets_is_visible_in_the_handler() -> None:  # SPEC A6, A9
    seen.clear()
    token = tenant.set("outer")
    try:
        with orders():
            HANDLERS["a batch handler"](event(record()), Context())
    finally:
        tenant.reset(token)
    assert seen == ["outer"]


# clocks


class AdjustedClock(TestClock):
    """A wall clock that is adjusted while a handler runs; on the monotonic clock no time passes."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.offset = 0.0

    def time(self) -> float:
        return super().time() + self.offset


@pytest.mark.parametrize("by", [3_600, -3_600], ids=["ahead", "back"])
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_an_adjustment_of_the_wall_clock_does_not_change_a_delay(queue: str, by: float) -> None:  # SPEC C6
    clock = AdjustedClock(by)

    @consumer
    def handler(message: Message) -> None:
        clock.offset = by
        message.retry(43_000)

    with Wire(queues={queue: Queue()}, clock=clock) as wire:
        assert failed(handler(event(record(queue=queue)), Context())) == ["m1"]
    assert wire.visibilities()["handle-m1"] == 43_000


def test_an_adjustment_of_the_wall_clock_does_not_end_a_lease() -> None:  # SPEC E6
    clock = AdjustedClock(3_600)

    @consumer(max_attempts=1)
    def handler(message: Message) -> None:
        clock.offset = 3_600
        raise ValueError

    with orders(clock=clock) as wire:
        assert failed(handler(event(record()), Context())) == []
    assert wire.visibilities() == {}
    assert len(wire.sent_entries()) == 1


# the end of the batch


def exits(message: Message) -> None:
    if message.delivery_id == "m1":
        raise SystemExit
    raise ValueError


LOCAL_RETRIES = [LocalRetry(3, delay=5), RetryInPlace()]


@pytest.mark.parametrize("way", ["one by one", "threads", "tasks"])
def test_a_message_that_waits_for_a_local_retry_at_the_end_of_the_batch_goes_to_the_next_failure_step(
    way: str,
) -> None:  # SPEC A5, I5
    async def exits_async(message: Message) -> None:
        exits(message)

    settings: dict[str, Any] = {"on_failure": LOCAL_RETRIES, "backoff": Fixed(5)}
    handlers: dict[str, Consumer[Any]] = {
        "one by one": consumer(**settings)(exits),
        "threads": consumer(concurrency=2, **settings)(exits),
        "tasks": consumer(concurrency=2, **settings)(exits_async),
    }
    with orders() as wire:
        assert failed(handlers[way](batch_of(2), Context())) == ["m0", "m1"]
    assert wire.visibilities() == {"handle-m0": 5, "handle-m1": 5}


def test_a_message_that_only_a_local_retry_takes_is_unhandled_at_the_end_of_the_batch() -> None:  # SPEC E4, I5
    with orders() as wire:
        handler = consumer(on_failure=[LocalRetry(3)])(exits)
        assert failed(handler(batch_of(2), Context())) == ["m0", "m1"]
    assert wire.visibilities()["handle-m0"] == 900


def test_a_message_that_waits_for_a_local_retry_at_its_last_attempt_is_dead_lettered_as_the_batch_ends() -> None:
    steps = [LocalRetry(3, delay=5), RetryInPlace(), DeadLetter()]  # SPEC A5, C8

    def handler(message: Message) -> None:
        exits(message)

    last_attempts = event(record("0", "m0", receives=15), record("1", "m1", receives=15))
    with orders() as wire:
        assert failed(consumer(on_failure=steps, isolate=False)(handler)(last_attempts, Context())) == []
    assert sorted(dead_letter["MessageBody"] for dead_letter in wire.sent_entries()) == ["0", "1"]


def test_a_batch_handler_gets_the_batch_of_its_own_invocation() -> None:  # SPEC A6
    batches: list[Batch[Any]] = []
    handler = batch_consumer(batches.append)
    with orders():
        handler(batch_of(2), Context())
        handler(batch_of(3), Context())
    assert [len(batch) for batch in batches] == [2, 3]
