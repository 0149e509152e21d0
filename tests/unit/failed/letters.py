"""Letters as SQS answers a receive with them."""

import hashlib
import json
from typing import Any

from tarry.envelope.attribute import body_sum
from tarry.failed.dead_letters import DeadLetterMessage, read_dead_letter
from tarry.support.arn import queue_arn
from tests.wire import arn

NOW = 1_800_000_000.0


def record_of(body: str, message_id: str = "stable", *, origin: str | None = "orders", **more: Any) -> dict[str, Any]:
    """A record of a death; ``more`` goes into its failure, but for what belongs beside it."""
    beside: dict[str, Any] = {
        name: more.pop(name) for name in ("carried", "hops", "steps", "due", "history", "extra") if name in more
    }
    failure = {
        "reason": "exhausted",
        "attempts": 5,
        "type": "app.CardDeclined",
        "message": "no",
        "fingerprint": "9f2c61d0a4be",
        "failed_at": "2026-11-21T08:21:40.112Z",
        **more,
    }
    record = {"v": 1, "sum": body_sum(body), "id": message_id, "sent": "2026-11-21T08:00:00Z", **beside}
    if origin:
        record["origin"] = arn(origin)
    return {**record, "failure": failure}


def received(
    body: str = "{}", record: Any = None, attributes: dict[str, Any] | None = None, **system: str
) -> dict[str, Any]:
    told = {} if record is None else {"Tarry": {"DataType": "String", "StringValue": json.dumps(record)}}
    return {
        "MessageId": "delivery-1",
        "ReceiptHandle": "handle-1",
        "Body": body,
        "MD5OfBody": hashlib.md5(body.encode("utf-8", "surrogatepass")).hexdigest(),
        "Attributes": {"ApproximateReceiveCount": "2", "SentTimestamp": "1800000000000", **system},
        "MessageAttributes": {**(attributes or {}), **told},
    }


def letter(
    body: str = "{}", record: Any = None, attributes: dict[str, Any] | None = None, **system: str
) -> DeadLetterMessage:
    """A letter of orders-dlq."""
    return read_dead_letter(received(body, record, attributes, **system), queue_arn(arn("orders-dlq")), NOW)


def dead(body: str = "{}", attributes: dict[str, Any] | None = None, **more: Any) -> DeadLetterMessage:
    """One with a record of its death."""
    return letter(body, record_of(body, **more), attributes)
