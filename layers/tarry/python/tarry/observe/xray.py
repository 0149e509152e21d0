"""Subsegments of X-Ray for the runs of a handler, where Powertools' Tracer is on.

The X-Ray SDK keeps the current subsegment of each thread, so runs in worker threads get that of the invocation as their
parent. It cannot tell apart tasks of one event loop: an async handler has subsegments only with ``concurrency=1``.
"""

from __future__ import annotations

from sys import modules
from threading import get_ident
from typing import TYPE_CHECKING, Any

from tarry.message.diagnosis import MAX_LINE_BYTES, error_text, shortened
from tarry.message.outcomes import Signal
from tarry.observe.tracing import TracingGuard, around
from tarry.support.guards import is_a, traceback_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.observe.logs import Log
    from tarry.world import World


def subsegments_of(log: Log, world: World) -> Subsegments | None:
    """Return the subsegments of an invocation; None if X-Ray is off, or does not sample it."""
    if "aws_lambda_powertools.tracing" not in modules:
        return None
    sdk, recorder = modules["aws_xray_sdk"], modules["aws_xray_sdk.core"].xray_recorder
    parent = recorder.get_trace_entity() if sdk.global_sdk_config.sdk_enabled() else None
    return Subsegments(recorder, parent, log, world) if parent is not None and parent.sampled else None


class Subsegments:
    def __init__(self, recorder: Any, parent: Any, log: Log, world: World) -> None:
        self._recorder = recorder
        self._parent = parent
        self._log = log
        self._guard, self._guard_of_end = TracingGuard(log, world), TracingGuard(log, world, is_end=True)
        self._thread = get_ident()

    def around(self, handler: Callable[[Any], Any], *, takes_batch: bool = False) -> Callable[[Any], Any]:
        return around(handler, self._begin_batch if takes_batch else self._begin, self._end)

    def _begin(self, message: Any) -> Any:
        return self._begun(message, lambda: {"message_id": message.id, "attempt": message.attempt})

    def _begin_batch(self, batch: Any) -> Any:
        return self._begun(batch[0], lambda: {"message_count": len(batch)})

    def _begun(self, message: Any, annotations: Callable[[], dict[str, str | int]]) -> Any:
        with self._guard:
            if get_ident() != self._thread:
                self._recorder.set_trace_entity(self._parent)
            subsegment = self._recorder.begin_subsegment(f"## process {message.queue}")
            for name, value in {"queue": message.queue, **annotations()}.items():
                subsegment.put_annotation(name, value)
            return subsegment
        return None

    def _end(self, _: object, subsegment: Any, __: object, error: BaseException | None) -> None:
        if subsegment is None:
            return
        with self._guard_of_end:
            if error is not None and not is_a(error, Signal):
                self._add_error(subsegment, error)
            self._recorder.end_subsegment()
            if get_ident() != self._thread:
                self._recorder.clear_trace_entities()

    def _add_error(self, subsegment: Any, error: BaseException) -> None:
        if self._log.redacts:  # the error's text may contain anything
            subsegment.add_fault_flag()
            return
        from traceback import extract_tb

        subsegment.add_exception(error, extract_tb(traceback_of(error)))
        if isinstance(subsegment.cause, dict):  # the text that the SDK took may contain the input of a pydantic model
            subsegment.cause["exceptions"][-1].message = shortened(error_text(error), MAX_LINE_BYTES)
