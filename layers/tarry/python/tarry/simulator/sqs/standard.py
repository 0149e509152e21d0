"""Standard queues: at least once, in no promised order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs.contents import check_contents
from tarry.simulator.sqs.errors import SqsError, wrong_for_queue_type
from tarry.simulator.sqs.handles import read_handle
from tarry.simulator.sqs.order import ByRank
from tarry.simulator.sqs.queue import SendReceipt, SimulatedQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.simulator.sqs.handles import Receipt
    from tarry.simulator.sqs.message import StoredMessage


class StandardQueue(SimulatedQueue):
    """A queue that may do what its `Realism` says."""

    def _order(self) -> ByRank:
        return ByRank(self._around.realism, self._around.random)

    def send(self, entry: Mapping[str, Any]) -> SendReceipt:
        check_contents(entry, self.settings.maximum_bytes)
        if (deduplication_id := entry.get("MessageDeduplicationId")) is not None:
            raise wrong_for_queue_type(deduplication_id, "MessageDeduplicationId")
        delay = entry.get("DelaySeconds")
        message = self._take_in(entry, self.settings.delay if delay is None else delay)
        return SendReceipt(message.delivery_id, None)

    def _most(self, most: int, *, waits: bool) -> int:
        return self._around.realism.sample(most, self._around.random, waits=waits)

    def _refuse_beyond_in_flight_limit(self) -> None:
        raise SqsError("OverLimit", "The maximum number of in flight messages is reached.")

    def _deliver(self, message: StoredMessage, visibility_seconds: int) -> str:
        handle = super()._deliver(message, visibility_seconds)
        echo = self._around.realism.echo_after(visibility_seconds, self._around.random)
        if echo is not None:
            self._show_again(message, echo)
        return handle

    def deliver_again(self, handle: str, seconds: float) -> None:
        receipt = read_handle(handle, self.number)
        message = self._stock.messages.get(receipt.position)
        if message is not None:
            self._show_again(message, seconds)

    def _show_again(self, message: StoredMessage, seconds: float) -> None:
        if not message.has_reappeared:
            self._stock.show_again(message, self._around.now() + seconds)
            self._around.changed(self)

    def _holds(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        return receipt.receive_count == message.receive_count

    def _may_hide(self, message: StoredMessage, receipt: Receipt, handle: str) -> bool:
        realism = self._around.realism
        is_late = realism.late_changes_are_ignored and message.visible_at <= self._around.now()
        return not is_late and (realism.old_handles_act or self._holds(message, receipt, handle))

    def _moved_here(self, message: StoredMessage) -> StoredMessage:
        return message  # and its retention goes on counting from when it was sent first

    def _numbered(self, message: StoredMessage) -> StoredMessage:
        return message
