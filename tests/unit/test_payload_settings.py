"""The settings `model=` and `envelope=`, and the model that an annotation names."""

from __future__ import annotations  # as in many files of handlers, all annotations here are strings

import re
import sys
from functools import partial, wraps
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar  # noqa: F401 annotations name it

import pytest
from aws_lambda_powertools.utilities.parser import models
from aws_lambda_powertools.utilities.parser.models import SqsRecordModel
from pydantic import BaseModel, Json
from typing_extensions import TypeAliasType

import tarry  # noqa: F401 annotations name it
from tarry import ConfigurationError, Consumer, Message, batch_consumer, consumer
from tarry.message.payloads import annotations_of
from tests.records import Context, event, record

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


def annotated_with(annotation: Any) -> Any:
    """Return a handler with the annotation, as text or evaluated."""

    def handler(message): ...

    handler.__annotations__ = {"message": annotation}
    return handler


def of_one(message: Message[Order]) -> None: ...


def with_more(message: Message[Order], other: Unknown | None = None) -> Unknown | None: ...  # noqa: F821


async def asynchronous(message: Message[Order]) -> None: ...


class OrderService:
    def take(self, message: Message[Order]) -> None: ...

    def __call__(self, message: Message[Order]) -> None: ...


def returns_an_order(message: Message) -> Message[Order]: ...


def without_wraps(*arguments):
    return of_one(*arguments)


BARE = annotated_with("Message")


@pytest.mark.parametrize(
    "function",
    [
        of_one, with_more, asynchronous, OrderService().take, OrderService(), wraps(of_one)(lambda _: None),
        partial(of_one), annotated_with(Message["Order"]),
        *map(annotated_with, ("tarry.Message[Order]", "Orders", "Message[Order] | None", "Annotated[Orders, 'mine']")),
        annotated_with(Message[Order] | None), annotated_with(TypeAliasType("Aliased", Message[Order])),
    ],
    ids=lambda function: f"{getattr(function, '__name__', type(function).__name__)}",
)  # fmt: skip
def test_the_annotation_of_a_handler_names_its_model(function: Any) -> None:  # SPEC K2
    assert reads_orders(consumer(function))
    assert reads_orders(consumer(max_attempts=2)(function))


def test_the_annotation_of_a_batch_handler_names_its_model_and_the_setting_takes_precedence() -> None:  # SPEC K2
    assert reads_orders(batch_consumer(annotated_with("Batch[Order]")))
    assert reads_orders(consumer(model=Order)(BARE))
    assert reads_orders(consumer(model=Order)(annotated_with("Message[NotAModel]")))


@pytest.mark.parametrize(
    "function",
    [
        *map(annotated_with, ("Message", "Message[Any]", "Message[object]", "Message[M]", "Unknown")),
        annotated_with(Message), returns_an_order, lambda message: None, without_wraps, print,
    ],
    ids=["bare", "any", "object", "a variable", "unknown", "class", "return", "no annotation", "a wrapper", "print"],
)  # fmt: skip
def test_an_annotation_without_a_model_sets_none(function: Any) -> None:  # SPEC K2
    assert consumer(function)._payload_reader is None


def test_message_may_be_imported_for_type_checkers_only() -> None:  # SPEC K2
    scope: dict[str, Any] = {"Order": Order, "__name__": "app"}
    exec("def handler(message: 'Message[Order]'): ...", scope)
    assert reads_orders(consumer(scope["handler"]))


def test_an_annotation_that_cannot_be_resolved_is_refused_if_it_names_a_model() -> None:  # SPEC K2
    unknown = annotated_with("Message[Unknown]")
    with pytest.raises(ConfigurationError, match=r"Message\[Unknown\].*cannot be resolved.*'Unknown'.*set model="):
        consumer(unknown)
    with pytest.raises(ConfigurationError, match=r"Batch\[Unknown\].*cannot be resolved"):
        batch_consumer(annotated_with("Batch[Unknown]"))
    assert reads_orders(consumer(model=Order)(unknown))


