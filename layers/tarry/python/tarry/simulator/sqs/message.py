"""A message as a queue holds it, and as a receive tells of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs import md5

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.simulator.sqs.selection import RequestedAttributes

SENDER_ID = "AIDAIENQZJOLO23YVJ4VO"


@dataclass(slots=True, eq=False)
class StoredMessage:
    """A message in a queue. Times are epoch seconds."""

    delivery_id: str
    """SQS's id of it. It stays when SQS moves the message to the dead-letter queue."""
    body: str
    attributes: Mapping[str, Mapping[str, Any]]
    """The user's, as they were sent."""
    sent_at: float
    """When its life in SQS began: retention counts from here."""
    position: int
    """Its place in the order in which messages came to this queue."""
    visible_at: float
    """When it can be received, or could be since."""
    trace_header: str | None = None
    group: str | None = None
    deduplication_id: str | None = None
    sequence_number: str | None = None
    dead_letter_source: str | None = None
    """The ARN of the queue from which SQS has moved it here."""
    receive_count: int = 0
    first_received_at: float | None = None
    received_at: float | None = None
    """When it was received last: the 12 hours of its visibility count from here."""
    comes_again: bool = False
    """Whether its next delivery is one more than it was due."""
    has_reappeared: bool = False
    """Whether it was deleted and came back: it does so once."""
    md5_of_body: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.md5_of_body:
            self.md5_of_body = md5.of_body(self.body)

    def system_attributes(self) -> dict[str, str]:
        """All that SQS itself says of it."""
        attributes = {
            "SenderId": SENDER_ID,
            "SentTimestamp": _milliseconds(self.sent_at),
            "ApproximateReceiveCount": str(self.receive_count),
        }
        if self.first_received_at is not None:
            attributes["ApproximateFirstReceiveTimestamp"] = _milliseconds(self.first_received_at)
        more = {
            "SequenceNumber": self.sequence_number,
            "MessageGroupId": self.group,
            "MessageDeduplicationId": self.deduplication_id,
            "AWSTraceHeader": self.trace_header,
            "DeadLetterQueueSourceArn": self.dead_letter_source,
        }
        attributes.update((name, value) for name, value in more.items() if value is not None)
        return attributes

    def as_received(self, receipt_handle: str, asked: RequestedAttributes) -> dict[str, Any]:
        """As an answer to ReceiveMessage has it, with those attributes that were asked for."""
        told: dict[str, Any] = {
            "MessageId": self.delivery_id,
            "ReceiptHandle": receipt_handle,
            "MD5OfBody": self.md5_of_body,
            "Body": self.body,
        }
        if system := asked.system(self):
            told["Attributes"] = system
        if attributes := asked.user(self.attributes):
            told["MessageAttributes"] = attributes
            told["MD5OfMessageAttributes"] = md5.of_attributes(attributes)
        return told


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000 + 0.001))  # a float may be a hair below the millisecond it means
