"""The collaborators of a queue: clock, random source, history, and the other queues."""

from __future__ import annotations

from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tarry.tools.simulator.history import History
    from tarry.tools.simulator.sqs.message import StoredMessage
    from tarry.tools.simulator.sqs.queue import SimulatedQueue

REORDER_WITHIN_MESSAGES = 1000  # at most this many later messages overtake a message


@dataclass(frozen=True)
class Realism:
    """The behaviour of AWS that a test can switch on or off.

    ``reorder``, ``partial`` and ``duplicate`` are off by default. They are random, and the same seed gives the same
    results. The others are on by default, since they are deterministic, and every consumer must cope with them.
    """

    reorder: bool = False
    """Messages are received in any order."""
    partial: bool = False
    """A receive returns only some of the visible messages, and sometimes none if it does not wait."""
    duplicate: float = 0.0
    """The probability that a received message is delivered once more within its visibility timeout: while it is in
    flight, or after it was deleted. A deleted message comes back at most once."""
    old_handles_act: bool = True
    """On a standard queue a receipt handle of an earlier delivery changes the visibility of the current one."""
    late_changes_are_ignored: bool = True
    """On a standard queue a visibility change after the visibility timeout has ended succeeds and has no effect."""
    recursion_is_stopped: bool = True
    """Lambda stops a recursive loop after 16 invocations of a function in one chain of sends."""

    def rank(self, message: StoredMessage, random: Random) -> float:
        """Return a message's rank among the messages that can be received; the lowest comes first."""
        return message.position + (random.uniform(0, REORDER_WITHIN_MESSAGES) if self.reorder else 0)

    def receive_limit(self, max_messages: int, random: Random, *, waits: bool) -> int:
        """Return how many messages a receive returns at most; at least 1 for a long poll, which queries all servers."""
        return random.randint(1 if waits else 0, max_messages) if self.partial else max_messages

    def duplicate_after(self, visibility_seconds: float, random: Random) -> float | None:
        """Return in how many seconds a message that was just received is delivered once more; None if it is not."""
        if not self.duplicate or random.random() >= self.duplicate:
            return None
        return random.uniform(0, visibility_seconds)


IN_FLIGHT_LIMIT = 120_000


@dataclass(frozen=True)
class QueueContext:
    """The collaborators that all queues of an account share."""

    now: Callable[[], float]
    random: Random
    history: History
    realism: Realism
    in_flight_limit: int
    queue_of: Callable[[str], SimulatedQueue | None]
    """Returns the queue with an ARN; None if there is none."""
    changed: Callable[[SimulatedQueue], None]
    """Called when a message of a queue can be received, now or at a new time."""
    trace_header: Callable[[], str | None]
    """Returns the X-Ray header of the current request; None if it has none."""

    def new_id(self) -> str:
        text = f"{self.random.getrandbits(128):032x}"
        return intern(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")  # the history names it often
