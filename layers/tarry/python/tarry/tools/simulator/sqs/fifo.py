"""FIFO queues: deduplication within five minutes, expiring receipt handles, and repeated receives."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tarry.tools.simulator.sqs.contents import check_contents
from tarry.tools.simulator.sqs.errors import SqsError, invalid, missing, wrong_for_queue_type
from tarry.tools.simulator.sqs.message import digest_of_body
from tarry.tools.simulator.sqs.message_groups import MessageGroups
from tarry.tools.simulator.sqs.queue import SendReceipt, SimulatedQueue
from tarry.tools.simulator.sqs.receive_attempts import ReceiveAttempts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.tools.simulator.sqs.handles import Receipt
    from tarry.tools.simulator.sqs.message import StoredMessage
    from tarry.tools.simulator.sqs.queue_context import QueueContext
    from tarry.tools.simulator.sqs.settings import QueueSettings

DEDUPLICATION_SECONDS = 300

DeduplicationKey = tuple[str | None, str]
"""The message group, if each group has ids of its own, and the deduplication id."""


class Deduplication:
    """The deduplication ids of one queue. Deleting a message does not free its id."""

    def __init__(self) -> None:
        self._first: dict[DeduplicationKey, StoredMessage] = {}
        self._expiries: deque[tuple[float, DeduplicationKey]] = deque()

    def first_of(self, key: DeduplicationKey, now: float) -> StoredMessage | None:
        """Return the message that was sent with this id within the deduplication interval."""
        while self._expiries and self._expiries[0][0] <= now:
            del self._first[self._expiries.popleft()[1]]
        return self._first.get(key)

    def remember(self, key: DeduplicationKey, message: StoredMessage, now: float) -> None:
        self._first[key] = message
        self._expiries.append((now + DEDUPLICATION_SECONDS, key))


SEQUENCE_START = 18_850_000_000_000_000_000
SEQUENCE_STEP = 256


class FifoQueue(SimulatedQueue):
    """A FIFO queue. A receipt handle expires with the visibility timeout of its message."""

    def __init__(self, name: str, arn: str, number: int, settings: QueueSettings, context: QueueContext) -> None:
        super().__init__(name, arn, number, settings, context)
        self._deduplication = Deduplication()
        # AWS was recorded to keep the scope of the creation, although the attribute can be changed
        self._deduplicates_by_group = settings.deduplicates_by_group
        self._attempts = ReceiveAttempts()

    def _order(self) -> MessageGroups:
        return MessageGroups(self._context.now)

    def send(self, entry: Mapping[str, Any]) -> SendReceipt:
        if not entry.get("MessageGroupId"):
            raise missing("MessageGroupId")
        self.check_deduplication(entry)
        check_contents(entry, self.settings.maximum_bytes)
        if delay := entry.get("DelaySeconds"):
            raise wrong_for_queue_type(delay, "DelaySeconds")
        now = self._context.now()
        deduplication_id = entry.get("MessageDeduplicationId") or _content_based_id(entry["MessageBody"])
        key = (entry["MessageGroupId"] if self._deduplicates_by_group else None, deduplication_id)
        first = self._deduplication.first_of(key, now)
        if first is not None:
            self._record("deduplicated", first, deduplication_id=deduplication_id, body=entry["MessageBody"])
            return SendReceipt(first.delivery_id, first.sequence_number, digest_of_body(entry["MessageBody"]))
        sequence_number = _sequence_number(self._store.next_position)
        message = self._accept(
            entry, self.settings.delay, deduplication_id=deduplication_id, sequence_number=sequence_number
        )
        self._deduplication.remember(key, message, now)
        return SendReceipt(message.delivery_id, message.sequence_number, message.md5_of_body)

    def check_deduplication(self, entry: Mapping[str, Any]) -> None:
        """Check that a message has a deduplication id, or that the queue derives one from the body.

        Raises:
            SqsError: There is neither.
        """
        if entry.get("MessageDeduplicationId") is None and not self.settings.content_based_deduplication:
            text = (
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly"
            )
            raise SqsError("InvalidParameterValue", text)

    def purge(self) -> None:
        super().purge()
        self._deduplication = Deduplication()

    def receive_attempt(
        self, attempt_id: str, max_messages: int, visibility_seconds: int | None, *, waits: bool
    ) -> list[tuple[str, StoredMessage]]:
        """Receive messages, or the same ones again if a receive with this ``ReceiveRequestAttemptId`` returned them.

        A repetition returns the same receipt handles, and the visibility timeout starts again.

        Raises:
            SqsError: The earlier receive cannot be repeated.
        """
        self.catch_up()
        now = self._context.now()
        received = self._attempts.to_repeat(attempt_id, self._store.messages, now)
        if received is None:
            received = self.receive(max_messages, visibility_seconds, waits=waits)
        else:
            seconds = self.settings.visibility if visibility_seconds is None else visibility_seconds
            for handle, message in received:
                self._extend(message, handle, seconds)
        if received:
            self._attempts.remember(attempt_id, received, now)
        return received

    def first_visible(self, at: float) -> StoredMessage | None:
        """Return the oldest message that no earlier one of its group keeps from being received."""
        self.catch_up()
        blocked: set[str | None] = set()
        for message in self._store.messages.values():
            if message.visible_at > at:
                blocked.add(message.group)
            elif message.group not in blocked:
                return message
        return None

    def _receive_limit(self, max_messages: int, *, waits: bool) -> int:
        return max_messages

    def _refuse_beyond_in_flight_limit(self) -> None:
        """Return without an error: on a FIFO queue such a receive returns no messages."""

    def _is_current(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        if receipt.receive_count != message.receive_count or message.visible_at <= self._context.now():
            raise invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
        return True

    def deliver_duplicate(self, handle: str, seconds: float) -> None:
        """Do nothing: a FIFO queue makes no duplicates."""

    def _as_dead_letter(self, message: StoredMessage) -> StoredMessage:
        # Unlike on a standard queue, the retention period starts again.
        moved = replace(message, sent_at=self._context.now(), deduplication_id=message.delivery_id)
        return self._with_sequence_number(moved)

    def _with_sequence_number(self, message: StoredMessage) -> StoredMessage:
        return replace(message, sequence_number=_sequence_number(message.position))


def _sequence_number(position: int) -> str:
    return f"{SEQUENCE_START + SEQUENCE_STEP * position:020d}"


def _content_based_id(body: str) -> str:
    return sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
