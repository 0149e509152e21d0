"""The receives of a FIFO queue that can be repeated with their ``ReceiveRequestAttemptId``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tarry.tools.simulator.sqs.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tarry.tools.simulator.sqs.message import StoredMessage

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

        Raises:
            SqsError: A message was deleted, received again, or changed in its visibility since.
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
