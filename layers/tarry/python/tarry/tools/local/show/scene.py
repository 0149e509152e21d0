"""Everything that a screen shows of a running cloud, as values, and the protocol of its displays."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from tarry.failed.text import one_line
from tarry.message.outcomes import State
from tarry.tools.local.show.log import LogLine
from tarry.tools.local.show.timeline import MessageTimeline


@dataclass(frozen=True)
class QueueRow:
    """A queue and its numbers of messages. ``oldest_seconds`` is the age of its oldest message."""

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
    """A function: its processes, the busy ones among them, its invocations so far."""

    name: str
    environments: int = 0
    busy: int = 0
    invoked: int = 0
    failed: int = 0
    throttled: int = 0
    last: str = ""
    """The last invocation, in a few words."""
    problem: str = ""
    """``old code`` or ``not running`` while the saved code cannot be imported."""

    @property
    def is_empty(self) -> bool:
        return not (self.busy or self.problem)


@dataclass(frozen=True)
class Scene:
    """Everything that a screen shows. ``now`` is epoch seconds; ``messages`` and ``lines`` are the latest ones."""

    title: str
    now: float
    queues: Sequence[QueueRow] = ()
    functions: Sequence[FunctionRow] = ()
    messages: Sequence[MessageTimeline] = ()
    lines: Sequence[LogLine] = ()
    ended: dict[str, int] = field(default_factory=dict)
    """The number of messages that have ended in each state."""

    @property
    def latest_errors(self) -> dict[str, str]:
        """Why the latest message came to each dead-letter queue, by its name."""
        targets, found = {row.name: row.dead_letter_queue for row in self.queues}, dict[str, str]()
        for message in self.messages:  # the latest first
            if message.state == State.DEAD_LETTERED and (target := targets.get(message.queue)):
                found.setdefault(target, one_line(message.why))
        return found


class View(Protocol):
    """The display of a running cloud."""

    @property
    def lines(self) -> Collection[LogLine]:
        """The latest log lines, if they are not shown at once."""

    def step(self, message: MessageTimeline) -> None:
        """Show that a message has moved to another state."""

    def say(self, line: LogLine) -> None:
        """Show a log line of a function or of the cloud."""

    def showing(self, scene: Callable[[], Scene]) -> AbstractAsyncContextManager[None]:
        """Show the current ``scene`` until the context ends."""
