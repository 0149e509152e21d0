"""The messages in a queue, and their changes with time: they become visible, expire, or are duplicated."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import itemgetter
from random import Random
from typing import NamedTuple

from tarry.tools.simulator.sqs.message import StoredMessage

SMALL_HEAP = 64  # heaps up to this size are never compacted


class MessageHeap:
    """A priority queue of messages. Each is in it at most once, by a number such as a time; ties are by position.

    Stale entries (of a message moved or discarded) stay until they reach the top or are the majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, StoredMessage]] = []
        self.times: dict[int, float] = {}
        """The number of each message, by position."""

    def __len__(self) -> int:
        return len(self.times)

    def __contains__(self, message: StoredMessage) -> bool:
        return message.position in self.times

    def put(self, message: StoredMessage, when: float) -> None:
        """Add the message, or move it."""
        self.times[message.position] = when
        heappush(self._heap, (when, message.position, message))
        if len(self._heap) > SMALL_HEAP and len(self._heap) > 2 * len(self.times):
            self._heap = [entry for entry in self._heap if self.times.get(entry[1]) == entry[0]]
            heapify(self._heap)

    def discard(self, message: StoredMessage) -> bool:
        """Remove the message; return whether it was there."""
        return self.times.pop(message.position, None) is not None

    def time_of(self, message: StoredMessage) -> float | None:
        """Return the number of a message; None if it is not in the heap."""
        return self.times.get(message.position)

    def first(self) -> tuple[float, StoredMessage] | None:
        """Return the smallest number and its message."""
        heap, current = self._heap, self.times
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
        del self.times[message.position]
        heappop(self._heap)
        return message


REORDER_WITHIN_MESSAGES = 1000  # at most this many later messages overtake a message


@dataclass(frozen=True)
class Realism:
    """The behaviour of AWS that a test can switch on or off.

    ``reorder``, ``partial`` and ``duplicate`` are off by default. They are random, and the same seed gives the same
    results. The others are on by default, since they are deterministic, and every consumer must cope with them.
    """

    reorder: bool = False
    """Messages are received in any order."""
    partial: bool = False
    """A receive returns only some of the visible messages, and sometimes none if it does not wait."""
    duplicate: float = 0.0
    """The probability that a received message is delivered once more within its visibility timeout: while it is in
    flight, or after it was deleted. A deleted message comes back at most once."""
    old_handles_act: bool = True
    """On a standard queue a receipt handle of an earlier delivery changes the visibility of the current one."""
    late_changes_are_ignored: bool = True
    """On a standard queue a visibility change after the visibility timeout has ended succeeds and has no effect."""
    recursion_is_stopped: bool = True
    """Lambda stops a recursive loop after 16 invocations of a function in one chain of sends."""


class StandardOrder:
    """The order of a standard queue: the order of the sends, unless `Realism` reorders them."""

    def __init__(self, realism: Realism, random: Random) -> None:
        self._realism = realism
        self._random = random
        self._ready = MessageHeap()

    def add(self, message: StoredMessage) -> None:
        """Add a message to the queue. It can be received, and gets its rank, once it is visible."""

    def on_visible(self, message: StoredMessage) -> None:
        """Note that a message has become visible."""
        overtaken = self._random.uniform(0, REORDER_WITHIN_MESSAGES) if self._realism.reorder else 0
        self._ready.put(message, message.position + overtaken)

    def on_invisible(self, message: StoredMessage) -> None:
        """Note that a message has become invisible."""
        self._ready.discard(message)

    def remove(self, message: StoredMessage) -> bool:
        """Remove a message from the queue; return whether that lets another one be received."""
        self._ready.discard(message)
        return False

    def receivable(self) -> Iterator[StoredMessage]:
        """Iterate over the messages that can be received, in order.

        The caller must call `on_visible`, `on_invisible` or `remove` for each message that it gets.
        """
        while (message := self._ready.pop()) is not None:
            yield message


