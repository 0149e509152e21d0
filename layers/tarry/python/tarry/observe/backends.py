"""The choice of tracing backends: OpenTelemetry (`run_spans`), X-Ray (`xray`), both, or none."""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING, Any, Protocol

from tarry.observe.tracing import log_tracing_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tarry.message.invocation import Invocation
    from tarry.observe.logs import Log


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
            from tarry.observe.opentelemetry import is_on

            if is_on():
                from tarry.observe.opentelemetry import RunSpans

                invocation.spans = spans = RunSpans(invocation, pending, consumer, log)
                tracing.append(spans)
        if "aws_xray_sdk.core" in modules and not in_tasks:
            from tarry.observe.xray import subsegments_of

            if (subsegments := subsegments_of(log, invocation.world)) is not None:
                tracing.append(subsegments)
    except BaseException as error:  # noqa: BLE001 another version of the library, or a tracer provider that raises
        log_tracing_failure(log, invocation.world, error)
    return tracing
