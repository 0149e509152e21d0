"""Reading the queues of a template."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.lazy_values import unwatched
from tarry.tools.template.model import (
    DEFAULT_MAX_RECEIVE_COUNT,
    DEFAULT_VISIBILITY_SECONDS,
    TemplateError,
    TemplateFunction,
    TemplateMapping,
    TemplateQueue,
)
from tarry.tools.template.queues import dead_letter_cycles, unknown_visibility
from tarry.tools.template.reading.values import Reading, Resources, attribute_text, integer, map_of, of_type

QUEUE_ATTRIBUTES = (
    "VisibilityTimeout",
    "DelaySeconds",
    "MessageRetentionPeriod",
    "MaximumMessageSize",
    "ReceiveMessageWaitTimeSeconds",
    "FifoQueue",
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
)
"""The queue attributes that affect messages; encryption, tags and policies do not."""


def read_queues(
    resources: Resources,
    scope: Intrinsics,
    reading: Reading,
    mappings: Iterable[TemplateMapping],
    functions: Mapping[str, TemplateFunction],
) -> dict[str, TemplateQueue]:
    """Return the queues by name. Raises `TemplateError` for a cycle of dead-letter queues."""
    found = {queue.name: queue for queue in _queues(resources, scope, reading, mappings, functions)}
    return found if reading.tolerant else _without_cycle(found, mappings)


def _queues(
    resources: Resources,
    scope: Intrinsics,
    reading: Reading,
    mappings: Iterable[TemplateMapping],
    functions: Mapping[str, TemplateFunction],
) -> Iterable[TemplateQueue]:
    for logical_id, properties in of_type(resources, "AWS::SQS::Queue"):
        read = partial(_queue, logical_id, properties, scope, reading, mappings, functions)
        if (queue := reading.each(read)) is not None:
            yield queue


def _queue(
    logical_id: str,
    properties: Mapping[str, Any],
    scope: Intrinsics,
    reading: Reading,
    mappings: Iterable[TemplateMapping],
    functions: Mapping[str, TemplateFunction],
) -> TemplateQueue:
    found = reading.known(properties, QUEUE_ATTRIBUTES, scope, logical_id)
    attributes = {name: attribute_text(value) for name, value in found.items()}
    if attributes.get("FifoQueue") == "false":
        del attributes["FifoQueue"]  # SQS refuses the attribute on a standard queue
    integer(attributes, "VisibilityTimeout", DEFAULT_VISIBILITY_SECONDS, logical_id)
    if "VisibilityTimeout" in properties and "VisibilityTimeout" not in attributes:
        attributes |= unknown_visibility(scope.attributes[f"{logical_id}.QueueName"], mappings, functions)
    where = f"{logical_id}.RedrivePolicy"
    redrive = _redrive(properties, scope, reading, logical_id)
    return TemplateQueue(
        name=scope.attributes[f"{logical_id}.QueueName"],
        arn=scope.attributes[f"{logical_id}.Arn"],
        logical_id=logical_id,
        attributes=attributes,
        dead_letter_arn=reading.queue_arn(redrive.get("deadLetterTargetArn"), scope),
        max_receive_count=integer(redrive, "maxReceiveCount", DEFAULT_MAX_RECEIVE_COUNT, where),
        is_name_fixed=isinstance(properties.get("QueueName", logical_id), str),
    )


def _redrive(properties: Mapping[str, Any], scope: Intrinsics, reading: Reading, logical_id: str) -> Mapping[str, Any]:
    """Return the redrive policy of a queue; its dead-letter queue may have the name of a placeholder."""
    where = f"{logical_id}.RedrivePolicy"
    found = map_of(reading.known(properties, ["RedrivePolicy"], scope, logical_id).get("RedrivePolicy"), where)
    if (parameter := reading.defaulted.pop(f"{where}.deadLetterTargetArn", None)) is None:
        return found
    reading.use(parameter)
    whole = map_of(unwatched(scope).settled(properties["RedrivePolicy"], where), where)
    return {**found, "deadLetterTargetArn": whole["deadLetterTargetArn"]}


def _without_cycle(queues: dict[str, TemplateQueue], mappings: Iterable[TemplateMapping]) -> dict[str, TemplateQueue]:
    """Return the queues. A cycle of dead-letter queues is refused if functions consume all of them."""
    consumed = {mapping.queue for mapping in mappings}
    for cycle in dead_letter_cycles(queues):
        if consumed.issuperset(cycle):
            raise TemplateError(
                "a message that always fails would never leave the cycle of dead-letter queues "
                f"{' -> '.join([*cycle, cycle[0]])}: remove one RedrivePolicy"
            )
    return queues
