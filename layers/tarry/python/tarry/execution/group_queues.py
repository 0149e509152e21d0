"""Messages that wait to be started beside others: in their order, and of a FIFO group one after the other."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tarry.message import delivery_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tarry.delivery import Delivery
    from tarry.execution.groups import Group
    from tarry.message import Message


class Line:
    """Messages of standard queues: any of them may be next."""

    def __init__(self, messages: Iterator[Message[Any]]) -> None:
        self._messages = messages

    def next(self) -> Message[Any] | None:
        """The next message that may be started, if there is one now."""
        return next(self._messages, None)

    def free(self, delivery: Delivery) -> None:
        """A message is decided: what waits for that may be started."""

    def rest(self) -> Iterator[Message[Any]]:
        """Those that were not started, and will not be."""
        return self._messages


class Lanes(Line):
    """Messages of FIFO queues: each group is a lane, in which the next waits until the one before it is decided."""

    def __init__(self, messages: Iterable[Message[Any]]) -> None:
        self._waiting: dict[Group, deque[Message[Any]]] = {}
        for message in messages:
            self._waiting.setdefault(delivery_of(message).group, deque()).append(message)
        self._free = deque(self._waiting)

    def next(self) -> Message[Any] | None:
        return self._waiting[self._free.popleft()].popleft() if self._free else None

    def free(self, delivery: Delivery) -> None:
        if self._waiting.get(group := delivery.group):
            self._free.append(group)

    def rest(self) -> Iterator[Message[Any]]:
        waiting, self._waiting = self._waiting, {}
        self._free.clear()
        return (message for lane in waiting.values() for message in lane)
