"""The conversion of a message from `ReceiveMessage` into the event record that Lambda makes of it."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def event_record(message: Mapping[str, Any], queue_arn: str, region: str) -> dict[str, Any]:
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
    """Return a message attribute as an event record has it, with binary values as base64 text."""
    attribute: dict[str, Any] = {"stringListValues": [], "binaryListValues": [], "dataType": value["DataType"]}
    if "BinaryValue" in value:
        return attribute | {"binaryValue": b64encode(value["BinaryValue"]).decode()}
    return attribute | {"stringValue": value.get("StringValue", "")}
