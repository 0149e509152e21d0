"""What standard and FIFO queues have in common: the life of a message from its send to its end."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.delay import MAX_VISIBILITY_SECONDS
from tarry.simulator.sqs import contents
from tarry.simulator.sqs.errors import SqsError, check_range, invalid
from tarry.simulator.sqs.handles import Receipt, handle_of, read_handle
from tarry.simulator.sqs.message import StoredMessage
from tarry.simulator.sqs.stock import Stock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.simulator.sqs.order import Order
    from tarry.simulator.sqs.settings import QueueSettings
    from tarry.simulator.sqs.stock import Depth
    from tarry.simulator.sqs.surroundings import Surroundings

PURGE_INTERVAL_SECONDS = 60


class SendReceipt(NamedTuple):
    """What a sender is told; of a message that was swallowed, what was told of the one before it."""

    delivery_id: str
    sequence_number: str | None


class SimulatedQueue(ABC):
    """A queue. Its state follows the clock at each look: `settle` does what time has done since the last."""

    def __init__(self, name: str, arn: str, number: int, settings: QueueSettings, around: Surroundings) -> None:
        self.name = name
        self.arn = arn
        self.number = number
        """No other queue has it, not even one of the same name made later."""
        self.settings = settings
        self.tags: dict[str, str] = {}
        self.created_at = self.modified_at = around.now()
        self._around = around
        self._stock = Stock(self._order(), around.now)
        self._purged_at: float | None = None

    # the two types differ in these

    @abstractmethod
    def _order(self) -> Order:
        """The order in which its messages are received."""

    @abstractmethod
    def send(self, entry: Mapping[str, Any]) -> SendReceipt:
        """Takes in a message. Raises `SqsError` if it is refused."""

    @abstractmethod
    def _most(self, most: int, *, waits: bool) -> int:
        """How many messages a receive returns at most, where ``most`` were asked for."""

    @abstractmethod
    def _refuse_beyond_in_flight_limit(self) -> None:
        """Raises `SqsError`, or not: the receive then returns nothing."""

    @abstractmethod
    def _holds(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        """Whether a handle is the message's latest. Raises `SqsError` if it may not be used any more."""

    def _may_hide(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        """Whether a handle changes the message's visibility. Raises `SqsError` if it may not be used any more."""
        return self._holds(message, receipt, handle)

    @abstractmethod
    def deliver_again(self, handle: str, seconds: float) -> None:
        """Deliver a message once more after so many seconds, even if it was deleted."""

    @abstractmethod
    def _moved_here(self, message: StoredMessage) -> StoredMessage:
        """A message as it is in this queue, to which SQS moves it as its dead-letter queue."""

    @abstractmethod
    def _numbered(self, message: StoredMessage) -> StoredMessage:
        """A message that comes from another queue, with the number that it has in this one."""

    # what is there

    def settle(self) -> None:
        """Does what time has done since the last look: shows what is no longer hidden, ends what has expired."""
        for change in self._stock.settle(self.settings.retention):
            if change.what == "expired":
                self._record("expired", change.message, expired_at=change.at)
            else:
                self._record("reappeared", change.message)

    def next_visible_at(self) -> float | None:
        """When the next hidden or delayed message is shown, if nothing happens before."""
        self.settle()
        return self._stock.next_shown_at()

    def depth(self) -> Depth:
        self.settle()
        return self._stock.depth()

    def messages(self) -> list[StoredMessage]:
        """All, in the order in which they came."""
        self.settle()
        return list(self._stock.messages.values())

    def visible(self) -> list[StoredMessage]:
        """Those that are neither hidden nor delayed."""
        now = self._around.now()
        return [message for message in self.messages() if message.visible_at <= now]

    # coming in

    def _take_in(self, entry: Mapping[str, Any], delay_seconds: int, **more: Any) -> StoredMessage:
        now = self._around.now()
        message = StoredMessage(
            delivery_id=self._around.new_id(),
            body=entry["MessageBody"],
            attributes=entry.get("MessageAttributes") or {},
            sent_at=now,
            position=self._stock.next_position,
            visible_at=now + delay_seconds,
            trace_header=contents.trace_header(entry),
            group=entry.get("MessageGroupId"),
            **more,
        )
        self._record_sent(message, "SendMessage")
        self._place(message)
        return message

    def _record_sent(self, message: StoredMessage, origin: str) -> None:
        self._record(
            "sent",
            message,
            origin=origin,
            body=message.body,
            attributes=message.attributes,
            group=message.group,
            trace_header=message.trace_header,
            deduplication_id=message.deduplication_id,
            visible_at=message.visible_at,
        )

    def _place(self, message: StoredMessage) -> None:
        self._stock.add(message)
        self._around.changed(self)

    def redrive_to(self, target: SimulatedQueue, message: StoredMessage) -> None:
        """Sends a message of this queue on to another as a new one, as a move task does."""
        self._stock.remove(message)
        now = self._around.now()
        fresh = replace(
            message,
            delivery_id=self._around.new_id(),
            sent_at=now,
            visible_at=now,
            position=target._stock.next_position,
            dead_letter_source=None,
            receive_count=0,
            first_received_at=None,
            received_at=None,
            comes_again=False,
            has_reappeared=False,
        )
        self._record("moved", message, to=target.name, new_delivery_id=fresh.delivery_id, origin="redrive")
        target._record_sent(fresh, "redrive")
        target._place(target._numbered(fresh))

    # receiving

    def receive(self, most: int, visibility_seconds: int | None, *, waits: bool) -> list[tuple[str, StoredMessage]]:
        """Up to ``most`` messages with their receipt handles.

        ``waits``: the caller would wait if there were none. Those that have been received too often go to the
        dead-letter queue instead.
        """
        self.settle()
        room = self._around.in_flight_limit - self._stock.in_flight
        if room <= 0:
            if not waits:
                self._refuse_beyond_in_flight_limit()
            return []
        taken = self._pick(min(room, self._most(most, waits=waits)))
        seconds = self.settings.visibility if visibility_seconds is None else visibility_seconds
        return [(self._deliver(message, seconds), message) for message in taken]

    def _pick(self, most: int) -> list[StoredMessage]:
        """Those to deliver. Those before them that were received too often are moved."""
        taken: list[StoredMessage] = []
        dead: list[StoredMessage] = []
        redrive, target = self.settings.redrive, self._dead_letter_queue()
        limit = redrive.max_receive_count if redrive is not None and target is not None else math.inf
        for message in self._stock.receivable() if most > 0 else ():
            (taken if message.receive_count < limit else dead).append(message)
            if len(taken) == most:
                break
        if target is not None:
            for message in dead:
                self._move_to(target, message)
        return taken

    def _deliver(self, message: StoredMessage, visibility_seconds: int) -> str:
        now = self._around.now()
        more = {"duplicate": True} if message.comes_again else {}
        message.comes_again = False
        message.receive_count += 1
        message.received_at = now
        if message.first_received_at is None:
            message.first_received_at = now
        handle = handle_of(Receipt(self.number, message.position, message.receive_count, message.delivery_id))
        self._hide_until(message, now + visibility_seconds)
        self._record(
            "received",
            message,
            receive_count=message.receive_count,
            receipt_handle=handle,
            visible_until=message.visible_at,
            group=message.group,
            **more,
        )
        return handle

    def _hide_until(self, message: StoredMessage, until: float) -> None:
        if self._stock.hide(message, until):
            self._around.changed(self)

    # the dead-letter queue

    def _dead_letter_queue(self) -> SimulatedQueue | None:
        redrive = self.settings.redrive
        return self._around.queue_of(redrive.target) if redrive is not None else None

    def _move_to(self, target: SimulatedQueue, message: StoredMessage) -> None:
        self._stock.remove(message)
        now = self._around.now()
        moved = replace(
            message,
            position=target._stock.next_position,
            visible_at=now,
            dead_letter_source=self.arn,
            comes_again=False,
        )
        self._record("moved", message, to=target.name, receive_count=message.receive_count, origin="redrive policy")
        target._place(target._moved_here(moved))

    # settling by the consumer

    def change_visibility(self, handle: str, seconds: int) -> None:
        """Hides a message for so long from now. Raises `SqsError`."""
        self.settle()
        check_range(seconds, "VisibilityTimeout", 0, MAX_VISIBILITY_SECONDS)
        receipt = read_handle(handle, self.number)
        message = self._stock.messages.get(receipt.position)
        if message is None:
            reason = "Message does not exist or is not available for visibility timeout change."
            raise invalid(handle, "ReceiptHandle", reason)
        if not self._may_hide(message, receipt, handle):
            self._record("hide_ignored", message, receipt_handle=handle)
            return
        now = self._around.now()
        if now + seconds - (message.received_at or now) > MAX_VISIBILITY_SECONDS:
            limit = f"beyond the limit [{MAX_VISIBILITY_SECONDS} seconds]"
            raise invalid(seconds, "VisibilityTimeout", f"Total VisibilityTimeout for the message is {limit}")
        message.comes_again = message.comes_again and message.has_reappeared
        self._hide_until(message, now + seconds)
        self._record("hidden", message, receipt_handle=handle, seconds=seconds, visible_until=message.visible_at)

    def delete(self, handle: str) -> None:
        """Deletes a message; one that is gone already is deleted again without a word. Raises `SqsError`."""
        self.settle()
        receipt = read_handle(handle, self.number)
        message = self._stock.messages.get(receipt.position)
        if message is None or not self._holds(message, receipt, handle):
            more = {"receipt_handle": handle, "is_gone": message is None}
            self._around.history.record("delete_ignored", queue=self.name, delivery_id=receipt.delivery_id, **more)
            return
        self._stock.delete(message)
        self._record("deleted", message, receipt_handle=handle, receive_count=receipt.receive_count)

    def purge(self) -> None:
        """Deletes everything. Raises `SqsError` within a minute of the last time."""
        self.settle()
        now = self._around.now()
        if self._purged_at is not None and now - self._purged_at < PURGE_INTERVAL_SECONDS:
            text = f"Only one PurgeQueue operation on {self.name} is allowed every {PURGE_INTERVAL_SECONDS} seconds."
            raise SqsError("AWS.SimpleQueueService.PurgeQueueInProgress", text)
        self._purged_at = now
        self.empty()

    def empty(self) -> None:
        """Ends all messages."""
        for message in self.messages():
            self._stock.remove(message)
            self._record("purged", message)

    def _record(self, what: str, message: StoredMessage, **fields: Any) -> None:
        self._around.history.record(what, queue=self.name, delivery_id=message.delivery_id, **fields)
