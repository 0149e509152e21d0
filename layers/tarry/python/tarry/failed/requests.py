"""Requests without a deadline, repeated when SQS throttles them; the errors of the operations."""

from __future__ import annotations

import threading
from typing import Any

from tarry import world
from tarry.decide.retry_policy import Exponential
from tarry.errors import TarryError
from tarry.failed.queue_names import existing_queues
from tarry.message.invocation import Invocation
from tarry.observe.logs import Log, LogOptions
from tarry.sqs.client import Lookups, Requests
from tarry.sqs.refusals import is_refused_for_now, may_be_applied

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


TRIES = 6
BACKOFF = Exponential(0.5, 2, maximum=8, jitter="equal")
"""The delays between tries; the boto3 client retries in addition."""

LOG = Log("tarry.failed", LogOptions())


class PatientRequests(Requests):
    """Requests that are repeated when throttled; a send or start only if no earlier try of it may have been applied."""

    def __init__(self, tries: int = TRIES) -> None:
        super().__init__(Invocation(world.current(), None, lambda _: None, LOG))
        self._tries = tries
        self._lock = threading.Lock()
        self._last = threading.local()
        self.made = 0
        """The number of requests so far, without those that boto3 itself repeats."""

    @property
    def asked_at(self) -> float:
        """When the last request of this thread was sent, in epoch seconds."""
        sent_at: float = self._last.sent_at
        return sent_at

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        for number in range(1, self._tries):
            try:
                return self._call(operation, parameters)
            except Exception as error:
                is_send = operation.startswith(("send", "start"))
                if not (was_throttled(error) if is_send else is_refused_for_now(error)):
                    raise
            wait(number)
        return self._call(operation, parameters)

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.made += 1
        self._last.sent_at = self.invocation.world.clock.time()
        return super().call(operation, **parameters)


def was_throttled(error: Exception) -> bool:
    """Whether SQS refused a send temporarily, and no earlier try of it may have been applied."""
    return is_refused_for_now(error) and not may_be_applied(error)


def wait(number: int) -> None:
    """Sleep after the ``number``-th try, counted from 1."""
    here = world.current()
    here.clock.sleep(BACKOFF.delay(number, here.random))


def lookups() -> Lookups:
    return Lookups(PatientRequests(), LOG)
