"""What there is to see of a cloud at one moment: values, however they came about."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tarry.local.show.log import Line
from tarry.local.show.story import Story


@dataclass(frozen=True)
class QueueRow:
    """A queue, and what it holds. ``oldest_seconds`` is the age of its oldest message."""

    name: str
    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_seconds: float | None = None
    dead_letter_queue: str | None = None
    dead: int = 0
    """Messages in the dead-letter queue."""

    @property
    def is_empty(self) -> bool:
        return not (self.ready or self.in_flight or self.delayed or self.dead)


@dataclass(frozen=True)
class FunctionRow:
    """A function: its processes, how many of them work, its invocations so far."""

    name: str
    environments: int = 0
    busy: int = 0
    invoked: int = 0
    failed: int = 0
    throttled: int = 0
    last: str = ""
    """The last invocation, in a few words."""

    @property
    def is_empty(self) -> bool:
        return not self.busy


@dataclass(frozen=True)
class Scene:
    """All of it. ``now`` is epoch seconds; ``stories`` and ``lines`` are the latest, as many as fit at the most."""

    title: str
    now: float
    queues: Sequence[QueueRow] = ()
    functions: Sequence[FunctionRow] = ()
    stories: Sequence[Story] = ()
    lines: Sequence[Line] = ()
    ended: dict[str, int] = field(default_factory=dict)
    """How many messages have ended in which state."""
