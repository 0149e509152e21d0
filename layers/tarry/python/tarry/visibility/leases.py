"""The leases of one invocation: until when each message stays invisible to others, and which leases are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tarry.message import Message
    from tarry.world import Event


class Leases:
    """The leases on an invocation's messages.

    A lease is lost when SQS refuses its receipt handle, or when its known end has passed: another consumer may have the
    message by now. tarry makes no further request about such a message. If its handler succeeded, it is acknowledged
    all the same; otherwise it is only reported as failed. On FIFO its group goes no further.
    """

    __slots__ = ("_lost_groups", "ends", "given_up", "idle", "lost")

    def __init__(self) -> None:
        self.ends: dict[str, float] = {}
        """Until when a message is invisible, in epoch seconds, by its delivery id; as SQS last confirmed it here."""
        self.lost: set[str] = set()
        """Delivery ids."""
        self.given_up: set[str] = set()
        """Delivery ids of messages that are being deleted, sent, or returned to the queue: a refusal of such a receipt
        handle means nothing, and the lease is not extended any more."""
        self.idle: Event | None = None
        """Set while no extension of ``keepalive`` is under way: one that arrives late would undo a shorter wait."""
        self._lost_groups: set[tuple[str, str | None]] = set()

    def lose(self, message: Message[Any]) -> None:
        """Note that the lease on a message is lost."""
        self.lost.add(message.delivery_id)
        if message._source.is_fifo:
            self._lost_groups.add((message._source.text, message.group_id))

    def stops(self, message: Message[Any]) -> bool:
        """Whether a message must not run here: on FIFO, if a lease of its group is lost."""
        return bool(self._lost_groups) and (message._source.text, message.group_id) in self._lost_groups

    def end_of(self, message: Message[Any], visibility_timeout: int | None) -> float | None:
        """When the lease on a message ends, in epoch seconds; None if that is not known (SPEC E6).

        ``visibility_timeout`` is the queue's, in seconds. A lease is as old as its receive; a record tells only when
        its first receive was.
        """
        confirmed = self.ends.get(message.delivery_id)
        if confirmed is not None or visibility_timeout is None:
            return confirmed
        started_at = message._invocation.started_at
        received_at = message._first_received_at if message.receive_count == 1 else None
        if received_at is None or started_at >= received_at + visibility_timeout:
            # The receive is not known, or Lambda hides the messages for longer: with a batching window for the window,
            # the function's timeout and 30 s. (Or it is a sample event, received long ago.)
            received_at = started_at
        return min(started_at, received_at) + visibility_timeout
