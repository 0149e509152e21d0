"""The ids that an inspection has handled: none is offered twice, and those that come back are counted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.failed.dead_letters import DeadLetterMessage


class HandledIds:
    """The stable ids of the dead letters that were handled, or are being handled in a thread."""

    def __init__(self) -> None:
        self._sent_at: dict[str, int] = {}
        """When each dead letter was sent, in milliseconds by the clock of SQS."""
        self._repeated: set[str] = set()
        self._returned: set[str] = set()
        self._lock = threading.Lock()

    def __contains__(self, own_id: str) -> bool:
        return own_id in self._sent_at

    @property
    def repeated(self) -> int:
        """The number of dead letters whose id was handled before: duplicates, or dead-lettered again."""
        return len(self._repeated)

    @property
    def returned(self) -> int:
        """The number of these that were sent later than the dead letter that was handled: it was retried, and
        dead-lettered again.
        """
        return len(self._returned)

    def claim(self, dead_letter: DeadLetterMessage) -> bool:
        """Mark an id as handled; return False if it was handled before."""
        with self._lock:
            if dead_letter.id in self._sent_at:
                return False
            self._sent_at[dead_letter.id] = _sent_milliseconds(dead_letter)
            return True

    def unclaim(self, dead_letter: DeadLetterMessage) -> None:
        """Undo a `claim`: the dead letter was not handled after all."""
        self._sent_at.pop(dead_letter.id, None)

    def count_repeated(self, dead_letter: DeadLetterMessage) -> None:
        """Count a dead letter whose id was handled before."""
        self._repeated.add(dead_letter.delivery_id)
        if self.is_returned(dead_letter):
            self._returned.add(dead_letter.delivery_id)

    def is_returned(self, dead_letter: DeadLetterMessage) -> bool:
        """Whether it was handled before, and is a later dead letter with the same id."""
        before = self._sent_at.get(dead_letter.id)
        return before is not None and _sent_milliseconds(dead_letter) > before


def _sent_milliseconds(dead_letter: DeadLetterMessage) -> int:
    return int(dead_letter.record["attributes"].get("SentTimestamp", 0))
