"""One message's timeline as it is shown: its steps and its state, in words and colours."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from tarry.failed.text import coarse, one_line, printable
from tarry.message.outcomes import State
from tarry.tools.story.events import ENDS, WORDS
from tarry.tools.story.text import STYLES as STATE_STYLES
from tarry.tools.testing.timeline import Transition

LOST = "LOST"
"""The state of a lost message, which is not a state of tarry: no message must be lost."""
EXPIRED = "it expired: it was not settled within the retention of its queue"
LEFT = "no function here consumes it"
ODD = "deleted, though it was "

ORDINARY = frozenset({State.READY, State.IN_FLIGHT, State.COMMITTED})
"""The states of a message without trouble."""


@dataclass
class MessageTimeline:
    """One message's timeline so far. ``number`` is its place in the event file; None if it was not sent from there."""

    id: str
    queue: str
    """The queue that it is in, or was in last before it was dead-lettered."""
    number: int | None = None
    steps: Sequence[Transition] = field(default_factory=list)
    """Its steps; for a message with a number, without the first, its sending."""
    lost: str = ""
    """Why the message is lost; empty if it is not."""
    is_left: bool = False
    """Whether it stays in its queue, which feeds no function here."""

    @property
    def state(self) -> str:
        """Its state now, or ``LOST``."""
        return LOST if self.lost else self.steps[-1].state if self.steps else State.READY

    @property
    def why(self) -> str:
        """Why it is in that state, as far as known."""
        if self.is_left and self.state == State.READY:
            return LEFT
        return self.lost or (self.steps[-1].why if self.steps else "")

    @property
    def attempt(self) -> int | None:
        return next((step.attempt for step in reversed(self.steps) if step.attempt), None)

    @property
    def delivery_id(self) -> str:
        """The delivery id of its latest copy; empty if it has no steps yet."""
        return self.steps[-1].delivery_id if self.steps else ""

    @property
    def due(self) -> float | None:
        """When it comes back, in epoch seconds, while it waits."""
        last = self.steps[-1] if self.steps and not self.is_settled else None
        return None if last is None or last.delay is None else last.at + last.delay

    @property
    def is_settled(self) -> bool:
        return self.state in ENDS or (self.is_left and self.state == State.READY)

    def __str__(self) -> str:
        states = [*map(text_of, self.steps), *([LOST] if self.lost else [])]
        return " -> ".join(states or [State.READY])


def timeline_of(
    message_id: str, steps: Sequence[Transition], number: int | None, consumed: Collection[str]
) -> MessageTimeline:
    """Return the timeline of these steps. ``consumed`` are the queues that feed a function."""
    last = steps[-1]
    alive = [step.queue for step in steps if step.state is not State.DEAD_LETTERED]
    has_expired = last.why == "expired" and not any(step.state is State.DEAD_LETTERED for step in steps)
    lost = EXPIRED if has_expired else f"it was {last.why}" if last.why.startswith(ODD) else ""
    shown = steps if number is None else steps[1:]  # without its sending, which `tarry local` did itself
    return MessageTimeline(
        message_id,
        alive[-1] if alive else last.queue,
        number,
        shown[:-1] if lost else shown,
        lost=lost,
        is_left=last.queue not in consumed,
    )


def text_of(step: Transition) -> str:
    """Return a step in words: ``IN_FLIGHT 2``, ``WAITING_RETRY 1 min 30 s``, ``COMMITTED``."""
    if step.state is State.IN_FLIGHT and step.attempt:
        return f"{step.state} {step.attempt}"
    if step.delay and (step.sent_on or not step.is_gone):
        return f"{step.state} {coarse(step.delay)}"
    return step.state


def state_counts(messages: Iterable[MessageTimeline]) -> dict[str, int]:
    """Return the number of messages in each state, in the order in which a message passes through the states."""
    states = [message.state for message in messages]
    return {state: states.count(state) for state in [*State, LOST] if state in states}


def counted(states: Mapping[str, int]) -> str:
    """Return numbers of messages by state in words: ``8 committed, 2 dead-lettered``."""
    return ", ".join(f"{count:,} {WORDS.get(state, state.lower())}" for state, count in states.items() if count)


STYLES: Mapping[str, str] = {**STATE_STYLES, LOST: "bold white on red"}


def name_of(message: MessageTimeline) -> str:
    """Return the name of a message in a line: its place in the event, the beginning of its id, its queue."""
    number = "" if message.number is None else f"#{message.number}"
    return f"{number:>3} {printable(message.id[:8])} {printable(message.queue)}"


def state_of(message: MessageTimeline) -> Text:
    """Return the state of a message in words, in its colour."""
    if message.lost or not message.steps:
        return Text(message.state, STYLES[message.state])
    return Text(text_of(message.steps[-1]), STYLES.get(message.state, ""))


def because(why: str) -> Text:
    """Return the reason for a message's state, in brackets; empty if unknown."""
    return Text(f"  ({one_line(why)})" if why else "", "dim")
