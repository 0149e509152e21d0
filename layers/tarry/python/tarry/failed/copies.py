"""The copy of a letter that goes back to where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry import world
from tarry.delivery import Delivery
from tarry.envelope.attribute import ATTRIBUTE, body_sum, dump
from tarry.envelope.fitting import fit
from tarry.failed.letter import fresh_record, user_attributes, without_lineage
from tarry.settlement.copies import Attributes, Copy, sendable_attributes
from tarry.sqs.limits import MAX_ATTRIBUTES, message_size, utf8_length
from tarry.sqs.topology import Topology

if TYPE_CHECKING:
    from tarry.failed.letter import Letter
    from tarry.sqs.lookups import Lookups
    from tarry.support.arn import QueueArn


class DoesNotFit(Exception):
    """The target takes no message of that size."""


def copy_of(letter: Letter, held: Delivery, target: QueueArn, lookups: Lookups) -> Copy:
    """The copy to send; ``held`` is the letter as it was received last. Raises `DoesNotFit`."""
    delivery = carrier(letter, held)
    attributes = sendable_attributes(delivery)
    limit, _ = world.current().keep(Topology).maximum_message_size(target, lookups.requests)
    room = limit - message_size(letter.body, attributes)
    if room < 0:
        raise DoesNotFit(f"it is {limit - room} bytes, and {target.name} takes at most {limit}")
    text = record_text(letter, room)
    with_record: Attributes = {**attributes, ATTRIBUTE: {"DataType": "String", "StringValue": text or ""}}
    return Copy(
        delivery, target, [attributes if text is None else with_record], delay=0, transfer=_transfer(letter, target)
    )


def carrier(letter: Letter, held: Delivery) -> Delivery:
    """The letter as a message of its dead-letter queue, with its body as it is to be sent."""
    record = held.record
    system = {name: value for name, value in record["attributes"].items() if name != "AWSTraceHeader"}
    if header := without_lineage(record["attributes"].get("AWSTraceHeader")):
        system["AWSTraceHeader"] = header
    attributes = user_attributes(letter)
    changed = {**record, "body": letter.body, "attributes": system, "messageAttributes": attributes}
    return Delivery(changed, held.delivery_id, held.invocation)


def record_text(letter: Letter, room: int) -> str | None:
    """Its record, as long as there is room for; None where there is none."""
    attributes = user_attributes(letter)
    if len(attributes) >= MAX_ATTRIBUTES or ATTRIBUTE in attributes:
        return None
    record = fresh_record(letter)
    if "failure" in record:
        return fit(record, room - utf8_length(ATTRIBUTE) - utf8_length("String"))
    text = dump(record)
    return text if len(text) <= room - utf8_length(ATTRIBUTE) - utf8_length("String") else None


def _transfer(letter: Letter, target: QueueArn) -> str:
    """On FIFO another body is another transfer: SQS must not take it for the one before."""
    edited = f" {body_sum(letter.body)}" if letter.body != letter._record["body"] else ""
    return f"{letter.delivery_id} {target}{edited}"
