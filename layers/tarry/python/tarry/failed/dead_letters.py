"""Dead letters as values: read from SQS, edited, and converted to a JSON object or an SQS event."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import md5
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.failed.queue_names import region_of
from tarry.failed.requests import CannotEdit
from tarry.message.message import attribute_value
from tarry.record.attribute import (
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
from tarry.sqs.refusals import MAX_ATTRIBUTES, check_body
from tarry.support.values import Value, epoch_seconds, fields_of, queue_arn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tarry.support.values import QueueArn


BEGINS_ANEW = frozenset({"carried", "due", "hops", "steps", "notes"})
"""Keys of the envelope that a message sent back does not keep (SPEC F2).

With them the message would be dead-lettered again at once, or wait again.
"""


class DeadLetterMessage(Value):
    """A message in a dead-letter queue."""

    delivery_id: str
    """The SQS message id."""
    id: str
    """The stable id; the SQS message id if there is no tarry envelope."""
    queue: str
    """The name of the dead-letter queue."""
    origin: str | None
    """The ARN of the queue it was dead-lettered from; None if neither the envelope nor SQS tells it."""
    sent_at: str | None
    """When it was first sent, in UTC, ISO 8601."""
    body: str
    attributes: Mapping[str, Any]
    """The user's attributes, as in `Message.attributes`; without the `Tarry` attribute."""
    failure: FailureRecord | None
    """The failure record: why the message was dead-lettered. None if SQS moved the message without one."""
    history: tuple[Mapping[str, Any], ...]
    """The recorded failures, oldest first: ``attempt``, ``at``, ``error``, ``delay``."""
    group_id: str | None
    receive_count: int
    """The number of deliveries by SQS, including this inspection."""
    edited: str | None
    """When the body or an attribute was last changed, by hand or by a failure step, in UTC; None if never."""

    record: Mapping[str, Any]
    """The SQS record, as in the event of an event source mapping."""
    _envelope: Mapping[str, Any]
    """The keys of the `Tarry` attribute; empty if there is none, or none that can be read."""

    def __hash__(self) -> int:
        return hash(self.delivery_id)

    @property
    def is_undecodable(self) -> bool:
        """Whether it was dead-lettered because its body cannot be decoded, and the body was not edited since."""
        is_changed = self.body != self.record["body"]
        return self.failure is not None and self.failure.reason == "undecodable" and not is_changed

    def __repr__(self) -> str:
        why = "no failure record" if self.failure is None else self.failure.reason
        return f"<DeadLetterMessage {self.id!r} in {self.queue}: {why}>"


def read_dead_letter(received: Mapping[str, Any], source: QueueArn, now: float) -> DeadLetterMessage:
    """Make a dead letter of a message that ReceiveMessage returned."""
    return dead_letter_of(event_record(received, source.text, region_of(source.text)), source, now)


def dead_letter_of(record: Mapping[str, Any], source: QueueArn, now: float) -> DeadLetterMessage:
    """Make a dead letter of its SQS record, as in the event of an event source mapping."""
    attribute = record["messageAttributes"].get(ATTRIBUTE)
    envelope, envelope_keys = _read(attribute, record["body"], now)
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
        attributes={name: attribute_value(value) for name, value in _user_attributes(record).items()},
        failure=failure,
        history=failure.history if failure else (),
        group_id=system.get("MessageGroupId"),
        receive_count=int(system.get("ApproximateReceiveCount", 1)),
        edited=envelope.edited if envelope else None,
        record=record,
        _envelope=envelope_keys,
    )


def _read(attribute: Mapping[str, Any] | None, body: str, now: float) -> tuple[Envelope | None, Mapping[str, Any]]:
    """Read the envelope; like a consumer, treat one that cannot be read as absent."""
    if attribute is None:
        return None, {}
    try:
        envelope = read_envelope(attribute, body, now)
    except UnreadableRecord:
        return None, {}
    return envelope, json.loads(attribute["stringValue"])


def edit(dead_letter: DeadLetterMessage, body: str, now: float) -> DeadLetterMessage:
    """Return the dead letter with another body, marked as edited at ``now`` (epoch seconds).

    With an unchanged body, return the same object.

    Raises:
        CannotEdit: SQS would refuse the body, or the old body was JSON and the new one is not.
    """
    if body == dead_letter.body:
        return dead_letter
    try:
        check_body(body)
    except ValueError as error:
        raise CannotEdit(f"dead letter {dead_letter.id}: SQS would refuse the new body: {error}") from error
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        if decoded(dead_letter.body) is not dead_letter.body:
            text = f"dead letter {dead_letter.id}: the body was JSON, the edited body is not: {error}"
            raise CannotEdit(text) from error
    return dead_letter._changed(body=body, edited=timestamp(now))


