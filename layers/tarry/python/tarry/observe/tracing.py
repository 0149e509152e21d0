"""Code around each run of a handler, shared by OpenTelemetry and X-Ray; subsegments of X-Ray, if the Tracer is on.

The X-Ray SDK keeps the current subsegment of each thread, so runs in worker threads get that of the invocation as their
parent. It cannot tell apart tasks of one event loop: an async handler has subsegments only with ``concurrency=1``.
"""

from __future__ import annotations

from sys import modules
from threading import get_ident
from typing import TYPE_CHECKING, Any

from tarry.message.diagnosis import MAX_LINE_BYTES, error_text, shortened
from tarry.message.outcomes import Signal
from tarry.support.guards import is_a, traceback_of
from tarry.support.values import WARNING
from tarry.world import Interrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tarry.observe.logs import Log
    from tarry.world import World

    Begin = Callable[[Any], Any]  # called with the message or batch before its run; returns the run
    End = Callable[[Any, Any, Any, BaseException | None], None]
    """Called with the message or batch, the run, the result (`RAISED` if none), and the exception."""

RAISED = object()  # the result of a handler that raised


def around(handler: Callable[[Any], Any], begin: Begin, end: End) -> Callable[[Any], Any]:
    """Return a handler that calls ``begin`` before each run and ``end`` after it. Neither may raise."""

    def run_between(subject: Any) -> Any:
        run = begin(subject)
        try:
            result = handler(subject)
        except BaseException as error:
            end(subject, run, RAISED, error)
            raise
        if hasattr(type(result), "__await__"):
            return awaited(subject, run, result)
        end(subject, run, result, None)
        return result

    async def awaited(subject: Any, run: Any, result: Awaitable[Any]) -> Any:
        try:
            final = await result
        except BaseException as error:
            end(subject, run, RAISED, error)
            raise
        end(subject, run, final, None)
        return final

    return run_between


class TracingGuard:
    """A context in which tracing, with the user's exporters, may raise anything: it is logged, and suppressed."""

    # an interruption ends here too if the run or the send has its result already (``is_end``)
    def __init__(self, log: Log, world: World, *, is_end: bool = False) -> None:
        self._log, self._world, self._is_end = log, world, is_end

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if error is None or (not self._is_end and is_a(error, Interrupted)):
            return False
        if self._world.first_time("tracing_failed"):
            text = (
                "Tracing raised an exception, so spans are missing. Messages are processed and sent as without tracing."
            )
            self._log.problem("tracing_failed", text, error=error, level=WARNING)
        return True


def subsegments_of(log: Log, world: World) -> Iterator[Subsegments]:
    """Yield the subsegments of an invocation; none if X-Ray is off, or does not sample it."""
    if "aws_lambda_powertools.tracing" in modules and modules["aws_xray_sdk"].global_sdk_config.sdk_enabled():
        recorder = modules["aws_xray_sdk.core"].xray_recorder
        parent = recorder.get_trace_entity()
        if parent is not None and parent.sampled:
            yield Subsegments(recorder, parent, log, world)


class Subsegments:
    def __init__(self, recorder: Any, parent: Any, log: Log, world: World) -> None:
        self._recorder = recorder
        self._parent = parent
        self._log = log
        self._guard, self._guard_of_end = TracingGuard(log, world), TracingGuard(log, world, is_end=True)
        self._thread = get_ident()

    def around(self, handler: Callable[[Any], Any], *, takes_batch: bool) -> Callable[[Any], Any]:
        return around(handler, self._begin_batch if takes_batch else self._begin, self._end)

    def _begin(self, message: Any) -> Any:
        return self._begun(message, lambda: {"message_id": message.id, "attempt": message.attempt})

    def _begin_batch(self, batch: Any) -> Any:
        return self._begun(batch[0], lambda: {"message_count": len(batch)})

    def _begun(self, message: Any, annotations: Callable[[], dict[str, str | int]]) -> Any:
        subsegment = None
        with self._guard:
            if get_ident() != self._thread:
                self._recorder.set_trace_entity(self._parent)
            subsegment = self._recorder.begin_subsegment(f"## process {message.queue}")
            for name, value in {"queue": message.queue, **annotations()}.items():
                subsegment.put_annotation(name, value)
        return subsegment

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
