"""A message as a queue stores it and as ReceiveMessage returns it, with the MD5 digests that SDKs verify.

The digests: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import md5
from typing import TYPE_CHECKING, Any

from tarry.tools.simulator.sqs.errors import SqsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SENDER_ID = "AIDAIENQZJOLO23YVJ4VO"


@dataclass(slots=True, eq=False)
class StoredMessage:
    """A message in a queue. Times are epoch seconds."""

    delivery_id: str
    """SQS's message id. It stays the same when SQS moves the message to the dead-letter queue."""
    body: str
    attributes: Mapping[str, Mapping[str, Any]]
    """The message attributes, as they were sent."""
    sent_at: float
    """When the retention period started."""
    position: int
    """The message's number in the order in which messages arrived in this queue."""
    visible_at: float
    """Since when, or from when on, the message can be received."""
    trace_header: str | None = None
    group: str | None = None
    deduplication_id: str | None = None
    sequence_number: str | None = None
    dead_letter_source: str | None = None
    """The ARN of the queue from which SQS moved the message here."""
    receive_count: int = 0
    first_received_at: float | None = None
    received_at: float | None = None
    """The time of the latest receive: the limit of 12 hours on the visibility timeout counts from here."""
    next_is_duplicate: bool = False
    """Whether the next delivery is a duplicate."""
    has_reappeared: bool = False
    """Whether the message came back after its deletion; that happens at most once."""
    md5_of_body: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.md5_of_body:
            self.md5_of_body = digest_of_body(self.body)

    def system_attributes(self) -> dict[str, str]:
        """Return all system attributes that apply."""
        attributes = {
            "SenderId": SENDER_ID,
            "SentTimestamp": _milliseconds(self.sent_at),
            "ApproximateReceiveCount": str(self.receive_count),
        }
        if self.first_received_at is not None:
            attributes["ApproximateFirstReceiveTimestamp"] = _milliseconds(self.first_received_at)
        if self.sequence_number is not None:
            attributes["SequenceNumber"] = self.sequence_number
        if self.group is not None:
            attributes["MessageGroupId"] = self.group
        if self.deduplication_id is not None:
            attributes["MessageDeduplicationId"] = self.deduplication_id
        if self.trace_header is not None:
            attributes["AWSTraceHeader"] = self.trace_header
        if self.dead_letter_source is not None:
            attributes["DeadLetterQueueSourceArn"] = self.dead_letter_source
        return attributes

    def as_received(self, receipt_handle: str, asked: RequestedAttributes) -> dict[str, Any]:
        """Return the message as in the answer to a ReceiveMessage, with the requested attributes."""
        received: dict[str, Any] = {
            "MessageId": self.delivery_id,
            "ReceiptHandle": receipt_handle,
            "MD5OfBody": self.md5_of_body,
            "Body": self.body,
        }
        if system := asked.system(self):
            received["Attributes"] = system
        if attributes := asked.user(self.attributes):
            received["MessageAttributes"] = attributes
            received["MD5OfMessageAttributes"] = digest_of_attributes(attributes)
        return received


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000 + 0.001))  # the float may be slightly below the millisecond


SYSTEM_ATTRIBUTES = (
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
)


class RequestedAttributes:
    """The attributes that a ReceiveMessage request asks for.

    Raises:
        SqsError: The request names an unknown system attribute.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        # AttributeNames is the deprecated parameter; if both are present, both count.
        asked = [*(request.get("MessageSystemAttributeNames") or ()), *(request.get("AttributeNames") or ())]
        for name in asked:
            if name != "All" and name not in SYSTEM_ATTRIBUTES:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        self._system: Sequence[str] = SYSTEM_ATTRIBUTES if "All" in asked else asked
        self._user: Sequence[str] = request.get("MessageAttributeNames") or ()
        self._all_of_user = not {"All", "*", ".*"}.isdisjoint(self._user)

    def system(self, message: StoredMessage) -> dict[str, str]:
        if not self._system:
            return {}
        every = message.system_attributes()
        return every if self._system is SYSTEM_ATTRIBUTES else {n: v for n, v in every.items() if n in self._system}

    def user(self, attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        if self._all_of_user:
            return dict(attributes)
        return {name: value for name, value in attributes.items() if any(_matches(name, asked) for asked in self._user)}


def _matches(name: str, asked: str) -> bool:
    """Return whether ``asked`` is the name, or a prefix of it followed by ``.*``."""
    return name.startswith(asked[:-2]) if asked.endswith(".*") else name == asked


_STRING, _BINARY = b"\x01", b"\x02"


def digest_of_body(body: str) -> str:
    return md5(_bytes(body), usedforsecurity=False).hexdigest()


def digest_of_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the MD5 digest of the attributes' names, types and values, sorted by name, each preceded by its length."""
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        digest.update(_with_length(_bytes(name)))
        digest.update(_with_length(_bytes(attribute["DataType"])))
        if "BinaryValue" in attribute:
            digest.update(_BINARY + _with_length(bytes(attribute["BinaryValue"])))
        else:
            digest.update(_STRING + _with_length(_bytes(attribute["StringValue"])))
    return digest.hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _with_length(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
