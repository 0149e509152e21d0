"""Spans of OpenTelemetry for runs of the handler and for sends, and their links to the sender."""

import asyncio
import json
import logging
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from time import time_ns
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
    State,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tarry.world import current
from tests.handlers import WAYS, timed
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.sandboxes import work
from tests.settled import fails, orders, settle
from tests.tables import SlowTable
from tests.wire import client_error

_LOADED = sys.modules.pop("opentelemetry.trace")  # for other tests of this process, it is not loaded

SENDER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACING = tuple(f"tarry.observe.{name}" for name in ("backends", "opentelemetry", "tracing", "xray"))
XRAY = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1;Lineage=1:abc:0"
ERROR, UNSET = StatusCode.ERROR, StatusCode.UNSET


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load OpenTelemetry. Another test may have imported it, and tarry's tracing with it, a second time."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", _LOADED)
    monkeypatch.setattr(opentelemetry, "trace", _LOADED)
    for name in [name for name in sys.modules if name in TRACING]:
        monkeypatch.delitem(sys.modules, name)


class Spans(InMemorySpanExporter):
    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.get_finished_spans() if span.name == name]

    @property
    def runs(self) -> list[ReadableSpan]:
        return self.named("process orders")

    @property
    def by_id(self) -> dict[str, ReadableSpan]:
        """The spans of the runs by the ids of their messages."""
        return {attribute(span, "messaging.message.id"): span for span in self.runs}

    def outcomes(self) -> dict[str, Any]:
        return {message_id: attribute(span, "tarry.outcome") for message_id, span in self.by_id.items()}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch, caplog: Caplog) -> Iterator[Spans]:
    """Switch OpenTelemetry on with an exporter in memory."""
    exporter = Spans()
    with_provider(monkeypatch, SimpleSpanProcessor(exporter))
    yield exporter
    assert not trace.get_current_span().get_span_context().is_valid  # no span stays current
    assert not lines(caplog, "tracing_failed")


def with_provider(monkeypatch: pytest.MonkeyPatch, *processors: SpanProcessor, sampler: Any = None) -> None:
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)


def tracer() -> trace.Tracer:
    return trace.get_tracer("test")


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def linked_ids(span: ReadableSpan) -> list[Any]:
    return [(link.attributes or {})["messaging.message.id"] for link in span.links]


def id_of(context: Any) -> str:
    return f"{context.span_id:016x}"


def with_sender(**more: Any) -> dict[str, Any]:
    return {"traceparent": {"dataType": "String", "stringValue": SENDER}, **more}


def records(*ids: str, **more: Any) -> dict[str, Any]:
    return event(*(record(message_id=each, **more) for each in ids))


# runs


def test_each_run_has_a_span_in_the_messaging_conventions_which_is_current_in_the_handler(spans: Spans) -> None:
    current: list[Any] = []

    @consumer(name="charge")
    def handler(message: Message) -> None:
        current.append(trace.get_current_span().get_span_context())

    with tracer().start_as_current_span("invocation") as invocation:
        settle(handler, event(record(1, "a"), record(2, "b", receives=3)))
        assert trace.get_current_span() is invocation
    first, second = spans.runs
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
    assert (first.kind, first.status.status_code, first.links) == (SpanKind.CONSUMER, UNSET, ())
    assert (attribute(second, "messaging.message.id"), attribute(second, "tarry.attempt")) == ("b", 3)
    assert current == [first.context, second.context]
    assert first.parent == second.parent == invocation.get_span_context()


@pytest.mark.parametrize("way", ["threads", "tasks"])
def test_200_messages_at_concurrency_50_have_spans_of_their_own_with_their_own_children(way: str, spans: Spans) -> None:
    def work(message: Message) -> None:
        assert baggage.get_baggage("id") is None
        with tracer().start_as_current_span("charge", attributes={"id": message.id}):
            contexts.attach(baggage.set_baggage("id", message.id))  # stays in this run's context

    assert settle(WAYS[way](work).replace(concurrency=50), batch_of(200))[0] == []
    of_runs = {id_of(span.context): attribute(span, "messaging.message.id") for span in spans.runs}
    assert Counter(of_runs.values()) == Counter(f"m{number}" for number in range(200))
    children = spans.named("charge")
    assert len(children) == 200
    assert [of_runs[id_of(child.parent)] for child in children] == [attribute(child, "id") for child in children]


