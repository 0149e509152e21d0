"""What a checker finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tarry.testing.history import RecordedHistory

if TYPE_CHECKING:
    from tarry.testing.deliveries import MessageCopy

MOMENT = 0.001
"""How much earlier than due something may happen: times are floats."""


@dataclass(frozen=True)
class Violation:
    """A rule that was broken; ``id`` is the message's stable id, or an invocation's request id; "" of a whole run."""

    rule: str
    id: str
    text: str
    at: float

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}" + (f" (message {self.id})" if self.id else "")


Found = Iterator[Violation]
Checker = Callable[[RecordedHistory], Found]


def violation(rule: str, copy: MessageCopy, text: str, at: float) -> Violation:
    """Of a message, by its stable id."""
    return Violation(rule, copy.id, text, at)
