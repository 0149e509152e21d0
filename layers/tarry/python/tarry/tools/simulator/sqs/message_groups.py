"""The order of a FIFO queue: its message groups, and the messages of each in the order of their arrival."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tarry.tools.simulator.sqs.order import MessageHeap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.tools.simulator.sqs.message import StoredMessage


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