def test_a_failed_run_has_its_exception_once_and_its_outcome(spans: Spans) -> None:
    @consumer(max_attempts=2, on_failure=[RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        if message.id == "deferred":
            raise Defer(30)
        if message.id == "discarded":
            raise Discard("too old")
        raise ValueError(f"no stock for {message.id}")

    settle(handler, event(record(message_id="b", receives=2), *records("a", "deferred", "discarded")["Records"]))
    assert spans.outcomes() == {"a": "retry", "b": "dead_letter", "deferred": "defer", "discarded": "discard"}
    for message_id, reason in (("a", "error"), ("b", "exhausted")):
        span = spans.by_id[message_id]
        assert (span.status.status_code, span.status.description) == (ERROR, f"ValueError: no stock for {message_id}")
        assert (attribute(span, "error.type"), attribute(span, "tarry.reason")) == ("ValueError", reason)
        [exception] = span.events
        assert exception.name == "exception"
        shown = dict(exception.attributes or {})
        assert (shown["exception.type"], shown["exception.message"]) == ("ValueError", f"no stock for {message_id}")
        assert "in handler" in str(shown["exception.stacktrace"])
        assert span.end_time == exception.timestamp
    for message_id in ("deferred", "discarded"):
        assert (spans.by_id[message_id].status.status_code, spans.by_id[message_id].events) == (UNSET, ())


def test_an_error_that_cannot_be_shown_or_compared_and_a_body_that_does_not_fit_fail_within_the_span(
    spans: Spans,
) -> None:
    class Hostile(Exception):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

        __hash__ = Exception.__hash__

        def __str__(self) -> str:
            raise RuntimeError("shown")

    assert settle(consumer(lambda message: message.fail(Hostile())), records("m1", "m2"))[0] == ["m1", "m2"]
    settle(consumer(model=int)(lambda message: None), event(record("no number", "m3")))
    types = [attribute(span, "error.type").rpartition(".")[2] for span in spans.runs]
    assert types == ["Hostile", "Hostile", "Undecodable"]
    assert (spans.runs[2].status.status_code, attribute(spans.runs[2], "tarry.reason")) == (ERROR, "undecodable")


def test_return_values_and_awaitables_belong_to_the_run(spans: Spans) -> None:
    async def later(message: Message) -> None:
        await asyncio.sleep(0)
        tracer().start_span("later").end()

    @consumer
    def handler(message: Message) -> Any:
        results = {"verdict": Reject("no"), "answer": {"statusCode": 200}, "object": object()}
        return results[message.id] if message.id in results else later(message)

    settle(handler, records("verdict", "answer", "object", "awaitable"))
    assert spans.outcomes() == {"verdict": "dead_letter", "answer": "ack", "object": "ack", "awaitable": "ack"}
    [child] = spans.named("later")
    run = spans.by_id["awaitable"]
    assert child.parent == run.context
    assert (child.end_time or 0) <= (run.end_time or 0)


@pytest.mark.parametrize(
    ("result", "is_exported"),
    [
        *((each, True) for each in (None, True, 7, "text", {}, {"statusCode": 200})),
        *((each, False) for each in (1.5, [], {"batchItemFailures": []})),  # which may be an answer
        pytest.param(object(), False, id="an object"),
    ],
    ids=str,
)
def test_the_run_of_an_acknowledged_message_is_exported_before_the_next_one_begins(
    result: Any, is_exported: bool, spans: Spans
) -> None:
    exported: list[int] = []

    @consumer
    def handler(message: Message) -> Any:
        exported.append(len(spans.runs))
        assert message.attempt == 1  # which makes what is known of its delivery
        if message.id == "says so":
            message.ack()
        if message.id == "again":
            message.retry(60)
        return result

    assert settle(handler, records("a", "says so", "again", "d"))[0] == ["again"]
    assert exported == ([0, 1, 2, 3] if is_exported else [0, 0, 0, 1])
    assert spans.outcomes() == {"a": "ack", "says so": "ack", "again": "retry", "d": "ack"}
    again = spans.by_id["again"]
    assert (attribute(again, "error.type"), again.status.description, again.events) == ("error", "error", ())


@pytest.mark.parametrize("concurrency", [1, 2])
def test_with_idempotency_the_requests_of_the_claim_are_within_the_run(concurrency: int, spans: Spans) -> None:
    def claims(operation: str, _: str) -> float:
        if operation == "put":
            tracer().start_span("claim").end()
        return 0

    handler = consumer(idempotency=SlowTable(claims), name="charge", concurrency=concurrency)(lambda message: None)
    for _ in range(2):
        assert settle(handler, records("a", "b"))[0] == []
    found = [(attribute(span, "messaging.message.id"), attribute(span, "tarry.outcome")) for span in spans.runs]
    assert Counter(found) == {("a", "ack"): 2, ("b", "ack"): 2}
    assert {id_of(child.parent) for child in spans.named("claim")} == {id_of(span.context) for span in spans.runs}


def test_each_try_of_a_local_retry_has_a_span(spans: Spans) -> None:
    tries = iter([ValueError("once"), None])

    @consumer(on_failure=[LocalRetry(1, delay=0), RetryInPlace()])
    def handler(message: Message) -> None:
        if (error := next(tries)) is not None:
            raise error

    assert settle(handler)[0] == []
    found = [(attribute(span, "tarry.outcome"), span.status.status_code) for span in spans.runs]
    assert found == [("again", ERROR), ("ack", UNSET)]


@pytest.mark.parametrize(("way", "concurrency"), [("sync", 1), ("sync", 3), ("async", 3)])
def test_a_run_that_exceeds_its_timeout_has_a_span_with_the_timeout(
    way: str, concurrency: int, spans: Spans, sandbox: Sandbox
) -> None:
    settings: dict[str, Any] = {"timeout": 5, "concurrency": concurrency, "max_attempts": 1}
    handler = timed(way, lambda message: 3_600 if message.body == "slow" else 0, **settings)
    slow, fast = work(sandbox, handler, "slow", "fast", batch_size=2, timeout=30)
    sandbox.run()
    assert spans.outcomes() == {slow: "dead_letter", fast: "ack"}
    assert (attribute(spans.by_id[slow], "error.type"), len(spans.by_id[slow].events)) == ("TimeoutError", 1)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_batch_handler_has_one_span_with_links_to_all_senders(is_async: bool, spans: Spans) -> None:
    def work(batch: Batch) -> None:
        tracer().start_span("inside").end()
        error = ValueError("both")
        batch[0].fail(error)
        batch[1].fail(error)
        batch[2].retry()

    async def work_async(batch: Batch) -> None:
        work(batch)

    with_header = record(message_id="b", system={"AWSTraceHeader": XRAY})
    batch = event(record(message_id="a", attributes=with_sender()), with_header, record(message_id="c"))
    wire, asked_at = orders(), list[int]()
    wire.fails["ChangeMessageVisibilityBatch"] = lambda _: asked_at.append(time_ns())
    handler = batch_consumer(backoff=Fixed(60))(work_async if is_async else work)
    assert settle(handler, batch, wire)[0] == ["a", "b", "c"]
    [span] = spans.runs
    assert attribute(span, "messaging.batch.message_count") == 3
    assert attribute(span, "messaging.message.id") is None
    assert (linked_ids(span), span.status.status_code) == (["a", "b"], ERROR)
    [exception] = span.events  # one error for two messages
    assert (exception.attributes or {})["messaging.message.id"] == "a"
    assert (attribute(span, "tarry.outcome"), (span.end_time or 0) < asked_at[0]) == (None, True)
    assert spans.named("inside")[0].parent == span.context
    settle(batch_consumer(lambda batch: None), batch_of(2))
    assert len(spans.runs) == 2


def test_on_fifo_spans_name_the_group_and_messages_behind_a_failed_one_have_none(spans: Spans) -> None:
    fifo = event(*(record(message_id=name, queue="orders.fifo", group=name[0]) for name in ("a1", "a2", "b1")))
    assert settle(consumer(lambda message: message.id == "a1" and fails(message)), fifo)[0] == ["a1", "a2"]
    groups = [
        (attribute(span, "messaging.message.id"), attribute(span, "tarry.group_id"))
        for span in spans.named("process orders.fifo")
    ]
    assert groups == [("a1", "a"), ("b1", "b")]


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
    attributes: dict[str, Any], header: str | None, linked: str | None, spans: Spans
) -> None:
    system = {} if header is None else {"AWSTraceHeader": header}
    settle(consumer(lambda message: None), event(record(attributes=attributes, system=system)))
    contexts = [link.context for link in spans.runs[0].links]
    shown = [f"00-{each.trace_id:032x}-{each.span_id:016x}-{int(each.trace_flags):02x}" for each in contexts]
    assert shown == ([] if linked is None else [linked])
    assert all(each.is_remote for each in contexts)


# sends


def test_a_send_of_one_or_many_is_a_span_whose_context_travels_with_the_message(spans: Spans) -> None:
    with orders() as sqs:
        message_id = Queue("orders").send({"id": 1})
        Queue("orders").send_batch(str(number) for number in range(25))
    span, of_batch = spans.named("send orders")
    assert span.kind is SpanKind.PRODUCER
    assert dict(span.attributes or {}) == {
        "messaging.system": "aws_sqs",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": message_id,
    }
    [(name, sent)] = sqs.sent("SendMessage")[0].parameters["MessageAttributes"].items()
    assert (name, sent["DataType"]) == ("traceparent", "String")
    assert sent["StringValue"].startswith(f"00-{span.context.trace_id:032x}-{id_of(span.context)}-")
    assert attribute(of_batch, "messaging.batch.message_count") == 25
    assert len(sqs.sent_entries()) == 25
    assert len({entry["MessageAttributes"]["traceparent"]["StringValue"] for entry in sqs.sent_entries()}) == 1


TEN = {f"a{number}": "x" for number in range(10)}


def test_a_span_of_a_send_has_no_text_of_an_error_and_with_redact_none_of_a_run_has(spans: Spans) -> None:  # SPEC L4
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

    wire = orders()
    wire.fails |= {"SendMessage": refused, "SendMessageBatch": refused}
    assert settle(handler, event(record("card 4111")), wire)[0] == ["m1"]
    sends, [run] = spans.named("send orders"), spans.runs
    assert [span.status.status_code for span in sends] == [ERROR] * 3
    assert attribute(sends[2], "error.type") == "ValueError"
    assert (run.status.description, "in handler" in run.to_json()) == ("ValueError", True)
    assert "4111" not in "".join(span.to_json() for span in (run, *sends))


class XRayPropagator(propagate.textmap.TextMapPropagator):
    def inject(self, carrier: Any, context: Any = None, setter: Any = propagate.textmap.default_setter) -> None:
        setter.set(carrier, "X-Amzn-Trace-Id", XRAY)
        setter.set(carrier, "b3", "1-2-1")
        setter.set(carrier, "empty", "")
        setter.set(carrier, "number", 7)
        setter.set(carrier, "no name", "refused")

    def extract(self, *_: Any, **__: Any) -> Any: ...

    fields = frozenset[str]()


def test_the_applications_propagators_decide_what_is_sent(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagate, "get_global_textmap", XRayPropagator)
    with orders() as sqs:
        Queue("orders").send("body")
        Queue("orders").send("body", attributes=TEN)
    for request, names in zip(sqs.sent("SendMessage"), (["b3"], [*TEN]), strict=True):
        assert request.parameters["MessageSystemAttributes"]["AWSTraceHeader"]["StringValue"] == XRAY  # needs no room
        assert list(request.parameters["MessageAttributes"]) == names


def test_the_run_of_a_message_is_linked_to_its_send_in_the_handler_of_another(spans: Spans) -> None:
    @consumer
    def charge(message: Message) -> None:
        Queue("shipments").send({"order": message.json()["id"]}, delay=60, attributes={"tenant": "a"})

    ship = consumer(max_attempts=2, backoff=Fixed(90), on_failure=[RetryInPlace(), DeadLetter()])(fails)
    with Sandbox(seed=1) as sandbox:
        for queue, handler in (("orders", charge), ("shipments", ship)):
            sandbox.queue(queue, dead_letter="dead")
            sandbox.connect(handler, queue)
        sandbox.send("orders", {"id": 1})
        sandbox.run()
        [dead_letter] = sandbox.messages("dead")
    assert list(dead_letter.attributes) == ["tenant", "traceparent"]  # the sandbox finds no violation in this
    [charged], [sent], [dead] = spans.runs, spans.named("send shipments"), spans.named("send dead")
    assert sent.parent == charged.context
    attempts = spans.named("process shipments")
    for linked in (*attempts, dead):
        assert [id_of(link.context) for link in linked.links] == [id_of(sent.context)]
    assert {attribute(span, "messaging.message.id") for span in (*attempts, sent)} == {linked_ids(dead)[0]}
    assert [attribute(span, "tarry.outcome") for span in attempts] == ["retry", "dead_letter"]
    assert id_of(sent.context) in dead_letter.attributes["traceparent"]


# copies


@pytest.mark.parametrize(("step", "target"), [(DeadLetter(), "orders-dlq"), (SendAgain("later", times=1), "orders")])
def test_a_copy_keeps_the_senders_context_and_gets_one_if_it_has_none(step: Any, target: str, spans: Spans) -> None:
    nine = {f"a{number}": {"dataType": "String", "stringValue": "x"} for number in range(9)}
    batch = event(
        record(message_id="w3c", attributes=with_sender()),
        record(message_id="xray", system={"AWSTraceHeader": XRAY}),
        record(message_id="none"),
        record(message_id="full", attributes=nine),
    )
    reported, sqs = settle(consumer(on_failure=[step])(fails), batch)
    assert reported == []
    [span] = spans.named(f"send {target}")
    assert (linked_ids(span), attribute(span, "messaging.batch.message_count")) == (["w3c", "xray"], 4)
    w3c, xray, none, full = (entry["MessageAttributes"] for entry in sqs.sent_entries())
    assert w3c["traceparent"]["StringValue"] == SENDER
    assert sqs.sent_entries()[1]["MessageSystemAttributes"]["AWSTraceHeader"]["StringValue"] == XRAY
    assert id_of(span.context) in none["traceparent"]["StringValue"]
    assert ("traceparent" in xray, "traceparent" in full, len(full)) == (False, False, 10)
    for entry in (w3c, xray, none, full):
        assert json.loads(entry["Tarry"]["StringValue"])["id"]
    assert (span.status.status_code, attribute(span, "error.type")) == (UNSET, None)
    wire = orders()
    wire.fails["SendMessageBatch"] = client_error("AccessDenied")
    settle(consumer(on_failure=[step])(fails), wire=wire)
    refused = spans.named(f"send {target}")[1]
    assert (refused.status.status_code, attribute(refused, "error.type") is None) == (ERROR, False)


# tracing that fails


class Raises(SpanProcessor, SpanExporter, Sampler):
    """A processor, exporter and sampler that raises."""

    def __init__(self, *methods: str, error: BaseException | None = None) -> None:
        self._error = error or RuntimeError("the collector is away")
        for method in methods:
            setattr(self, method, self.fail)

    def fail(self, *_: Any, **__: Any) -> Any:
        raise self._error

    def on_start(self, span: Span, parent_context: Any = None) -> None: ...

    def on_end(self, span: ReadableSpan) -> None: ...

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def should_sample(self, *_: Any, **__: Any) -> Any: ...

    def get_description(self) -> str:
        return "raises"


def with_failing_provider(what: str, patch: pytest.MonkeyPatch, error: BaseException | None = None) -> None:
    raises = Raises(what, error=error)
    processor = SimpleSpanProcessor(raises) if what == "export" else raises
    with_provider(patch, processor, sampler=raises if what == "should_sample" else None)
    if what == "inject":
        patch.setattr(propagate, "inject", raises.fail)


@pytest.mark.parametrize("what", ["on_start", "on_end", "export", "should_sample", "inject"])
def test_tracing_that_raises_changes_nothing_and_is_logged_once(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:
    with_failing_provider(what, monkeypatch)
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
    logged = [(line.levelno, field(line, "error")) for line in lines(caplog, "tracing_failed")]
    once = [(logging.WARNING, "RuntimeError: the collector is away")]
    assert logged == ([] if what == "export" else once)  # the SDK logs that itself


@pytest.mark.parametrize("way", ["one by one", "threads", "tasks", "batch"])
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=["SystemExit", "CancelledError"])
def test_tracing_that_raises_no_exception_but_a_system_exit_changes_nothing_either(
    error: BaseException, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[str] = []

    def work(message: Message) -> None:
        handled.append(message.id)
        if message.id == "m1":
            message.retry(60)
        if message.id == "m2":
            message.reject("no")

    for what in ("on_start", "on_end", "inject"):
        with monkeypatch.context() as patches:
            with_failing_provider(what, patches, error)
            reported, sqs = settle(WAYS[way](work), batch_of(4))
        assert (reported, len(sqs.sent_entries())) == (["m1"], 1)
    assert Counter(handled) == {"m0": 3, "m1": 3, "m2": 3, "m3": 3}


@pytest.mark.parametrize("way", ["one by one", "tasks", "batch"])
@pytest.mark.parametrize("does_fail", [True, False])
def test_an_exporter_that_blocks_is_interrupted_and_changes_no_outcome(
    way: str, does_fail: bool, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:  # SPEC J6
    """Neither that of a run, nor that of a send, which was applied."""
    returned: list[str] = []

    blocked: list[float] = []

    class Blocks(Raises):
        def on_end(self, span: ReadableSpan) -> None:
            began = current().clock.monotonic()
            try:
                current().clock.sleep(3_600)
            finally:
                blocked.append(current().clock.monotonic() - began)

    def handle(message: Message) -> None:
        if does_fail and message.receive_count == 1:
            raise ValueError
        returned.append(Queue("bills").send("a"))

    with_provider(monkeypatch, Blocks())
    sandbox.queue("bills")
    [message_id] = work(sandbox, WAYS[way](handle, timeout=5, backoff=Fixed(60)), "a", timeout=30)
    states = [change.state for change in sandbox.run().story(message_id)]
    assert states == ["READY", *["IN_FLIGHT", "WAITING_RETRY"] * does_fail, "IN_FLIGHT", "COMMITTED"]
    assert len(sandbox.messages("bills")) == len(returned) == 1
    assert not does_fail or 14 < blocked[0] <= 15  # half of the time that was left


def test_an_interrupted_exporter_ends_the_spans_of_its_invocation_and_no_signal_is_left(
    monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    ended: list[str] = []

    class BlocksFirst(Raises):
        def on_end(self, span: ReadableSpan) -> None:
            ended.append(attribute(span, "messaging.message.id"))
            if len(ended) == 1:
                current().clock.sleep(3_600)

    with_provider(monkeypatch, BlocksFirst())
    handler = consumer(backoff=Fixed(600), concurrency=3)(fails)
    work(sandbox, handler, "a", "b", "c", batch_size=3, window=1, timeout=30)
    assert sandbox.run(for_=60).count(State.WAITING_RETRY) == 3
    assert len(ended) == 1
    before = signal.getsignal(signal.SIGALRM)
    assert settle(consumer(fails))[0] == ["m1"]
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (before, (0, 0))


def test_a_processor_that_blocks_the_start_of_a_run_is_interrupted_with_it(
    monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    """Its handler does not run afterwards, without its time."""
    ran: list[str] = []

    class BlocksOnce(Raises):
        def on_start(self, span: Span, parent_context: Any = None) -> None:
            if attribute(span, "tarry.attempt") == 1:
                current().clock.sleep(3_600)

    with_provider(monkeypatch, BlocksOnce())
    handler = consumer(timeout=5, backoff=Fixed(60))(lambda message: ran.append(message.body))
    [message_id] = work(sandbox, handler, "a", timeout=30)
    states = [change.state for change in sandbox.run().story(message_id)]
    assert (states, ran) == (["READY", "IN_FLIGHT", "WAITING_RETRY", "IN_FLIGHT", "COMMITTED"], ["a"])


def test_spans_that_are_not_sampled_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with_provider(monkeypatch, sampler=ALWAYS_OFF)
    reported, sqs = settle(consumer(max_attempts=1)(fails))
    sent = sqs.sent_entries()[0]["MessageAttributes"]["traceparent"]["StringValue"]
    assert (reported, int(sent[-2:], 16) & TraceFlags.SAMPLED) == ([], 0)


def test_without_a_tracer_provider_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)

    @consumer
    def handler(message: Message) -> None:
        assert not trace.get_current_span().get_span_context().is_valid
        assert message._invocation.spans is None
        Queue("orders").send("body")

    reported, sqs = settle(handler)
    assert (reported, "MessageAttributes" in sqs.sent("SendMessage")[0].parameters) == ([], False)
