"""A dead letter, as a value: what is known of a message in a dead-letter queue."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import md5
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.delay import epoch_seconds
from tarry.envelope.attribute import (
    ATTRIBUTE,
    VERSION,
    Envelope,
    FailureRecord,
    UnreadableRecord,
    body_sum,
    dump,
    is_ours,
    read_envelope,
    timestamp,
)
from tarry.failed.errors import CannotEdit
from tarry.message import attribute_value
from tarry.sqs.limits import MAX_ATTRIBUTES, check_body
from tarry.sqs.received import event_record
from tarry.support.arn import queue_arn
from tarry.support.value import Value, fields_of
from tarry.tooling.queues import region_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tarry.support.arn import QueueArn

BEGINS_ANEW = frozenset({"carried", "due", "hops", "steps", "notes"})
"""What a letter that was sent back does not bring along (SPEC F2): it would die of it at once, or wait again."""


class DeadLetterMessage(Value):
    """A message in a dead-letter queue."""

    delivery_id: str
    """SQS's own id."""
    id: str
    """The stable id; SQS's where no record says another."""
    queue: str
    """The name of the dead-letter queue."""
    origin: str | None
    """The ARN of the queue it was dead-lettered from; None if neither its record nor SQS says it."""
    sent_at: str | None
    """When it was first sent, in UTC, ISO 8601."""
    body: str
    attributes: Mapping[str, Any]
    """The user's, as `Message.attributes` has them; the record is not among them."""
    failure: FailureRecord | None
    """Why it died, or failed last; None if it has no record: SQS moved it, bare."""
    history: tuple[Mapping[str, Any], ...]
    """Its failures as far as they were recorded: ``attempt``, ``at``, ``error``, ``delay``."""
    group_id: str | None
    receive_count: int
    """How often SQS has delivered it, this look included."""
    edited: str | None
    """When its body or attributes were last changed, by hand or by a failure step, in UTC; None if they never were."""

    _source: QueueArn
    record: Mapping[str, Any]
    """As the event source mapping would hand it over."""
    _told: Mapping[str, Any]
    """What its `Tarry` attribute says; empty if there is none that can be read."""

    def __hash__(self) -> int:
        return hash(self.delivery_id)

    @property
    def is_undecodable(self) -> bool:
        """Whether it died of its body, which no handler can read. Somebody has to edit it first."""
        is_changed = self.body != self.record["body"]
        return self.failure is not None and self.failure.reason == "undecodable" and not is_changed

    def with_body(self, body: str, edited: str) -> DeadLetterMessage:
        """Return the same dead letter with another body, and the time of that edit."""
        return self._changed(body=body, edited=edited)

    def __repr__(self) -> str:
        why = "without a record" if self.failure is None else self.failure.reason
        return f"<DeadLetterMessage {self.id!r} in {self.queue}: {why}>"


def read_dead_letter(received: Mapping[str, Any], source: QueueArn, now: float) -> DeadLetterMessage:
    """The letter that SQS answered a receive with."""
    record = event_record(received, source.text, region_of(source.text))
    attribute = record["messageAttributes"].get(ATTRIBUTE)
    envelope, told = _read(attribute, record["body"], now)
    system = record["attributes"]
    failure = envelope.failure if envelope else None
    sent = epoch_seconds(system.get("SentTimestamp"))
    return DeadLetterMessage(
        delivery_id=record["messageId"],
        id=envelope.id if envelope else record["messageId"],
        queue=source.name,
        origin=(envelope.origin if envelope else None) or system.get("DeadLetterQueueSourceArn"),
        sent_at=(envelope.sent if envelope else None) or (None if sent is None else timestamp(sent)),
        body=record["body"],
        attributes={
            name: attribute_value(value)
            for name, value in record["messageAttributes"].items()
            if not (name == ATTRIBUTE and is_ours(value))
        },
        failure=failure,
        history=failure.history if failure else (),
        group_id=system.get("MessageGroupId"),
        receive_count=int(system.get("ApproximateReceiveCount", 1)),
        edited=envelope.edited if envelope else None,
        _source=source,
        record=record,
        _told=told,
    )


def _read(attribute: Mapping[str, Any] | None, body: str, now: float) -> tuple[Envelope | None, Mapping[str, Any]]:
    """A record that cannot be read is treated as absent, as a consumer does."""
    if attribute is None:
        return None, {}
    try:
        envelope = read_envelope(attribute, body, now)
    except UnreadableRecord:
        return None, {}
    return envelope, json.loads(attribute["stringValue"])


