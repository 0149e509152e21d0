"""Consumers of a whole batch, as a user writes them. Checked by mypy --strict and pyright strict, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, assert_type

from tarry import Batch, BatchError, Consumer, Fixed, Message, RetryPolicy, batch_consumer, consumer


class Order:
    number: int


@batch_consumer
def bare(batch: Batch) -> None:
    batch.ack_all()


@batch_consumer
def of_orders(batch: Batch[Order]) -> None:
    for message in batch:
        assert_type(message, Message[Order])


@batch_consumer(max_attempts=3, backoff=Fixed(60))
async def asynchronous(batch: Batch[Order]) -> None: ...


@batch_consumer(policy=RetryPolicy(3, Fixed(60)))
def with_a_policy(batch: Batch[Order]) -> None: ...


assert_type(with_a_policy, Consumer[Order])


@batch_consumer(unsaid="fail")
def with_a_verdict_for_each(batch: Batch[Order]) -> None: ...


@batch_consumer(model=Order, unsaid="ack")
def acknowledges(batch: Batch[Order]) -> dict[str, list[dict[str, str]]]:
    return {"batchItemFailures": [{"itemIdentifier": batch[0].delivery_id}]}


assert_type(with_a_verdict_for_each, Consumer[Order])
assert_type(acknowledges, Consumer[Order])
assert_type(with_a_verdict_for_each.replace(unsaid="ack"), Consumer[Order])
assert_type(bare, Consumer[Any])
assert_type(of_orders, Consumer[Order])
assert_type(asynchronous, Consumer[Order])
assert_type(of_orders.replace(max_attempts=1), Consumer[Order])


def use(batch: Batch[Order]) -> None:
    assert_type(batch[0], Message[Order])
    assert_type(batch[1:], Sequence[Message[Order]])
    assert_type(len(batch), int)
    batch.retry_all()
    batch.retry_all(60)
    batch.retry_all(delay=timedelta(minutes=1))
    batch[-1].retry(delay=5)
    messages: list[Message[Order]] = sorted(batch, key=lambda message: message.attempt)
    print(messages, batch.context)


def stop(batch: Batch, index: int) -> None:
    if index < 0:
        raise BatchError("the last line", message=batch[-1])
    raise BatchError(index=index) from ValueError()


# type errors


@batch_consumer  # type: ignore[arg-type]
def of_one_message(message: Message) -> None: ...


@consumer  # type: ignore[arg-type]
def of_a_batch(batch: Batch) -> None: ...


@batch_consumer  # type: ignore[arg-type]
def of_a_list(batch: list[Message]) -> None: ...


@batch_consumer(max_attempts=None)  # type: ignore[call-overload, untyped-decorator]
def without_a_limit(batch: Batch) -> None: ...


def refused(batch: Batch[Order]) -> None:
    batch.retry_all("60")  # type: ignore[arg-type]
    batch.ack_all(60)  # type: ignore[call-arg]
    batch[0] = batch[1]  # type: ignore[index]
    BatchError(3)  # type: ignore[arg-type]


@batch_consumer(unsaid="nack")  # type: ignore[call-overload, untyped-decorator]
def with_an_invalid_setting(batch: Batch) -> None: ...


@consumer(unsaid="fail")  # type: ignore[call-overload, untyped-decorator]
def of_one(message: Message) -> None: ...
