"""The order in which a queue's visible messages are received, and the heap that keeps it."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tarry.simulator.sqs.message import StoredMessage
    from tarry.simulator.sqs.realism import Realism

SMALL = 64  # heaps up to this size are not worth tidying


class Agenda:
    """Messages by a number, the smallest first and equals by position; each is in it once.

    An entry that was moved or taken back stays in the heap until it surfaces, or until such entries are the majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, StoredMessage]] = []
        self._when: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._when)

    def __contains__(self, message: StoredMessage) -> bool:
        return message.position in self._when

    def put(self, message: StoredMessage, when: float) -> None:
        """Adds the message, or moves it."""
        self._when[message.position] = when
        heappush(self._heap, (when, message.position, message))
        if len(self._heap) > SMALL and len(self._heap) > 2 * len(self._when):
            self._heap = [entry for entry in self._heap if self._when.get(entry[1]) == entry[0]]
            heapify(self._heap)

    def discard(self, message: StoredMessage) -> bool:
        """Takes the message out; False if it was not in it."""
        return self._when.pop(message.position, None) is not None

    def time_of(self, message: StoredMessage) -> float | None:
        """The number under which a message is in it; None if it is not."""
        return self._when.get(message.position)

    def first(self) -> tuple[float, StoredMessage] | None:
        """The smallest number, with its message."""
        heap = self._heap
        while heap:
            when, position, message = heap[0]
            if self._when.get(position) == when:
                return when, message
            heappop(heap)
        return None

    def pop(self) -> StoredMessage | None:
        """The first message, taken out."""
        first = self.first()
        if first is None:
            return None
        message = first[1]
        del self._when[message.position]
        heappop(self._heap)
        return message

    def clear(self) -> None:
        self._heap.clear()
        self._when.clear()


class Order(Protocol):
    """What a queue's type makes of the messages it holds."""

    def add(self, message: StoredMessage) -> None:
        """The message has come to the queue; whether it can be received, `show` says."""

    def show(self, message: StoredMessage) -> None:
        """The message is neither hidden nor delayed any more."""

    def hide(self, message: StoredMessage) -> None:
        """The message is hidden."""

    def remove(self, message: StoredMessage) -> None:
        """The message has left the queue."""

    def receivable(self) -> Iterator[StoredMessage]:
        """Those that can be received, in turn. Whoever iterates hides, shows or removes all that he was given."""


class ByRank:
    """Standard queues: each message for itself, in the order of their sends unless `Realism` says otherwise."""

    def __init__(self, realism: Realism, random: Random) -> None:
        self._realism = realism
        self._random = random
        self._ready = Agenda()

    def add(self, message: StoredMessage) -> None:
        """It has no place before it is shown."""

    def show(self, message: StoredMessage) -> None:
        self._ready.put(message, self._realism.rank(message, self._random))

    def hide(self, message: StoredMessage) -> None:
        self._ready.discard(message)

    def remove(self, message: StoredMessage) -> None:
        self._ready.discard(message)

    def receivable(self) -> Iterator[StoredMessage]:
        while (message := self._ready.pop()) is not None:
            yield message
