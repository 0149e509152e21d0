"""What has happened to each message, kept as steps; what is settled, what waits, what is lost."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tarry.outcome import State

LOST = "LOST"
"""Not a state of tarry's: what must never be seen."""

FINAL = frozenset({State.COMMITTED, State.DEAD_LETTERED, State.DISCARDED})
GONE = FINAL | {State.RESENT}
"""States in which the delivery at hand is no more in its queue."""


@dataclass(frozen=True)
class Step:
    """One step of a message's life. ``delay_seconds`` is until it comes back."""

    state: str
    attempt: int | None = None
    delay_seconds: float | None = None
    reason: str = ""
    error: str = ""
    as_copy: bool = False
    """Whether it goes on as a copy of its own: the delivery at hand is done with."""

    @property
    def is_gone(self) -> bool:
        """Whether the delivery at hand is no more in its queue."""
        return self.as_copy or self.state in GONE

    @property
    def why(self) -> str:
        """Why it was taken, as far as that was told."""
        if self.reason == "error" and self.error:
            return self.error
        if self.reason == "error" and self.state == State.WAITING_RETRY:
            return "the handler asked for it"
        return ": ".join(part for part in (self.reason, self.error) if part)

    def __str__(self) -> str:
        if self.state == State.IN_FLIGHT:
            return f"{self.state} {self.attempt}"
        if self.state not in GONE and self.delay_seconds:
            return f"{self.state} {self.delay_seconds:g}s"
        return str(self.state)


@dataclass
class Story:
    """One message's life so far. ``number`` is its place in the event file, None for one that a handler sent."""

    id: str
    queue: str
    number: int | None = None
    steps: list[Step] = field(default_factory=lambda: [Step(State.READY)])
    due: float | None = None
    """When it is expected back, while it waits."""
    known_due: bool = False
    """Whether tarry said so; else it is when the queue's own visibility timeout ends."""
    told: bool = False
    """Whether tarry has told what became of the delivery at hand."""

    @property
    def now(self) -> Step:
        return self.steps[-1]

    @property
    def attempt(self) -> int | None:
        return next((step.attempt for step in reversed(self.steps) if step.attempt), None)

    @property
    def is_settled(self) -> bool:
        return self.now.state in FINAL

    @property
    def is_lost(self) -> bool:
        return self.now.state == LOST

    def __str__(self) -> str:
        shown = self.steps[1:] if len(self.steps) > 1 else self.steps
        return " -> ".join(map(str, shown))


class Board:
    """All stories of a run. ``on_step`` is told of each step as it happens."""

    def __init__(self, on_step: Callable[[Story, Step], None] = lambda story, step: None) -> None:
        self._stories: dict[str, Story] = {}
        self._aliases: dict[str, str] = {}
        self._on_step = on_step

    @property
    def stories(self) -> list[Story]:
        return list(self._stories.values())

    @property
    def is_settled(self) -> bool:
        return all(story.is_settled or story.is_lost for story in self.stories)

    def sent(self, message_id: str, queue: str, number: int | None = None) -> Story:
        """A message is in its queue. A second one of the same id (deduplicated by SQS) is the same message."""
        return self._stories.setdefault(message_id, Story(message_id, queue, number))

    def find(self, *ids: str) -> Story | None:
        """The story known by any of these ids."""
        known = (self._stories.get(self._aliases.get(each, each)) for each in ids)
        return next((story for story in known if story), None)

    def delivered(self, delivery_id: str, stable_id: str, queue: str, attempt: int) -> None:
        """A message is on its way to its handler."""
        story = self.find(delivery_id, stable_id) or self.sent(stable_id, queue)
        self._aliases[delivery_id] = self._aliases[stable_id] = story.id
        story.queue, story.due, story.told = queue, None, False
        self._step(story, Step(State.IN_FLIGHT, attempt))

    def told(self, delivery_id: str, step: Step, now: float) -> None:
        """What tarry's log says became of a delivery."""
        story = self.find(delivery_id)
        if story and not story.is_settled:
            story.told = True
            story.known_due = step.delay_seconds is not None
            story.due = None if step.delay_seconds is None else now + step.delay_seconds
            self._step(story, step)

    def answered(self, delivery_id: str, problem: str | None, visible_at: float, now: float) -> None:
        """The function has answered. ``problem`` is why this message goes back to its queue, None if it is deleted."""
        story = self.find(delivery_id)
        if story is None:
            return
        if problem is None:
            if not story.told:
                self._step(story, Step(State.COMMITTED))
            elif not story.now.is_gone:
                self.lost(story, f"tarry said {story.now.state} but did not report it, so Lambda deletes it")
        elif not story.told or story.now.is_gone:
            story.due, story.known_due = visible_at, False
            self._step(story, Step(State.WAITING_RETRY, None, max(0, round(visible_at - now)), problem))

    def found_dead(self, story: Story, reason: str) -> None:
        """A message is in a dead-letter queue without tarry having sent it there."""
        self._step(story, Step(State.DEAD_LETTERED, reason=reason))

    def lost(self, story: Story, reason: str) -> None:
        """A message is nowhere to be found."""
        self._step(story, Step(LOST, reason=reason))

    def is_hopeless(self, until: float) -> bool:
        """Whether nothing more can happen before ``until``: all that waits was told to wait longer."""
        waiting = [story for story in self.stories if not (story.is_settled or story.is_lost)]
        return all(story.known_due and story.due is not None and story.due > until for story in waiting)

    def _step(self, story: Story, step: Step) -> None:
        story.steps.append(step)
        self._on_step(story, step)


def counts(stories: Iterable[Story]) -> dict[str, int]:
    """How many messages are in each state, in the order of a message's life."""
    states = [story.now.state for story in stories]
    return {state: states.count(state) for state in [*State, LOST] if state in states}
