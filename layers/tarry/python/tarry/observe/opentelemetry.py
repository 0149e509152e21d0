"""Spans of OpenTelemetry: of runs, each closed with the outcome of its message, and of sends, linked to each other."""

from __future__ import annotations

import math
import re
from functools import partial
from time import time_ns
from types import NoneType
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tarry.message.diagnosis import MAX_LINE_BYTES, shortened
from tarry.message.outcomes import ACK
from tarry.observe.logs import Log, LogOptions
from tarry.observe.tracing import TracingGuard, around
from tarry.support.guards import type_name
from tarry.support.hooks import Running
from tarry.world import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tarry.message.batch import Batch
    from tarry.message.delivery import Failure
    from tarry.message.diagnosis import Diagnosis
    from tarry.message.invocation import Invocation
    from tarry.message.message import Message
    from tarry.message.outcomes import Outcome
    from tarry.world import World

    Record = Mapping[str, Any]

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"


def is_on() -> bool:
    """Return whether spans go anywhere: libraries load OpenTelemetry's API also if the application uses no SDK."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def attributes_of(operation: str, queue: str) -> dict[str, str]:
    return {
        "messaging.system": "aws_sqs",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    }


def links_to(records: Iterable[Record]) -> list[trace.Link]:
    """Return links to the spans that have sent messages, as far as these are known."""
    senders = ((record, sender_of(record)) for record in records)
    return [trace.Link(sender, {"messaging.message.id": record["messageId"]}) for record, sender in senders if sender]


def sender_of(record: Record) -> trace.SpanContext | None:
    """Return the context of a message's sender: of its attribute ``traceparent``, else of its X-Ray header."""
    carrier = {
        name: attribute["stringValue"]
        for name, attribute in dict(record.get("messageAttributes") or {}).items()
        if name in (TRACEPARENT, TRACESTATE) and isinstance(attribute.get("stringValue"), str)
    }
    if TRACEPARENT in carrier:
        extracted = TraceContextTextMapPropagator().extract(carrier, contexts.Context())
        if (sender := trace.get_current_span(extracted).get_span_context()).is_valid:
            return sender
    header = dict(record.get("attributes") or {}).get("AWSTraceHeader")
    return from_xray(header) if isinstance(header, str) else None


def from_xray(header: str) -> trace.SpanContext | None:
    """Return the context in a trace header of X-Ray, whose trace id has two parts; None if it names no span."""
    root = re.search(r"(?:^|;)\s*Root=1-([0-9a-fA-F]{8})-([0-9a-fA-F]{24})\s*(?:;|$)", header)
    parent = re.search(r"(?:^|;)\s*Parent=([0-9a-fA-F]{16})\s*(?:;|$)", header)
    if root is None or parent is None:
        return None
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED * bool(re.search(r"(?:^|;)\s*Sampled=1", header)))
    sender = trace.SpanContext(int(root[1] + root[2], 16), int(parent[1], 16), is_remote=True, trace_flags=flags)
    return sender if sender.is_valid else None


class Ran:
    def __init__(self, span: trace.Span) -> None:
        self.span = span
        self.ended_at: int | None = None  # when the handler ended, in nanoseconds since the epoch
        self.shown: Diagnosis | None = None  # the last error that was added to the span


