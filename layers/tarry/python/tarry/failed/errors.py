"""What `tarry.failed` refuses before anything is touched: one line that says what is wrong, and what to do."""

from __future__ import annotations

from tarry.errors import TarryError


class UnknownQueue(TarryError):
    """There is no such queue. ``known`` are names of queues that there are, as far as SQS tells them."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        self.known = known
        there_are = f"; there are {', '.join(known)}" if known else ""
        super().__init__(f"there is no queue {name!r}{there_are}")


class BadFilter(TarryError):
    """A condition that does not parse; ``column`` is the place, from 1."""

    def __init__(self, text: str, column: int, why: str) -> None:
        self.column = column
        super().__init__(f"the filter {text!r} is wrong at column {column}: {why}")


class NowhereToGo(TarryError):
    """The queue a dead letter came from is unknown, or not confirmed by SQS: name one by ``to``."""


class NotAllowed(TarryError):
    """A permission is missing."""


class CannotEdit(TarryError):
    """The dead letter cannot have this body."""


for _public in (UnknownQueue, BadFilter, NowhereToGo, NotAllowed, CannotEdit):
    _public.__module__ = "tarry.failed"
