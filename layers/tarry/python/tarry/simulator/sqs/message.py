"""A message as a queue holds it, and as SQS tells of it: the attributes a receive asks for, and the digests.

The digests tell a sender that SQS has understood a message as it was meant:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import md5
from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs.errors import SqsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
            self.md5_of_body = digest_of_body(self.body)

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
            told["MD5OfMessageAttributes"] = digest_of_attributes(attributes)
        return told


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000 + 0.001))  # a float may be a hair below the millisecond it means


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
    """What one ReceiveMessage asks for. Raises `SqsError` for a system attribute that there is not."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        # AttributeNames is the old name; both together ask for both.
        asked = [*(request.get("MessageSystemAttributeNames") or ()), *(request.get("AttributeNames") or ())]
        for name in asked:
            if name != "All" and name not in SYSTEM_ATTRIBUTES:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        self._system: Sequence[str] = SYSTEM_ATTRIBUTES if "All" in asked else asked
        self._user: Sequence[str] = request.get("MessageAttributeNames") or ()
        self._all_of_user = "All" in self._user or ".*" in self._user

    def system(self, message: StoredMessage) -> dict[str, str]:
        if not self._system:
            return {}
        told = message.system_attributes()
        return told if self._system is SYSTEM_ATTRIBUTES else {n: v for n, v in told.items() if n in self._system}

    def user(self, attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        if self._all_of_user:
            return dict(attributes)
        return {name: value for name, value in attributes.items() if any(_is_asked(name, a) for a in self._user)}


def _is_asked(name: str, asked: str) -> bool:
    """Whether ``asked`` is the name, or its beginning followed by ``.*``."""
    return name.startswith(asked[:-2]) if asked.endswith(".*") else name == asked


_STRING, _BINARY = b"\x01", b"\x02"


def digest_of_body(body: str) -> str:
    return md5(_bytes(body), usedforsecurity=False).hexdigest()


def digest_of_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> str:
    """Name, type, and value of each attribute in the order of their names, with their lengths in bytes."""
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
