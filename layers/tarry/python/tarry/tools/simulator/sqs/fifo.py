"""FIFO queues: deduplication within five minutes, expiring receipt handles, and repeated receives."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.tools.simulator.sqs.errors import SqsError, invalid, missing, wrong_for_queue_type
from tarry.tools.simulator.sqs.message import check_contents, digest_of_body
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

    def __init__(self, name: str, number: int, settings: QueueSettings, account: Sqs) -> None:
        super().__init__(name, number, settings, account)
        self._deduplication = Deduplication()
        # AWS was recorded to keep the scope of the creation, although the attribute can be changed
        self._deduplicates_by_group = settings.deduplicates_by_group
        self._attempts: dict[str, tuple[float, Sequence[Delivered]]] = {}
        """The receives of the last five minutes that had an attempt id and returned messages: when, and what."""

    def _place(self, message: StoredMessage) -> None:
        message.sequence_number = f"{SEQUENCE_START + SEQUENCE_STEP * message.position:020d}"
        super()._place(message)

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
            message = self._accept(entry, self.settings.delay, deduplication_id=deduplication_id)
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
        self._attempts = {each: made for each, made in self._attempts.items() if now < made[0] + ATTEMPT_SECONDS}
        made_at, delivered = self._attempts.pop(attempt_id, (now, ()))
        for each in delivered:
            stored = self._store.messages.get(each.message.position)
            state = each.message.receive_count, each.message.visible_at
            if stored is not each.message or state != (each.receive_count, each.visible_at):
                self._attempts[attempt_id] = made_at, delivered
                reason = "The receiveRequestAttemptId is not valid anymore since the receive call is not retryable."
                raise invalid(attempt_id, "ReceiveRequestAttemptId", reason)
        if delivered and all(each.visible_at > now for each in delivered):
            received = [(each.handle, each.message) for each in delivered]
            seconds = self.settings.visibility if visibility_seconds is None else visibility_seconds
            for handle, message in received:
                self._extend(message, handle, seconds)
        else:
            made_at, received = now, self.receive(max_messages, visibility_seconds, waits=waits)
        if received:  # a repetition does not extend the five minutes
            now_delivered = [Delivered(handle, each, each.receive_count, each.visible_at) for handle, each in received]
            self._attempts[attempt_id] = made_at, now_delivered
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

    def _is_current(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        if receipt.receive_count != message.receive_count or message.visible_at <= self._account.now():
            raise invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
        return True

    def _may_change_visibility(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        return self._is_current(message, receipt, handle)

    def _as_dead_letter(self, message: StoredMessage) -> StoredMessage:
        # Unlike on a standard queue, the retention period starts again.
        return replace(message, sent_at=self._account.now(), deduplication_id=message.delivery_id)


def _content_based_id(body: str) -> str:
    return sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
