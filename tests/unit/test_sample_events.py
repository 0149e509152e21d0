"""The sample events in events/*.json are complete SQS events with correct digests."""

import base64
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

EVENTS = Path(__file__).parents[2] / "events"
FROM_SQS = sorted(path for path in EVENTS.glob("*.json") if path.stem not in ("not-sqs", "redrive", "redrive-remove"))
KEYS = set(
    "messageId receiptHandle body attributes messageAttributes md5OfBody eventSource eventSourceARN awsRegion".split()
)


def attributes_md5(attributes: dict[str, Any]) -> str:
    """Return the digest of SQS over message attributes: name, type and value of each, with lengths, sorted by name."""
    digest = hashlib.md5()

    def add(data: bytes) -> None:
        digest.update(struct.pack(">I", len(data)) + data)

    for name, attribute in sorted(attributes.items()):
        add(name.encode())
        add(attribute["dataType"].encode())
        binary = attribute["dataType"].partition(".")[0] == "Binary"
        digest.update(b"\x02" if binary else b"\x01")
        add(base64.b64decode(attribute["binaryValue"]) if binary else attribute["stringValue"].encode())
    return digest.hexdigest()


@pytest.mark.parametrize("path", FROM_SQS, ids=lambda path: path.stem)
def test_each_record_is_complete_with_correct_digests(path: Path) -> None:
    for record in json.loads(path.read_text())["Records"]:
        fifo = record["eventSourceARN"].endswith(".fifo")
        assert record["md5OfBody"] == hashlib.md5(record["body"].encode()).hexdigest()
        expected = attributes_md5(record["messageAttributes"]) if record["messageAttributes"] else None
        assert record.get("md5OfMessageAttributes") == expected
        assert all(isinstance(value, str) for value in record["attributes"].values())
        assert ({"MessageGroupId", "MessageDeduplicationId", "SequenceNumber"} <= record["attributes"].keys()) == fifo
        assert set(record) - {"md5OfMessageAttributes"} == KEYS


def test_no_message_id_is_used_twice() -> None:
    ids = [record["messageId"] for path in FROM_SQS for record in json.loads(path.read_text())["Records"]]
    assert len(ids) == len(set(ids))
