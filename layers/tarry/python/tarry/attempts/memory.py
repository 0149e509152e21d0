"""An attempt store in memory, for tests and `tarry local`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tarry.attempts.store import AttemptChange


class MemoryAttempts:
    """An attempt store in this process, for tests: on Lambda each environment would count for itself."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        """The records by id."""
        self._lock = threading.Lock()

    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """See `AttemptStore.read`."""
        with self._lock:
            return {key: dict(self.records[key]) for key in ids if key in self.records}

    def write(self, changes: Sequence[AttemptChange]) -> None:
        """See `AttemptStore.write`."""
        with self._lock:
            for change in changes:
                if (record := change.applied_to(self.records.get(change.id))) is not None:
                    self.records[change.id] = record
