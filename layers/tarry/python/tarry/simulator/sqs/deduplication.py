"""FIFO's deduplication: what was sent in the last five minutes is accepted again, and swallowed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.simulator.sqs.message import StoredMessage

INTERVAL_SECONDS = 300

Key = tuple[str | None, str]
"""The group, where each has its own ids, and the deduplication id."""


class Deduplication:
    """The deduplication ids of one queue. They outlive their messages: a delete does not free an id."""

    def __init__(self) -> None:
        self._first: dict[Key, StoredMessage] = {}
        self._ends: deque[tuple[float, Key]] = deque()

    def first_of(self, key: Key, now: float) -> StoredMessage | None:
        """The message that was sent with this id within the interval."""
        while self._ends and self._ends[0][0] <= now:
            del self._first[self._ends.popleft()[1]]
        return self._first.get(key)

    def remember(self, key: Key, message: StoredMessage, now: float) -> None:
        self._first[key] = message
        self._ends.append((now + INTERVAL_SECONDS, key))
