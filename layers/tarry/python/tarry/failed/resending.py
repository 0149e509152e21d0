"""Send archived dead letters to a queue again: the entries of the requests, and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.failed.requests import TRIES, wait
from tarry.failed.result import Result, twice_in
from tarry.record.attribute import ATTRIBUTE
from tarry.settle.copies import as_sent
from tarry.sqs.limits import MAX_ENTRIES, MAX_REQUEST_BYTES, is_reserved, message_size
from tarry.sqs.refusals import (
    doubt,
    failed_entries,
    is_refused_for_now,
    is_worth_splitting,
    may_be_applied,
    was_repeated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.failed.archive import ArchivedMessage
    from tarry.failed.queues import DeadLetterQueue
    from tarry.sqs.lookups import Lookups

DROPPED = (
    "SQS dropped it: a message with the same deduplication id was sent to this queue in the last 5 minutes; "
    "restore it again after that"
)


class OutgoingMessage:
    """A message to send: the entry of a request, and why it cannot be sent."""

    def __init__(self, archived: ArchivedMessage, queue: DeadLetterQueue) -> None:
        record, system = archived.record, archived.record["attributes"]
        self.archived = archived
        attributes = record["messageAttributes"]
        self.left_out = [name for name in attributes if is_reserved(name)]  # SQS refuses them in a send
        self._attributes = {name: as_sent(each) for name, each in attributes.items() if name not in self.left_out}
        self.is_fifo = queue.arn.is_fifo
        self.group = system.get("MessageGroupId", "")
        self.size = message_size(archived.body, self._attributes)
        self.may_be_twice = False
        """Whether SQS has confirmed the send, but the answer to an earlier try was lost."""
        self.problem = ""
        if self.is_fifo != archived.queue.is_fifo:
            was, is_now = ("FIFO", "standard") if archived.queue.is_fifo else ("standard", "FIFO")
            self.problem = f"it was removed from {archived.queue.name}, a {was} queue; {queue.name} is a {is_now} queue"

    def fits_behind(self, others: list[OutgoingMessage]) -> bool:
        """Whether it can be in a request with these; on FIFO, one message of a group at a time."""
        has_room = len(others) < MAX_ENTRIES and sum(each.size for each in others) + self.size <= MAX_REQUEST_BYTES
        return has_room and not (self.is_fifo and any(each.group == self.group for each in others))

    def entry(self, entry_id: str) -> dict[str, Any]:
        system = self.archived.record["attributes"]
        entry: dict[str, Any] = {"Id": entry_id, "MessageBody": self.archived.body}
        if self._attributes:
            entry["MessageAttributes"] = self._attributes
        if header := system.get("AWSTraceHeader"):
            entry["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": header}}
        if self.group:
            entry["MessageGroupId"] = self.group
        if self.is_fifo:
            entry["MessageDeduplicationId"] = system["MessageDeduplicationId"]
        else:
            entry["DelaySeconds"] = 0  # whatever the default of the queue
        return entry

    @property
    def note(self) -> str | None:
        """An explanation of what is different from before; None if nothing is."""
        record = self.archived.record
        if self.left_out:
            return f"without its attributes {', '.join(self.left_out)}, which only AWS can set"
        if ATTRIBUTE not in record["messageAttributes"] and "DeadLetterQueueSourceArn" in record["attributes"]:
            source = record["attributes"]["DeadLetterQueueSourceArn"].rpartition(":")[2]
            return f"it gets a new id, and SQS no longer knows that it came from {source}: retry it with --to {source}"
        return None


def send(messages: list[OutgoingMessage], queue: DeadLetterQueue, sending: Lookups) -> dict[str, Exception | None]:
    """Send messages, repeating what SQS throttles; return the errors by delivery id, None if confirmed."""
    errors: dict[str, Exception | None] = {}
    left = messages
    for number in range(1, TRIES + 1):
        throttled = []
        for message, error in _request(left, queue, sending):
            if error is not None and is_refused_for_now(error) and not may_be_applied(error) and number < TRIES:
                throttled.append(message)
            errors[message.archived.delivery_id] = error
        if not throttled:
            break
        left = throttled
        wait(number)
    return errors


def _request(
    messages: list[OutgoingMessage], queue: DeadLetterQueue, sending: Lookups
) -> Iterator[tuple[OutgoingMessage, Exception | None]]:
    if not messages:
        return
    entries = [message.entry(str(index)) for index, message in enumerate(messages)]
    try:
        answer = sending.requests.call("send_message_batch", QueueUrl=sending.url(queue.arn), Entries=entries)
    except Exception as error:  # noqa: BLE001 whatever the error, no message is confirmed
        if len(messages) > 1 and is_worth_splitting(error):
            for message in messages:
                yield from _request([message], queue, sending)
        else:
            yield from ((message, error) for message in messages)
        return
    for message in messages:
        message.may_be_twice = was_repeated(answer) and not message.is_fifo
    refused = failed_entries(answer)
    receipts = {entry.get("Id"): entry for entry in answer.get("Successful") or []}
    for index, message in enumerate(messages):
        receipt = receipts.get(str(index), {})
        was_dropped = message.is_fifo and receipt.get("MessageId") == message.archived.delivery_id
        doubts = doubt(message.archived.body, receipt) or (_Dropped(DROPPED) if was_dropped else None)
        yield message, refused.get(str(index)) or doubts


class _Dropped(Exception):
    """SQS took the message for a duplicate of its own first send."""


def result_of(message: OutgoingMessage, queue: DeadLetterQueue, error: Exception | None) -> Result:
    """Return the result of a message that was sent, with this error or none."""
    if error is None:
        notes = [message.note, twice_in(queue.name) if message.may_be_twice else None]
        return Result(message.archived.id, "restored", note="; ".join(filter(None, notes)) or None)
    if may_be_applied(error) and not isinstance(error, _Dropped):
        why = f"SQS did not confirm the send ({error}): it may be in {queue.name}"
        return Result(message.archived.id, "unconfirmed", why)
    return Result(message.archived.id, "failed", f"not restored: {error}")
