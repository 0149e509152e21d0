"""A message as it is sent, stored and received, with its handles and the MD5 digests that SDKs verify.

The digests: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
"""

import re
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, NamedTuple

from tarry.sqs.refusals import MAX_ATTRIBUTES, check_attribute_name, check_body, message_size
from tarry.sqs.refusals import check_id as check_characters_of_id
from tarry.support.values import MAX_DELAY_SECONDS
from tarry.tools.simulator.sqs.errors import SqsError, invalid, missing, names_of


class Receipt(NamedTuple):
    """The contents of a receipt handle."""

    queue: int
    """The queue's number; a queue created later under the same name has another one."""
    position: int
    receive_count: int
    delivery_id: str
    """The message's id, for the history: the message may be deleted by now."""


def handle_of(queue: int, position: int, receive_count: int, delivery_id: str) -> str:
    """Return the receipt handle with the contents of a `Receipt`."""
    return b2a_base64(f"receipt:{queue}:{position}:{receive_count}:{delivery_id}".encode(), newline=False).decode()


def read_handle(handle: str, queue: int) -> Receipt:
    """Decode a receipt handle of this queue. Raises `SqsError` for any other text."""
    try:
        prefix, number, position, count, delivery_id = a2b_base64(handle, strict_mode=True).decode().split(":")
        receipt = Receipt(int(number), int(position), int(count), delivery_id)
    except (NotBase64, ValueError):
        raise _invalid_handle(handle) from None
    if prefix != "receipt" or receipt.queue != queue:
        raise _invalid_handle(handle)
    return receipt


def _invalid_handle(handle: str) -> SqsError:
    return SqsError("ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.')


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
        received_at = self.first_received_at
        attributes = {
            "SenderId": SENDER_ID,
            "SentTimestamp": _milliseconds(self.sent_at),
            "ApproximateReceiveCount": str(self.receive_count),
            "ApproximateFirstReceiveTimestamp": None if received_at is None else _milliseconds(received_at),
            "SequenceNumber": self.sequence_number,
            "MessageDeduplicationId": self.deduplication_id,
            "MessageGroupId": self.group,
            "AWSTraceHeader": self.trace_header,
            "DeadLetterQueueSourceArn": self.dead_letter_source,
        }
        return {name: text for name, text in attributes.items() if text is not None}

    def as_received(self, receipt_handle: str, asked: "RequestedAttributes") -> dict[str, Any]:
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


class RequestedAttributes:
    """The attributes that a ReceiveMessage request asks for. Raises `SqsError` for an unknown system attribute."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        # AttributeNames is the deprecated parameter; if both are present, both count.
        asked = [*(request.get("MessageSystemAttributeNames") or ()), *(request.get("AttributeNames") or ())]
        for name in asked:
            if name not in names_of("MessageSystemAttributeName"):
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        self._system: Sequence[str] = asked
        self._all_of_system = "All" in asked
        self._user: Sequence[str] = request.get("MessageAttributeNames") or ()
        self._all_of_user = not {"All", "*", ".*"}.isdisjoint(self._user)

    def system(self, message: StoredMessage) -> dict[str, str]:
        if not self._system:
            return {}
        every = message.system_attributes()
        return every if self._all_of_system else {n: v for n, v in every.items() if n in self._system}

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


_CHARACTERS = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF"
)
_DATA_TYPE = re.compile(r"(String|Number|Binary)(\.[^.].{0,250})?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

Attributes = dict[str, dict[str, Any]]


def check_contents(entry: Mapping[str, Any], maximum_bytes: int) -> None:
    """Raise `SqsError` if SQS would refuse the body, the attributes or the size of a message."""
    body: str = entry["MessageBody"]
    attributes: Attributes = entry.get("MessageAttributes") or {}
    if not body:
        raise missing("MessageBody")
    if attributes:
        _check_attributes(attributes)
    if message_size(body, attributes) > maximum_bytes:
        text = f"One or more parameters are invalid. Reason: Message must be shorter than {maximum_bytes} bytes."
        raise SqsError("InvalidParameterValue", text)
    try:
        check_body(body)
    except ValueError:
        raise SqsError("InvalidMessageContents", _CHARACTERS) from None
    for parameter in ("MessageGroupId", "MessageDeduplicationId"):
        if parameter in entry:
            check_id(parameter, entry[parameter])
    delay = entry.get("DelaySeconds")
    if delay is not None and not 0 <= delay <= MAX_DELAY_SECONDS:
        raise invalid(delay, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {MAX_DELAY_SECONDS}.")


def trace_header(entry: Mapping[str, Any]) -> str | None:
    """Return a message's X-Ray header, the only system attribute that a sender may set."""
    system: Attributes = entry.get("MessageSystemAttributes") or {}
    for name, attribute in system.items():
        if name != "AWSTraceHeader":
            raise SqsError("InvalidParameterValue", f"Message system attribute name '{name}' is invalid.")
        _refuse_lists(attribute)
        if not attribute.get("StringValue"):
            text = f"Message (system) attribute '{name}' must contain a non-empty value of type 'String'."
            raise SqsError("InvalidParameterValue", text)
    return str(system["AWSTraceHeader"]["StringValue"]) if system else None


def check_id(parameter: str, value: str | None) -> None:
    """Check an id that is optional. Raises `SqsError`."""
    if value is None:
        return
    try:
        check_characters_of_id(parameter, value)
    except ValueError:
        text = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise invalid(value, parameter, text) from None


def _check_attributes(attributes: Attributes) -> None:
    if len(attributes) > MAX_ATTRIBUTES:
        text = f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{MAX_ATTRIBUTES}]."
        raise SqsError("InvalidParameterValue", text)
    for name, attribute in attributes.items():
        try:
            check_attribute_name(name)
        except ValueError:
            text = (
                f"The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, 0-9, underscore "
                "(_), hyphen (-), and period (.) characters."
            )
            raise SqsError("InvalidParameterValue", text) from None
        _check_value(name, attribute)


def _check_value(name: str, attribute: Mapping[str, Any]) -> None:
    _refuse_lists(attribute)
    data_type: str = attribute["DataType"]
    kind = _DATA_TYPE.fullmatch(data_type)
    if kind is None:
        text = f"The type of message (user) attribute '{name}' is invalid. You must use only the following supported "
        raise SqsError("InvalidParameterValue", f"{text}type prefixes: Binary, Number, String.")
    field = "BinaryValue" if kind[1] == "Binary" else "StringValue"
    value = attribute.get(field)
    if not value:
        text = f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind[1]}'."
        raise SqsError("InvalidParameterValue", text)
    if kind[1] == "Number" and not _NUMBER.fullmatch(value):
        text = f"Can't cast the value of message (user) attribute '{name}' to a number."
        raise SqsError("InvalidParameterValue", text)
    if field == "StringValue":
        try:
            check_body(value)
        except ValueError:
            raise SqsError("InvalidParameterValue", _CHARACTERS) from None


def _refuse_lists(attribute: Mapping[str, Any]) -> None:
    if attribute.get("StringListValues") or attribute.get("BinaryListValues"):
        text = "Message attribute list values in SendMessage operation are not supported."
        raise SqsError("AWS.SimpleQueueService.UnsupportedOperation", text)
