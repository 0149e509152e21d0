"""FIFO queues: each group in order, one receive at a time, and nothing twice within five minutes."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs.contents import check_contents
from tarry.simulator.sqs.deduplication import Deduplication
from tarry.simulator.sqs.errors import SqsError, invalid, missing, wrong_for_queue_type
from tarry.simulator.sqs.groups import MessageGroups
from tarry.simulator.sqs.queue import SendReceipt, SimulatedQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.simulator.sqs.handles import Receipt
    from tarry.simulator.sqs.message import StoredMessage
    from tarry.simulator.sqs.settings import QueueSettings
    from tarry.simulator.sqs.surroundings import Surroundings

SEQUENCE_START = 18_850_000_000_000_000_000
SEQUENCE_STEP = 256


class FifoQueue(SimulatedQueue):
    """A queue of groups; its handles end with the visibility of their messages."""

    def __init__(self, name: str, arn: str, number: int, settings: QueueSettings, around: Surroundings) -> None:
        super().__init__(name, arn, number, settings, around)
        self._sent_before = Deduplication()

    def _order(self) -> MessageGroups:
        return MessageGroups(self._around.now)

    def send(self, entry: Mapping[str, Any]) -> SendReceipt:
        if not entry.get("MessageGroupId"):
            raise missing("MessageGroupId")
        self.check_deduplication(entry)
        check_contents(entry, self.settings.maximum_bytes)
        if delay := entry.get("DelaySeconds"):
            raise wrong_for_queue_type(delay, "DelaySeconds")
        now = self._around.now()
        deduplication_id = entry.get("MessageDeduplicationId") or _content_based_id(entry["MessageBody"])
        key = (entry["MessageGroupId"] if self.settings.deduplicates_by_group else None, deduplication_id)
        first = self._sent_before.first_of(key, now)
        if first is not None:
            self._record("swallowed", first, deduplication_id=deduplication_id, body=entry["MessageBody"])
            return SendReceipt(first.delivery_id, first.sequence_number)
        sequence_number = _sequence_number(self._stock.next_position)
        message = self._take_in(
            entry, self.settings.delay, deduplication_id=deduplication_id, sequence_number=sequence_number
        )
        self._sent_before.remember(key, message, now)
        return SendReceipt(message.delivery_id, message.sequence_number)

    def check_deduplication(self, entry: Mapping[str, Any]) -> None:
        """Raises `SqsError` for a message without an id, where the queue makes none of the content."""
        if not entry.get("MessageDeduplicationId") and not self.settings.content_based_deduplication:
            text = (
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly"
            )
            raise SqsError("InvalidParameterValue", text)

    def _most(self, most: int, *, waits: bool) -> int:
        return most

    def _refuse_beyond_in_flight_limit(self) -> None:
        """A FIFO queue says nothing and gives nothing."""

    def _holds(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        if receipt.receive_count != message.receive_count or message.visible_at <= self._around.now():
            raise invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
        return True

    def deliver_again(self, handle: str, seconds: float) -> None:
        """A FIFO queue delivers nothing twice."""

    def _moved_here(self, message: StoredMessage) -> StoredMessage:
        # Unlike on a standard queue its time begins anew.
        return self._numbered(replace(message, sent_at=self._around.now(), deduplication_id=message.delivery_id))

    def _numbered(self, message: StoredMessage) -> StoredMessage:
        return replace(message, sequence_number=_sequence_number(message.position))


def _sequence_number(position: int) -> str:
    return f"{SEQUENCE_START + SEQUENCE_STEP * position:020d}"


def _content_based_id(body: str) -> str:
    return sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
