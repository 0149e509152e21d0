"""Send dead letters back to their queues: send, confirm, then delete.

Whatever fails, a message is in the dead-letter queue, or in both queues under one stable id. Messages are sent ten at
a time, and each ten are confirmed and deleted before the next ten: if the process is killed, at most the current ones
of each thread are in both queues.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tarry.failed.dead_letters import fresh_envelope, system_attributes, user_attributes
from tarry.failed.removing import GONE, Result, delete_patiently, failed, skipped, twice_in, unconfirmed
from tarry.failed.requests import TRIES, NowhereToGo, wait, was_throttled
from tarry.message.delivery import Delivery
from tarry.message.failure_record import fit
from tarry.record.attribute import ATTRIBUTE, body_sum, dump
from tarry.settle.copies import Attributes, Copy, sendable_attributes
from tarry.settle.requests import Sent, send_copies
from tarry.sqs.refusals import MAX_ATTRIBUTES, Refused, error_code, is_denied, may_be_applied, message_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.queues import Routes
    from tarry.sqs.client import Lookups
    from tarry.support.values import QueueArn

UNDECODABLE = "its body cannot be decoded: edit or remove it"


class DoesNotFit(Exception):
    """The message is larger than the maximum message size of the target queue."""


def copy_of(dead_letter: DeadLetterMessage, received: Delivery, target: QueueArn, lookups: Lookups) -> Copy:
    """Return the copy to send; ``received`` is the last delivery of the dead letter. Raises `DoesNotFit`."""
    delivery = outgoing_delivery(dead_letter, received)
    attributes = sendable_attributes(delivery)
    limit, _ = lookups.size_limit(target)
    room = limit - message_size(dead_letter.body, attributes)
    if room < 0:
        raise DoesNotFit(f"its size is {limit - room} bytes; the limit of {target.name} is {limit} bytes")
    text = envelope_text(dead_letter, room)
    with_envelope: Attributes = {**attributes, ATTRIBUTE: {"DataType": "String", "StringValue": text or ""}}
    variants = [attributes if text is None else with_envelope]
    return Copy(delivery, delivery.body, target, variants, delay=0, transfer=_transfer(dead_letter, target))


def outgoing_delivery(dead_letter: DeadLetterMessage, received: Delivery) -> Delivery:
    """Return the received delivery with the body and attributes to send."""
    attributes = {"attributes": system_attributes(dead_letter), "messageAttributes": user_attributes(dead_letter)}
    changed = {**received.record, "body": dead_letter.body, **attributes}
    return Delivery(changed, received.delivery_id, received.invocation)


def envelope_text(dead_letter: DeadLetterMessage, room: int) -> str | None:
    """Return the envelope as text of at most ``room`` bytes; None if there is no room for one."""
    attributes = user_attributes(dead_letter)
    if len(attributes) >= MAX_ATTRIBUTES or ATTRIBUTE in attributes:
        return None
    envelope, room = fresh_envelope(dead_letter), room - len(ATTRIBUTE) - len("String")
    if "failure" in envelope:
        return fit(envelope, room)
    text = dump(envelope)
    return text if len(text) <= room else None


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


SEND_TRIES = 3 * TRIES
REPEATED = "this id was already retried: it is a duplicate, or was dead-lettered again"


def retry_dead_letters(
    inspection: Inspection, dead_letters: Sequence[DeadLetterMessage], routes: Routes, *, by_id: bool = True
) -> list[Result]:
    """Send these dead letters back.

    ``by_id``: they were selected by id, so one that cannot be decoded is a failure; otherwise `offered` claimed them.
    """
    results: dict[str, Result] = {}
    sendable: list[tuple[DeadLetterMessage, Copy]] = []
    for dead_letter in dead_letters:
        if by_id and not inspection.handled.claim(dead_letter):
            results[dead_letter.delivery_id] = skipped(dead_letter, REPEATED)
            continue
        answer = prepared(inspection, dead_letter, routes, by_id=by_id)
        if isinstance(answer, Result):
            results[dead_letter.delivery_id] = answer
            if by_id:
                inspection.handled.unclaim(dead_letter)  # it may be offered again, edited
        else:
            sendable.append((dead_letter, answer))
    if sendable:
        inspection.before_change()
    # In batches with at most one message of each FIFO group, so that none overtakes a failed one.
    batches: list[list[tuple[DeadLetterMessage, Copy]]] = []
    before: Counter[tuple[str, str]] = Counter()
    for dead_letter, copy in sendable:
        group = _group(dead_letter, copy)
        number = before[group] if copy.target.is_fifo else 0
        before[group] += 1
        batches += [[]] if number == len(batches) else []
        batches[number].append((dead_letter, copy))
    for batch in batches:
        results |= _send(inspection, batch)
    return [results[dead_letter.delivery_id] for dead_letter in dead_letters]


def _send(inspection: Inspection, batch: list[tuple[DeadLetterMessage, Copy]]) -> dict[str, Result]:
    results: dict[str, Result] = {}
    dead_letters: dict[str, DeadLetterMessage] = {}
    copies: list[Copy] = []
    for dead_letter, copy in batch:
        ahead = inspection.stopped_groups.get(_group(dead_letter, copy))
        if ahead is None:
            dead_letters[dead_letter.delivery_id] = dead_letter
            copies.append(copy)
        else:
            results[dead_letter.delivery_id] = failed(
                dead_letter, f"not sent: it is behind {ahead} in its message group, which was not sent"
            )
    for sent in send_patiently(inspection, copies):
        dead_letter = dead_letters[sent.copy.delivery.delivery_id]
        results[dead_letter.delivery_id] = _result(inspection, dead_letter, sent)
        if sent.error is not None and sent.copy.target.is_fifo:
            inspection.stopped_groups[_group(dead_letter, sent.copy)] = dead_letter.id
    return results


def _group(dead_letter: DeadLetterMessage, copy: Copy) -> tuple[str, str]:
    return copy.target.text, dead_letter.group_id or dead_letter.id


def send_patiently(inspection: Inspection, copies: list[Copy]) -> list[Sent]:
    """Send copies, then delete the originals, retrying throttled requests."""
    done: list[Sent] = []
    for number in range(1, SEND_TRIES + 1):
        throttled: list[Sent] = []
        for each in send_copies(copies, inspection.lookups):
            is_again = number < SEND_TRIES and each.error is not None and was_throttled(each.error)
            (throttled if is_again else done).append(each)
        if not throttled:
            break
        wait(number)
        copies = []
        for each in throttled:  # while it waited, its lease may have ended
            if inspection.leases.handle(each.copy.delivery.delivery_id) == each.copy.delivery.receipt_handle:
                copies.append(each.copy)
            else:
                done.append(Sent(each.copy, Refused("ReceiptHandleIsInvalid", GONE)))
    return done


def why_not_deleted(inspection: Inspection, dead_letter: DeadLetterMessage, sent: Sent) -> str | None:
    """Delete an original that was not deleted with its send; return the error if that fails as well."""
    if sent.not_deleted is None and not inspection.may_be_deleted(dead_letter):
        return None
    return delete_patiently(inspection, [dead_letter]).get(dead_letter.delivery_id)


def _result(inspection: Inspection, dead_letter: DeadLetterMessage, sent: Sent) -> Result:
    queue, target = inspection.queue.name, sent.copy.target.name
    if sent.error is not None:
        if may_be_applied(sent.error):
            error = f"SQS did not confirm the send ({sent.error}): it is still in {queue}, and may also be in {target}"
            return unconfirmed(dead_letter, error)
        if is_denied(error_code(sent.error)):
            return failed(dead_letter, f"sqs:SendMessage on {target} is not allowed: {sent.error}", "denied")
        return failed(dead_letter, f"not sent to {target}: {sent.error}")
    if why := why_not_deleted(inspection, dead_letter, sent):
        if inspection.may_be_deleted(dead_letter):
            error = f"sent to {target}, but it may still be in {queue} ({why}): if it is, remove it"
            return unconfirmed(dead_letter, error)
        return failed(dead_letter, f"sent to {target}, but not deleted from {queue} ({why}): remove it from {queue}")
    inspection.forget([dead_letter])
    has_envelope = len(sent.copy.variants[0]) > len(dead_letter.attributes)
    notes = [] if has_envelope else ["sent without its tarry envelope, which does not fit: it gets a new stable id"]
    notes += [twice_in(target)] if sent.may_be_twice else []
    return Result(dead_letter.id, "retried", note="; ".join(notes) or None, dead_letter=dead_letter)