class RunSpans:
    """The spans of one invocation's runs: each ends when its handler does, and is closed when its outcome is known."""

    def __init__(self, invocation: Invocation, pending: Mapping[str, object], consumer: str, log: Log) -> None:
        self._invocation = invocation
        self._pending = pending
        self._consumer = consumer
        self._log = log
        self._guard = TracingGuard(log, invocation.world)
        self._guard_of_end = TracingGuard(log, invocation.world, is_end=True)
        self._runs: dict[str, Ran] = {}  # the runs whose spans are open, by delivery id
        self._run_of_batch: Ran | None = None
        self._is_blocked = False  # whether an exporter was interrupted, since it blocked

    def around(self, handler: Callable[[Any], Any], *, takes_batch: bool) -> Callable[[Any], Any]:
        return around(handler, self._begin_batch if takes_batch else self._begin, self._end)

    def decided(self, delivery_id: str, outcome: Outcome, failure: Failure | None) -> None:
        """Close the span of a message with its outcome; of a batch, only add the failure of the message."""
        run = self._run_of_batch or self._runs.pop(delivery_id, None)
        if run is None:
            return
        if run is not self._run_of_batch:
            self._close_in_time(run, outcome.kind, failure)
        elif failure is not None:
            with self._guard_of_end:
                self._add_failure(run, failure)

    def close(self) -> None:
        """Close the spans that are still open; the invocation has ended."""
        runs, self._runs = self._runs, {}  # an abandoned handler that ends later closes none
        if self._run_of_batch is not None:
            self._close_in_time(self._run_of_batch, None, None)
        for delivery_id, run in runs.items():
            self._close_in_time(run, None if delivery_id in self._pending else "ack", None)

    def _begin(self, message: Message[Any]) -> Ran | None:
        delivery_id = message.delivery_id
        with self._guard:
            attributes: dict[str, Any] = {
                **attributes_of("process", message.queue),
                "messaging.message.id": delivery_id,
                "tarry.message_id": message.id,
                "tarry.attempt": message.attempt,
            }
            if (group := message.group_id) is not None:
                attributes["tarry.group_id"] = group
            run = self._start(message.queue, attributes, [self._invocation.records[delivery_id]])
            self._runs[delivery_id] = run
            return run
        return None

    def _begin_batch(self, batch: Batch[Any]) -> Ran | None:
        with self._guard:
            queue, records = batch[0].queue, [self._invocation.records[each.delivery_id] for each in batch]
            attributes = {**attributes_of("process", queue), "messaging.batch.message_count": len(batch)}
            self._run_of_batch = self._start(queue, attributes, records)
        return self._run_of_batch

    def _start(self, queue: str, attributes: dict[str, Any], records: Iterable[Record]) -> Ran:
        """Start a span and make it current. It is not detached: nothing else uses the context of a run afterwards."""
        more = {"faas.trigger": "pubsub", "tarry.consumer": self._consumer}
        links = links_to(records)
        span = trace.get_tracer("tarry").start_span(
            f"process {queue}", kind=trace.SpanKind.CONSUMER, attributes={**attributes, **more}, links=links
        )
        contexts.attach(trace.set_span_in_context(span))
        return Ran(span)

    def _end(self, subject: Any, run: Ran | None, result: Any, _: object) -> None:
        """Note when a handler has ended; close its span at once if the message is acknowledged."""
        if run is None:
            return
        run.ended_at = time_ns()
        if run is self._run_of_batch or not _means_nothing(result):
            return
        made = self._invocation.deliveries.get(subject.delivery_id)
        is_acknowledged = made is None or ((made.verdict is None or made.verdict is ACK) and made.claim is None)
        if is_acknowledged and self._runs.get(subject.delivery_id) is run:
            del self._runs[subject.delivery_id]
            with self._guard_of_end:
                self._close(run, "ack", None)

    def _close_in_time(self, run: Ran, outcome: str | None, failure: Failure | None) -> None:
        """Close a span; interrupt an exporter that blocks for half of the time left, and close no more spans then."""
        if self._is_blocked:
            return
        world, seconds = self._invocation.world, self._invocation.time_left() / 2
        running = Running(world.clock.monotonic, seconds, partial(Interrupted, "the exporter of spans takes too long"))
        interruption = None if seconds == math.inf else world.threads.interrupt(seconds, running.fire)
        try:
            with self._guard_of_end:
                running.run(partial(self._close, run, outcome, failure))
        finally:
            self._is_blocked = running.interrupted is not None
            if interruption is not None:
                interruption.cancel()

    def _close(self, run: Ran, outcome: str | None, failure: Failure | None) -> None:
        try:
            if outcome is not None:
                run.span.set_attribute("tarry.outcome", outcome)
            if failure is not None:
                self._add_failure(run, failure)
        finally:
            run.span.end(run.ended_at or time_ns())

    def _add_failure(self, run: Ran, failure: Failure) -> None:
        """Add an error to a span, each only once."""
        diagnosis = failure.diagnosis
        if run.shown is None:
            run.span.set_attribute("error.type", failure.reason if diagnosis is None else diagnosis.type)
            run.span.set_attribute("tarry.reason", failure.reason)
            run.span.set_status(trace.Status(trace.StatusCode.ERROR, self._description(failure)))
        if diagnosis is None or diagnosis is run.shown:
            return
        run.shown = diagnosis
        event = {"exception.type": diagnosis.type, **self._texts(diagnosis)}
        if run is self._run_of_batch:
            event["messaging.message.id"] = failure.message.delivery_id
        run.span.add_event("exception", event, run.ended_at)

    def _description(self, failure: Failure) -> str:
        if failure.diagnosis is None:
            return failure.reason
        return failure.diagnosis.type if self._log.redacts else failure.diagnosis.logged_line

    def _texts(self, diagnosis: Diagnosis) -> dict[str, str]:
        """Return the texts of an exception, bounded as in the log; with ``redact``, only its frames and types."""
        if self._log.redacts:
            return {"exception.stacktrace": diagnosis.traceback}
        message = shortened(diagnosis.message, MAX_LINE_BYTES)
        return {"exception.message": message, "exception.stacktrace": diagnosis.logged_traceback}


