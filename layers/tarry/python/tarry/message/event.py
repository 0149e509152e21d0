"""Reading the messages of a batch, and their FIFO groups, from the Lambda event."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tarry.errors import InvalidEvent
from tarry.message.message import Message, delivery_of
from tarry.message.notices import WARNING
from tarry.record.attribute import receive_count

if TYPE_CHECKING:
    from tarry.message.invocation import Invocation, LogsProblems

Records = dict[str, dict[str, Any]]
"""The records of a batch by their message ids, in the order of the batch."""

_source_of, _user_attributes_of = itemgetter("eventSourceARN"), itemgetter("messageAttributes")


def records_of(event: object) -> tuple[Records, bool, bool]:
    """Return the event's records, each message once, whether all of them are plain, and whether any is from FIFO.

    Plain messages are fresh and without message attributes: most batches have no others, and skip further checks. If a
    message is in the batch twice, the later receive is returned.

    Raises:
        InvalidEvent: The messages cannot be known.
    """
    if type(event) is not dict:
        event = getattr(event, "raw_event", event)  # Powertools' SQSEvent holds the dict
    if not isinstance(event, dict):
        raise InvalidEvent(f"an SQS event is a dict with Records, got {type(event).__name__}: {event!r:.100}")
    if "Records" not in event:
        raise InvalidEvent(f"an SQS event has Records, got a dict with the keys {sorted(map(str, event))!r:.200}")
    listed = event["Records"]
    if not isinstance(listed, list):
        raise InvalidEvent(f"Records of an SQS event is a list, got {type(listed).__name__}: {listed!r:.100}")
    if (read := _read(listed)) is not None:
        return read
    records = _one_by_one(listed)
    return records, False, any_fifo(records)


def _read(listed: list[Any]) -> tuple[Records, bool, bool] | None:
    """Read the records in one pass, with few calls since it runs for every message; None if a record is irregular."""
    records: Records = {}
    are_plain, is_fifo, source, unread = False, False, None, iter(listed)
    type_of, a_dict, a_str = type, dict, str
    try:
        for record in unread:
            if type_of(record) is not a_dict or type_of(message_id := record["messageId"]) is not a_str:
                return None
            records[message_id] = record
            if record["messageAttributes"] or record["attributes"]["ApproximateReceiveCount"] != "1":
                break
            if record["eventSourceARN"] != source:
                source = record["eventSourceARN"]
                is_fifo = is_fifo or str(source).endswith(".fifo")
        else:
            are_plain = True
        for record in unread:
            if type_of(record) is not a_dict or type_of(message_id := record["messageId"]) is not a_str:
                return None
            records[message_id] = record
    except (KeyError, TypeError):
        return None
    if len(records) != len(listed) or "" in records:
        return None
    return records, are_plain, is_fifo if are_plain else any_fifo(records)


def _one_by_one(listed: list[Any]) -> Records:
    """Read records one by one if a message is in the batch twice, or a record is invalid."""
    records: Records = {}
    for index, record in enumerate(listed):
        if not isinstance(record, dict):
            raise InvalidEvent(f"record {index} is not an SQS record but {type(record).__name__}: {record!r:.100}")
        message_id = record.get("messageId")
        if not message_id or not isinstance(message_id, str):
            raise InvalidEvent(f"record {index} has no messageId (got {message_id!r:.100}): it is not an SQS record")
        if message_id not in records or receives(record) > receives(records[message_id]):
            records[message_id] = record
    return records


def any_attributes(records: Records) -> bool:
    """Return whether any record has message attributes."""
    try:
        return any(map(_user_attributes_of, records.values()))
    except KeyError:  # an incomplete record
        return True


def any_fifo(records: Records) -> bool:
    """Return whether any record is from a FIFO queue."""
    try:
        sources = set(map(_source_of, records.values()))
    except (KeyError, TypeError):  # an incomplete record
        sources = {str(record.get("eventSourceARN")) for record in records.values()}
    return any(str(source).endswith(".fifo") for source in sources)


def receives(record: dict[str, Any]) -> int:
    """Return the receive count of a record; 1 if it has none."""
    attributes = record.get("attributes")
    return receive_count(attributes.get("ApproximateReceiveCount") if isinstance(attributes, dict) else None)


def message_of(record: dict[str, Any], delivery_id: str, invocation: Invocation, log: LogsProblems) -> Message[Any]:
    """Return the message of a record, with its `Tarry` attribute read."""
    message: Message[Any] = Message(record, delivery_id, invocation)
    if record.get("messageAttributes"):
        read_attributes(message, record, log)
    return message


def read_attributes(message: Message[Any], record: dict[str, Any], log: LogsProblems) -> bool:
    """Read the `Tarry` attribute of a message; return whether it has a readable one."""
    from tarry.record.attribute import ATTRIBUTE, UnreadableRecord, is_ours, read_envelope

    attributes = record["messageAttributes"]
    if not isinstance(attributes, dict) or ATTRIBUTE not in attributes:
        return False
    attribute, delivery = attributes[ATTRIBUTE], delivery_of(message)
    try:
        delivery.envelope = read_envelope(attribute, delivery.body, delivery.invocation.world.clock.time())
    except UnreadableRecord as error:
        cause = "it is damaged or belongs to another message" if is_ours(attribute) else "tarry did not write it"
        text = f"The Tarry attribute is ignored, because {cause}: {error}."
        log.problem("record_unreadable", text, delivery, level=WARNING)
        return False
    return True
