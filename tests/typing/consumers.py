"""Consumers and sending as a user writes them. Checked by mypy --strict and pyright strict, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, TypedDict, assert_type

from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from pydantic import BaseModel

from tarry import (
    AttemptChange,
    AttemptStore,
    Backoff,
    Batch,
    BatchError,
    Consumer,
    DeadLetter,
    Defer,
    Discard,
    DynamoDBAttempts,
    Exponential,
    Failure,
    FailureStep,
    Fixed,
    Linear,
    LocalRetry,
    LogOptions,
    MemoryAttempts,
    Message,
    Outcome,
    Queue,
    Reject,
    Retry,
    RetryInPlace,
    RetryPolicy,
    Schedule,
    SendAgain,
    SendError,
    State,
    batch_consumer,
    consumer,
)


class Order(BaseModel):
    number: int


@dataclass
class Invoice:
    total: int


class Shipment(TypedDict):
    weight: float


# handlers


def handle(message: Message) -> None: ...
async def handle_later(message: Message) -> None: ...
def handle_order(message: Message[Order]) -> None: ...
async def handle_order_later(message: Message[Order]) -> None: ...
def handle_invoice(message: Message[Invoice]) -> None: ...
def handle_batch(batch: Batch) -> None: ...
def handle_orders(batch: Batch[Order]) -> None: ...
async def handle_orders_later(batch: Batch[Order]) -> None: ...
def handle_invoices(batch: Batch[Invoice]) -> None: ...
def by_another_name(order: Message) -> None: ...
def with_more_parameters(message: Message, retries: int = 3, *, dry_run: bool = False) -> None: ...
def count(message: Message, outcome: Outcome) -> None: ...
def count_orders(message: Message[Order], outcome: Outcome) -> None: ...


def that_returns(message: Message) -> dict[str, int]:
    return {"means": 0}


def that_names_failures(batch: Batch[Order]) -> dict[str, list[dict[str, str]]]:
    return {"batchItemFailures": [{"itemIdentifier": batch[0].delivery_id}]}


class Handlers:
    def take(self, message: Message) -> None: ...

    async def take_later(self, message: Message) -> None: ...


class RedisAttempts:
    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def write(self, changes: Sequence[AttemptChange]) -> None:
        for change in changes:
            assert_type(change.applied_to(None), dict[str, Any] | None)


class PerMinute:
    def delay(self, attempt: int, rng: Random | None = None) -> float:
        return 60.0 * attempt


# every way to make a consumer


@consumer
def bare(message: Message) -> None: ...


@consumer(
    max_attempts=4,
    backoff=Exponential(2, 3, maximum=900, jitter="equal"),
    fatal=(KeyError, ValueError),
    retry_on=ConnectionError,
    on_failure=[RetryInPlace(), DeadLetter(include_traceback=False)],
    name="orders",
    log=LogOptions(body=True),
)
async def with_settings(message: Message[Order]) -> None: ...


@batch_consumer
def of_a_batch(batch: Batch[Order]) -> None: ...


@batch_consumer(max_attempts=3, backoff=Fixed(60))
async def of_a_batch_with_settings(batch: Batch[Order]) -> None: ...


def made(policy: RetryPolicy, is_test: bool) -> None:
    assert_type(bare, Consumer[Any])
    assert_type(with_settings, Consumer[Order])
    assert_type(of_a_batch, Consumer[Order])
    assert_type(of_a_batch_with_settings, Consumer[Order])
    assert_type(consumer(handle_order), Consumer[Order])
    assert_type(consumer()(handle), Consumer[Any])
    assert_type(consumer(backoff=None, retry_on=None, on_failure=None, name=None)(handle_order), Consumer[Order])
    assert_type(consumer(handle_later), Consumer[Any])
    assert_type(consumer(max_attempts=2)(handle_order_later), Consumer[Order])
    assert_type(consumer(on_outcome=count)(handle_order).replace(on_outcome=None), Consumer[Order])
    assert_type(consumer(on_outcome=count_orders)(handle_order), Consumer[Order])
    assert_type(consumer(policy=policy, timeout=3)(handle_order), Consumer[Order])
    for function in (by_another_name, that_returns, with_more_parameters, Handlers().take):
        assert_type(consumer(function), Consumer[Any])
    assert_type(consumer(max_attempts=3)(Handlers().take_later), Consumer[Any])
    assert_type(batch_consumer(handle_batch), Consumer[Any])
    assert_type(batch_consumer(handle_orders_later), Consumer[Order])
    assert_type(batch_consumer(policy=policy)(handle_orders), Consumer[Order])
    assert_type(batch_consumer(unsaid="fail")(handle_orders).replace(unsaid="ack"), Consumer[Order])
    assert_type(batch_consumer(model=Order, unsaid="ack")(that_names_failures), Consumer[Order])
    assert_type(of_a_batch.replace(max_attempts=1), Consumer[Order])
    store: AttemptStore = MemoryAttempts() if is_test else DynamoDBAttempts("attempts", client=None)
    for each in (store, DynamoDBAttempts("attempts"), RedisAttempts()):
        assert_type(consumer(attempts=each)(handle_order), Consumer[Order])
        assert_type(batch_consumer(attempts=each)(handle_orders), Consumer[Order])


@consumer(model=Order, envelope="eventbridge", max_attempts=3)
def by_model(message: Message) -> None:
    assert_type(message.payload, Any)


@consumer(model=Shipment, envelope="s3")
async def of_a_typed_dict(message: Message[Shipment]) -> None:
    assert_type(message.payload["weight"], float)


@batch_consumer(envelope="sns")
def of_invoices(batch: Batch[Invoice]) -> None:
    assert_type([message.payload.total for message in batch], list[int])


from_a_lambda = consumer(model=Order)(lambda message: print(message.payload.number))


def made_with_a_model() -> None:
    assert_type(by_model, Consumer[Order])
    assert_type(of_a_typed_dict, Consumer[Shipment])
    assert_type(of_invoices, Consumer[Invoice])
    assert_type(from_a_lambda, Consumer[Order])
    assert_type(consumer(model=Order)(handle_order), Consumer[Order])
    assert_type(batch_consumer(model=Invoice, envelope=None)(handle_invoices), Consumer[Invoice])
    assert_type(consumer(model=None)(handle), Consumer[Any])
    assert_type(by_model.replace(max_attempts=1), Consumer[Order])
    assert_type(by_model.replace(model=Invoice, envelope="sns"), Consumer[Invoice])


# as Lambda and tests use a consumer


def use(event: dict[str, Any], context: object) -> None:
    assert_type(bare(event, context), dict[str, list[dict[str, str]]])
    bare(event)
    assert_type(bare.policy, RetryPolicy)
    assert_type(bare.policy.max_attempts, int)
    assert_type(with_settings.replace(max_attempts=2, backoff=Fixed(1)), Consumer[Order])
    name: str = bare.name
    bare.function(f"any value from a test of {name}")


# messages and batches


def read(message: Message[Order]) -> None:
    assert_type(message.id, str)
    assert_type(message.delivery_id, str)
    assert_type(message.body, str)
    assert_type(message.attributes, dict[str, Any])
    assert_type(message.attempt, int)
    assert_type(message.receive_count, int)
    assert_type(message.max_attempts, int | None)
    assert_type(message.is_last_attempt, bool | None)
    assert_type(message.queue, str)
    assert_type(message.group_id, str | None)
    assert_type(message.sent_at, datetime | None)
    assert_type(message.payload, Order)
    assert_type(message.payload.number, int)
    assert_type(message.logger_keys, dict[str, Any])
    assert_type(message.outcome, Outcome | None)
    if message.failure is not None:
        assert_type(message.failure.attempts, int | None)
        assert_type(message.failure.attempts_at_most, bool)
        assert_type(message.failure.crashes, int | None)
        assert_type(message.failure.reason, str | None)
        assert_type(message.failure.said, str | None)
        assert_type(message.failure.extra, Mapping[str, Any] | None)
        assert_type(message.failure.history, tuple[Mapping[str, Any], ...])
    if message.outcome is not None:
        assert_type(message.outcome.state, State)
    order: Order = message.json()
    print(order.number)


def record_of(message: Message) -> SQSRecord:
    return message.record


def use_a_batch(batch: Batch[Order]) -> None:
    assert_type(batch[0], Message[Order])
    assert_type(batch[1:], Sequence[Message[Order]])
    assert_type(len(batch), int)
    batch.ack_all()
    batch.retry_all()
    batch.retry_all(60)
    batch.retry_all(delay=timedelta(minutes=1))
    messages: list[Message[Order]] = sorted(batch, key=lambda message: message.attempt)
    print(messages, batch.context)


# verdicts


class PaymentDeclined(Reject):
    """A verdict defined by the user."""

    def __init__(self, card: str) -> None:
        super().__init__(f"card {card} declined")
        self.card = card


def give_verdicts(message: Message) -> None:
    message.ack()
    message.retry()
    message.retry(60)
    message.retry(0.5)
    message.retry(timedelta(minutes=5))
    message.retry(delay=datetime.now(UTC) + timedelta(minutes=5))
    message.reject()
    message.reject("no such customer")
    message.discard(reason=None)
    message.defer(30)
    message.defer(timedelta(minutes=1))
    message.fail(ValueError("no stock"))


def raise_verdicts(kind: int, batch: Batch) -> None:
    match kind:
        case 0:
            raise Retry
        case 1:
            raise Retry(timedelta(minutes=1)) from ValueError()
        case 2:
            raise PaymentDeclined("4111")
        case 3:
            raise Discard("old")
        case 4:
            raise Defer(30)
        case 5:
            raise BatchError("the last line", message=batch[-1])
        case _:
            raise BatchError(index=kind) from ValueError()


# failure steps, hooks and backoffs


class PageOnCall:
    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        assert_type(failure.reason, str)
        assert_type(failure.error, BaseException | None)
        assert_type(failure.attempt, int)
        assert_type(failure.delay, int | None)
        assert_type(failure.message, Message[Any])
        assert_type(failure.said, str | None)
        assert_type(failure.crashes, int | None)
        assert_type(failure.note("lane"), int | str)
        return Outcome.retry(timedelta(minutes=1)) if failure.reason == "fatal" else next_step(failure)


def resend_to_slow_queue(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
    if failure.note("lane"):
        return next_step(failure)
    return Outcome.resend("slow", timedelta(minutes=1), note={"lane": "slow", "tries": 1}, body={"id": 1})


def slow_queue_after_first_attempt(failure: Failure) -> str | None:
    return "slow" if failure.attempt > 1 else None


def mask(fields: dict[str, Any]) -> Mapping[str, Any]:
    return dict.fromkeys(fields, "****")


def made_with_steps_and_backoffs(own: Backoff) -> None:
    steps: list[FailureStep] = [PageOnCall(), RetryInPlace(), DeadLetter(queue="graveyard", redact=mask)]
    again = SendAgain("lane", queue=slow_queue_after_first_attempt, delay=timedelta(hours=1))
    function_first = consumer(on_failure=[LocalRetry(2, Exponential(0.1)), resend_to_slow_queue, again, DeadLetter()])
    assert_type(function_first(read), Consumer[Order])
    assert_type(consumer(on_failure={"orders": [resend_to_slow_queue], "default": steps})(read), Consumer[Order])
    assert_type(consumer(on_failure=steps, log=LogOptions(redact=mask))(read), Consumer[Order])
    of_the_user = consumer(backoff=PerMinute(), on_failure=[LocalRetry(1, PerMinute()), RetryInPlace()])(read)
    assert_type(of_the_user.replace(policy=RetryPolicy(2, own)), Consumer[Order])
    backoffs = [
        Fixed(60),
        Linear(10, 5, maximum=60),
        Exponential(5, 1.5, 60, jitter=0.1),
        Schedule([1, 10], "full"),
        Schedule.rocketmq(),
    ]
    waits: list[float] = [backoff.delay(1) for backoff in backoffs]
    policy = RetryPolicy(max_attempts=len(waits), backoff=backoffs[0], fatal=(KeyError,), retry_on=ValueError)
    assert_type(policy.backoff, Backoff | None)


# type errors


class BackoffOfAttemptOnly:
    def delay(self, attempt: int) -> float:
        return 1.0


def of_a_number(message: int) -> None: ...
def of_nothing() -> None: ...
def of_two(message: Message, other: int) -> None: ...
def as_a_lambda_handler(event: dict[str, Any], context: object) -> None: ...
def of_a_list(batch: list[Message]) -> None: ...
def of_the_model_itself(order: Order) -> None: ...
async def count_later(message: Message, outcome: Outcome) -> None: ...


@consumer(max_attempts="4")  # type: ignore[call-overload, untyped-decorator]
def with_a_text(message: Message) -> None: ...


@batch_consumer(max_attempts=None)  # type: ignore[call-overload, untyped-decorator]
def without_a_limit(batch: Batch) -> None: ...


def refused_handlers() -> None:
    consumer(of_a_number)  # type: ignore[arg-type]
    consumer(of_nothing)  # type: ignore[arg-type]
    consumer(of_two)  # type: ignore[arg-type]
    consumer(as_a_lambda_handler)  # type: ignore[arg-type]
    consumer(handle_batch)  # type: ignore[arg-type]
    batch_consumer(handle)  # type: ignore[arg-type]
    batch_consumer(of_a_list)  # type: ignore[arg-type]
    consumer(model=Order)(handle_invoice)  # type: ignore[arg-type]
    consumer(model=Order)(of_the_model_itself)  # type: ignore[arg-type]
    batch_consumer(model=Order)(handle_invoices)  # type: ignore[arg-type]


def refused_settings() -> None:
    consumer(max_attemps=4)  # type: ignore[call-overload]
    consumer(backoff=60)  # type: ignore[call-overload]
    consumer(backoff=BackoffOfAttemptOnly())  # type: ignore[call-overload]
    consumer(policy=3)  # type: ignore[call-overload]
    consumer(fatal="KeyError")  # type: ignore[call-overload]
    consumer(on_outcome=count_later)  # type: ignore[arg-type]
    consumer(on_failure=[RetryInPlace])  # type: ignore[list-item]
    consumer(unsaid="fail")  # type: ignore[call-overload]
    batch_consumer(unsaid="nack")  # type: ignore[call-overload]
    consumer(model=Order, envelope="sqs")  # type: ignore[call-overload]
    consumer(model=Order(number=1))  # type: ignore[call-overload]
    bare.replace(max_attemps=4)  # type: ignore[call-overload]
    bare.replace(max_attempts="4")  # type: ignore[call-overload]
    from_a_lambda.replace(model="Order")  # type: ignore[call-overload]


def refused_uses(message: Message[Order], batch: Batch[Order]) -> None:
    message.retry("60")  # type: ignore[arg-type]
    message.defer()  # type: ignore[call-arg]
    message.fail("no stock")  # type: ignore[arg-type]
    message.reject(5)  # type: ignore[arg-type]
    message.body = "another"  # type: ignore[misc]
    message.attempt = 1  # type: ignore[misc]
    message.payload = Order(number=1)  # type: ignore[misc]
    print(message.payload.total)  # type: ignore[attr-defined]
    batch.retry_all("60")  # type: ignore[arg-type]
    batch.ack_all(60)  # type: ignore[call-arg]
    batch[0] = batch[1]  # type: ignore[index]
    BatchError(3)  # type: ignore[arg-type]
    Retry("60")  # type: ignore[arg-type]
    Retry(Decimal(1))  # type: ignore[arg-type]


def refused_parts() -> None:
    Fixed("60")  # type: ignore[arg-type]
    LocalRetry(2, "60")  # type: ignore[arg-type]
    SendAgain("slow", delay="60")  # type: ignore[arg-type]
    SendAgain("slow", queue=lambda failure: 5)  # type: ignore[arg-type, return-value]
    Outcome.resend(note={"lane": 0.5})  # type: ignore[dict-item]
    Outcome.dead_letter()  # type: ignore[call-arg]
    Exponential(1, jitter="half")  # type: ignore[arg-type]
    LogOptions(True)  # type: ignore[call-arg]


# sending

orders = Queue("orders")

assert_type(orders.send({"id": 1}), str)
assert_type(orders.send_batch({"id": number} for number in range(3)), list[str])
assert_type(orders.name, str)
assert_type(orders.is_fifo, bool)

by_default = Queue("orders", delay=timedelta(minutes=1))
assert_type(by_default.delay, int | None)
Queue("orders", delay=1.5)
Queue("orders", delay="60")  # type: ignore[arg-type]

orders.send("a", delay=60)
orders.send("a", delay=timedelta(hours=1), group_id="g", deduplication_id="d")
orders.send("a", delay=datetime.now(UTC), attributes={"a": "x", "b": 1, "c": Decimal(1), "d": b"x"})
orders.send_batch([Queue.entry("a", delay=60), "b"], delay=0, attributes={"a": 1}, group_id="g")

orders.send("a", delay="60")  # type: ignore[arg-type]
orders.send("a", group_id=1)  # type: ignore[arg-type]


def copy(message: Message) -> None:
    orders.send(message.body, attributes=message.attributes, group_id=message.group_id)


def resend(error: SendError) -> None:
    for unsent in error.failed:
        assert_type(unsent.index, int)
        assert_type(unsent.reason, Exception)
    assert_type(error.message_ids, list[str | None])
    orders.send_batch(unsent.entry for unsent in error.failed)
