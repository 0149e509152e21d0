"""One message's timeline, as it is shown: its steps, its state, and both in words and colours."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from tarry.outcome import State
from tarry.testing import Transition
from tarry.tooling.text import coarse, printable

LOST = "LOST"
"""Not a state of tarry's: what must never be seen."""
EXPIRED = "it expired: nobody was done with it as long as its queue kept it"
ODD = "deleted, though it was "

FINAL = frozenset({State.COMMITTED, State.DEAD_LETTERED, State.DISCARDED})
ORDINARY = frozenset({State.READY, State.IN_FLIGHT, State.COMMITTED})
"""The life of a message with which all goes well."""


@dataclass
class MessageTimeline:
    """One message's life so far. ``number`` is its place in the event file, None for any other."""

    id: str
    queue: str
    """The one that it is in, or was in last before it died."""
    number: int | None = None
    steps: Sequence[Transition] = field(default_factory=list)
    """Without the first, that it is there, if it has a number."""
    lost: str = ""
    """Why it is nowhere to be found, if it is not."""
    is_left: bool = False
    """Whether it is where nothing more becomes of it: in a queue that no function here consumes."""

    @property
    def state(self) -> str:
        """Its state now, or ``LOST``."""
        return LOST if self.lost else self.steps[-1].state if self.steps else State.READY

    @property
    def why(self) -> str:
        """Why it is in that state, as far as it is known."""
        return self.lost or (self.steps[-1].why if self.steps else "")

    @property
    def attempt(self) -> int | None:
        return next((step.attempt for step in reversed(self.steps) if step.attempt), None)

    @property
    def due(self) -> float | None:
        """When it is expected back, while it waits."""
        last = self.steps[-1] if self.steps and not self.is_settled else None
        return None if last is None or last.delay is None else last.at + last.delay

    @property
    def is_settled(self) -> bool:
        return self.state in FINAL or (self.is_left and self.state == State.READY)

    def __str__(self) -> str:
        told = [*map(text_of, self.steps), *([LOST] if self.lost else [])]
        return " -> ".join(told or [State.READY])


def timeline_of(
    message_id: str, steps: Sequence[Transition], number: int | None, consumed: Collection[str]
) -> MessageTimeline:
    """The story of these steps. ``consumed`` are the queues that feed a function."""
    last = steps[-1]
    alive = [step.queue for step in steps if step.state is not State.DEAD_LETTERED]
    has_expired = last.why == "expired" and not any(step.state is State.DEAD_LETTERED for step in steps)
    lost = EXPIRED if has_expired else f"it was {last.why}" if last.why.startswith(ODD) else ""
    shown = steps if number is None else steps[1:]  # that it was sent goes without saying
    return MessageTimeline(
        message_id,
        alive[-1] if alive else last.queue,
        number,
        shown[:-1] if lost else shown,
        lost=lost,
        is_left=last.queue not in consumed,
    )


def text_of(step: Transition) -> str:
    """A step in words: ``IN_FLIGHT 2``, ``WAITING_RETRY 1 min 30 s``, ``COMMITTED``."""
    if step.state is State.IN_FLIGHT and step.attempt:
        return f"{step.state} {step.attempt}"
    if step.delay and (step.sent_on or not step.is_gone):
        return f"{step.state} {coarse(step.delay)}"
    return step.state


def state_counts(stories: Iterable[MessageTimeline]) -> dict[str, int]:
    """How many messages are in each state, in the order of a message's life."""
    states = [story.state for story in stories]
    return {state: states.count(state) for state in [*State, LOST] if state in states}


STYLES = {
    State.READY: "dim",
    State.IN_FLIGHT: "cyan",
    State.WAITING_RETRY: "yellow",
    State.COMMITTED: "green",
    State.DEAD_LETTERED: "red",
    State.DISCARDED: "magenta",
    State.DEFERRED: "blue",
    State.RESENT: "blue",
    LOST: "bold white on red",
}


def name_of(story: MessageTimeline) -> Text:
    """How a message is called in a line: its place in the event, the beginning of its id, its queue."""
    return Text(plain_name_of(story))


def plain_name_of(story: MessageTimeline) -> str:
    """The same, in no colour."""
    number = "" if story.number is None else f"#{story.number}"
    return f"{number:>3} {printable(story.id[:8])} {printable(story.queue)}"


def words(step: Transition) -> Text:
    """A step in words, in its colour."""
    return Text(text_of(step), STYLES.get(step.state, ""))


def state_of(story: MessageTimeline) -> Text:
    """The state of a message in words, in its colour."""
    if story.lost or not story.steps:
        return Text(story.state, STYLES[story.state])
    return words(story.steps[-1])


def because(why: str) -> Text:
    """Why a message is in its state, if something is known."""
    return Text(f"  ({printable(why)})" if why else "", "dim")
