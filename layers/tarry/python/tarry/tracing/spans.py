"""Spans of OpenTelemetry: whether they go anywhere, their attributes, and their links to the spans of senders.

Names and attributes follow OpenTelemetry's semantic conventions for messaging. The parent of a span is the current one,
usually that of the invocation. The sender's span is linked, because the messages of a batch have several senders. An
exception of an exporter, processor, sampler or propagator does not affect the messages.

`tarry.tracing.run_spans` makes the spans of runs, `tarry.tracing.send_spans` those of sends. All three are loaded only
if the application has loaded OpenTelemetry.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry.trace import (
    Link,
    ProxyTracerProvider,
    SpanContext,
    TraceFlags,
    get_current_span,
    get_tracer_provider,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Record = Mapping[str, Any]

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"


def is_on() -> bool:
    """Return whether spans go anywhere: libraries load OpenTelemetry's API also if the application uses no SDK."""
    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


def attributes_of(operation: str, queue: str) -> dict[str, str]:
    """Return the attributes of a span for an operation on a queue."""
    return {
        "messaging.system": "aws_sqs",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    }


def links_to(records: Iterable[Record]) -> list[Link]:
    """Return links to the spans that have sent messages, as far as these are known."""
    senders = ((record, sender_of(record)) for record in records)
    return [Link(sender, {"messaging.message.id": record["messageId"]}) for record, sender in senders if sender]


def sender_of(record: Record) -> SpanContext | None:
    """Return the context of a message's sender: of its attribute ``traceparent``, else of its X-Ray header."""
    carrier = {
        name: attribute["stringValue"]
        for name, attribute in dict(record.get("messageAttributes") or {}).items()
        if name in (TRACEPARENT, TRACESTATE) and isinstance(attribute.get("stringValue"), str)
    }
    if TRACEPARENT in carrier:
        extracted = TraceContextTextMapPropagator().extract(carrier, contexts.Context())
        if (sender := get_current_span(extracted).get_span_context()).is_valid:
            return sender
    header = dict(record.get("attributes") or {}).get("AWSTraceHeader")
    return from_xray(header) if isinstance(header, str) else None


def from_xray(header: str) -> SpanContext | None:
    """Return the context in a trace header of X-Ray; None if it names no span.

    Its trace id has the 32 digits of OpenTelemetry's, in two parts.
    """
    root = re.search(r"(?:^|;)\s*Root=1-([0-9a-fA-F]{8})-([0-9a-fA-F]{24})\s*(?:;|$)", header)
    parent = re.search(r"(?:^|;)\s*Parent=([0-9a-fA-F]{16})\s*(?:;|$)", header)
    if root is None or parent is None:
        return None
    flags = TraceFlags(TraceFlags.SAMPLED if re.search(r"(?:^|;)\s*Sampled=1", header) else TraceFlags.DEFAULT)
    sender = SpanContext(int(root[1] + root[2], 16), int(parent[1], 16), is_remote=True, trace_flags=flags)
    return sender if sender.is_valid else None
