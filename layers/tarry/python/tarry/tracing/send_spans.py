"""Spans of OpenTelemetry for sends: of `Queue`, and of the copies that a consumer sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry.trace import SpanKind, Status, StatusCode, get_tracer, set_span_in_context

from tarry.support.causes import type_name
from tarry.telemetry.logs import Log, LogOptions
from tarry.tracing.runs import log_tracing_failure
from tarry.tracing.spans import attributes_of, is_on, links_to
from tarry.world import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.trace import Span

    from tarry.tracing.spans import Record
    from tarry.world import World


class SendSpan:
    """A span around the sending of messages. ``carrier`` is its context as the application's propagators write it.

    Of an error it has only the type: a `Queue` does not know whether the consumer in which it sends has ``redact``.

    Args:
        world: The world of the send.
        queue: The name of the queue.
        log: The log of a consumer that sends copies.
        records: The records of the messages that are copied.
    """

    _span: Span | None = None
    _token: Any = None

    def __init__(self, world: World, queue: str, log: Log | None = None, records: Sequence[Record] = ()) -> None:
        self._world, self._queue = world, queue
        self._log = log or Log("", LogOptions())
        self._records = records
        self.carrier: dict[str, str] = {}

    def __enter__(self) -> SendSpan:
        try:
            if is_on():
                self._start()
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 the user's sampler, processor or propagator
            log_tracing_failure(self._log, self._world, error)
        return self

    def _start(self) -> None:
        attributes: dict[str, Any] = attributes_of("send", self._queue)
        if self._records:
            attributes["messaging.batch.message_count"] = len(self._records)
        self._span = get_tracer("tarry").start_span(
            f"send {self._queue}", kind=SpanKind.PRODUCER, attributes=attributes, links=links_to(self._records)
        )
        self._token = contexts.attach(set_span_in_context(self._span))
        from opentelemetry import propagate  # raises if OTEL_PROPAGATORS names one that is not installed

        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        self.carrier = {name: value for name, value in carrier.items() if value and isinstance(value, str)}

    def sent(self, message_id: str) -> str:
        """Note the id of the message; return it."""
        self._set("messaging.message.id", message_id)
        return message_id

    def sent_all(self, message_ids: list[str]) -> list[str]:
        """Note how many messages were sent; return their ids."""
        self._set("messaging.batch.message_count", len(message_ids))
        return message_ids

    def failed(self, error: BaseException) -> None:
        """Note that a message was not sent."""
        self._set("error.type", type_name(error))
        if (span := self._span) is not None:
            self._guarded(lambda: span.set_status(Status(StatusCode.ERROR, type_name(error))))

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if (span := self._span) is None:
            return
        if error is not None:
            self.failed(error)
        if self._token is not None:
            contexts.detach(self._token)
        self._end(span)

    def _end(self, span: Span) -> None:
        """End the span. An exporter that blocks is interrupted here (`is_tracing_end`): the send has its result."""
        try:
            span.end()
        except BaseException as error:  # noqa: BLE001 the user's processor or exporter, or one that was interrupted
            log_tracing_failure(self._log, self._world, error)

    def _set(self, name: str, value: str | int) -> None:
        if (span := self._span) is not None:
            self._guarded(lambda: span.set_attribute(name, value))

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 the user's processor or exporter
            log_tracing_failure(self._log, self._world, error)
