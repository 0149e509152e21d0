"""A consumer wrapped by the decorators of Powertools, Sentry, and others, and a handler wrapped by them."""

import asyncio
import contextlib
import functools
import inspect
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypedDict

import pytest
import sentry_sdk
from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.utilities.data_classes import SQSEvent, event_source
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.parser.models import SqsRecordModel
from pydantic import BaseModel, Json
from sentry_sdk.integrations.aws_lambda import AwsLambdaIntegration, _wrap_handler
from sentry_sdk.transport import Transport

from tarry import Batch, ConfigurationError, Consumer, Fixed, Message, batch_consumer, consumer
from tests.records import Context, batch_of, failed
from tests.settled import orders


class FullContext(Context):
    """A Lambda context with all attributes that the decorators read."""

    function_version = "1"
    memory_limit_in_mb = 128
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:orders-function"
    log_group_name = "/aws/lambda/orders-function"
    log_stream_name = "stream"


@pytest.fixture(autouse=True)
def _powertools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERTOOLS_TRACE_DISABLED", "true")
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "orders")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "shop")


def take(message: Message) -> None:
    """Take an order."""
    if message.body == "1":
        raise ValueError("no stock")


async def take_async(message: Message) -> None:
    """Take an order."""
    await asyncio.sleep(0)
    take(message)


def take_all(batch: Batch) -> None:
    """Take an order."""
    batch[1].retry()


handler, async_handler = (consumer(backoff=Fixed(60))(each) for each in (take, take_async))
batch_handler = batch_consumer(backoff=Fixed(60))(take_all)


def answer(decorated: Callable[..., Any]) -> list[str]:
    with orders():
        return failed(decorated(batch_of(3), FullContext()))


# attributes of a consumer


class UpdatesWrapper:
    """A wrapper object that copies all attributes of the handler with `functools.update_wrapper`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = "mine"
        functools.update_wrapper(self, function)

    def __call__(self, event: Any, context: Any) -> Any:
        return self.function(event, context)


def test_a_consumer_has_the_name_and_docstring_of_its_function_and_can_be_wrapped() -> None:  # SPEC A9

    @functools.wraps(handler)
    def wrapper(event: Any, context: Any) -> Any:
        return handler(event, context)

    for each in (handler, wrapper, UpdatesWrapper(handler)):
        assert (each.__name__, each.__qualname__, each.__module__) == ("take", "take", __name__)
        assert each.__doc__ == inspect.getdoc(each) == "Take an order."
        assert answer(each) == ["m1"]
    assert UpdatesWrapper(handler).name == "mine"
    assert consumer(counting([])(take)).__qualname__ == "take"
    assert consumer(lambda message: None).__qualname__.endswith("can_be_wrapped.<locals>.<lambda>")
    assert wrapper.__wrapped__ is handler
    assert handler.function is take


@pytest.mark.parametrize(
    "nameless", [functools.partial(print, "x"), type("Object", (), {"__call__": lambda self, message: None})()]
)
def test_a_callable_without_a_name_can_be_a_handler(nameless: Any) -> None:  # SPEC A9
    made = consumer(nameless)
    assert (bool(made.__name__), bool(made.name), answer(made)) == (True, True, [])


# decorators of a consumer

logger = Logger(stream=io.StringIO())


def powertools_metrics(wrapped: Any) -> Any:
    metrics = Metrics()
    metrics.add_metric("Orders", unit="Count", value=1)
    return metrics.log_metrics(capture_cold_start_metric=True)(wrapped)


class SilentTransport(Transport):
    """A transport that keeps Sentry's envelopes and sends none."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.envelopes: list[Any] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.envelopes.append(envelope)


@pytest.fixture
def _sentry() -> Iterator[None]:
    integrations = [AwsLambdaIntegration(timeout_warning=True)]
    sentry_sdk.init(
        "https://key@sentry.invalid/1", transport=SilentTransport, integrations=integrations, default_integrations=False
    )
    yield
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)  # another init would patch logging and botocore for all later tests