def edit(dead_letter: DeadLetterMessage, body: str, now: float) -> DeadLetterMessage:
    """The letter with another body; what is sent of it says when it was edited (``now``, in epoch seconds).

    The same body is no edit. Raises `CannotEdit` for a body that is no JSON where the letter's was, and for one that
    SQS would refuse.
    """
    if body == dead_letter.body:
        return dead_letter
    try:
        check_body(body)
    except ValueError as error:
        raise CannotEdit(f"dead letter {dead_letter.id} cannot have that body: {error}") from error
    if _is_json(dead_letter.body):
        try:
            json.loads(body)
        except (ValueError, RecursionError) as error:
            raise CannotEdit(f"the body of dead letter {dead_letter.id} was JSON, and is none now: {error}") from error
    return dead_letter.with_body(body, timestamp(now))


def _is_json(body: str) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def fresh_envelope(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    """The record with which it is sent back: who it is and all its failures, and nothing of its attempts.

    So does SQS's own redrive, which moves a letter as it is, since a letter of tarry's has none of that in it. What SQS
    moved by itself may have: a copy that was sent again, and then killed its process.
    """
    record: dict[str, Any] = {
        "v": VERSION,
        "sum": "",
        "id": dead_letter.id,
        "origin": dead_letter.origin,
        "sent": dead_letter.sent_at,
    }
    record |= {name: value for name, value in dead_letter._told.items() if name not in BEGINS_ANEW}
    record |= {"sum": body_sum(dead_letter.body), "edited": dead_letter.edited}
    return {name: value for name, value in record.items() if value is not None}


def as_record(dead_letter: DeadLetterMessage, origin: str, now: float, record: str | None) -> dict[str, Any]:
    """The record of the event that its function would get if it were sent back to ``origin`` (an ARN).

    ``record`` is its `Tarry` attribute. It has no receipt handle: nothing that is made of it can reach the letter.
    """
    milliseconds = str(int(now * 1000))
    system = {
        name: value
        for name, value in dead_letter.record["attributes"].items()
        if name not in ("DeadLetterQueueSourceArn", "AWSTraceHeader")
    }
    system |= {"ApproximateReceiveCount": "1", "ApproximateFirstReceiveTimestamp": milliseconds}
    if header := without_lineage(dead_letter.record["attributes"].get("AWSTraceHeader")):
        system["AWSTraceHeader"] = header
    attributes = user_attributes(dead_letter)
    if record is not None:
        text = {"stringListValues": [], "binaryListValues": [], "dataType": "String", "stringValue": record}
        attributes = {**attributes, ATTRIBUTE: text}
    source = queue_arn(origin)
    return {
        "messageId": dead_letter.delivery_id,
        "receiptHandle": "",
        "body": dead_letter.body,
        "attributes": system,
        "messageAttributes": attributes,
        "md5OfBody": md5(dead_letter.body.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest(),
        "eventSource": "aws:sqs",
        "eventSourceARN": source.text,
        "awsRegion": region_of(source.text),
    }


def user_attributes(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    """Its attributes as an event has them, without our record."""
    attributes: Mapping[str, Any] = dead_letter.record["messageAttributes"]
    return {name: value for name, value in attributes.items() if not (name == ATTRIBUTE and is_ours(value))}


def without_lineage(trace_header: str | None) -> str | None:
    """The trace header without what Lambda counts hops by: sent back by hand, a letter is at its first again."""
    parts = [part for part in (trace_header or "").split(";") if part and not part.startswith("Lineage=")]
    return ";".join(parts) or None


# as others read it


def as_json(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    """The letter as JSON has it: what is known of it, by name."""
    failure = dead_letter.failure
    told = None
    if failure is not None:
        told = {name: value for name, value in fields_of(failure).items() if value is not None and name != "history"}
    return {
        "delivery_id": dead_letter.delivery_id,
        "id": dead_letter.id,
        "queue": dead_letter.queue,
        "origin": dead_letter.origin,
        "sent_at": dead_letter.sent_at,
        "body": dead_letter.body,
        "attributes": plain(dead_letter.attributes),
        "failure": told,
        "history": [dict(entry) for entry in dead_letter.history],
    }


def as_event(dead_letters: Iterable[DeadLetterMessage]) -> dict[str, Any]:
    """The SQS event that the letters' function would get if they were sent back: for `tarry invoke`, or a test.

    Where a letter does not say where it came from, it is its dead-letter queue that the event names.
    """
    now = world.current().clock.time()
    return {"Records": [_event_record(dead_letter, now) for dead_letter in dead_letters]}


def _event_record(dead_letter: DeadLetterMessage, now: float) -> dict[str, Any]:
    has_room = len(user_attributes(dead_letter)) < MAX_ATTRIBUTES
    record = dump(fresh_envelope(dead_letter)) if has_room else None
    return as_record(dead_letter, dead_letter.origin or dead_letter._source.text, now, record)


def plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as JSON has them: binary values as base64 text."""
    return {name: _plain(value) for name, value in attributes.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value if value is None or isinstance(value, (str, int)) else float(value)
