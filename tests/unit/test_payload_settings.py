"""The settings `model=` and `envelope=`, and the model that an annotation names."""

from __future__ import annotations  # as in many files of handlers, all annotations here are strings

import re
import sys
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import pytest
from aws_lambda_powertools.utilities.parser.models import SqsModel, SqsRecordModel
from pydantic import BaseModel, Json

import tarry
from tarry import Batch, ConfigurationError, Consumer, Message, batch_consumer, consumer
from tests.records import Context, event, record

if TYPE_CHECKING:
    from tests.wire import Wire as Unknown

M = TypeVar("M")


class Order(BaseModel):
    number: int


class NotAModel:
    number: int


Orders = Message[Order]


def reads_orders(handler: Consumer[Any]) -> bool:
    """Return whether the consumer parses each body as an `Order`, so that no other body reaches the handler."""
    return handler._payload_reader is not None and handler._payload_reader._name == "Order"


# annotations


def of_one(message: Message[Order]) -> None: ...


def of_a_batch(batch: Batch[Order]) -> None: ...


def by_module(message: tarry.Message[Order]) -> None: ...


def by_alias(message: Orders) -> None: ...


def optional(message: Message[Order] | None) -> None: ...


def annotated(message: Annotated[Message[Order], "an order"]) -> None: ...


def with_more(message: Message[Order], other: Unknown | None = None) -> Unknown | None: ...


async def asynchronous(message: Message[Order]) -> None: ...


class OrderService:
    def take(self, message: Message[Order]) -> None: ...

    def __call__(self, message: Message[Order]) -> None: ...


def decorated(function: Any) -> Any:
    @wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


def without_wraps(function: Any) -> Any:
    def wrapper(*arguments):  # type: ignore[no-untyped-def]
        return function(*arguments)

    return wrapper


def with_an_evaluated_annotation(message: Any) -> None: ...


with_an_evaluated_annotation.__annotations__ = {"message": Message["Order"]}


@pytest.mark.parametrize(
    "function",
    [
        of_one,
        by_module,
        by_alias,
        optional,
        annotated,
        with_more,
        asynchronous,
        OrderService().take,
        OrderService(),
        decorated(of_one),
        partial(of_one),
        with_an_evaluated_annotation,
    ],
    ids=lambda function: getattr(function, "__name__", type(function).__name__),
)
def test_the_annotation_of_a_handler_names_its_model(function: Any) -> None:  # SPEC K2
    assert reads_orders(consumer(function))
    assert reads_orders(consumer(max_attempts=2)(function))


def test_the_annotation_of_a_batch_handler_names_its_model() -> None:  # SPEC K2
    assert reads_orders(batch_consumer(of_a_batch))


def bare(message: Message) -> None: ...


def of_anything(message: Message[Any]) -> None: ...


def of_an_object(message: Message[object]) -> None: ...


def of_a_variable(message: Message[M]) -> None: ...


def of_something_unknown(message: Unknown) -> None: ...


def not_annotated(message):  # type: ignore[no-untyped-def]
    ...


@pytest.mark.parametrize(
    "function",
    [bare, of_anything, of_an_object, of_a_variable, of_something_unknown, not_annotated, without_wraps(of_one), print],
    ids=lambda function: function.__name__,
)
def test_an_annotation_without_a_model_sets_none(function: Any) -> None:  # SPEC K2
    assert consumer(function)._payload_reader is None


def test_message_may_be_imported_for_type_checkers_only() -> None:  # SPEC K2
    scope: dict[str, Any] = {"Order": Order, "__name__": "app"}
    exec("def handler(message: 'Message[Order]'): ...", scope)
    assert reads_orders(consumer(scope["handler"]))


def of_an_unknown_model(message: Message[Unknown]) -> None: ...


def test_an_annotation_that_cannot_be_resolved_is_refused_if_it_names_a_model() -> None:  # SPEC K2
    with pytest.raises(ConfigurationError, match=r"Message\[Unknown\].*cannot be resolved.*'Unknown'.*set model="):
        consumer(of_an_unknown_model)
    assert reads_orders(consumer(model=Order)(of_an_unknown_model))


def test_the_setting_model_takes_precedence_over_the_annotation() -> None:  # SPEC K2
    made: Any = consumer(model=Order)
    assert reads_orders(made(bare))


# invalid settings


@pytest.mark.parametrize("envelope", ["sqs", "", 7, ["sns"], "SNS"], ids=repr)
def test_an_unknown_envelope_is_refused(envelope: Any) -> None:  # SPEC K2
    with pytest.raises(ConfigurationError, match="'sns', 'eventbridge' or 's3', got"):
        consumer(model=Order, envelope=envelope)(bare)


def test_an_envelope_without_a_model_is_refused() -> None:  # SPEC K2
    with pytest.raises(ConfigurationError, match="envelope='sns' needs a model"):
        consumer(envelope="sns")(bare)
    assert reads_orders(consumer(envelope="sns")(of_one))


class ModelWithFailingSchema:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise KeyError("no schema today")


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (NotAModel, "NotAModel"),
        (5, "5"),
        ({}, "{}"),
        (Order(number=1), "Order"),
        (ModelWithFailingSchema, "no schema today"),
        (str, "message.body"),
        (bytes, "message.body"),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.parametrize("envelope", [None, "sns"])
def test_an_invalid_model_is_refused_when_the_setting_is_given(model: Any, text: str, envelope: Any) -> None:  # SPEC K2
    with pytest.raises(ConfigurationError, match="model takes a pydantic model, a dataclass or a TypedDict") as refusal:
        consumer(model=model, envelope=envelope)
    assert text in str(refusal.value)


@pytest.mark.parametrize("missing", ["pydantic", "aws_lambda_powertools.utilities.parser"])
def test_without_powertools_or_pydantic_the_error_names_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SPEC K2
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=r"install aws-lambda-powertools\[parser\], or add AWS's"):
        consumer(model=Order)
    assert consumer(bare)(event(record()), Context()) == {"batchItemFailures": []}


# Powertools' models of a whole record


class OrderRecord(SqsRecordModel):
    body: Json[Order]  # type: ignore[assignment]


class OptionalOrderRecord(SqsRecordModel):
    body: Json[Order] | None  # type: ignore[assignment]


class ListRecord(SqsRecordModel):
    body: Json[list[Order]]  # type: ignore[assignment]


class DerivedRecord(OrderRecord):
    extra: int = 1


def of_records(message: Message[OrderRecord]) -> None: ...


@pytest.mark.parametrize(
    ("record_model", "model"),
    [
        (OrderRecord, "Order"),
        (OptionalOrderRecord, "Order"),
        (ListRecord, "list[Order]"),
        (DerivedRecord, "Order"),
        (SqsRecordModel, "Order"),
        (SqsModel, "Order"),
    ],
)
def test_a_model_of_the_whole_record_is_refused_with_the_model_of_its_body(
    record_model: type, model: str
) -> None:  # SPEC K2
    text = (
        f"{record_model.__name__} is a model of a whole SQS record, and message.payload comes from the body alone: "
        f"write Message[{model}], or model={model}, with the model of the body"
    )
    with pytest.raises(ConfigurationError, match=f"^{re.escape(text)}$"):
        consumer(model=record_model)


def test_a_message_of_record_models_is_refused() -> None:  # SPEC K2
    with pytest.raises(ConfigurationError, match=r"write Message\[Order\], or"):
        consumer(of_records)
