"""Dead letters as ReceiveMessage returns them."""

import hashlib
import json
from typing import Any

from tarry.failed.dead_letters import DeadLetterMessage, read_dead_letter
from tarry.record.attribute import body_sum
from tarry.support.values import queue_arn
from tests.wire import arn

NOW = 1_800_000_000.0


def envelope_of(body: str, message_id: str = "stable", *, origin: str | None = "orders", **more: Any) -> dict[str, Any]:
    """Return an envelope with a failure record; ``more`` are fields of the record, or of the envelope itself."""
    top_level: dict[str, Any] = {
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
    envelope = {"v": 1, "sum": body_sum(body), "id": message_id, "sent": "2026-11-21T08:00:00Z", **top_level}
    if origin:
        envelope["origin"] = arn(origin)
    return {**envelope, "failure": failure}


def received(
    body: str = "{}", envelope: Any = None, attributes: dict[str, Any] | None = None, **system: str
) -> dict[str, Any]:
    """Return a message of ReceiveMessage with this envelope."""
    own = {} if envelope is None else {"Tarry": {"DataType": "String", "StringValue": json.dumps(envelope)}}
    return {
        "MessageId": "delivery-1",
        "ReceiptHandle": "handle-1",
        "Body": body,
        "MD5OfBody": hashlib.md5(body.encode("utf-8", "surrogatepass")).hexdigest(),
        "Attributes": {"ApproximateReceiveCount": "2", "SentTimestamp": "1800000000000", **system},
        "MessageAttributes": {**(attributes or {}), **own},
    }


def dead_letter(
    body: str = "{}", envelope: Any = None, attributes: dict[str, Any] | None = None, **system: str
) -> DeadLetterMessage:
    """Return a dead letter of orders-dlq; without an envelope, as the redrive policy moves it."""
    return read_dead_letter(received(body, envelope, attributes, **system), queue_arn(arn("orders-dlq")), NOW)


def recorded_dead_letter(body: str = "{}", attributes: dict[str, Any] | None = None, **more: Any) -> DeadLetterMessage:
    """Return a dead letter of orders-dlq with a failure record."""
    return dead_letter(body, envelope_of(body, **more), attributes)
