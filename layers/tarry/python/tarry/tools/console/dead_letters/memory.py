"""The memory that the snapshots of all queues share, for dead letters with their bodies."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.tools.console.dead_letters.snapshots import Snapshot

MAX_PACKED_BYTES = 256 * 1024 * 1024
"""The memory for whole dead letters, compressed, of all snapshots together."""


class Memory:
    """The memory that all snapshots share. If it is used up, the oldest other snapshot drops its bodies first."""

    def __init__(self, most: int = MAX_PACKED_BYTES) -> None:
        self._left = most
        self._users: list[Snapshot] = []
        self._lock = threading.Lock()

    def use(self, snapshot: Snapshot) -> None:
        """Add a snapshot, as the newest one."""
        self._users.append(snapshot)

    def leave(self, snapshot: Snapshot) -> None:
        """Drop a snapshot's bodies and forget it."""
        if snapshot in self._users:
            self._users.remove(snapshot)
        snapshot.drop()

    def take(self, size: int, taker: Snapshot) -> bool:
        """Take memory; return whether there is enough."""
        while True:
            with self._lock:
                if self._left >= size:
                    self._left -= size
                    return True
                others = [each for each in self._users if each is not taker]
            if not others:
                return False
            self.leave(others[0])

    def give(self, size: int) -> None:
        """Return memory."""
        with self._lock:
            self._left += size
