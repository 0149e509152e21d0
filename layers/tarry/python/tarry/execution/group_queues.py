"""Messages that wait to run beside each other: in the order of the batch, and of a FIFO group one at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tarry.message import delivery_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tarry.delivery import Delivery
    from tarry.execution.groups import Group
    from tarry.message import Message


class MessageQueue:
    """Messages of standard queues: any number of them may run at once."""

    def __init__(self, messages: Iterator[Message[Any]]) -> None:
        self._messages = messages

    def next(self) -> Message[Any] | None:
        """Remove the next message that may start; None if there is none now."""
        return next(self._messages, None)

    def free(self, delivery: Delivery) -> None:
        """Let the next message of a group start: the one before it is decided."""

    def remove_all(self) -> Iterable[Message[Any]]:
        """Remove the messages that were taken in and have not started. None are here: they are made when they start."""
        return ()


class GroupQueues(MessageQueue):
    """Messages of FIFO queues, in a queue for each group: the next one waits until the one before it is decided."""

    def __init__(self, messages: Iterator[Message[Any]]) -> None:
        self._queues: dict[Group, deque[Message[Any]]] = {}
        for message in messages:
            self._queues.setdefault(delivery_of(message).group, deque()).append(message)
        self._free = deque(self._queues)
        """The groups of which a message may start."""

    def next(self) -> Message[Any] | None:
        return self._queues[self._free.popleft()].popleft() if self._free else None

    def free(self, delivery: Delivery) -> None:
        if self._queues.get(group := delivery.group):
            self._free.append(group)

    def remove_all(self) -> Iterable[Message[Any]]:
        queues, self._queues = self._queues, {}
        self._free.clear()
        return [message for queue in queues.values() for message in queue]
