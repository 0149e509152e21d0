"""What happened in a simulation: an append-only list that checkers and stories are read from, and a bus for those who
listen while it happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One thing that happened.

    ``at`` is epoch seconds. ``what`` is a word: ``sent``, ``received``, ``deleted``, ``invoked`` ... ``fields`` hold
    what applies to it: ``queue`` (its name), ``delivery_id`` (SQS's id of the message) and so on.
    """

    at: float
    what: str
    fields: Mapping[str, Any]


class History:
    """All events, in the order in which they were recorded, whose times never run backwards.

    With ``keep=False`` it holds none of them: what goes on for days is only listened to.
    """

    def __init__(self, now: Callable[[], float], *, keep: bool = True) -> None:
        self.now = now
        """The time, in epoch seconds."""
        self._keep = keep
        self._listeners: list[Callable[[HistoryEvent], None]] = []
        self.events: list[HistoryEvent] = []
        self.by: str | None = None
        """Who acts, which each event tells: an invocation, by its request id, ``mapping``, ``http`` for whoever comes
        with a client of their own, None for a test."""

    def listen(self, callback: Callable[[HistoryEvent], None]) -> None:
        """Calls ``callback`` with each event as it is recorded, in the middle of what is happening.

        It may look, and is to be quick; whoever wants to act does so later.
        """
        self._listeners.append(callback)

    def record(self, what: str, **fields: Any) -> None:
        """Adds an event that happens now."""
        if self.by is not None:
            fields["by"] = self.by
        event = HistoryEvent(self.now(), what, fields)
        if self._keep:
            self.events.append(event)
        for tell in self._listeners:
            tell(event)
