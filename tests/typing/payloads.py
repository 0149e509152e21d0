"""Typed payloads, as a user writes them. Checked by mypy --strict and pyright strict, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from pydantic import BaseModel

from tarry import Batch, Consumer, Message, batch_consumer, consumer


class Order(BaseModel):
    number: int


@dataclass
class Invoice:
    total: int


class Shipment(TypedDict):
    weight: float


# the annotation names the model


@consumer
def by_annotation(message: Message[Order]) -> None:
    assert_type(message.payload, Order)
    assert_type(message.payload.number, int)


@batch_consumer(envelope="sns")
def batch_by_annotation(batch: Batch[Invoice]) -> None:
    for message in batch:
        assert_type(message.payload, Invoice)
    assert_type([message.payload.total for message in batch], list[int])


# model= names the model


@consumer(model=Order, envelope="eventbridge", max_attempts=3)
def by_model(message: Message) -> None:
    assert_type(message.payload, Any)


@consumer(model=Order)
def by_both(message: Message[Order]) -> None:
    assert_type(message.payload, Order)


@consumer(model=Shipment, envelope="s3")
async def a_typed_dict(message: Message[Shipment]) -> None:
    assert_type(message.payload["weight"], float)


@batch_consumer(model=Invoice, envelope=None)
def a_dataclass(batch: Batch[Invoice]) -> None: ...


@consumer(model=None)
def without_a_model(message: Message) -> None: ...


from_a_lambda = consumer(model=Order)(lambda message: print(message.payload.number))

assert_type(by_annotation, Consumer[Order])
assert_type(batch_by_annotation, Consumer[Invoice])
assert_type(by_model, Consumer[Order])
assert_type(by_both, Consumer[Order])
assert_type(a_typed_dict, Consumer[Shipment])
assert_type(a_dataclass, Consumer[Invoice])
assert_type(without_a_model, Consumer[Any])
assert_type(from_a_lambda, Consumer[Order])
assert_type(by_model.replace(max_attempts=1), Consumer[Order])
assert_type(by_model.replace(model=Invoice, envelope="sns"), Consumer[Invoice])


# type errors


@consumer(model=Order)  # type: ignore[arg-type]
def of_another_model(message: Message[Invoice]) -> None: ...


@batch_consumer(model=Order)  # type: ignore[arg-type]
def of_a_batch_of_another_model(batch: Batch[Invoice]) -> None: ...


@consumer(model=Order)  # type: ignore[arg-type]
def of_the_model_itself(order: Order) -> None: ...


@consumer(model=Order, envelope="sqs")  # type: ignore[call-overload, untyped-decorator]
def of_an_unknown_envelope(message: Message[Order]) -> None: ...


@consumer(model=Order(number=1))  # type: ignore[call-overload, untyped-decorator]
def of_an_instance(message: Message[Order]) -> None: ...


def refused(message: Message[Order]) -> None:
    print(message.payload.total)  # type: ignore[attr-defined]
    message.payload = Order(number=1)  # type: ignore[misc]
    from_a_lambda.replace(model="Order")  # type: ignore[call-overload]
