"""Violations: the results of checkers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tarry.tools.testing.recorded_history import RecordedHistory

if TYPE_CHECKING:
    from tarry.tools.testing.deliveries import MessageCopy

MOMENT = 0.001
"""The tolerance for events before their due time: times are floats."""


@dataclass(frozen=True)
class Violation:
    """A broken rule; ``id`` is the message's stable id, an invocation's request id, or "" for a whole run."""

    rule: str
    id: str
    text: str
    at: float

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}" + (f" (message {self.id})" if self.id else "")


Found = Iterator[Violation]
Checker = Callable[[RecordedHistory], Found]


def violation(rule: str, copy: MessageCopy, text: str, at: float) -> Violation:
    """Return the violation of a rule by a message."""
    return Violation(rule, copy.id, text, at)
