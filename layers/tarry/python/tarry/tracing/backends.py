"""The choice of tracing backends: OpenTelemetry (`run_spans`), X-Ray (`xray`), both, or none."""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING, Any, Protocol

from tarry.tracing.runs import log_tracing_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tarry.invocation import Invocation
    from tarry.telemetry.logs import Log


class TracesRuns(Protocol):
    """The spans of one invocation's runs, in one tracing library."""

    def around(self, handler: Callable[[Any], Any], /, *, takes_batch: bool = False) -> Callable[[Any], Any]:
        """Return a handler that runs within a span."""


def tracing_of(
    invocation: Invocation, pending: Mapping[str, object], consumer: str, log: Log, *, in_tasks: bool
) -> list[TracesRuns]:
    """Return the tracing backends of an invocation: the libraries that the application has loaded and switched on.

    ``in_tasks``: whether several runs may take turns in one thread.
    """
    tracing: list[TracesRuns] = []
    try:
        if "opentelemetry.trace" in modules:
            from tarry.tracing.spans import is_on

            if is_on():
                from tarry.tracing.run_spans import RunSpans

                invocation.spans = spans = RunSpans(invocation, pending, consumer, log)
                tracing.append(spans)
        if "aws_xray_sdk.core" in modules and not in_tasks:
            from tarry.tracing.xray import subsegments_of

            if (subsegments := subsegments_of(log, invocation.world)) is not None:
                tracing.append(subsegments)
    except BaseException as error:  # noqa: BLE001 another version of the library, or a tracer provider that raises
        log_tracing_failure(log, invocation.world, error)
    return tracing
