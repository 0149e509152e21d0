"""Missing permissions, logged once per cold start: which one, what tarry does without it, what to add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.sqs.refusals import error_code, is_denied, is_of_a_key

if TYPE_CHECKING:
    from tarry.observe.logs import Log
    from tarry.support.values import QueueArn
    from tarry.world import World

POLLER = "SQSPollerPolicy: {{QueueName: {queue}}}"
SENDER = "SQSSendMessagePolicy: {{QueueName: {queue}}}"
_READER = "Statement: {{Effect: Allow, Action: sqs:GetQueueAttributes, Resource: '{arn}'}}"
_OF_A_KEY = (
    "kms:Decrypt or kms:GenerateDataKey for the key",
    "Statement: {{Effect: Allow, Action: [kms:Decrypt, kms:GenerateDataKey], Resource: the ARN of its key}}",
)

TARGET_LIMIT = "get_queue_attributes of a dead-letter queue"
SEND_TO_ITSELF = "send_message_batch to the queue a message came from"

MISSING = {
    # permission, what happens without it, what to add to the function's Policies in a SAM template
    "change_message_visibility_batch": (
        "sqs:ChangeMessageVisibility",
        "failed messages come back when the queue's visibility timeout ends, not after their delay",
        POLLER,
    ),
    "delete_message_batch": (
        "sqs:DeleteMessage",
        "messages that were sent on are deleted by Lambda only, and exist twice if the function dies before that",
        POLLER,
    ),
    "get_queue_attributes": (
        "sqs:GetQueueAttributes",
        "its redrive policy is unknown, so messages that failed for good stay in the queue until SQS moves them",
        POLLER,
    ),
    TARGET_LIMIT: (
        "sqs:GetQueueAttributes",
        "its size limit is unknown, and 1 MiB is assumed",
        _READER,
    ),
    "send_message_batch": (
        "sqs:SendMessage",
        "messages that failed for good stay in their queue until SQS moves them, without a failure record",
        SENDER,
    ),
    SEND_TO_ITSELF: (
        "sqs:SendMessage",
        "messages that are deferred or sent again wait in place, where a deferral counts as an attempt",
        SENDER,
    ),
}


def warn_of_missing_permission(error: Exception, operation: str, queue: QueueArn, log: Log, world: World) -> None:
    """Log one WARNING per cold start for a request that was denied; ignore any other error."""
    if not is_denied(error_code(error)):
        return
    permission, consequence, policy = MISSING[operation]
    if is_of_a_key(error_code(error)):
        permission, policy = _OF_A_KEY
    line = policy.format(queue=queue.name, arn=queue.text)
    text = f"The function lacks {permission} on {queue.name}: {consequence}. Add to its Policies: - {line}"
    log.once(world, "missing_permission", text)
