"""The errors of `tarry.failed`. Each is one line: the problem and the remedy. No message was changed before, but for
`MoveUnconfirmed`.
"""

from __future__ import annotations

from tarry.errors import TarryError
from tarry.failed.queue_names import existing_queues

MAX_LISTED = 10


class UnknownQueue(TarryError):
    """The queue does not exist. ``known`` are names of existing queues, as far as SQS lists them."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        self.known = known
        existing = existing_queues(name, known)
        super().__init__(f"queue {name!r} does not exist{existing}")


class AmbiguousId(TarryError):
    """The beginning of an id that several dead letters have. ``matches`` are their ids."""

    def __init__(self, beginning: str, matches: tuple[str, ...]) -> None:
        self.matches = matches
        more = f" and {len(matches) - MAX_LISTED} more" if len(matches) > MAX_LISTED else ""
        super().__init__(
            f"{len(matches)} ids begin with {beginning!r}: {', '.join(matches[:MAX_LISTED])}{more}; "
            "give more characters of the id"
        )


class BadFilter(TarryError):
    """A condition cannot be parsed. ``column`` is the position of the error, from 1."""

    def __init__(self, text: str, column: int, why: str) -> None:
        self.column = column
        super().__init__(f"invalid condition {text!r} at column {column}: {why}")


class NowhereToGo(TarryError):
    """The queue a dead letter came from is unknown, or SQS does not confirm it: pass ``to``."""


class NotAllowed(TarryError):
    """An IAM permission is missing."""


class CannotEdit(TarryError):
    """The dead letter cannot have this body."""


class MoveUnconfirmed(TarryError):
    """SQS did not confirm the start of a message move task: it may run, or have ended."""


for _public in (UnknownQueue, AmbiguousId, BadFilter, NowhereToGo, NotAllowed, CannotEdit, MoveUnconfirmed):
    _public.__module__ = "tarry.failed"
