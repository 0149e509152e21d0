"""What a queue needs of the world around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tarry.simulator.history import History
    from tarry.simulator.sqs.queue import SimulatedQueue
    from tarry.simulator.sqs.realism import Realism

IN_FLIGHT_LIMIT = 120_000


@dataclass(frozen=True)
class Surroundings:
    """Time, chance, the record of what happens, and the other queues."""

    now: Callable[[], float]
    random: Random
    history: History
    realism: Realism
    in_flight_limit: int
    queue_of: Callable[[str], SimulatedQueue | None]
    """The queue of an ARN."""
    changed: Callable[[SimulatedQueue], None]
    """Told when what can be received from a queue, or when, is no longer what it was."""

    def new_id(self) -> str:
        text = f"{self.random.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
