"""Event files: messages to send, and refused records."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.local.samples import Sample, read_samples

ARN = "arn:aws:sqs:eu-west-1:999999999999:orders"


def write(folder: Path, *records: Any) -> Path:
    path = folder / "event.json"
    path.write_text(json.dumps({"Records": records}))
    return path


def test_a_record_is_sent_with_all_parameters_of_send_message(tmp_path: Path) -> None:
    record = {
        "body": "text",
        "eventSourceARN": f"{ARN}.fifo",
        "attributes": {
            "ApproximateReceiveCount": "3",
            "MessageGroupId": "group",
            "MessageDeduplicationId": "once",
            "AWSTraceHeader": "Root=1",
        },
        "messageAttributes": {
            "kind": {"dataType": "String.label", "stringValue": "x"},
            "blob": {"dataType": "Binary", "binaryValue": base64.b64encode(b"\x00\xff").decode()},
        },
    }
    assert read_samples(write(tmp_path, record)) == [
        Sample(
            number=1,
            queue="orders.fifo",
            body="text",
            attributes={
                "kind": {"DataType": "String.label", "StringValue": "x"},
                "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
            },
            group_id="group",
            deduplication_id="once",
            trace_header="Root=1",
            receive_count=3,
        )
    ]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ("text", "record 1 is 'text'"),
        ({"body": "x", "eventSourceARN": 3}, "record 1: eventSourceARN must be the ARN of a queue"),
        (
            {"body": "x", "eventSourceARN": "arn:aws:sns:us-east-1:1:topic"},
            "record 1: eventSourceARN must be the ARN of a queue",
        ),
        ({"eventSourceARN": ARN}, "record 1: body must be a string"),
        ({"body": "x", "eventSourceARN": f"{ARN}.fifo"}, "record 1 needs attributes.MessageGroupId"),
        ({"body": "x", "eventSourceARN": ARN, "attributes": [1]}, "must be objects"),
        ({"body": "x", "eventSourceARN": ARN, "messageAttributes": {"a": {}}}, "attribute a needs a dataType"),
        (
            {
                "body": "x",
                "eventSourceARN": ARN,
                "messageAttributes": {"a": {"dataType": "Binary", "binaryValue": "?"}},
            },
            "attribute a: its binaryValue is not base64",
        ),
    ],
)
def test_a_record_that_cannot_be_sent_is_refused_with_its_number(tmp_path: Path, record: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read_samples(write(tmp_path, record))
