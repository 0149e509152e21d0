"""The choice of tracing libraries for an invocation: OpenTelemetry, X-Ray, both, or none."""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING

from tarry.observe.tracing import TracingGuard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.message.invocation import Invocation
    from tarry.observe.logs import Log
    from tarry.observe.opentelemetry import RunSpans
    from tarry.observe.xray import Subsegments


def tracing_of(
    invocation: Invocation, pending: Mapping[str, object], consumer: str, log: Log, *, in_tasks: bool
) -> list[RunSpans | Subsegments]:
    """Return the tracing by loaded libraries that are on; ``in_tasks``: whether runs may take turns in one thread."""
    tracing: list[RunSpans | Subsegments] = []
    with TracingGuard(log, invocation.world, is_end=True):  # another version of a library may raise anything
        if "opentelemetry.trace" in modules:
            from tarry.observe import opentelemetry

            if opentelemetry.is_on():
                invocation.spans = spans = opentelemetry.RunSpans(invocation, pending, consumer, log)
                tracing.append(spans)
        if "aws_xray_sdk.core" in modules and not in_tasks:
            from tarry.observe.xray import subsegments_of

            if (subsegments := subsegments_of(log, invocation.world)) is not None:
                tracing.append(subsegments)
    return tracing
