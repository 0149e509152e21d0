"""What happened in a simulation: an append-only list that checkers and stories are read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    ``at`` is epoch seconds. ``what`` is a word: ``sent``, ``received``, ``deleted``, ``invoked`` ... ``fields`` hold
    what applies to it: ``queue`` (its name), ``delivery_id`` (SQS's id of the message) and so on.
    """

    at: float
    what: str
    fields: Mapping[str, Any]


class History:
    """All events, in the order in which they were recorded, whose times never run backwards."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.events: list[Event] = []
        self.by: str | None = None
        """Who acts: the request id of an invocation, ``mapping``, or None for a test. Each event tells it."""

    def record(self, what: str, **fields: Any) -> None:
        """Adds an event that happens now."""
        if self.by is not None:
            fields["by"] = self.by
        self.events.append(Event(self._now(), what, fields))
