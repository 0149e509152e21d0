"""Received messages, as the event source mapping hands them to a function."""

import base64
from collections.abc import Mapping
from typing import Any


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
        return attribute | {"binaryValue": base64.b64encode(value["BinaryValue"]).decode()}
    return attribute | {"stringValue": value.get("StringValue", "")}
