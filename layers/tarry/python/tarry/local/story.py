"""What has happened to each message, kept as steps; what is settled, what waits, what is lost."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tarry.outcome import State
from tarry.testing import Transition
from tarry.testing.timeline import duration

LOST = "LOST"
"""Not a state of tarry's: what must never be seen."""

FINAL = frozenset({State.COMMITTED, State.DEAD_LETTERED, State.DISCARDED})


@dataclass
class Story:
    """One message's life so far. ``number`` is its place in the event file, None for one that a handler sent."""

    id: str
    queue: str
    """The one that it was sent to, or came to last as a copy."""
    number: int | None = None
    steps: list[Transition] = field(default_factory=list)
    """Without the first, that it is there."""
    lost: str = ""
    """Why it is nowhere to be found, if it is not."""
    due: float | None = None
    """When it is expected back, while it waits."""
    known_due: bool = False
    """Whether tarry said so; else it is when the queue's own visibility timeout ends."""
    told: bool = False
    """Whether tarry has told what became of the delivery at hand."""
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
    def is_settled(self) -> bool:
        return self.state in FINAL or (self.is_left and self.state == State.READY)

    def __str__(self) -> str:
        told = [*map(text_of, self.steps), *([LOST] if self.lost else [])]
        return " -> ".join(told or [State.READY])


def text_of(step: Transition) -> str:
    """A step in words: ``IN_FLIGHT 2``, ``WAITING_RETRY 1 min 30 s``, ``COMMITTED``."""
    if step.state is State.IN_FLIGHT and step.attempt:
        return f"{step.state} {step.attempt}"
    if step.delay and (step.sent_on or not step.is_gone):
        return f"{step.state} {coarse(step.delay)}"
    return step.state


def coarse(seconds: float) -> str:
    """A time in words, as exact as one wants it: whole seconds, above an hour whole minutes."""
    whole = round(seconds)
    return duration(whole if whole < 3600 else whole - whole % 60)


class Board:
    """All stories of a run in real time. ``on_step`` is told of each story as it goes on."""

    def __init__(self, on_step: Callable[[Story], None] = lambda story: None) -> None:
        self._stories: dict[str, Story] = {}
        self._aliases: dict[str, str] = {}
        self._on_step = on_step

    @property
    def stories(self) -> list[Story]:
        return list(self._stories.values())

    @property
    def is_settled(self) -> bool:
        return all(story.is_settled or story.lost for story in self.stories)

    def sent(self, message_id: str, queue: str, number: int | None = None) -> Story:
        """A message is in its queue. A second one of the same id (deduplicated by SQS) is the same message."""
        return self._stories.setdefault(message_id, Story(message_id, queue, number))

    def find(self, *ids: str) -> Story | None:
        """The story known by any of these ids."""
        known = (self._stories.get(self._aliases.get(each, each)) for each in ids)
        return next((story for story in known if story), None)

    def delivered(self, delivery_id: str, stable_id: str, queue: str, attempt: int, now: float) -> None:
        """A message is on its way to its handler."""
        story = self.find(delivery_id, stable_id) or self.sent(stable_id, queue)
        self._aliases[delivery_id] = self._aliases[stable_id] = story.id
        story.queue, story.due, story.told = queue, None, False
        self._step(story, Transition(now, State.IN_FLIGHT, delivery_id, queue, attempt))

    def told(self, step: Transition) -> None:
        """What tarry's log says became of a delivery."""
        story = self.find(step.delivery_id)
        if story and not story.is_settled:
            story.told = True
            story.known_due = step.delay is not None
            story.due = None if step.delay is None else step.at + step.delay
            self._step(story, step)

    def answered(self, delivery_id: str, problem: str | None, visible_at: float, now: float) -> None:
        """The function has answered. ``problem`` is why this message goes back to its queue, None if it is deleted."""
        story = self.find(delivery_id)
        if story is None:
            return
        is_gone = story.steps[-1].is_gone
        if problem is None:
            if not story.told:
                self._step(story, Transition(now, State.COMMITTED, delivery_id, story.queue))
            elif not is_gone:
                self.lost(story, f"tarry said {story.state} but did not report it, so Lambda deletes it")
        elif not story.told or is_gone:
            story.due, story.known_due = visible_at, False
            delay = max(0, round(visible_at - now))
            step = Transition(now, State.WAITING_RETRY, delivery_id, story.queue, delay=delay, why=problem)
            self._step(story, step)

    def found_dead(self, story: Story, reason: str, now: float) -> None:
        """A message is in a dead-letter queue without tarry having sent it there."""
        self._step(story, Transition(now, State.DEAD_LETTERED, story.id, story.queue, why=reason))

    def lost(self, story: Story, reason: str) -> None:
        """A message is nowhere to be found."""
        story.lost = reason
        self._on_step(story)

    def is_hopeless(self, until: float) -> bool:
        """Whether nothing more can happen before ``until``: all that waits was told to wait longer."""
        waiting = [story for story in self.stories if not (story.is_settled or story.lost)]
        return all(story.known_due and story.due is not None and story.due > until for story in waiting)

    def _step(self, story: Story, step: Transition) -> None:
        story.steps.append(step)
        self._on_step(story)


def counts(stories: Iterable[Story]) -> dict[str, int]:
    """How many messages are in each state, in the order of a message's life."""
    states = [story.state for story in stories]
    return {state: states.count(state) for state in [*State, LOST] if state in states}
