"""Received messages, as the event source mapping hands them to a function."""

import base64
import time
from collections.abc import Mapping
from typing import Any

from tarry.envelope import ATTRIBUTE, UnreadableRecord, read_envelope


def event_record(message: Mapping[str, Any], queue_arn: str, region: str) -> dict[str, Any]:
    """The record of a message that `ReceiveMessage` answered."""
    record = {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": dict(message.get("Attributes", {})),
        "messageAttributes": {
            name: _event_attribute(value) for name, value in message.get("MessageAttributes", {}).items()
        },
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": queue_arn,
        "awsRegion": region,
    }
    if "MD5OfMessageAttributes" in message:
        record["md5OfMessageAttributes"] = message["MD5OfMessageAttributes"]
    return record


def stable_id(message: Mapping[str, Any]) -> str:
    """The id under which tarry knows a message: its record's, else SQS's own."""
    own: str = message["MessageId"]
    attribute = message.get("MessageAttributes", {}).get(ATTRIBUTE)
    try:
        return read_envelope(_event_attribute(attribute), message["Body"], time.time()).id if attribute else own
    except UnreadableRecord:
        return own


def _event_attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    attribute: dict[str, Any] = {"stringListValues": [], "binaryListValues": [], "dataType": value["DataType"]}
    if "BinaryValue" in value:
        return attribute | {"binaryValue": base64.b64encode(value["BinaryValue"]).decode()}
    return attribute | {"stringValue": value.get("StringValue", "")}
