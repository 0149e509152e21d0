"""Standard queues: at-least-once delivery, in best-effort order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.tools.simulator.sqs.contents import check_contents
from tarry.tools.simulator.sqs.errors import SqsError, wrong_for_queue_type
from tarry.tools.simulator.sqs.handles import read_handle
from tarry.tools.simulator.sqs.order import StandardOrder
from tarry.tools.simulator.sqs.queue import SendReceipt, SimulatedQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.tools.simulator.sqs.handles import Receipt
    from tarry.tools.simulator.sqs.message import StoredMessage


class StandardQueue(SimulatedQueue):
    """A standard queue. Its `Realism` decides on reordering, duplicates, and outdated receipt handles."""

    def _order(self) -> StandardOrder:
        return StandardOrder(self._context.realism, self._context.random)

    def send(self, entry: Mapping[str, Any]) -> SendReceipt:
        check_contents(entry, self.settings.maximum_bytes)
        if (deduplication_id := entry.get("MessageDeduplicationId")) is not None:
            raise wrong_for_queue_type(deduplication_id, "MessageDeduplicationId")
        delay = entry.get("DelaySeconds")
        message = self._accept(entry, self.settings.delay if delay is None else delay)
        return SendReceipt(message.delivery_id, None, message.md5_of_body)

    def _receive_limit(self, max_messages: int, *, waits: bool) -> int:
        return self._context.realism.receive_limit(max_messages, self._context.random, waits=waits)

    def _refuse_beyond_in_flight_limit(self) -> None:
        raise SqsError("OverLimit", "The maximum number of in flight messages is reached.")

    def _deliver(self, message: StoredMessage, visibility_seconds: int) -> str:
        handle = super()._deliver(message, visibility_seconds)
        duplicate_after = self._context.realism.duplicate_after(visibility_seconds, self._context.random)
        if duplicate_after is not None:
            self._schedule_duplicate(message, duplicate_after)
        return handle

    def deliver_duplicate(self, handle: str, seconds: float) -> None:
        receipt = read_handle(handle, self.number)
        message = self._store.messages.get(receipt.position)
        if message is not None:
            self._schedule_duplicate(message, seconds)

    def _schedule_duplicate(self, message: StoredMessage, seconds: float) -> None:
        if not message.has_reappeared:
            self._store.schedule_duplicate(message, self._context.now() + seconds)
            self._context.changed(self)

    def _is_current(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        return receipt.receive_count == message.receive_count

    def _may_change_visibility(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        realism = self._context.realism
        has_expired = realism.late_changes_are_ignored and message.visible_at <= self._context.now()
        return not has_expired and (realism.old_handles_act or self._is_current(message, receipt, handle))

    def _as_dead_letter(self, message: StoredMessage) -> StoredMessage:
        return message  # the retention period still counts from the original send

    def _with_sequence_number(self, message: StoredMessage) -> StoredMessage:
        return message
