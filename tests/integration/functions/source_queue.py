"""A queue whose messages are delivered to a handler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tarry.testing import deliver

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_sqs import SQSClient


class SourceQueue:
    """A queue with its dead-letter queue, from which batches are delivered to a handler."""

    def __init__(self, sqs: SQSClient, name: str, suffix: str, max_receive_count: int) -> None:
        self.sqs = sqs
        fifo: dict[Any, str] = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if suffix else {}
        self.dead_url = sqs.create_queue(QueueName=f"{name}-dlq{suffix}", Attributes=fifo)["QueueUrl"]
        dead_arn = f"arn:aws:sqs:us-east-1:123456789012:{name}-dlq{suffix}"
        redrive = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": max_receive_count})
        self.url = sqs.create_queue(QueueName=name + suffix, Attributes={**fifo, "RedrivePolicy": redrive})["QueueUrl"]

    def send(self, body: object, group: str | None = None) -> None:
        grouped: Any = {"MessageGroupId": group} if group else {}
        self.sqs.send_message(QueueUrl=self.url, MessageBody=json.dumps(body), **grouped)

    def deliver(self, handler: Callable[[Any, Any], Any]) -> list[Any]:
        """Run the handler on the messages in the queue; return the bodies of those reported as failed."""
        result = deliver(handler, self.url, self.sqs)
        failed = {failure["itemIdentifier"] for failure in result.response["batchItemFailures"]}
        return [message.json() for message in result.messages if message.delivery_id in failed]

    def dead_letters(self) -> list[tuple[Any, dict[str, Any]]]:
        """Return the body and the failure record of each dead letter."""
        received = self.sqs.receive_message(
            QueueUrl=self.dead_url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
        )
        return [
            (
                json.loads(dead_letter["Body"]),
                json.loads(dead_letter["MessageAttributes"]["Tarry"]["StringValue"])["failure"],
            )
            for dead_letter in received.get("Messages", [])
        ]
