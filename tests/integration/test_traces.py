"""Spans of OpenTelemetry for runs of the handler and for sends, and their links to the sender."""

import asyncio
import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import opentelemetry
import pytest
from botocore.exceptions import ClientError
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags

from tarry import (
    Batch,
    Consumer,
    DeadLetter,
    Defer,
    Discard,
    Fixed,
    LocalRetry,
    LogOptions,
    Message,
    Queue,
    Reject,
    RetryInPlace,
    SendAgain,
    SendError,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.tables import SlowTable
from tests.wire import Queue as WireQueue
from tests.wire import RunningClock, Wire, client_error

_LOADED = sys.modules.pop("opentelemetry.trace")  # for other tests of this process, it is not loaded

SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACING = tuple(f"tarry.observe.{name}" for name in ("backends", "opentelemetry", "tracing", "xray"))
XRAY = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1;Lineage=1:abc:0"


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load OpenTelemetry. Another test may have imported it, and tarry's tracing with it, a second time."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", _LOADED)
    monkeypatch.setattr(opentelemetry, "trace", _LOADED)
    for name in [name for name in sys.modules if name in TRACING]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Switch OpenTelemetry on with an exporter in memory."""
    exporter = InMemorySpanExporter()
    with_provider(monkeypatch, SimpleSpanProcessor(exporter))
    yield exporter
    assert not trace.get_current_span().get_span_context().is_valid  # no span stays current


def with_provider(monkeypatch: pytest.MonkeyPatch, *processors: SpanProcessor, sampler: Any = None) -> None:
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def ids(spans: Sequence[ReadableSpan]) -> list[Any]:
    return [attribute(span, "messaging.message.id") for span in spans]


def with_sender(**more: Any) -> dict[str, Any]:
    return {"traceparent": {"dataType": "String", "stringValue": SENDER}, **more}


def orders(**more: Any) -> Wire:
    queues = {name: WireQueue(dead_letter="dead") for name in ("orders", "orders.fifo")}
    return Wire(queues=queues, **more)


def consumer_of(kind: str, work: Callable[[Message], object], **settings: Any) -> Consumer[Any]:
    async def work_async(message: Message) -> None:
        await asyncio.sleep(0)
        work(message)
        await asyncio.sleep(0)

    def work_all(batch: Batch) -> None:
        for message in batch:
            work(message)

    if kind == "batch":
        return batch_consumer(**settings)(work_all)
    settings = {"concurrency": 1 if kind == "sync" else 2, **settings}
    return consumer(**settings)(work_async if kind == "tasks" else work)


def runs(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """Return the spans of the runs by the ids of their messages."""
    return {attribute(span, "messaging.message.id"): span for span in named(exporter, "process orders")}


# runs


def test_each_run_has_a_span_in_the_messaging_conventions_which_is_current_in_the_handler(
    spans: InMemorySpanExporter,
) -> None:
    current: list[Any] = []

    @consumer(name="charge")
    def handler(message: Message) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    with orders(), _tracer().start_as_current_span("invocation") as invocation:
        handler(event(record(1, "a"), record(2, "b", receives=3)), Context())
        assert trace.get_current_span() is invocation

    first, second = named(spans, "process orders")
    assert dict(first.attributes or {}) == {
        "messaging.system": "aws_sqs",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": "a",
        "faas.trigger": "pubsub",
        "tarry.consumer": "charge",
        "tarry.message_id": "a",
        "tarry.attempt": 1,
        "tarry.outcome": "ack",
    }
    assert (first.kind, first.status.status_code, first.links) == (SpanKind.CONSUMER, StatusCode.UNSET, ())
    assert (attribute(second, "messaging.message.id"), attribute(second, "tarry.attempt")) == ("b", 3)
    assert current == [span.context.span_id for span in (first, second) if span.context]
    for span in (first, second):
        assert span.parent is not None
        assert span.parent.span_id == invocation.get_span_context().span_id


def _tracer() -> trace.Tracer:
    return trace.get_tracer("test")


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_200_messages_at_concurrency_50_have_spans_of_their_own_with_their_own_children(
    kind: str, spans: InMemorySpanExporter
) -> None:
    def work(message: Message) -> None:
        assert baggage.get_baggage("id") is None
        with _tracer().start_as_current_span("charge", attributes={"id": message.id}):
            contexts.attach(baggage.set_baggage("id", message.id))  # stays in this run's context

    with orders():
        assert failed(consumer_of(kind, work, concurrency=50)(batch_of(200), Context())) == []
    processed = {span.context.span_id: span for span in named(spans, "process orders") if span.context}
    assert Counter(ids(list(processed.values()))) == Counter(f"m{number}" for number in range(200))
    children = named(spans, "charge")
    assert len(children) == 200
    for child in children:
        assert child.parent is not None
        assert attribute(processed[child.parent.span_id], "messaging.message.id") == attribute(child, "id")


def test_a_failed_run_has_its_exception_once_and_its_outcome(spans: InMemorySpanExporter) -> None:
    @consumer(max_attempts=2, on_failure=[RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        if message.id == "deferred":
            raise Defer(30)
        if message.id == "discarded":
            raise Discard("too old")
        raise ValueError(f"no stock for {message.id}")

    batch = event(record(message_id="a"), record(message_id="b", receives=2), record(message_id="deferred"))
    batch["Records"].append(record(message_id="discarded"))
    with orders():
        handler(batch, Context())
    by_id = runs(spans)
    outcomes = {message_id: attribute(span, "tarry.outcome") for message_id, span in by_id.items()}
    assert outcomes == {"a": "retry", "b": "dead_letter", "deferred": "defer", "discarded": "discard"}
    for message_id, reason in (("a", "error"), ("b", "exhausted")):
        span = by_id[message_id]
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == f"ValueError: no stock for {message_id}"
        assert (attribute(span, "error.type"), attribute(span, "tarry.reason")) == ("ValueError", reason)
        [exception] = span.events
        assert exception.name == "exception"
        shown = dict(exception.attributes or {})
        assert (shown["exception.type"], shown["exception.message"]) == ("ValueError", f"no stock for {message_id}")
        assert "in handler" in str(shown["exception.stacktrace"])
        assert span.end_time == exception.timestamp
    for message_id in ("deferred", "discarded"):
        assert by_id[message_id].status.status_code is StatusCode.UNSET
        assert by_id[message_id].events == ()


def test_an_error_that_cannot_be_shown_or_compared_fails_only_its_message(spans: InMemorySpanExporter) -> None:
    class Hostile(Exception):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

        __hash__ = Exception.__hash__

        def __str__(self) -> str:
            raise RuntimeError("shown")

    @consumer
    def handler(message: Message) -> None:
        message.fail(Hostile())

    with orders():
        assert failed(handler(event(record(), record(message_id="m2")), Context())) == ["m1", "m2"]
    types = [attribute(span, "error.type") for span in named(spans, "process orders")]
    assert [name.rpartition(".")[2] for name in types] == ["Hostile"] * 2


def test_return_values_and_awaitables_belong_to_the_run(spans: InMemorySpanExporter) -> None:
    async def later(message: Message) -> None:
        await asyncio.sleep(0)
        _tracer().start_span("later").end()

    @consumer
    def handler(message: Message) -> Any:
        results = {"verdict": Reject("no"), "answer": {"statusCode": 200}, "object": object()}
        return results[message.id] if message.id in results else later(message)

    with orders():
        handler(event(*(record(message_id=name) for name in ("verdict", "answer", "object", "awaitable"))), Context())
    by_id = runs(spans)
    outcomes = {message_id: attribute(span, "tarry.outcome") for message_id, span in by_id.items()}
    assert outcomes == {"verdict": "dead_letter", "answer": "ack", "object": "ack", "awaitable": "ack"}
    [child] = named(spans, "later")
    assert child.parent == by_id["awaitable"].context
    assert (child.end_time or 0) <= (by_id["awaitable"].end_time or 0)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_with_idempotency_the_requests_of_the_claim_are_within_the_run(
    concurrency: int, spans: InMemorySpanExporter
) -> None:
    def claims(operation: str, _: str) -> float:
        if operation == "put":
            _tracer().start_span("claim").end()
        return 0

    @consumer(idempotency=SlowTable(claims), name="charge", concurrency=concurrency)
    def handler(message: Message) -> None: ...

    with orders():
        for _ in range(2):
            assert failed(handler(event(record(message_id="a"), record(message_id="b")), Context())) == []
    processed = named(spans, "process orders")
    assert Counter(ids(processed)) == {"a": 2, "b": 2}
    assert [attribute(span, "tarry.outcome") for span in processed] == ["ack"] * 4
    assert {child.parent and child.parent.span_id for child in named(spans, "claim")} == {
        span.context and span.context.span_id for span in processed
    }


def test_each_try_of_a_local_retry_has_a_span(spans: InMemorySpanExporter) -> None:
    tries = iter([ValueError("once"), None])

    @consumer(on_failure=[LocalRetry(1, delay=0), RetryInPlace()])
    def handler(message: Message) -> None:
        if (error := next(tries)) is not None:
            raise error

    with orders():
        assert failed(handler(event(record()), Context())) == []
    first, second = named(spans, "process orders")
    assert (attribute(first, "tarry.outcome"), attribute(second, "tarry.outcome")) == ("again", "ack")
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)


def test_a_body_that_does_not_fit_its_model_fails_within_the_span(spans: InMemorySpanExporter) -> None:
    @consumer(model=int)
    def handler(message: Message[int]) -> None: ...

    with orders():
        handler(event(record("no number")), Context())
    [span] = named(spans, "process orders")
    assert (span.status.status_code, attribute(span, "tarry.reason")) == (StatusCode.ERROR, "undecodable")


@pytest.mark.parametrize("kind", ["main thread", "worker threads", "tasks"])
def test_a_run_that_exceeds_its_timeout_has_a_span_with_the_timeout(kind: str, spans: InMemorySpanExporter) -> None:
    goes_on = threading.Event()

    def wait(message: Message) -> None:
        if message.id == "slow":
            goes_on.wait()

    async def wait_async(message: Message) -> None:
        if message.id == "slow":
            await asyncio.Event().wait()

    settings = {"timeout": 0.05, "concurrency": 1 if kind == "main thread" else 3}
    handler = consumer(**settings)(wait_async if kind == "tasks" else wait)
    try:
        with orders(clock=RunningClock()):
            assert failed(handler(event(record(message_id="slow"), record(message_id="fast")), Context())) == ["slow"]
    finally:
        goes_on.set()
    by_id = runs(spans)
    assert attribute(by_id["fast"], "tarry.outcome") == "ack"
    slow = by_id["slow"]
    assert (attribute(slow, "error.type"), attribute(slow, "tarry.outcome")) == ("TimeoutError", "retry")
    assert len(slow.events) == 1


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_batch_handler_has_one_span_with_links_to_all_senders(is_async: bool, spans: InMemorySpanExporter) -> None:
    def work(batch: Batch) -> None:
        _tracer().start_span("inside").end()
        error = ValueError("both")
        batch[0].fail(error)
        batch[1].fail(error)

    async def work_async(batch: Batch) -> None:
        work(batch)

    handler = batch_consumer(work_async if is_async else work)
    batch = event(
        record(message_id="a", attributes=with_sender()),
        record(message_id="b", system={"AWSTraceHeader": XRAY}),
        record(message_id="c"),
    )
    with orders():
        assert failed(handler(batch, Context())) == ["a", "b"]
    [span] = named(spans, "process orders")
    assert attribute(span, "messaging.batch.message_count") == 3
    assert attribute(span, "messaging.message.id") is None
    assert [(link.attributes or {})["messaging.message.id"] for link in span.links] == ["a", "b"]
    assert span.status.status_code is StatusCode.ERROR
    [exception] = span.events  # one error for two messages
    assert (exception.attributes or {})["messaging.message.id"] == "a"
    assert named(spans, "inside")[0].parent == span.context


def test_on_fifo_spans_name_the_group_and_messages_behind_a_failed_one_have_none(spans: InMemorySpanExporter) -> None:
    @consumer
    def handler(message: Message) -> None:
        if message.id == "a1":
            raise ValueError

    fifo = [record(message_id=name, queue="orders.fifo", group=name[0]) for name in ("a1", "a2", "b1")]
    with orders():
        assert failed(handler(event(*fifo), Context())) == ["a1", "a2"]
    processed = named(spans, "process orders.fifo")
    groups = {attribute(span, "messaging.message.id"): attribute(span, "tarry.group_id") for span in processed}
    assert groups == {"a1": "a", "b1": "b"}


# links


@pytest.mark.parametrize(
    ("attributes", "header", "linked"),
    [
        (with_sender(), None, SENDER),
        (with_sender(tracestate={"dataType": "String", "stringValue": "vendor=1"}), XRAY, SENDER),
        ({}, XRAY, "00-5759e988bd862e3fe1be46a994272793-53995c3f42cd8ad8-01"),
        ({}, XRAY.replace("Sampled=1", "Sampled=0"), "00-5759e988bd862e3fe1be46a994272793-53995c3f42cd8ad8-00"),
        ({}, "Root=1-5759e988-bd862e3fe1be46a994272793", None),
        ({}, "Parent=53995c3f42cd8ad8;Root=no;Sampled=?", None),
        ({"traceparent": {"dataType": "String", "stringValue": "00-no"}}, None, None),
        ({"traceparent": {"dataType": "Binary", "binaryValue": "AAAA"}}, XRAY.lower(), None),
    ],
)
def test_a_span_is_linked_to_the_sender_by_traceparent_or_the_xray_header(
    attributes: dict[str, Any], header: str | None, linked: str | None, spans: InMemorySpanExporter
) -> None:
    @consumer
    def handler(message: Message) -> None: ...

    system = {} if header is None else {"AWSTraceHeader": header}
    with orders():
        handler(event(record(attributes=attributes, system=system)), Context())
    [span] = named(spans, "process orders")
    shown = [
        f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-{int(link.context.trace_flags):02x}"
        for link in span.links
    ]
    assert shown == ([] if linked is None else [linked])


# sends


def test_a_send_of_one_or_many_is_a_span_whose_context_travels_with_the_message(spans: InMemorySpanExporter) -> None:
    with orders() as sqs:
        message_id = Queue("orders").send({"id": 1})
    [span] = named(spans, "send orders")
    assert span.kind is SpanKind.PRODUCER
    assert dict(span.attributes or {}) == {
        "messaging.system": "aws_sqs",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": message_id,
    }
    [request] = sqs.sent("SendMessage")
    assert span.context is not None
    [(name, sent)] = request.parameters["MessageAttributes"].items()
    assert (name, sent["DataType"]) == ("traceparent", "String")
    assert sent["StringValue"].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
    with orders() as sqs:
        Queue("orders").send_batch(str(number) for number in range(25))
    of_batch = named(spans, "send orders")[1]
    assert attribute(of_batch, "messaging.batch.message_count") == 25
    assert len(sqs.sent_entries()) == 25
    assert len({entry["MessageAttributes"]["traceparent"]["StringValue"] for entry in sqs.sent_entries()}) == 1


@pytest.mark.parametrize(
    ("attributes", "body"),
    [
        ({f"a{number}": "x" for number in range(10)}, "body"),
        ({"traceparent": SENDER}, "body"),
        ({}, "x" * 1_048_576),
    ],
    ids=["ten attributes", "a context of the user's own", "the largest body"],
)
def test_a_message_without_room_or_with_a_context_of_its_own_is_sent_as_it_is(
    attributes: dict[str, str], body: str, spans: InMemorySpanExporter
) -> None:
    with orders() as sqs:
        Queue("orders").send(body, attributes=attributes)
    [request] = sqs.sent("SendMessage")
    expected = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
    assert request.parameters.get("MessageAttributes", {}) == expected
    assert len(named(spans, "send orders")) == 1


def test_a_span_of_a_send_has_no_text_of_an_error_and_with_redact_none_of_a_run_has(
    spans: InMemorySpanExporter,
) -> None:  # SPEC L4
    """The `Queue` does not know the consumer in whose handler, or in whose thread, it sends."""
    refused = client_error("InvalidMessageContents", "card 4111")

    @consumer(log=LogOptions(redact=lambda fields: fields))
    def handler(message: Message) -> None:
        with pytest.raises(ClientError, match="4111"):
            Queue("orders").send(message.body)
        with pytest.raises(SendError, match="4111"):
            Queue("orders").send_batch([message.body])
        with pytest.raises(ValueError, match="empty"):
            Queue("orders").send("")
        raise ValueError(message.body)

    with orders(fails={"SendMessage": refused, "SendMessageBatch": refused}):
        assert failed(handler(event(record("card 4111")), Context())) == ["m1"]
    sends = named(spans, "send orders")
    assert [span.status.status_code for span in sends] == [StatusCode.ERROR] * 3
    assert attribute(sends[2], "error.type") == "ValueError"
    [run] = named(spans, "process orders")
    assert run.status.description == "ValueError"
    assert "in handler" in run.to_json()
    assert "4111" not in "".join(span.to_json() for span in (run, *sends))


class XRayPropagator(propagate.textmap.TextMapPropagator):
    def inject(self, carrier: Any, context: Any = None, setter: Any = propagate.textmap.default_setter) -> None:
        setter.set(carrier, "X-Amzn-Trace-Id", XRAY)
        setter.set(carrier, "b3", "1-2-1")
        setter.set(carrier, "no name", "refused")

    def extract(self, *_: Any, **__: Any) -> Any: ...

    fields = frozenset[str]()


def test_the_applications_propagators_decide_what_is_sent(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propagate, "get_global_textmap", XRayPropagator)
    with orders() as sqs:
        Queue("orders").send("body")
    [request] = sqs.sent("SendMessage")
    assert request.parameters["MessageSystemAttributes"]["AWSTraceHeader"]["StringValue"] == XRAY
    assert list(request.parameters["MessageAttributes"]) == ["b3"]
    ten = {f"a{number}": "x" for number in range(10)}
    with orders() as sqs:
        Queue("orders").send("body", attributes=ten)
    [request] = sqs.sent("SendMessage")
    assert request.parameters["MessageSystemAttributes"]["AWSTraceHeader"]["StringValue"] == XRAY  # needs no room
    assert list(request.parameters["MessageAttributes"]) == list(ten)


def test_the_run_of_a_message_is_linked_to_its_send_in_the_handler_of_another(spans: InMemorySpanExporter) -> None:
    @consumer
    def charge(message: Message) -> None:
        Queue("shipments").send({"order": message.json()["id"]}, delay=60, attributes={"tenant": "a"})

    @consumer(max_attempts=2, backoff=Fixed(90), on_failure=[RetryInPlace(), DeadLetter()])
    def ship(message: Message) -> None:
        raise ValueError

    with Sandbox(seed=1) as sandbox:
        for queue, handler in (("orders", charge), ("shipments", ship)):
            sandbox.queue(queue, dead_letter="dead")
            sandbox.connect(handler, queue)
        sandbox.send("orders", {"id": 1})
        sandbox.run()
        [dead_letter] = sandbox.messages("dead")
    assert list(dead_letter.attributes) == ["tenant", "traceparent"]  # the sandbox finds no violation in this
    [charged], [sent] = named(spans, "process orders"), named(spans, "send shipments")
    assert sent.parent == charged.context
    first, last = named(spans, "process shipments")
    [dead] = named(spans, "send dead")
    assert sent.context is not None
    for linked in (first, last, dead):
        assert [link.context.span_id for link in linked.links] == [sent.context.span_id]
    assert ids([first, last]) == [attribute(sent, "messaging.message.id")] * 2
    assert [attribute(span, "tarry.outcome") for span in (first, last)] == ["retry", "dead_letter"]
    assert f"{sent.context.span_id:016x}" in dead_letter.attributes["traceparent"]


# copies


@pytest.mark.parametrize("step", [DeadLetter(), SendAgain("later", times=1)], ids=["dead letter", "resend"])
def test_a_copy_keeps_the_senders_context_and_gets_one_if_it_has_none(step: Any, spans: InMemorySpanExporter) -> None:
    @consumer(on_failure=[step])
    def handler(message: Message) -> None:
        raise ValueError

    ten = {f"a{number}": {"dataType": "String", "stringValue": "x"} for number in range(9)}
    batch = event(
        record(message_id="w3c", attributes=with_sender()),
        record(message_id="xray", system={"AWSTraceHeader": XRAY}),
        record(message_id="none"),
        record(message_id="full", attributes=ten),
    )
    with orders() as sqs:
        assert failed(handler(batch, Context())) == []
    target = "dead" if isinstance(step, DeadLetter) else "orders"
    [span] = named(spans, f"send {target}")
    assert [(link.attributes or {})["messaging.message.id"] for link in span.links] == ["w3c", "xray"]
    assert attribute(span, "messaging.batch.message_count") == 4
    w3c, xray, none, full = sqs.sent_entries()
    assert w3c["MessageAttributes"]["traceparent"]["StringValue"] == SENDER
    assert xray["MessageSystemAttributes"]["AWSTraceHeader"]["StringValue"] == XRAY
    assert "traceparent" not in xray["MessageAttributes"]
    assert span.context is not None
    assert f"{span.context.span_id:016x}" in none["MessageAttributes"]["traceparent"]["StringValue"]
    assert len(full["MessageAttributes"]) == 10
    assert "traceparent" not in full["MessageAttributes"]
    for entry in sqs.sent_entries():
        assert json.loads(entry["MessageAttributes"]["Tarry"]["StringValue"])["id"]


@pytest.mark.parametrize(("code", "status"), [(None, StatusCode.UNSET), ("AccessDenied", StatusCode.ERROR)])
def test_the_span_of_a_dead_letter_that_is_refused_has_the_error(
    code: str | None, status: StatusCode, spans: InMemorySpanExporter
) -> None:
    @consumer(on_failure=[DeadLetter()])
    def handler(message: Message) -> None:
        raise ValueError

    with orders() as sqs:
        if code:
            sqs.fails["SendMessageBatch"] = client_error(code)
        handler(event(record()), Context())
    [span] = named(spans, "send dead")
    assert (span.status.status_code, "error.type" in (span.attributes or {})) == (status, code is not None)


# tracing that fails


class Raises(SpanProcessor, SpanExporter, Sampler):
    """A processor, exporter and sampler that raises."""

    def __init__(self, *methods: str) -> None:
        for method in methods:
            setattr(self, method, self._raise)

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("the collector is away")

    def on_start(self, span: Span, parent_context: Any = None) -> None: ...

    def on_end(self, span: ReadableSpan) -> None: ...

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def should_sample(self, *_: Any, **__: Any) -> Any: ...

    def get_description(self) -> str:
        return "raises"


@pytest.mark.parametrize("what", ["on_start", "on_end", "export", "should_sample", "inject"])
def test_tracing_that_raises_changes_nothing_and_is_logged_once(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raises = Raises(what)
    processor = SimpleSpanProcessor(raises) if what == "export" else raises
    with_provider(monkeypatch, processor, sampler=raises if what == "should_sample" else None)
    if what == "inject":
        monkeypatch.setattr(propagate, "inject", raises._raise)
    handled: list[str] = []

    @consumer(concurrency=2)
    def handler(message: Message) -> None:
        handled.append(message.id)
        Queue("orders").send("next")
        if message.id == "m1":
            raise ValueError

    with orders() as sqs, caplog.at_level(logging.DEBUG, "tarry"):
        for _ in range(2):
            assert failed(handler(batch_of(3), Context())) == ["m1"]
    assert sorted(handled) == sorted(["m0", "m1", "m2"] * 2)
    assert len(sqs.sent("SendMessage")) == 6
    logged = lines(caplog, "tracing_failed")
    if what == "export":  # the SDK logs it
        assert logged == []
    else:
        [line] = logged
        assert (line.levelno, field(line, "error")) == (logging.WARNING, "RuntimeError: the collector is away")


@pytest.mark.parametrize("kind", ["sync", "threads", "tasks", "batch"])
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=["SystemExit", "CancelledError"])
def test_tracing_that_raises_no_exception_but_a_system_exit_changes_nothing_either(
    error: BaseException, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ends(Raises):
        def _raise(self, *_: Any, **__: Any) -> Any:
            raise error

    handled: list[str] = []

    def work(message: Message) -> None:
        handled.append(message.id)
        if message.id == "m1":
            message.retry(60)
        if message.id == "m2":
            message.reject("no")

    for what in ("on_start", "on_end", "inject"):
        with monkeypatch.context() as patches:
            ends = Ends(what)
            with_provider(patches, ends)
            if what == "inject":
                patches.setattr(propagate, "inject", ends._raise)
            with orders() as sqs:
                assert failed(consumer_of(kind, work)(batch_of(4), Context())) == ["m1"]
        assert len(sqs.sent_entries()) == 1
    assert Counter(handled) == {"m0": 3, "m1": 3, "m2": 3, "m3": 3}


@pytest.mark.parametrize(
    ("kind", "fails"),
    [("sync", True), ("tasks", True), ("batch", True), ("sync", False), ("tasks", False), ("batch", False)],
    ids=str,
)
def test_an_exporter_that_blocks_is_interrupted_and_changes_no_outcome(
    kind: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC J6
    """Neither that of a run, nor that of a send, which was applied."""
    released, returned = threading.Event(), list[str]()

    class Blocks(Raises):
        def on_end(self, span: ReadableSpan) -> None:
            released.wait(60)

    def work(message: Message) -> None:
        if fails:
            raise ValueError
        returned.append(Queue("bills").send("a"))

    with_provider(monkeypatch, Blocks())
    handler = consumer_of(kind, work, timeout=0.2, backoff=Fixed(60))
    with orders(clock=RunningClock()) as sqs:
        assert failed(handler(batch_of(1), Context(1.5))) == (["m0"] if fails else [])
    assert list(sqs.visibilities()) == (["handle-m0"] if fails else [])
    assert len(sqs.sent("SendMessage")) == len(returned) == (not fails)


def test_spans_that_are_not_sampled_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with_provider(monkeypatch, sampler=ALWAYS_OFF)

    @consumer(max_attempts=1, backoff=Fixed(1))
    def handler(message: Message) -> None:
        raise ValueError

    with orders() as sqs:
        assert failed(handler(event(record()), Context())) == []
    sent = sqs.sent_entries()[0]["MessageAttributes"]["traceparent"]["StringValue"]
    assert int(sent[-2:], 16) & TraceFlags.SAMPLED == 0


def test_without_a_tracer_provider_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)

    @consumer
    def handler(message: Message) -> None:
        assert not trace.get_current_span().get_span_context().is_valid
        assert message._invocation.spans is None

    with orders() as sqs:
        assert failed(handler(event(record()), Context())) == []
        Queue("orders").send("body")
    assert "MessageAttributes" not in sqs.sent("SendMessage")[0].parameters