def _means_nothing(result: Any) -> bool:
    """Return whether the return value of a handler is certainly not a verdict or an answer."""
    kind = type(result)
    if kind is dict:
        return "batchItemFailures" not in result
    return kind is NoneType or kind is bool or kind is int or kind is str


class SendSpan:
    """A span around the sending of messages, or of copies of ``records``; ``carrier``: its context, for propagation."""

    # Of an error it has the type only: a `Queue` does not know whether its consumer has ``redact``.
    _span: trace.Span | None = None
    _token: Any = None

    def __init__(self, world: World, queue: str, log: Log | None = None, records: Sequence[Record] = ()) -> None:
        self._queue, self._records = queue, records
        log = log or Log("", LogOptions())
        self._guard, self._guard_of_end = TracingGuard(log, world), TracingGuard(log, world, is_end=True)
        self.carrier: dict[str, str] = {}

    def __enter__(self) -> SendSpan:
        with self._guard:
            if is_on():
                self._start()
        return self

    def _start(self) -> None:
        attributes: dict[str, Any] = attributes_of("send", self._queue)
        if self._records:
            attributes["messaging.batch.message_count"] = len(self._records)
        self._span = trace.get_tracer("tarry").start_span(
            f"send {self._queue}", kind=trace.SpanKind.PRODUCER, attributes=attributes, links=links_to(self._records)
        )
        self._token = contexts.attach(trace.set_span_in_context(self._span))
        from opentelemetry import propagate  # raises if OTEL_PROPAGATORS names one that is not installed

        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        self.carrier = {name: value for name, value in carrier.items() if value and isinstance(value, str)}

    def sent(self, ids: object) -> None:
        """Note the id of the message that was sent, or how many messages were."""
        if isinstance(ids, str):
            self._set("messaging.message.id", ids)
        elif isinstance(ids, list):
            self._set("messaging.batch.message_count", len(ids))

    def failed(self, error: BaseException) -> None:
        self._set("error.type", type_name(error))
        if self._span is not None:
            with self._guard:
                self._span.set_status(trace.Status(trace.StatusCode.ERROR, type_name(error)))

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if (span := self._span) is None:
            return
        if error is not None:
            self.failed(error)
        if self._token is not None:
            contexts.detach(self._token)
        self._end(span)

    def _end(self, span: trace.Span) -> None:
        """End the span. An exporter that blocks is interrupted here (`is_tracing_end`): the send has its result."""
        with self._guard_of_end:
            span.end()

    def _set(self, name: str, value: str | int) -> None:
        if self._span is not None:
            with self._guard:
                self._span.set_attribute(name, value)
