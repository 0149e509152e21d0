"""FIFO queues: deduplication within five minutes, expiring receipt handles, and repeated receives."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.tools.simulator.sqs.errors import SqsError, invalid, missing, wrong_for_queue_type
from tarry.tools.simulator.sqs.message import check_contents, digest_of_body
from tarry.tools.simulator.sqs.message_store import MessageGroups
from tarry.tools.simulator.sqs.queue import SimulatedQueue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tarry.tools.simulator.sqs.message import Receipt, StoredMessage
    from tarry.tools.simulator.sqs.model import Sqs
    from tarry.tools.simulator.sqs.settings import QueueSettings


ATTEMPT_SECONDS = 300


class Delivered(NamedTuple):
    """A message that a receive returned, and its state then."""

    handle: str
    message: StoredMessage
    receive_count: int
    visible_at: float

    def is_unchanged(self, stored: Mapping[int, StoredMessage]) -> bool:
        """Return whether the message was not deleted, received again, or changed in its visibility since."""
        now = stored.get(self.message.position)
        return now is self.message and (now.receive_count, now.visible_at) == (self.receive_count, self.visible_at)


class ReceiveAttempts:
    """The receives of the last five minutes that had an attempt id and returned messages."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[float, list[Delivered]]] = {}

    def remember(self, attempt_id: str, received: Sequence[tuple[str, StoredMessage]], now: float) -> None:
        """Remember what a receive returned; a repetition does not extend the five minutes."""
        made_at, _ = self._made.get(attempt_id, (now, []))
        delivered = [Delivered(handle, each, each.receive_count, each.visible_at) for handle, each in received]
        self._made[attempt_id] = made_at, delivered

    def to_repeat(
        self, attempt_id: str, stored: Mapping[int, StoredMessage], now: float
    ) -> list[tuple[str, StoredMessage]] | None:
        """Return what the receive with this id returned; None if it is to receive anew.

        Raises `SqsError` if a message was deleted, received again, or changed in its visibility since.
        """
        self._made = {each: made for each, made in self._made.items() if now < made[0] + ATTEMPT_SECONDS}
        if attempt_id not in self._made:
            return None
        delivered = self._made[attempt_id][1]
        if not all(each.is_unchanged(stored) for each in delivered):
            reason = "The receiveRequestAttemptId is not valid anymore since the receive call is not retryable."
            raise invalid(attempt_id, "ReceiveRequestAttemptId", reason)
        if any(each.visible_at <= now for each in delivered):
            del self._made[attempt_id]
            return None
        return [(each.handle, each.message) for each in delivered]


DEDUPLICATION_SECONDS = 300

DeduplicationKey = tuple[str | None, str]
"""The message group, if each group has ids of its own, and the deduplication id."""


class Deduplication:
    """The deduplication ids of one queue. Deleting a message does not free its id."""

    def __init__(self) -> None:
        self._first: dict[DeduplicationKey, tuple[float, StoredMessage]] = {}
        """The end of the interval, and the first message; all intervals are as long, so the oldest ends first."""

    def first_of(self, key: DeduplicationKey, now: float) -> StoredMessage | None:
        """Return the message that was sent with this id within the deduplication interval."""
        while self._first and self._first[oldest := next(iter(self._first))][0] <= now:
            del self._first[oldest]
        return self._first[key][1] if key in self._first else None

    def remember(self, key: DeduplicationKey, message: StoredMessage, now: float) -> None:
        self._first[key] = now + DEDUPLICATION_SECONDS, message


SEQUENCE_START = 18_850_000_000_000_000_000
SEQUENCE_STEP = 256


class FifoQueue(SimulatedQueue):
    """A FIFO queue. A receipt handle expires with the visibility timeout of its message."""

    makes_duplicates = False

    def __init__(self, name: str, number: int, settings: QueueSettings, account: Sqs) -> None:
        super().__init__(name, number, settings, account)
        self._deduplication = Deduplication()
        # AWS was recorded to keep the scope of the creation, although the attribute can be changed
        self._deduplicates_by_group = settings.deduplicates_by_group
        self._attempts = ReceiveAttempts()

    def _order(self) -> MessageGroups:
        return MessageGroups(self._account.now)

    def send(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        if not entry.get("MessageGroupId"):
            raise missing("MessageGroupId")
        self.check_deduplication(entry)
        check_contents(entry, self.settings.maximum_bytes)
        if delay := entry.get("DelaySeconds"):
            raise wrong_for_queue_type(delay, "DelaySeconds")
        now = self._account.now()
        deduplication_id = entry.get("MessageDeduplicationId") or _content_based_id(entry["MessageBody"])
        key = (entry["MessageGroupId"] if self._deduplicates_by_group else None, deduplication_id)
        message = self._deduplication.first_of(key, now)
        if message is None:
            position = self._store.next_position
            more = {"deduplication_id": deduplication_id, "sequence_number": _sequence_number(position)}
            message = self._accept(entry, self.settings.delay, **more)
            self._deduplication.remember(key, message, now)
        else:
            self._record("deduplicated", message, deduplication_id=deduplication_id, body=entry["MessageBody"])
        return {
            "MessageId": message.delivery_id,
            "MD5OfMessageBody": digest_of_body(entry["MessageBody"]),
            "SequenceNumber": message.sequence_number,
        }

    def check_deduplication(self, entry: Mapping[str, Any]) -> None:
        """Raise `SqsError` if a message has no deduplication id, and the queue derives none from the body."""
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

        A repetition returns the same receipt handles, and the visibility timeout starts again. Raises `SqsError` if the
        earlier receive cannot be repeated.
        """
        self.catch_up()
        now = self._account.now()
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
        if receipt.receive_count != message.receive_count or message.visible_at <= self._account.now():
            raise invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
        return True

    def _may_change_visibility(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        return self._is_current(message, receipt, handle)

    def _as_dead_letter(self, message: StoredMessage) -> StoredMessage:
        # Unlike on a standard queue, the retention period starts again.
        moved = replace(message, sent_at=self._account.now(), deduplication_id=message.delivery_id)
        return self._with_sequence_number(moved)

    def _with_sequence_number(self, message: StoredMessage) -> StoredMessage:
        return replace(message, sequence_number=_sequence_number(message.position))


def _sequence_number(position: int) -> str:
    return f"{SEQUENCE_START + SEQUENCE_STEP * position:020d}"


def _content_based_id(body: str) -> str:
    return sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
