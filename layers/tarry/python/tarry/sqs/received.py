"""A message as `ReceiveMessage` answers it, turned into a record of the event that Lambda makes of it."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def event_record(message: Mapping[str, Any], queue_arn: str, region: str) -> dict[str, Any]:
    """The record of a message that `ReceiveMessage` answered."""
    record = {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": dict(message.get("Attributes", {})),
        "messageAttributes": {
            name: event_attribute(value) for name, value in message.get("MessageAttributes", {}).items()
        },
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": queue_arn,
        "awsRegion": region,
    }
    if "MD5OfMessageAttributes" in message:
        record["md5OfMessageAttributes"] = message["MD5OfMessageAttributes"]
    return record


def event_attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    """A message attribute, as a record has it: binary values are base64 text there."""
    attribute: dict[str, Any] = {"stringListValues": [], "binaryListValues": [], "dataType": value["DataType"]}
    if "BinaryValue" in value:
        return attribute | {"binaryValue": b64encode(value["BinaryValue"]).decode()}
    return attribute | {"stringValue": value.get("StringValue", "")}
