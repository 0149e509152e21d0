"""No state leaks from one invocation to the next, whether a handler, a validator, or a hook sets it."""

import gc
import weakref
from contextvars import ContextVar
from typing import Any

import pydantic
import pytest

from tarry import (
    Batch,
    DeadLetter,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    Retry,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.settled import orders
from tests.wire import Queue, TestClock, Wire

tenant: ContextVar[str] = ContextVar("tenant", default="unset")


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


def step(failure: Failure, next_step: Any) -> Any:
    set_tenant()
    return next_step(failure)


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
    "a failure step": consumer(on_failure=[step, RetryInPlace()], backoff=Fixed(60))(fails),
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
        HANDLERS["a batch handler"](event(record()), Context())
    finally:
        tenant.reset(token)
    assert seen == ["outer"]


def test_a_batch_handler_gets_the_batch_of_its_own_invocation() -> None:  # SPEC A6
    batches: list[Batch[Any]] = []
    for count in (2, 3):
        batch_consumer(batches.append)(batch_of(count), Context())
    assert [len(batch) for batch in batches] == [2, 3]


class AdjustedClock(TestClock):
    """A wall clock that is adjusted while a handler runs; on the monotonic clock no time passes."""

    offset = 0.0

    def time(self) -> float:
        return super().time() + self.offset


@pytest.mark.parametrize("by", [3_600, -3_600], ids=["ahead", "back"])
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_an_adjustment_of_the_wall_clock_does_not_change_a_delay_or_end_a_lease(queue: str, by: float) -> None:
    # SPEC C6, E6
    clock = AdjustedClock()

    @consumer
    def handler(message: Message) -> None:
        clock.offset = by
        if message.id == "rejects":
            message.reject()
        message.retry(43_000)

    with Wire(queues={queue: Queue(dead_letter="dlq" + queue[6:])}, clock=clock) as wire:
        batch = event(*(record("{}", name, queue, group=name) for name in ("retries", "rejects")))
        assert failed(handler(batch, Context())) == ["retries"]
    assert (wire.visibilities()["handle-retries"], len(wire.sent_entries())) == (43_000, 1)


def exits(message: Message) -> None:
    if message.delivery_id == "m1":
        raise SystemExit
    raise ValueError


async def exits_async(message: Message) -> None:
    exits(message)


LOCALLY = LocalRetry(3, delay=5)


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("handler", [exits, exits_async])
def test_a_message_that_waits_for_a_local_retry_at_the_end_of_the_batch_goes_to_the_next_failure_step(
    handler: Any, concurrency: int
) -> None:  # SPEC A5, I5
    made = consumer(concurrency=concurrency, on_failure=[LOCALLY, RetryInPlace()], backoff=Fixed(5))(handler)
    with orders() as wire:
        assert failed(made(batch_of(2), Context())) == ["m0", "m1"]
    assert wire.visibilities() == {"handle-m0": 5, "handle-m1": 5}


def test_such_a_message_is_unhandled_without_another_step_and_dead_lettered_at_its_last_attempt() -> None:
    # SPEC A5, C8, E4, I5
    with orders() as wire:
        assert failed(consumer(on_failure=[LOCALLY])(exits)(batch_of(2), Context())) == ["m0", "m1"]
        assert wire.visibilities()["handle-m0"] == 900
        last = consumer(on_failure=[LOCALLY, RetryInPlace(), DeadLetter()], isolate=False)(exits)
        assert failed(last(batch_of(2, receives=15), Context())) == []
    assert sorted(dead_letter["MessageBody"] for dead_letter in wire.sent_entries()) == ["0", "1"]


def test_an_error_that_leads_to_a_retry_keeps_no_object_of_the_handler_alive() -> None:  # SPEC I2
    """The handler's frame and its error refer to each other, so only the garbage collector would free them."""
    made: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def handle(message: Message) -> None:
        alive.append(any(reference() is not None for reference in made))
        order = {1, 2}
        made.append(weakref.ref(order))
        try:
            raise ValueError("no")
        except ValueError as error:
            kept = Retry(60)
            raise kept from error

    gc.disable()
    try:
        with orders() as wire:
            consumer(handle)(batch_of(3), Context())
    finally:
        gc.enable()
    assert alive == [False] * 3
    assert set(wire.visibilities().values()) == {60}


def test_a_verdict_that_a_hook_gives_on_another_message_of_an_ended_batch_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC B4, H2
    batches: list[Batch[Any]] = []

    def reject_all(failure: Failure, next_step: Any) -> Outcome:
        for message in batches[0]:
            message.reject("late")
        return Outcome.retry(60)

    @batch_consumer(on_failure=[reject_all, DeadLetter()])
    def handler(batch: Batch) -> None:
        batches.append(batch)
        raise ValueError("no")

    with caplog.at_level("DEBUG", "tarry"), orders() as wire:
        assert failed(handler(batch_of(2), Context())) == ["m0", "m1"]
    assert not wire.sent_entries()
    texts = [field(line, "text") for line in lines(caplog, "ignored")]
    assert texts == ["Reject is ignored: its handler had ended"] * 4