class MessageGroups:
    """The messages of a FIFO queue, in order within each group.

    A receive takes as many messages as it can from the group whose head has been visible longest, then from the next
    group. So a group that was received and released goes behind the groups that waited meanwhile. A message in flight
    blocks only the later messages of its own group.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._groups: dict[str, deque[StoredMessage]] = {}
        self._removed: set[int] = set()  # positions of removed messages that are still in the deque of their group
        self._heads = MessageHeap()  # visible heads of groups, by the time since when they are visible

    def add(self, message: StoredMessage) -> None:
        self._groups.setdefault(message.group or "", deque()).append(message)

    def on_visible(self, message: StoredMessage) -> None:
        self._update_head(message.group or "")

    def on_invisible(self, message: StoredMessage) -> None:
        self._heads.discard(message)

    def remove(self, message: StoredMessage) -> bool:
        self._removed.add(message.position)
        self._heads.discard(message)
        return self._update_head(message.group or "")

    def receivable(self) -> Iterator[StoredMessage]:
        now = self._now()
        while (head := self._heads.pop()) is not None:
            for message in self._groups[head.group or ""]:
                if message.position in self._removed:
                    continue
                if message.visible_at > now:
                    break
                yield message

    def _update_head(self, name: str) -> bool:
        """Drop removed messages from the front of a group; return whether it has a head that a receive may now take."""
        group = self._groups[name]
        while group and group[0].position in self._removed:
            self._removed.discard(group.popleft().position)
        if not group:
            del self._groups[name]
            return False
        head = group[0]
        if head.visible_at > self._now() or head in self._heads:
            return False
        self._heads.put(head, head.visible_at)
        return True


MessageOrder = StandardOrder | MessageGroups


class Depth(NamedTuple):
    """The number of messages in a queue by state, and when the oldest was sent."""

    ready: int
    in_flight: int
    delayed: int
    oldest: float | None
    """Epoch seconds; None for an empty queue."""
    ever: int | None = None
    """The number of messages that were ever put into the queue; None if it is not known."""


class MessageStore:
    """The messages of a queue, by position. Each operation takes amortized logarithmic time.

    ``record`` is called with ``"expired"`` or ``"reappeared"``, the message, and fields for the history.
    """

    def __init__(self, order: MessageOrder, now: Callable[[], float], record: Callable[..., None]) -> None:
        self.messages: dict[int, StoredMessage] = {}
        self.next_position = 1
        self.order = order
        self._record = record
        self._now = now
        self._delayed = MessageHeap()  # by the time at which they become visible
        self._in_flight = MessageHeap()  # by the time at which they become visible
        self._duplicates = MessageHeap()  # by the time at which the duplicate becomes visible
        self._retained = MessageHeap()  # by the time from which retention counts
        self._by_visibility = self._in_flight, self._delayed, self._duplicates
        self._quiet_until = self._kept_until = math.inf
        """No message becomes visible, or expires, before then."""
        self._heaps = self._duplicates, self._delayed, self._in_flight, self._retained

    # inspection

    @property
    def in_flight(self) -> int:
        """The number of messages that were received and are not visible yet."""
        return len(self._in_flight)

    def depth(self) -> Depth:
        delayed, in_flight, oldest = len(self._delayed), len(self._in_flight), self._retained.first()
        ready = len(self.messages) - delayed - in_flight
        return Depth(ready, in_flight, delayed, oldest[0] if oldest is not None else None, self.next_position - 1)

    def next_visible_at(self) -> float | None:
        """Return when the next message in flight, delayed message or duplicate becomes visible."""
        if self._quiet_until == math.inf:
            return None
        first = self._next_heap()
        return None if first is None else first[0]

    # changes

    def add(self, message: StoredMessage) -> None:
        self.messages[message.position] = message
        self.next_position = message.position + 1
        self._retained.put(message, message.sent_at)
        self._kept_until = min(self._kept_until, message.sent_at)
        self.order.add(message)
        if message.visible_at > self._now():
            self._put_invisible(message, self._delayed, message.visible_at)
        else:
            self.order.on_visible(message)

    def set_visible_at(self, message: StoredMessage, at: float) -> bool:
        """Set when a message becomes visible; return whether that is now, or before all others in flight."""
        message.visible_at = at
        if at <= self._now():
            self._in_flight.discard(message)
            self.order.on_visible(message)
            return True
        self.order.on_invisible(message)
        self._put_invisible(message, self._in_flight, at)
        first = self._in_flight.first()
        return first is None or first[1] is message

    def schedule_duplicate(self, message: StoredMessage, at: float) -> None:
        """Make a message visible at that time, even if it is in flight or deleted by then."""
        self._put_invisible(message, self._duplicates, at)

    def delete(self, message: StoredMessage) -> bool:
        """Remove a message, but keep its scheduled duplicate; return whether that lets another one be received."""
        duplicate_at = self._duplicates.time_of(message)
        frees_another = self.remove(message)
        if duplicate_at is not None:
            self._put_invisible(message, self._duplicates, duplicate_at)
        return frees_another

    def remove(self, message: StoredMessage) -> bool:
        """Remove a message and its scheduled duplicate; return whether that lets another one be received."""
        position = message.position
        del self.messages[position]
        for heap in self._heaps:
            heap.times.pop(position, None)
        self._retained.first()  # drops what it holds of messages that are gone
        return self.order.remove(message)

    def catch_up(self, retention_seconds: int) -> None:
        """Apply in order what has become due: messages become visible, expire, or reappear."""
        now = self._now()
        if now < self._quiet_until and now < self._kept_until + retention_seconds:
            return
        while True:
            oldest = self._retained.first()
            visible_at = self.next_visible_at() if now >= self._quiet_until else None
            expires_at = None if oldest is None else oldest[0] + retention_seconds
            if oldest is not None and expires_at is not None and expires_at <= min(now, visible_at or now):
                self.remove(oldest[1])
                self._record("expired", oldest[1], expired_at=expires_at)
            elif visible_at is not None and visible_at <= now:
                message = self._make_next_visible()
                if message is not None and message.sent_at + retention_seconds > visible_at:
                    self._restore(message, visible_at)
                    self._record("reappeared", message)
            else:
                if now >= self._quiet_until:
                    self._quiet_until = math.inf if visible_at is None else visible_at
                self._kept_until = math.inf if oldest is None else oldest[0]
                return

    def _put_invisible(self, message: StoredMessage, heap: MessageHeap, until: float) -> None:
        heap.put(message, until)
        self._quiet_until = min(self._quiet_until, until)

    def _next_heap(self) -> tuple[float, MessageHeap] | None:
        """Return the time at which the next message becomes visible, and the heap it is in."""
        firsts = [(first[0], heap) for heap in self._by_visibility if (first := heap.first()) is not None]
        return min(firsts, key=itemgetter(0), default=None)

    def _make_next_visible(self) -> StoredMessage | None:
        """Make the next message visible; if it was deleted, return it instead."""
        found = self._next_heap()
        message = None if found is None else found[1].pop()
        if message is None or found is None:
            return None
        if found[1] is not self._duplicates:
            self.order.on_visible(message)
        elif message.position not in self.messages:
            return message
        elif self._in_flight.discard(message):
            message.next_is_duplicate = True
            self.order.on_visible(message)
        return None

    def _restore(self, message: StoredMessage, at: float) -> None:
        message.visible_at, message.next_is_duplicate, message.has_reappeared = at, True, True
        self.messages[message.position] = message
        self._retained.put(message, message.sent_at)
        self._kept_until = min(self._kept_until, message.sent_at)
        self.order.add(message)
        self.order.on_visible(message)
