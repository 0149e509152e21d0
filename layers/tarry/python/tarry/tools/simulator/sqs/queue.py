"""Queues: sends, receives, visibility timeouts, deletes and dead-lettering.

FIFO queues add deduplication within five minutes, expiring receipt handles, and repeated receives.
"""

from __future__ import annotations

import math
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.support.values import MAX_VISIBILITY_SECONDS
from tarry.tools.simulator.sqs.errors import SqsError, check_range, invalid, missing, wrong_for_queue_type
from tarry.tools.simulator.sqs.message import (
    StoredMessage,
    check_contents,
    digest_of_body,
    handle_of,
    read_handle,
    trace_header,
)
from tarry.tools.simulator.sqs.message_store import MessageGroups, MessageStore, StandardOrder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tarry.tools.simulator.sqs.message import Receipt
    from tarry.tools.simulator.sqs.message_store import Depth
    from tarry.tools.simulator.sqs.model import Sqs
    from tarry.tools.simulator.sqs.settings import QueueSettings

IN_FLIGHT_LIMIT = 120_000
PURGE_INTERVAL_SECONDS = 60


class SimulatedQueue:
    """A standard queue; `FifoQueue` overrides what differs. Its `Realism` decides on order, duplicates and old handles.

    Its state changes with time in `catch_up`, which receives, changes, deletes and inspections call.
    """

    def __init__(self, name: str, number: int, settings: QueueSettings, account: Sqs) -> None:
        self.name = name
        self.arn = account.arn_prefix + name
        self.number = number
        """The number of no other queue, not even of one created later under the same name."""
        self.settings = settings
        self.tags: dict[str, str] = {}
        self.created_at = self.modified_at = account.now()
        self._account = account
        fifo, realism = settings.fifo, account.realism
        order = MessageGroups(account.now) if fifo else StandardOrder(realism, account.random)
        self._store = MessageStore(order, account.now, self._record)
        self._makes_duplicates = not fifo
        self._purged_at: float | None = None

    # the differences between standard and FIFO queues

    def send(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Accept a message; return the answer, without digests of attributes. Raises `SqsError`."""
        check_contents(entry, self.settings.maximum_bytes)
        if (deduplication_id := entry.get("MessageDeduplicationId")) is not None:
            raise wrong_for_queue_type(deduplication_id, "MessageDeduplicationId")
        delay = entry.get("DelaySeconds")
        message = self._accept(entry, self.settings.delay if delay is None else delay)
        return {"MessageId": message.delivery_id, "MD5OfMessageBody": message.md5_of_body}

    def _is_current(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        """Return whether a handle is the message's latest. Raises `SqsError` if the handle has expired."""
        return receipt.receive_count == message.receive_count

    def _may_change_visibility(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        """Return whether a handle changes the message's visibility. Raises `SqsError` if the handle has expired."""
        realism = self._account.realism
        has_expired = realism.late_changes_are_ignored and message.visible_at <= self._account.now()
        return not has_expired and (realism.old_handles_act or self._is_current(message, receipt, handle))

    def _as_dead_letter(self, message: StoredMessage) -> StoredMessage:
        """Adapt a message that SQS moves to this queue as the dead-letter queue."""
        return message  # the retention period still counts from the original send

    # inspection

    def catch_up(self) -> None:
        """Apply what has become due since the last call: messages become visible, expire, or are duplicated."""
        self._store.catch_up(self.settings.retention)

    def next_visible_at(self) -> float | None:
        """Return when the next message becomes visible if no request changes that; None if all are visible."""
        self.catch_up()
        return self._store.next_visible_at()

    def depth(self) -> Depth:
        self.catch_up()
        return self._store.depth()

    def messages(self) -> list[StoredMessage]:
        """Return all messages, in the order of their arrival."""
        self.catch_up()
        return list(self._store.messages.values())

    def first_visible(self, at: float) -> StoredMessage | None:
        """Return the oldest message that was neither in flight nor delayed at a time that is not in the future."""
        self.catch_up()
        return next((message for message in self._store.messages.values() if message.visible_at <= at), None)

    # sending

    def _accept(self, entry: Mapping[str, Any], delay_seconds: int, **more: Any) -> StoredMessage:
        now = self._account.now()
        message = StoredMessage(
            delivery_id=self._account.new_id(),
            body=entry["MessageBody"],
            attributes=entry.get("MessageAttributes") or NO_ATTRIBUTES,
            sent_at=now,
            position=self._store.next_position,
            visible_at=now + delay_seconds if delay_seconds else now,  # shared, as the history keeps both
            trace_header=trace_header(entry) or self._account.trace_header,
            group=entry.get("MessageGroupId"),
            **more,
        )
        self._record_sent(message, "SendMessage")
        self._place(message)
        return message

    def _record_sent(self, message: StoredMessage, origin: str) -> None:
        fields = {
            "queue": self.name,
            "delivery_id": message.delivery_id,
            "origin": origin,
            "body": message.body,
            "attributes": message.attributes,
            "group": message.group,
            "trace_header": message.trace_header,
            "deduplication_id": message.deduplication_id,
            "visible_at": message.visible_at,
        }
        self._account.history.add("sent", fields)

    def _place(self, message: StoredMessage) -> None:
        self._store.add(message)
        self._account.changed(self)

    def redrive_to(self, target: SimulatedQueue, message: StoredMessage, at: float) -> None:
        """Send a message of this queue to another as a new message and remove it here, as a move task does ``at``."""
        if self._store.remove(message):
            self._account.changed(self)
        fresh = replace(
            message,
            delivery_id=self._account.new_id(),
            sent_at=at,
            visible_at=at,
            position=target._store.next_position,
            dead_letter_source=None,
            receive_count=0,
            first_received_at=None,
            received_at=None,
            next_is_duplicate=False,
            has_reappeared=False,
        )
        self._record("moved", message, to=target.name, new_delivery_id=fresh.delivery_id, origin="redrive")
        target._record_sent(fresh, "redrive")
        target._place(fresh)

    # receiving

    def receive(
        self, max_messages: int, visibility_seconds: int | None, *, waits: bool
    ) -> list[tuple[str, StoredMessage]]:
        """Return up to ``max_messages`` messages with their receipt handles.

        Messages that have been received too often go to the dead-letter queue instead. ``waits`` says whether the
        request is a long poll.
        """
        self.catch_up()
        room = self._account.in_flight_limit - self._store.in_flight
        if room <= 0:
            if waits or self.settings.fifo:
                return []
            raise SqsError("OverLimit", "The maximum number of in flight messages is reached.")
        if self._account.realism.partial and not self.settings.fifo:  # a long poll queries all servers: at least 1
            max_messages = self._account.random.randint(1 if waits else 0, max_messages)
        taken = self._pick(min(room, max_messages))
        seconds = self.settings.visibility if visibility_seconds is None else visibility_seconds
        return [(self._deliver(message, seconds), message) for message in taken]

    def _pick(self, max_messages: int) -> list[StoredMessage]:
        """Return the messages to deliver, and dead-letter the messages before them that were received too often."""
        taken: list[StoredMessage] = []
        dead: list[StoredMessage] = []
        redrive, target = self.settings.redrive, self._dead_letter_queue()
        limit = redrive.max_receive_count if redrive is not None and target is not None else math.inf
        for message in self._store.order.receivable() if max_messages > 0 else ():
            (taken if message.receive_count < limit else dead).append(message)
            if len(taken) == max_messages:
                break
        if target is not None:
            for message in dead:
                self._dead_letter(target, message)
        return taken

    def _deliver(self, message: StoredMessage, visibility_seconds: int) -> str:
        now = self._account.now()
        is_duplicate, message.next_is_duplicate = message.next_is_duplicate, False
        message.receive_count += 1
        message.received_at = now
        if message.first_received_at is None:
            message.first_received_at = now
        handle = handle_of(self.number, message.position, message.receive_count, message.delivery_id)
        self._set_visible_at(message, now + visibility_seconds)
        fields = {
            "queue": self.name,
            "delivery_id": message.delivery_id,
            "receive_count": message.receive_count,
            "receipt_handle": handle,
            "visible_until": message.visible_at,
            "group": message.group,
        }
        self._account.history.add("received", {**fields, "duplicate": True} if is_duplicate else fields)
        realism, random = self._account.realism, self._account.random
        if realism.duplicate and self._makes_duplicates and random.random() < realism.duplicate:
            self._schedule_duplicate(message, random.uniform(0, visibility_seconds))
        return handle

    def deliver_duplicate(self, handle: str, seconds: float) -> None:
        """Deliver a message of a standard queue once more after ``seconds``, even if it is deleted by then."""
        message = self._store.messages.get(read_handle(handle, self.number).position)
        if message is not None and self._makes_duplicates:
            self._schedule_duplicate(message, seconds)

    def _schedule_duplicate(self, message: StoredMessage, seconds: float) -> None:
        if not message.has_reappeared:
            self._store.schedule_duplicate(message, self._account.now() + seconds)
            self._account.changed(self)

    def _set_visible_at(self, message: StoredMessage, at: float) -> None:
        if self._store.set_visible_at(message, at):
            self._account.changed(self)

    # the dead-letter queue

    def _dead_letter_queue(self) -> SimulatedQueue | None:
        redrive = self.settings.redrive
        return self._account.with_arn(redrive.target) if redrive is not None else None

    def _dead_letter(self, target: SimulatedQueue, message: StoredMessage) -> None:
        self._store.remove(message)
        now = self._account.now()
        moved = replace(
            message,
            position=target._store.next_position,
            visible_at=now,
            dead_letter_source=self.arn,
            next_is_duplicate=False,
        )
        self._record("moved", message, to=target.name, receive_count=message.receive_count, origin="redrive policy")
        target._place(target._as_dead_letter(moved))

    # requests of the consumer

    def change_visibility(self, handle: str, seconds: int) -> None:
        """Make a message invisible for ``seconds`` from now; 0 makes it visible.

        Raises `SqsError` if the handle is invalid or expired, or a limit is exceeded.
        """
        self.catch_up()
        check_range(seconds, "VisibilityTimeout", 0, MAX_VISIBILITY_SECONDS)
        receipt = read_handle(handle, self.number)
        message = self._store.messages.get(receipt.position)
        if message is None:
            reason = "Message does not exist or is not available for visibility timeout change."
            raise invalid(handle, "ReceiptHandle", reason)
        if not self._may_change_visibility(message, receipt, handle):
            self._record("visibility_change_ignored", message, receipt_handle=handle)
            return
        now = self._account.now()
        if now + seconds - (message.received_at or now) > MAX_VISIBILITY_SECONDS:
            limit = f"beyond the limit [{MAX_VISIBILITY_SECONDS} seconds]"
            raise invalid(seconds, "VisibilityTimeout", f"Total VisibilityTimeout for the message is {limit}")
        message.next_is_duplicate = message.next_is_duplicate and message.has_reappeared
        self._extend(message, handle, seconds)

    def _extend(self, message: StoredMessage, handle: str, seconds: int) -> None:
        self._set_visible_at(message, self._account.now() + seconds)
        details = {"receipt_handle": handle, "seconds": seconds, "visible_until": message.visible_at}
        self._record("visibility_changed", message, **details)

    def delete(self, handle: str) -> None:
        """Delete a message, if it is still there. Raises `SqsError` if the handle is invalid or expired."""
        self.catch_up()
        receipt = read_handle(handle, self.number)
        message = self._store.messages.get(receipt.position)
        if message is None or not self._is_current(message, receipt, handle):
            details = {"receipt_handle": handle, "is_gone": message is None}
            self._account.history.record("delete_ignored", queue=self.name, delivery_id=receipt.delivery_id, **details)
            return
        if self._store.delete(message):
            self._account.changed(self)
        self._record("deleted", message, receipt_handle=handle, receive_count=receipt.receive_count)

    def purge(self) -> None:
        """Delete all messages. Raises `SqsError` if the last purge was less than a minute ago."""
        self.catch_up()
        now = self._account.now()
        if self._purged_at is not None and now - self._purged_at < PURGE_INTERVAL_SECONDS:
            text = f"Only one PurgeQueue operation on {self.name} is allowed every {PURGE_INTERVAL_SECONDS} seconds."
            raise SqsError("AWS.SimpleQueueService.PurgeQueueInProgress", text)
        self._purged_at = now
        self.empty()

    def empty(self) -> None:
        """Remove all messages, and record them as purged."""
        for message in self.messages():
            self._store.remove(message)
            self._record("purged", message)

    def _record(self, what: str, message: StoredMessage, **fields: Any) -> None:
        self._account.history.add(what, {"queue": self.name, "delivery_id": message.delivery_id, **fields})


NO_ATTRIBUTES: Mapping[str, Any] = {}
"""Shared by the messages without attributes: the history keeps them all."""
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


SEQUENCE_START = 18_850_000_000_000_000_000
SEQUENCE_STEP = 256


class FifoQueue(SimulatedQueue):
    """A FIFO queue. A receipt handle expires with the visibility timeout of its message."""

    def __init__(self, name: str, number: int, settings: QueueSettings, account: Sqs) -> None:
        super().__init__(name, number, settings, account)
        self._first: dict[DeduplicationKey, tuple[float, StoredMessage]] = {}
        """The end of the interval and the first message of each id, which the message's deletion does not free."""
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
        while self._first and self._first[oldest := next(iter(self._first))][0] <= now:
            del self._first[oldest]  # all intervals are as long, so the oldest ends first
        if key not in self._first:
            message = self._accept(entry, self.settings.delay, deduplication_id=deduplication_id)
            self._first[key] = now + DEDUPLICATION_SECONDS, message
        else:
            message = self._first[key][1]
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
        self._first.clear()

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
