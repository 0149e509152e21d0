"""One invocation of a consumer of the queue ``orders`` or ``orders.fifo``, and what tarry asked SQS to do."""

import hashlib
import json
from typing import Any

from tarry import Consumer, Message
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, TestClock, Wire


def orders(
    elapsed: float = 0, dead_letter: str | None = "orders-dlq", clock: TestClock | None = None, **source: Any
) -> Wire:
    """Return a wire with both queues, ``elapsed`` seconds after the message was sent and received."""
    queues = {
        "orders": Queue(dead_letter, **source),
        "orders.fifo": Queue(dead_letter and f"{dead_letter}.fifo", **source),
    }
    return Wire(queues=queues, clock=clock or TestClock(RECEIVED_AT + elapsed))


def fails(message: Message) -> None:
    raise ValueError("no")


def settle(
    handler: Consumer[Any], batch: dict[str, Any] | None = None, wire: Wire | None = None, remaining: float = 30
) -> tuple[list[str], Wire]:
    """Invoke the consumer, with one message or a batch; return the ids that it reports as failed, and the wire."""
    wire = wire or orders()
    with wire:
        return failed(handler(batch or event(record()), Context(remaining))), wire


def reasons(wire: Wire) -> list[str]:
    """Return the reasons of the dead letters that were sent."""
    return [envelope["failure"]["reason"] for envelope in wire.envelopes()]


def targets(wire: Wire) -> list[str]:
    """Return the queues to which messages were sent, one for each request."""
    return [request.queue for request in wire.sent("SendMessageBatch")]


def redelivered(wire: Wire, message_id: str = "copy", **more: Any) -> dict[str, Any]:
    """Return the record of the message that was sent last, received now under a new id from SQS."""
    request = wire.sent("SendMessageBatch")[-1]
    entry = request.entries[-1]
    attributes = {
        name: {"stringValue": value.get("StringValue"), "dataType": value["DataType"]}
        for name, value in entry.get("MessageAttributes", {}).items()
    }
    delivery: dict[str, Any] = {
        "queue": request.queue,
        "group": entry.get("MessageGroupId"),
        "received_at": wire.clock.now,
    }
    return record(entry["MessageBody"], message_id, attributes=attributes, **(delivery | more))


def tarry_attribute(body: str = "{}", **fields: Any) -> dict[str, Any]:
    """Return the attributes of a message with a `Tarry` attribute, whose id is ``m0``."""
    envelope = {"v": 1, "sum": hashlib.sha256(body.encode()).hexdigest()[:16], "id": "m0", **fields}
    return {"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}}
