"""The groups of a FIFO queue: a message that cannot be received hides every later one of its group."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tarry.simulator.sqs.agenda import Agenda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.simulator.sqs.message import StoredMessage


class MessageGroups:
    """The messages of a FIFO queue, each group in its order.

    A receive takes what it can of the group whose head has waited longest, then of the next. It does not matter to a
    group what is hidden behind its head, nor to one group what is hidden in another.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._groups: dict[str, deque[StoredMessage]] = {}
        self._removed: set[int] = set()  # positions of those that left from behind their head, and are still listed
        self._heads = Agenda()  # the heads that can be received, by position

    def add(self, message: StoredMessage) -> None:
        self._groups.setdefault(message.group or "", deque()).append(message)

    def show(self, message: StoredMessage) -> None:
        self._look_at(message.group or "")

    def hide(self, message: StoredMessage) -> None:
        self._heads.discard(message)

    def remove(self, message: StoredMessage) -> None:
        self._removed.add(message.position)
        self._heads.discard(message)
        self._look_at(message.group or "")

    def receivable(self) -> Iterator[StoredMessage]:
        now = self._now()
        while (head := self._heads.pop()) is not None:
            for message in self._groups[head.group or ""]:
                if message.position in self._removed:
                    continue
                if message.visible_at > now:
                    break
                yield message

    def _look_at(self, name: str) -> None:
        """Whether a group can be received."""
        group = self._groups[name]
        while group and group[0].position in self._removed:
            self._removed.discard(group.popleft().position)
        if not group:
            del self._groups[name]
        elif group[0].visible_at <= self._now() and group[0] not in self._heads:
            self._heads.put(group[0], group[0].position)