class DatadogLike:
    """A wrapper object, like that of ``datadog_lambda_wrapper``."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func
        self.__name__ = func.__name__
        self.__doc__ = func.__doc__

    def __call__(self, event: Any, context: Any, **kwargs: Any) -> Any:
        context.extension = "started"
        return self.func(event, context, **kwargs)


DECORATORS = {
    "logger": logger.inject_lambda_context,
    "logger that clears": logger.inject_lambda_context(clear_state=True, log_event=False),
    "tracer": Tracer(disabled=True).capture_lambda_handler,
    "metrics": powertools_metrics,
    "all three": lambda wrapped: logger.inject_lambda_context(
        Tracer(disabled=True).capture_lambda_handler(powertools_metrics(wrapped))
    ),
    "sentry": _wrap_handler,
    "Datadog": DatadogLike,
}


@pytest.mark.usefixtures("_sentry")
@pytest.mark.filterwarnings("ignore:No application metrics")
@pytest.mark.parametrize("decorate", DECORATORS.values(), ids=DECORATORS)
def test_a_consumer_works_under_common_lambda_decorators(decorate: Any) -> None:  # SPEC A9
    for made in (handler, async_handler, batch_handler):
        with contextlib.redirect_stdout(io.StringIO()):  # the metrics
            decorated = decorate(made)
            assert answer(decorated) == answer(decorated) == ["m1"]
        assert (decorated.__name__, decorated.__doc__) == (made.__name__, made.__doc__)


def test_powertools_metrics_are_flushed_although_messages_have_failed() -> None:  # SPEC A9
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        answer(powertools_metrics(handler))
    written = [json.loads(line) for line in out.getvalue().splitlines()]
    assert any(line.get("Orders") == [1.0] for line in written)


def test_the_powertools_logger_has_the_request_id_in_a_handler() -> None:  # SPEC A9
    stream = io.StringIO()
    injected = Logger(service="inner", stream=stream)

    @injected.inject_lambda_context
    @consumer
    def logs(message: Message) -> None:
        injected.info("an order")

    answer(logs)
    assert [json.loads(line)["function_request_id"] for line in stream.getvalue().splitlines()] == ["request-1"] * 3


# decorators of a handler


def counting(runs: list[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(message: Message) -> Any:
            runs.append(message.id)
            return function(message)

        return wrapper

    return decorate


@pytest.mark.parametrize("function", [take, take_async], ids=["sync", "async"])
def test_a_decorator_of_a_handler_runs_for_each_message(function: Any) -> None:  # SPEC A4, A9
    runs: list[str] = []
    for decorate in (counting(runs), Tracer(disabled=True).capture_method):
        made = consumer(backoff=Fixed(60))(decorate(function))
        assert (answer(made), made.__name__) == (["m1"], function.__name__)
    assert runs == ["m0", "m1", "m2"]


def test_a_consumer_may_be_a_class_attribute_and_called_below_any_middleware_of_powertools() -> None:  # SPEC A9
    class App:
        lambda_handler = handler  # not bound to the instance

    @event_source(data_class=SQSEvent)
    def around(sqs_event: SQSEvent, context: Any) -> Any:
        return handler(sqs_event, context)

    assert answer(App.lambda_handler) == answer(App().lambda_handler) == answer(around) == ["m1"]


# mistakes, which would fail every message


class Order(BaseModel):
    id: str


class OrderRecord(SqsRecordModel):
    body: Json[Order]


class TypedOrder(TypedDict):
    id: str


namesake = type("Message", (), {"__module__": "shop"})


class Take:
    def take(self, message: Message) -> None: ...

    @classmethod
    def of_class(cls, message: Message) -> None: ...

    def __call__(self, message: Message) -> None: ...


class TakeTraced:
    @Tracer(disabled=True).capture_method
    def take(self, message: Message) -> None: ...


class TakesAnEvent:
    def __call__(self, event: Any, context: Any) -> None: ...


def of_record(record: SQSRecord) -> None: ...
def of_context(record: SQSRecord, lambda_context: Any = None) -> None: ...
def of_record_model(record: OrderRecord) -> None: ...
def of_message_and_context(message: Message[OrderRecord], lambda_context: Any) -> None: ...
def of_model_and_context(record: OrderRecord, lambda_context: Any) -> None: ...
def of_order_and_context(order: Order, lambda_context: Any) -> None: ...
def of_either_and_context(order: Order | TypedOrder, lambda_context: Any) -> None: ...
def of_typed(order: TypedOrder) -> None: ...
def of_namesake(message: namesake) -> None: ...  # type: ignore[valid-type]
def of_dict(message: dict[str, Any]) -> None: ...
def of_text(message: "str") -> None: ...
def of_event(event: Any, context: Any) -> None: ...
async def of_order(order: Order) -> None: ...
def of_list(messages: list[Message[Order]]) -> None: ...
def of_message(message: Message[Order]) -> None: ...
def of_batch(batch: Batch) -> None: ...
def of_nothing() -> None: ...
def of_keyword(*, message: Message) -> None: ...
def of_any(message): ...
def generates(message: Message) -> Iterator[None]:
    yield


class DoesNothing(BasePersistenceLayer):
    def _get_record(self, idempotency_key: str) -> Any: ...
    def _put_record(self, data_record: Any) -> None: ...
    def _update_record(self, data_record: Any) -> None: ...
    def _delete_record(self, data_record: Any) -> None: ...


once = idempotent_function(data_keyword_argument="message", persistence_store=DoesNothing())
traced = Tracer(disabled=True).capture_method
ONE, ALL = "one message", "the whole batch"
NO_CONTEXT = "one message, and no lambda_context"
CONTEXT = "; message.context is the Lambda context"
PAYLOAD = "; message.payload is the Order"
MODEL = ", since OrderRecord is a model of the whole record"
ANNOTATIONS: list[tuple[Any, Any, str, str, str, str]] = [
    (consumer, of_record, "record: SQSRecord", ONE, "message: Message", "; message.record is the SQSRecord"),
    (consumer, traced(of_record), "record: SQSRecord", ONE, "message: Message", "; message.record is the SQSRecord"),
    (consumer, of_context, "record, lambda_context", NO_CONTEXT, "message: Message", CONTEXT),
    *(
        (consumer, of_both, shown, NO_CONTEXT, "message: Message[Order]", f"{CONTEXT}, message.payload the Order{why}")
        for of_both, shown, why in (
            (of_message_and_context, "message, lambda_context", MODEL),
            (of_model_and_context, "record, lambda_context", MODEL),
            (of_order_and_context, "order, lambda_context", ""),
            (of_either_and_context, "order, lambda_context", ""),
        )
    ),
    (consumer, of_record_model, "record: OrderRecord", ONE, "message: Message[Order]", PAYLOAD),
    (consumer, of_order, "order: Order", ONE, "message: Message[Order]", PAYLOAD),
    (
        consumer, of_typed, "order: TypedOrder", ONE, "message: Message[TypedOrder]",
        "; message.payload is the TypedOrder",
    ),
    (consumer, of_namesake, "message: shop.Message", "a tarry.Message", "message: Message", ""),
    (consumer, of_dict, "message: dict[str, Any]", ONE, "message: Message", "; message.json() is the decoded body"),
    (consumer, of_text, "message: str", ONE, "message: Message", "; message.body is the text"),
    (
        consumer, of_list, "messages: list[Message[Order]]", ONE, "message: Message",
        ', or "@batch_consumer" above "def of_list(batch: Batch) -> None:"',
    ),
    (consumer, of_batch, "batch: Batch", ONE, "message: Message", ', or "@batch_consumer" above the function'),
    (batch_consumer, of_list, "messages: list[Message[Order]]", ALL, "batch: Batch", ""),
    (
        batch_consumer, of_message, "message: Message[Order]", ALL, "batch: Batch[Order]",
        ', or "@consumer" above the function',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("decorate", "function", "shown", "passes", "argument", "then"), ANNOTATIONS)
def test_a_wrong_annotation_is_refused_with_the_line_to_write_instead(
    decorate: Any, function: Any, shown: str, passes: str, argument: str, then: str
) -> None:
    name, definition = function.__name__, "async def" if function is of_order else "def"
    with pytest.raises(ConfigurationError) as refusal:
        decorate(function)
    assert (
        f"{name}({shown}) cannot be a handler: @{decorate.__name__} passes {passes}. "
        f'Write "{definition} {name}({argument}) -> None:"{then}'
    ) in str(refusal.value)


MISTAKES: list[tuple[Any, str]] = [
    (of_event, "of_event(event, context) cannot be a handler: @consumer makes the Lambda handler, and calls its "
     'function with one message. Write "def of_event(message: Message) -> None:"; message.context is the Lambda '
     "context"),
    (TakesAnEvent(), "TakesAnEvent.__call__(event, context) cannot be a handler: @consumer makes the Lambda "
     'handler, and calls its function with one message. Write "def handler(message: Message) -> None:"; '
     "message.context is the Lambda context"),
    (of_nothing, "of_nothing() cannot be a handler: it is called with one argument, one message. Write "
     '"def of_nothing(message: Message) -> None:"'),
    (of_keyword, "of_keyword(*, message) cannot be a handler: it is called with one argument, one message. Write "
     '"def of_keyword(message: Message) -> None:"'),
    (generates, "generates(message) cannot be a handler: it contains yield, so a call runs none of its code. Remove "
     "the yield"),
    (Take, 'Take cannot be a handler: it is a class. Write "handler = consumer(Take())"'),
    (Order, 'Order cannot be a handler: it is a class. Write "def handler(message: Message) -> None:"'),
    (lambda event, context: None, 'Write "def handler(message: Message) -> None:"'),
    (Take.take, "Take.take(self, message) cannot be a handler: it is a method without an object. Write "
     '"handler = consumer(Take().take)" below the class'),
    (Take.__dict__["of_class"], "Take.of_class cannot be a handler: it is a classmethod. Write a function outside of "
     'the class: "def of_class(message: Message) -> None:"'),
    (functools.partial(of_event), "cannot be a handler: it is called with one argument, one message, and then raises "
     "TypeError: missing a required argument: 'context'. Let partial set all other arguments"),
    (handler, "<Consumer tests.integration.test_decorators.take> cannot be a handler: it is a consumer already. "
     "Write one decorator with all settings; handler.replace(...) makes a copy with other settings"),
    ("orders", "@consumer('orders') cannot choose a queue: the event source mapping in the template connects the "
     'function to its queue. Write "@consumer" above the handler'),
    (5, '@consumer takes a function, got 5; give settings by name, as in "@consumer(max_attempts=5)"'),
    (logger.inject_lambda_context(of_any), "of_any cannot be a handler: a decorator of Powertools below @consumer is "
     "for Lambda handlers. Write @consumer below it (only capture_method stays below); if Powertools then refuses the "
     "consumer, call it from a function, as the page 'From Powertools' of tarry's docs shows"),
    (event_source(data_class=SQSEvent)(of_any), "of_any cannot be a handler: a decorator of Powertools below @consumer "
     "is for Lambda handlers."),
    (traced(once(of_any)), "of_any cannot be a handler: @idempotent_function takes its data as a keyword argument, and "
     "@consumer passes one message by position. Put @idempotent_function on a function that the handler calls, "
     '"def charge(order):", and call it with "charge(order=message.json())"; the page '
     "'From Powertools' of tarry's docs has an example"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "text"), MISTAKES, ids=[text[:50] for _, text in MISTAKES])
def test_a_mistake_is_refused_with_the_line_to_write_instead(function: Any, text: str) -> None:
    for decorate in (consumer, consumer()) if callable(function) else (consumer,):
        with pytest.raises(ConfigurationError) as refusal:
            decorate(function)
        assert text in str(refusal.value)


class HasABody(Protocol):
    body: str


class Own(Message[Any]): ...


def of_protocol(message: HasABody) -> None: ...
def of_subclass(message: Own) -> None: ...
def of_anything(message: Any, more: int = 1) -> None: ...
def of_option(message: Message, *, more: int = 1) -> None: ...
def of_arguments(*messages: Message) -> None: ...
def of_either(message: Message | None) -> None: ...
def of_unknown(message: "TypeOfATypeChecker") -> None: ...  # noqa: F821
def of_sequence(messages: Sequence[Message]) -> None: ...
def adapted(function: Callable[[Any], None]) -> Callable[[Message], None]:
    @functools.wraps(function)
    def wrapper(message: Message) -> None:
        function(message.json())

    return wrapper


@pytest.mark.parametrize(
    ("make", "function"),
    [
        *((consumer, each) for each in (of_protocol, of_subclass, of_anything, of_either, of_unknown, Take().take)),
        *((consumer, each) for each in (of_option, of_arguments, staticmethod(of_any), TakeTraced().take)),
        *((consumer, functools.partial(each)) for each in (of_anything, adapted(of_event))),
        (consumer, adapted(of_dict)),
        (batch_consumer, of_sequence),
        (batch_consumer, of_any),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_any_annotation_that_a_message_or_batch_fits_is_accepted(make: Any, function: Any) -> None:
    assert isinstance(make(function), Consumer)