def test_annotations_that_cannot_be_evaluated_are_read_as_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.14 evaluates all of a function's annotations at the first use."""
    library: Any = SimpleNamespace(
        Format=SimpleNamespace(STRING="text"), get_annotations=lambda *_, format: {"a": format}
    )
    monkeypatch.setitem(sys.modules, "annotationlib", library)

    class Handler:
        @property
        def __annotations__(self) -> Any:
            raise NameError("Order")

    assert annotations_of(Handler()) == {"a": "text"}


def test_the_metadata_of_an_annotated_model_are_kept() -> None:  # SPEC K2
    reader = consumer(annotated_with("Message[Annotated[Order, 'strictly']]"))._payload_reader
    assert reader is not None
    assert "strictly" in reader._name


class SqsModel(BaseModel):
    """A model of the user's with the name of one of Powertools."""

    number: int


def test_a_model_of_the_user_may_have_the_name_of_one_of_powertools() -> None:
    assert consumer(model=SqsModel)(BARE)._payload_reader is not None


# invalid settings


@pytest.mark.parametrize("envelope", ["sqs", "", 7, ["sns"], "SNS"], ids=repr)
def test_an_unknown_envelope_is_refused(envelope: Any) -> None:  # SPEC K2
    with pytest.raises(ConfigurationError, match="'sns', 'eventbridge' or 's3', got"):
        consumer(model=Order, envelope=envelope)(BARE)


def test_an_envelope_without_a_model_is_refused() -> None:  # SPEC K2
    with pytest.raises(ConfigurationError, match="envelope='sns' needs a model"):
        consumer(envelope="sns")(BARE)
    assert reads_orders(consumer(envelope="sns")(of_one))


class ModelWithFailingSchema:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise KeyError("no schema today")


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (NotAModel, "NotAModel"), (5, "5"), ({}, "{}"), (Order(number=1), "Order"), (str, "message.body"),
        (bytes, "message.body"), (ModelWithFailingSchema, "no schema today"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("envelope", [None, "sns"])
def test_an_invalid_model_is_refused_when_the_setting_is_given(model: Any, text: str, envelope: Any) -> None:  # SPEC K2
    with pytest.raises(ConfigurationError, match="model takes a pydantic model, a dataclass or a TypedDict") as refusal:
        consumer(model=model, envelope=envelope)
    assert text in str(refusal.value)


@pytest.mark.parametrize("missing", ["pydantic", "aws_lambda_powertools.utilities.parser"])
def test_without_powertools_or_pydantic_the_error_names_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC K2
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=r"install aws-lambda-powertools\[parser\], or add AWS's"):
        consumer(model=Order)
    assert consumer(BARE)(event(record()), Context()) == {"batchItemFailures": []}


# Powertools' models of a whole record


class OrderRecord(SqsRecordModel):
    body: Json[Order]


class OptionalOrderRecord(SqsRecordModel):
    body: Json[Order] | None


class ListRecord(SqsRecordModel):
    body: Json[list[Order]]


class DerivedRecord(OrderRecord):
    extra: int = 1


@pytest.mark.parametrize(
    ("record_model", "model"),
    [
        *(
            (each, "Order")
            for each in (OrderRecord, OptionalOrderRecord, DerivedRecord, SqsRecordModel, models.SqsModel)
        ),
        (ListRecord, "list[Order]"),
    ],
)
def test_a_model_of_the_whole_record_is_refused_with_the_model_of_its_body(record_model: Any, model: str) -> None:
    text = (  # SPEC K2
        f"{record_model.__name__} is a model of a whole SQS record, and message.payload comes from the body alone: "
        f"write Message[{model}], or model={model}, with the model of the body"
    )
    for make in (lambda: consumer(model=record_model), lambda: consumer(annotated_with(Message[record_model]))):
        with pytest.raises(ConfigurationError, match=f"^{re.escape(text)}$"):
            make()
