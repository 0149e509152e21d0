"""Reading the event source mappings of a template."""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from tarry.template.intrinsics import Intrinsics
from tarry.template.model import ACCOUNT, DEFAULT_BATCH_SIZE, TemplateError, TemplateMapping
from tarry.template.reading.values import Reading, Resources, attribute_text, integer, of_type, optional_integer
from tarry.template.unplayed import OF_OTHER_EVENTS


def read_mappings(resources: Resources, scope: Intrinsics, reading: Reading) -> tuple[TemplateMapping, ...]:
    """Return the mappings of queues that are enabled."""
    return tuple(_mappings(resources, scope, reading))


def _mappings(resources: Resources, scope: Intrinsics, reading: Reading) -> Iterable[TemplateMapping]:
    for logical_id, properties in of_type(resources, "AWS::Lambda::EventSourceMapping"):
        if OF_OTHER_EVENTS & properties.keys():
            continue  # the ARN of its source, such as a stream, is often unknown
        plain = reading.attempt(partial(_plain_mapping, logical_id, properties, scope))
        if plain is None or attribute_text(plain.get("Enabled", True)) == "false":
            continue
        arn = str(plain.get("EventSourceArn", ""))
        if arn in reading.made_up:  # a queue of another stack, given by a parameter
            arn = f"arn:aws:sqs:{scope.refs['AWS::Region']}:{ACCOUNT}:{arn}"
        if not re.match(r"arn:[\w-]+:sqs:", arn):
            continue
        if not isinstance(name := plain.get("FunctionName"), str):
            raise TemplateError(f"{logical_id}.FunctionName must be a name or an ARN, got {name!r}")
        yield TemplateMapping(
            logical_id=logical_id,
            queue_arn=arn,
            function=re.sub(r"^.*:function:", "", name).partition(":")[0],
            batch_size=integer(plain, "BatchSize", DEFAULT_BATCH_SIZE, logical_id),
            window_seconds=integer(plain, "MaximumBatchingWindowInSeconds", 0, logical_id),
            reports_failures="ReportBatchItemFailures" in (plain.get("FunctionResponseTypes") or []),
            maximum_concurrency=optional_integer(
                plain.get("ScalingConfig") or {}, "MaximumConcurrency", f"{logical_id}.ScalingConfig"
            ),
            filters=tuple(_filters(properties.get("FilterCriteria"), scope, f"{logical_id}.FilterCriteria")),
        )


def _plain_mapping(logical_id: str, properties: Mapping[str, Any], scope: Intrinsics) -> dict[str, Any]:
    ignored = {"FilterCriteria", "DestinationConfig", "Tags", "KmsKeyArn"}
    return {key: scope.settled(value, f"{logical_id}.{key}") for key, value in properties.items() if key not in ignored}


def _filters(criteria: Any, scope: Intrinsics, where: str) -> Iterable[str]:
    for each in (scope.settled(criteria or {}, where)).get("Filters") or []:
        pattern = each.get("Pattern")
        if not isinstance(pattern, str):
            raise TemplateError(f"{where}: a Pattern must be JSON text, got {pattern!r}")
        yield pattern
