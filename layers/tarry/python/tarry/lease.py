"""What one invocation knows of the leases of its messages: until when each is hidden, and which are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tarry.message import Message


class Leases:
    """A lease is lost when SQS refuses its receipt handle: the message may be with somebody else by now.

    Nothing is done at SQS with such a message any more. Its handler may have succeeded, and then it is acknowledged all
    the same; any other outcome is only reported as failed. On FIFO its group goes no further.
    """

    __slots__ = ("_lost_groups", "ends", "given_up", "lost")

    def __init__(self) -> None:
        self.ends: dict[str, float] = {}
        """Until when a message is hidden, in epoch seconds, by its delivery id; as far as that was asked for here."""
        self.lost: set[str] = set()
        """Delivery ids."""
        self.given_up: set[str] = set()
        """Delivery ids of what is being deleted, or sent on: a refusal of its handle says nothing any more."""
        self._lost_groups: set[tuple[str, str | None]] = set()

    def lose(self, message: Message[Any]) -> None:
        """Its lease is lost."""
        self.lost.add(message.delivery_id)
        if message._source.is_fifo:
            self._lost_groups.add((message._source.text, message.group_id))

    def stops(self, message: Message[Any]) -> bool:
        """Whether a message must not run here: on FIFO, if a lease of its group is lost."""
        return bool(self._lost_groups) and (message._source.text, message.group_id) in self._lost_groups
