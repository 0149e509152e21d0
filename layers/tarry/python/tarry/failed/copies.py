"""The copy of a dead letter that is sent back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry import world
from tarry.failed.dead_letters import fresh_envelope, user_attributes, without_lineage
from tarry.failed.errors import NowhereToGo
from tarry.failed.removing import GONE
from tarry.failed.result import Result, failed, skipped
from tarry.message.delivery import Delivery
from tarry.message.failure_record import fit
from tarry.record.attribute import ATTRIBUTE, body_sum, dump
from tarry.settle.copies import Attributes, Copy, sendable_attributes
from tarry.sqs.limits import MAX_ATTRIBUTES, message_size, utf8_length
from tarry.sqs.topology import Topology

if TYPE_CHECKING:
    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.queues import Routes
    from tarry.sqs.lookups import Lookups
    from tarry.support.values import QueueArn

UNDECODABLE = "its body cannot be decoded: edit or remove it"


class DoesNotFit(Exception):
    """The message is larger than the maximum message size of the target queue."""


def copy_of(dead_letter: DeadLetterMessage, received: Delivery, target: QueueArn, lookups: Lookups) -> Copy:
    """Return the copy to send; ``received`` is the last delivery of the dead letter. Raises `DoesNotFit`."""
    delivery = outgoing_delivery(dead_letter, received)
    attributes = sendable_attributes(delivery)
    limit, _ = world.current().keep(Topology).maximum_message_size(target, lookups.requests)
    room = limit - message_size(dead_letter.body, attributes)
    if room < 0:
        raise DoesNotFit(f"its size is {limit - room} bytes; the limit of {target.name} is {limit} bytes")
    text = envelope_text(dead_letter, room)
    with_envelope: Attributes = {**attributes, ATTRIBUTE: {"DataType": "String", "StringValue": text or ""}}
    return Copy(
        delivery,
        target,
        [attributes if text is None else with_envelope],
        delay=0,
        transfer=_transfer(dead_letter, target),
    )


def outgoing_delivery(dead_letter: DeadLetterMessage, received: Delivery) -> Delivery:
    """Return the received delivery with the body and attributes to send."""
    record = received.record
    system = {name: value for name, value in record["attributes"].items() if name != "AWSTraceHeader"}
    if header := without_lineage(record["attributes"].get("AWSTraceHeader")):
        system["AWSTraceHeader"] = header
    attributes = user_attributes(dead_letter)
    changed = {**record, "body": dead_letter.body, "attributes": system, "messageAttributes": attributes}
    return Delivery(changed, received.delivery_id, received.invocation)


def envelope_text(dead_letter: DeadLetterMessage, room: int) -> str | None:
    """Return the envelope as text of at most ``room`` bytes; None if there is no room for one."""
    attributes = user_attributes(dead_letter)
    if len(attributes) >= MAX_ATTRIBUTES or ATTRIBUTE in attributes:
        return None
    envelope = fresh_envelope(dead_letter)
    if "failure" in envelope:
        return fit(envelope, room - utf8_length(ATTRIBUTE) - utf8_length("String"))
    text = dump(envelope)
    return text if len(text) <= room - utf8_length(ATTRIBUTE) - utf8_length("String") else None


def _transfer(dead_letter: DeadLetterMessage, target: QueueArn) -> str:
    """Return the key of the deduplication id on FIFO: SQS must not drop an edited body as a duplicate."""
    edited = f" {body_sum(dead_letter.body)}" if dead_letter.body != dead_letter.record["body"] else ""
    return f"{dead_letter.delivery_id} {target}{edited}"


def prepared(inspection: Inspection, dead_letter: DeadLetterMessage, routes: Routes, *, by_id: bool) -> Copy | Result:
    """Return the copy to send, or the result of a dead letter that is not sent."""
    if dead_letter.is_undecodable:
        return failed(dead_letter, UNDECODABLE, "undecodable") if by_id else skipped(dead_letter, UNDECODABLE)
    try:
        target = routes.target(dead_letter)
        received = inspection.delivery(dead_letter)
        if received is None:
            return failed(dead_letter, GONE)
        return copy_of(dead_letter, received, target, inspection.lookups)
    except NowhereToGo as error:
        return failed(dead_letter, str(error), "nowhere")
    except DoesNotFit as error:
        return failed(dead_letter, str(error))
