"""The order in which visible messages are received: the protocol, that of standard queues, and a heap of messages."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tarry.tools.simulator.sqs.message import StoredMessage
    from tarry.tools.simulator.sqs.realism import Realism

SMALL_HEAP = 64  # heaps up to this size are never compacted


class MessageHeap:
    """A priority queue of messages. Each is in it at most once, by a number such as a time; ties are by position.

    Stale entries (of a message moved or discarded) stay until they reach the top or are the majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, StoredMessage]] = []
        self._when: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._when)

    def __contains__(self, message: StoredMessage) -> bool:
        return message.position in self._when

    def put(self, message: StoredMessage, when: float) -> None:
        """Add the message, or move it."""
        self._when[message.position] = when
        heappush(self._heap, (when, message.position, message))
        if len(self._heap) > SMALL_HEAP and len(self._heap) > 2 * len(self._when):
            self._heap = [entry for entry in self._heap if self._when.get(entry[1]) == entry[0]]
            heapify(self._heap)

    def discard(self, message: StoredMessage) -> bool:
        """Remove the message; return whether it was there."""
        return self._when.pop(message.position, None) is not None

    def time_of(self, message: StoredMessage) -> float | None:
        """Return the number of a message; None if it is not in the heap."""
        return self._when.get(message.position)

    def first(self) -> tuple[float, StoredMessage] | None:
        """Return the smallest number and its message."""
        heap, current = self._heap, self._when
        while heap:
            when, position, message = heap[0]
            if current.get(position) == when:
                return when, message
            heappop(heap)
        return None

    def pop(self) -> StoredMessage | None:
        """Remove and return the first message."""
        first = self.first()
        if first is None:
            return None
        message = first[1]
        del self._when[message.position]
        heappop(self._heap)
        return message


class ReceiveOrder(Protocol):
    """The order in which a type of queue delivers its messages."""

    def add(self, message: StoredMessage) -> None:
        """Add a message to the queue. It can be received after `on_visible`."""

    def on_visible(self, message: StoredMessage) -> None:
        """Note that a message has become visible."""

    def on_invisible(self, message: StoredMessage) -> None:
        """Note that a message has become invisible."""

    def remove(self, message: StoredMessage) -> bool:
        """Remove a message from the queue; return whether that lets another one be received."""

    def receivable(self) -> Iterator[StoredMessage]:
        """Iterate over the messages that can be received, in order.

        The caller must call `on_visible`, `on_invisible` or `remove` for each message that it gets.
        """


class StandardOrder:
    """The order of a standard queue: the order of the sends, unless `Realism` reorders them."""

    def __init__(self, realism: Realism, random: Random) -> None:
        self._realism = realism
        self._random = random
        self._ready = MessageHeap()

    def add(self, message: StoredMessage) -> None:
        """Do nothing: the message gets its rank when it becomes visible."""

    def on_visible(self, message: StoredMessage) -> None:
        self._ready.put(message, self._realism.rank(message, self._random))

    def on_invisible(self, message: StoredMessage) -> None:
        self._ready.discard(message)

    def remove(self, message: StoredMessage) -> bool:
        self._ready.discard(message)
        return False

    def receivable(self) -> Iterator[StoredMessage]:
        while (message := self._ready.pop()) is not None:
            yield message