def decoded(text: str) -> Any:
    """Return the value of a text that is JSON; any other text as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def fresh_envelope(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    """Return the envelope of a dead letter that is sent back: its id and failures, without attempts and counters.

    A dead letter that tarry wrote has no counters anyway, so SQS's own redrive has the same effect. A message that the
    redrive policy moved may have some: for example a copy that crashed its function.
    """
    envelope: dict[str, Any] = {"v": VERSION, "sum": "", "id": dead_letter.id}
    envelope |= {"origin": dead_letter.origin, "sent": dead_letter.sent_at}
    envelope |= {name: value for name, value in dead_letter._envelope.items() if name not in BEGINS_ANEW}
    envelope |= {"sum": body_sum(dead_letter.body), "edited": dead_letter.edited}
    return {name: value for name, value in envelope.items() if value is not None}


def as_record(dead_letter: DeadLetterMessage, origin: str, now: float, envelope: str | None) -> dict[str, Any]:
    """Return the SQS record that a function would get if the dead letter were sent back to ``origin`` (an ARN).

    ``envelope`` is the text of its `Tarry` attribute. The receipt handle is empty, so the record cannot be used to
    change or delete the dead letter.
    """
    system = system_attributes(dead_letter)
    system.pop("DeadLetterQueueSourceArn", None)
    system |= {"ApproximateReceiveCount": "1", "ApproximateFirstReceiveTimestamp": str(int(now * 1000))}
    attributes = user_attributes(dead_letter)
    if envelope is not None:
        text = {"stringListValues": [], "binaryListValues": [], "dataType": "String", "stringValue": envelope}
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


def system_attributes(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    """Return the attributes that SQS has set, the trace header without its lineage."""
    system = dict(dead_letter.record["attributes"])
    header = without_lineage(system.pop("AWSTraceHeader", None))
    return system | ({"AWSTraceHeader": header} if header else {})


def user_attributes(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    """Return the attributes in the format of an event, without the `Tarry` attribute."""
    return _user_attributes(dead_letter.record)


def _user_attributes(record: Mapping[str, Any]) -> dict[str, Any]:
    attributes: Mapping[str, Any] = record["messageAttributes"]
    return {name: value for name, value in attributes.items() if not (name == ATTRIBUTE and is_ours(value))}


def without_lineage(trace_header: str | None) -> str | None:
    """Return the trace header without ``Lineage``, by which Lambda counts hops.

    Lambda's recursive loop detection would otherwise count a message that was sent back by hand.
    """
    parts = [part for part in (trace_header or "").split(";") if part and not part.startswith("Lineage=")]
    return ";".join(parts) or None


# other formats


def as_json(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    """Return the dead letter as a JSON object."""
    failure = dead_letter.failure
    fields = {} if failure is None else fields_of(failure)
    known = {name: value for name, value in fields.items() if value is not None and name != "history"}
    names = ("delivery_id", "id", "queue", "origin", "sent_at", "body")
    return {
        **{name: getattr(dead_letter, name) for name in names},
        "attributes": plain(dead_letter.attributes),
        "failure": None if failure is None else known,
        "history": [dict(entry) for entry in dead_letter.history],
    }


def as_event(dead_letters: Iterable[DeadLetterMessage]) -> dict[str, Any]:
    """Return the SQS event that a function would get if the dead letters were sent back, for `tarry invoke` or a test.

    For a dead letter of unknown origin the event names the dead-letter queue.
    """
    now = world.current().clock.time()
    return {"Records": [_event_record(dead_letter, now) for dead_letter in dead_letters]}


def _event_record(dead_letter: DeadLetterMessage, now: float) -> dict[str, Any]:
    has_room = len(user_attributes(dead_letter)) < MAX_ATTRIBUTES
    envelope = dump(fresh_envelope(dead_letter)) if has_room else None
    return as_record(dead_letter, dead_letter.origin or dead_letter.record["eventSourceARN"], now, envelope)


def plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as JSON values; binary values as base64."""
    return {name: _plain(value) for name, value in attributes.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value if value is None or isinstance(value, (str, int)) else float(value)


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
