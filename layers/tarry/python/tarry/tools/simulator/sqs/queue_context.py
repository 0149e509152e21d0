"""The collaborators of a queue: clock, random source, history, and the other queues."""

from __future__ import annotations

from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tarry.tools.simulator.history import History
    from tarry.tools.simulator.sqs.queue import SimulatedQueue
    from tarry.tools.simulator.sqs.realism import Realism

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
