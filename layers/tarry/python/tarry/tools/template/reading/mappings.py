"""Reading the event source mappings of a template."""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.model import DEFAULT_BATCH_SIZE, TemplateError, TemplateMapping
from tarry.tools.template.reading.values import Reading, Resources, attribute_text, integer, of_type, optional_integer
from tarry.tools.template.unplayed import OF_OTHER_EVENTS

SETTINGS = (
    "BatchSize",
    "Enabled",
    "FilterCriteria",
    "FunctionResponseTypes",
    "MaximumBatchingWindowInSeconds",
    "ScalingConfig",
)


def read_mappings(resources: Resources, scope: Intrinsics, reading: Reading) -> tuple[TemplateMapping, ...]:
    """Return the mappings of queues that are enabled."""
    return tuple(_mappings(resources, scope, reading))


def _mappings(resources: Resources, scope: Intrinsics, reading: Reading) -> Iterable[TemplateMapping]:
    for logical_id, properties in of_type(resources, "AWS::Lambda::EventSourceMapping"):
        if OF_OTHER_EVENTS & properties.keys():
            continue  # the ARN of its source, such as a stream, is often unknown
        if (mapping := reading.each(partial(_mapping, logical_id, properties, scope, reading))) is not None:
            yield mapping


def _mapping(
    logical_id: str, properties: Mapping[str, Any], scope: Intrinsics, reading: Reading
) -> TemplateMapping | None:
    """Return a mapping; None if it is not of a queue, or disabled, or its ends are not known."""
    ends = {key: properties[key] for key in ("EventSourceArn", "FunctionName") if key in properties}
    between = reading.attempt(partial(scope.settled, ends, logical_id))
    if between is None:
        return None
    plain = reading.known(properties, SETTINGS, scope, logical_id)
    if attribute_text(plain.get("Enabled", True)) == "false":
        return None
    arn = str(reading.queue_arn(between.get("EventSourceArn", ""), scope))
    if not re.match(r"arn:[\w-]+:sqs:", arn):
        return None
    if not isinstance(name := between.get("FunctionName"), str):
        raise TemplateError(f"{logical_id}.FunctionName must be a name or an ARN, got {name!r}")
    function, _, qualifier = re.sub(r"^.*:function:", "", name).partition(":")
    return TemplateMapping(
        logical_id=logical_id,
        queue_arn=arn,
        function=function,
        qualifier=qualifier,
        batch_size=integer(plain, "BatchSize", DEFAULT_BATCH_SIZE, logical_id),
        window_seconds=integer(plain, "MaximumBatchingWindowInSeconds", 0, logical_id),
        reports_failures="ReportBatchItemFailures" in (plain.get("FunctionResponseTypes") or []),
        maximum_concurrency=optional_integer(
            plain.get("ScalingConfig") or {}, "MaximumConcurrency", f"{logical_id}.ScalingConfig"
        ),
        filters=tuple(_filters(plain.get("FilterCriteria"), f"{logical_id}.FilterCriteria")),
    )


def _filters(criteria: Any, where: str) -> Iterable[str]:
    """Yield the patterns; none if one of them depends on a made-up value, as it may match any message."""
    found = (criteria or {}).get("Filters") or []
    for each in found if all(found) else ():
        pattern = each.get("Pattern")
        if not isinstance(pattern, str):
            raise TemplateError(f"{where}: a Pattern must be JSON text, got {pattern!r}")
        yield pattern
