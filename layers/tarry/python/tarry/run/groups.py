"""FIFO groups: no message runs behind an earlier one of its group that stays in the queue, and one runs at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tarry.message.message import delivery_of
from tarry.message.outcomes import STOPS_ITS_GROUP, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Group
    from tarry.message.message import Message


class Groups:
    """The FIFO groups of one batch."""

    def __init__(self) -> None:
        self._stopped: set[Group] = set()

    def is_stopped(self, delivery: Delivery) -> bool:
        """Return whether an earlier message of its group stays in the queue, so that a message must not run."""
        return bool(self._stopped) and delivery.group in self._stopped  # making the group takes longest

    def go_on(self) -> None:
        """Forget the stops so far: the batch handler got no message behind one that was stopped before it ran."""
        self._stopped.clear()

    def note(self, delivery: Delivery, outcome: Outcome) -> None:
        """Note the outcome of a message, which may stop its group."""
        if delivery.source.is_fifo and outcome.kind in STOPS_ITS_GROUP:
            self._stopped.add(delivery.group)


class MessageQueue:
    """The messages of standard queues, any number of which may run at once."""

    def __init__(self, messages: Iterator[Message[Any]]) -> None:
        self._messages = messages

    def next(self) -> Message[Any] | None:
        """Remove and return the next message that may start; None if there is none now."""
        return next(self._messages, None)

    def free(self, delivery: Delivery) -> None:
        """Let the next message of a group start, after ``delivery`` was decided."""

    def remove_all(self) -> Iterable[Message[Any]]:
        """Remove and return the queued messages; on standard queues there are none, since `next` makes them."""
        return ()


class GroupQueues(MessageQueue):
    """The messages of FIFO queues, in one queue per group: the next one waits until the one before is decided."""

    def __init__(self, messages: Iterator[Message[Any]]) -> None:
        self._queues: dict[Group, deque[Message[Any]]] = {}
        for message in messages:
            self._queues.setdefault(delivery_of(message).group, deque()).append(message)
        self._free = deque(self._queues)
        """The groups whose next message may start."""

    def next(self) -> Message[Any] | None:
        return self._queues[self._free.popleft()].popleft() if self._free else None

    def free(self, delivery: Delivery) -> None:
        if self._queues.get(group := delivery.group):
            self._free.append(group)

    def remove_all(self) -> Iterable[Message[Any]]:
        queues, self._queues = self._queues, {}
        self._free.clear()
        return [message for queue in queues.values() for message in queue]
