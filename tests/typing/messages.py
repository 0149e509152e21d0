"""Consumers of one message, as a user writes them. Checked by mypy --strict and pyright strict, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, assert_type

from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from tarry import (
    Backoff,
    Consumer,
    DeadLetter,
    Defer,
    Discard,
    Exponential,
    Failure,
    FailureStep,
    Fixed,
    Linear,
    LocalRetry,
    LogOptions,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    RetryPolicy,
    Schedule,
    SendAgain,
    State,
    consumer,
)


class Order:
    number: int


class PaymentDeclined(Reject):
    """A verdict defined by the user."""

    def __init__(self, card: str) -> None:
        super().__init__(f"card {card} declined")
        self.card = card


# every way to make a consumer


@consumer
def bare(message: Message) -> None:
    message.ack()


@consumer
def of_orders(message: Message[Order]) -> None:
    message.ack()


@consumer()
def with_no_settings(message: Message) -> None: ...


@consumer(
    max_attempts=4,
    backoff=Exponential(2, 3, maximum=900, jitter="equal"),
    fatal=(KeyError, ValueError),
    retry_on=ConnectionError,
    on_failure=[RetryInPlace(), DeadLetter(include_traceback=False)],
    name="orders",
    log=LogOptions(body=True),
)
def with_settings(message: Message) -> None: ...


@consumer(backoff=None, retry_on=None, on_failure=None, name=None)
def with_nothing_set(message: Message[Order]) -> None: ...


def count(message: Message, outcome: Outcome) -> None:
    assert_type(outcome.state, State)
    assert_type(message.logger_keys, dict[str, Any])


def count_orders(message: Message[Order], outcome: Outcome) -> None:
    assert_type(message.payload, Order)


@consumer(on_outcome=count)
def with_a_hook(message: Message[Order]) -> None: ...


@consumer(on_outcome=count_orders)
def with_a_hook_of_orders(message: Message[Order]) -> None: ...


without_a_hook = with_a_hook.replace(on_outcome=None)
assert_type(without_a_hook, Consumer[Order])


@consumer
async def asynchronous(message: Message) -> None:
    message.retry()


@consumer(max_attempts=2)
async def asynchronous_with_settings(message: Message[Order]) -> None: ...


@consumer
def by_another_name(order: Message) -> None: ...


@consumer
def that_returns(message: Message) -> dict[str, int]:
    return {"means": 0}


@consumer
def with_more_parameters(message: Message, retries: int = 3, *, dry_run: bool = False) -> None: ...


class OrderHandlers:
    def take(self, message: Message) -> None: ...

    async def take_later(self, message: Message) -> None: ...


from_a_method = consumer(OrderHandlers().take)
from_an_async_method = consumer(max_attempts=3)(OrderHandlers().take_later)

assert_type(of_orders, Consumer[Order])
assert_type(with_nothing_set, Consumer[Order])
assert_type(asynchronous_with_settings, Consumer[Order])
assert_type(bare, Consumer[Any])
assert_type(with_settings, Consumer[Any])


# as Lambda and tests use a consumer


def use(event: dict[str, Any], context: object) -> None:
    assert_type(bare(event, context), dict[str, list[dict[str, str]]])
    bare(event)
    assert_type(bare.policy, RetryPolicy)
    assert_type(bare.policy.max_attempts, int)
    assert_type(of_orders.replace(max_attempts=2, backoff=Fixed(1)), Consumer[Order])
    name: str = bare.name
    print(name)
    bare.function("any value from a test")


# attributes of a message


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
    assert_type(message.outcome, Outcome | None)
    if message.failure is not None:
        assert_type(message.failure.attempts, int | None)
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


# verdicts


def give_verdicts(message: Message) -> None:
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


def raise_verdicts(kind: int) -> None:
    match kind:
        case 0:
            raise Retry
        case 1:
            raise Retry(timedelta(minutes=1)) from ValueError()
        case 2:
            raise PaymentDeclined("4111")
        case 3:
            raise Discard("old")
        case _:
            raise Defer(30)


# steps and hooks


class PageOnCall:
    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        assert_type(failure.reason, str)
        assert_type(failure.error, BaseException | None)
        assert_type(failure.attempt, int)
        assert_type(failure.delay, int | None)
        assert_type(failure.message, Message[Any])
        assert_type(failure.said, str | None)
        assert_type(failure.note("lane"), int | str)
        return Outcome.retry(timedelta(minutes=1)) if failure.reason == "fatal" else next_step(failure)


def mask(fields: dict[str, Any]) -> Mapping[str, Any]:
    return dict.fromkeys(fields, "****")


steps: list[FailureStep] = [PageOnCall(), RetryInPlace(), DeadLetter(queue="graveyard", redact=mask)]


def resend_to_slow_queue(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
    if failure.note("lane"):
        return next_step(failure)
    return Outcome.resend("slow", timedelta(minutes=1), note={"lane": "slow", "tries": 1}, body={"id": 1})


def slow_queue_after_first_attempt(failure: Failure) -> str | None:
    return "slow" if failure.attempt > 1 else None


with_a_function = consumer(
    on_failure=[
        LocalRetry(2, Exponential(0.1)),
        resend_to_slow_queue,
        SendAgain("lane", queue=slow_queue_after_first_attempt, delay=timedelta(hours=1)),
        DeadLetter(),
    ]
)(read)
assert_type(with_a_function, Consumer[Order])
by_queue = consumer(on_failure={"orders": [resend_to_slow_queue], "default": steps})(read)
assert_type(by_queue, Consumer[Order])
paged = consumer(on_failure=steps, log=LogOptions(redact=mask))(read)
assert_type(paged, Consumer[Order])

backoffs = [
    Fixed(60),
    Linear(10, 5, maximum=60),
    Exponential(5, 1.5, 60, jitter=0.1),
    Schedule([1, 10], "full"),
    Schedule.rocketmq(),
]
waits: list[float] = [backoff.delay(1) for backoff in backoffs]
policy = RetryPolicy(max_attempts=3, backoff=backoffs[0], fatal=(KeyError,), retry_on=ValueError)


class PerMinute:
    def delay(self, attempt: int, rng: Random | None = None) -> float:
        return 60.0 * attempt


own: Backoff = PerMinute()
with_its_own_backoff = consumer(backoff=PerMinute(), on_failure=[LocalRetry(1, PerMinute()), RetryInPlace()])(read)
assert_type(with_its_own_backoff, Consumer[Order])


@consumer(policy=policy, timeout=3)
def with_a_policy(message: Message[Order]) -> None: ...


assert_type(with_a_policy, Consumer[Order])
assert_type(with_a_policy.replace(policy=RetryPolicy(2, own)), Consumer[Order])
assert_type(policy.backoff, Backoff | None)


# type errors


@consumer  # type: ignore[arg-type]
def of_a_number(message: int) -> None: ...


@consumer  # type: ignore[arg-type]
def of_nothing() -> None: ...


@consumer  # type: ignore[arg-type]
def of_two(message: Message, other: int) -> None: ...


@consumer  # type: ignore[arg-type]
def as_a_lambda_handler(event: dict[str, Any], context: object) -> None: ...


@consumer(max_attempts="4")  # type: ignore[call-overload, untyped-decorator]
def with_a_text(message: Message) -> None: ...


@consumer(max_attemps=4)  # type: ignore[call-overload, untyped-decorator]
def with_a_misspelled_setting(message: Message) -> None: ...


@consumer(backoff=60)  # type: ignore[call-overload, untyped-decorator]
def with_a_number_as_backoff(message: Message) -> None: ...


class BackoffOfAttemptOnly:
    def delay(self, attempt: int) -> float:
        return 1.0


@consumer(backoff=BackoffOfAttemptOnly())  # type: ignore[call-overload, untyped-decorator]
def with_a_backoff_without_a_random_source(message: Message) -> None: ...


@consumer(policy=3)  # type: ignore[call-overload, untyped-decorator]
def with_a_number_as_policy(message: Message) -> None: ...


@consumer(fatal="KeyError")  # type: ignore[call-overload, untyped-decorator]
def with_a_name_as_error(message: Message) -> None: ...


async def later(message: Message, outcome: Outcome) -> None: ...


@consumer(on_outcome=later)  # type: ignore[arg-type]
def with_an_async_hook(message: Message) -> None: ...


@consumer(on_failure=[RetryInPlace])  # type: ignore[list-item]
def with_a_class_as_step(message: Message) -> None: ...


def refused(message: Message, failure: Failure) -> None:
    message.retry("60")  # type: ignore[arg-type]
    message.defer()  # type: ignore[call-arg]
    message.fail("no stock")  # type: ignore[arg-type]
    message.reject(5)  # type: ignore[arg-type]
    message.body = "another"  # type: ignore[misc]
    message.attempt = 1  # type: ignore[misc]
    bare.replace(max_attemps=4)  # type: ignore[call-overload]
    bare.replace(max_attempts="4")  # type: ignore[call-overload]
    Fixed("60")  # type: ignore[arg-type]
    LocalRetry(2, "60")  # type: ignore[arg-type]
    SendAgain("slow", delay="60")  # type: ignore[arg-type]
    SendAgain("slow", queue=lambda failure: 5)  # type: ignore[arg-type, return-value]
    Outcome.resend(note={"lane": 0.5})  # type: ignore[dict-item]
    Exponential(1, jitter="half")  # type: ignore[arg-type]
    LogOptions(True)  # type: ignore[call-arg]
    Outcome.dead_letter()  # type: ignore[call-arg]
    Retry("60")  # type: ignore[arg-type]
    Retry(Decimal(1))  # type: ignore[arg-type]
