"""Reading the queues of a template."""

from collections.abc import Iterable
from functools import partial

from tarry.support.arn import queue_arn
from tarry.template.intrinsics import Intrinsics
from tarry.template.model import DEFAULT_MAX_RECEIVE_COUNT, DEFAULT_VISIBILITY_SECONDS, TemplateError, TemplateQueue
from tarry.template.reading.values import Reading, Resources, attribute_text, integer, map_of, of_type

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


def read_queues(resources: Resources, scope: Intrinsics, reading: Reading) -> dict[str, TemplateQueue]:
    """Return the queues by name. Raises `TemplateError` for a cycle of dead-letter queues."""
    return _without_cycle({queue.name: queue for queue in _queues(resources, scope, reading)})


def _queues(resources: Resources, scope: Intrinsics, reading: Reading) -> Iterable[TemplateQueue]:
    for logical_id, properties in of_type(resources, "AWS::SQS::Queue"):
        settled = {
            name: reading.attempt(partial(scope.settled, {name: properties[name]}, logical_id))
            for name in (*QUEUE_ATTRIBUTES, "RedrivePolicy")
            if name in properties
        }
        found = {name: value[name] for name, value in settled.items() if value}
        attributes = {name: attribute_text(value) for name, value in found.items() if name != "RedrivePolicy"}
        if attributes.get("FifoQueue") == "false":
            del attributes["FifoQueue"]  # SQS refuses the attribute on a standard queue
        integer(attributes, "VisibilityTimeout", DEFAULT_VISIBILITY_SECONDS, logical_id)
        where = f"{logical_id}.RedrivePolicy"
        redrive = map_of(found.get("RedrivePolicy"), where)
        yield TemplateQueue(
            name=scope.attributes[f"{logical_id}.QueueName"],
            arn=scope.attributes[f"{logical_id}.Arn"],
            logical_id=logical_id,
            attributes=attributes,
            dead_letter_arn=redrive.get("deadLetterTargetArn"),
            max_receive_count=integer(redrive, "maxReceiveCount", DEFAULT_MAX_RECEIVE_COUNT, where),
        )


def _without_cycle(queues: dict[str, TemplateQueue]) -> dict[str, TemplateQueue]:
    for name, queue in queues.items():
        seen, target = [name], queue.dead_letter_arn
        while target is not None and (dead := queue_arn(target).name) not in seen:
            seen.append(dead)
            target = queues[dead].dead_letter_arn if dead in queues else None
        if target is not None and dead == name:
            raise TemplateError(
                f"a message that always fails would never leave the cycle of dead-letter queues {' -> '.join(seen)} -> "
                f"{name}: remove one RedrivePolicy"
            )
    return queues
