"""How a run ended: the timeline of each message, its dead letters, and the exit code."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from tarry.envelope.attribute import FailureRecord
from tarry.local.show.timeline import MessageTimeline, state_counts, timeline_of
from tarry.outcome import State
from tarry.simulator.sqs import Sqs
from tarry.testing import Report, Transition
from tarry.testing.checkers import Violation
from tarry.testing.messages import Letter as Found

NOT_IN_A_DLQ = "said to be dead-lettered, but in no dead-letter queue"


@dataclass(frozen=True)
class DeadLetterSummary:
    """A message in a dead-letter queue, after so many deliveries; ``failure`` is tarry's record, if it wrote one."""

    id: str
    queue: str
    deliveries: int
    failure: FailureRecord | None

    @property
    def why(self) -> str:
        failure = self.failure
        if not failure:
            deliveries = f"{self.deliveries} deliver{'y' if self.deliveries == 1 else 'ies'}"
            return f"moved by SQS itself after {deliveries}, without a record"
        error = ": ".join(filter(None, [failure.type, failure.message]))
        attempts = f" after {failure.attempts} attempt{'s'[: failure.attempts != 1]}" if failure.attempts else ""
        return f"{failure.reason or 'failed'}{attempts}" + (f": {error}" if error else "")


@dataclass(frozen=True)
class RunReport:
    """What became of the messages of a run."""

    stories: list[MessageTimeline] = field(default_factory=list)
    dead_letters: Mapping[str, DeadLetterSummary] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False
    virtual_seconds: float | None = None
    """How long it took in virtual time; None in real time."""
    violations: Sequence[Violation] = ()
    expected: Mapping[str, int] = field(default_factory=dict)
    """How many messages should be in each state; what it does not name may be in any number."""

    @property
    def lost(self) -> list[MessageTimeline]:
        return [story for story in self.stories if story.lost]

    @property
    def waiting(self) -> list[MessageTimeline]:
        """Those that did not settle in time."""
        return [story for story in self.stories if not (story.is_settled or story.lost)]

    @property
    def missed(self) -> str:
        """How the numbers of messages by state differ from those that are expected; empty if they do not."""
        found = state_counts(self.stories)
        if all(found.get(state, 0) == number for state, number in self.expected.items()):
            return ""
        both = [
            ", ".join(f"{each.get(state, 0)} {state}" for state in self.expected) for each in (self.expected, found)
        ]
        return f"expected {both[0]}, got {both[1]}"

    @property
    def exit_code(self) -> int:
        """0 if all is well, 1 if something was lost, did not settle or is not as expected, 130 after Ctrl-C."""
        if self.interrupted:
            return 130
        return 1 if self.lost or self.waiting or self.violations or self.missed else 0


def stories_of(report: Report, numbers: Mapping[str, int], consumed: Collection[str]) -> list[MessageTimeline]:
    """The stories of a sandbox.

    Args:
        report: What has happened there.
        numbers: The places in the event file, by SQS's ids.
        consumed: The queues that feed a function.
    """
    stories = [
        timeline_of(message_id, _counted(steps), numbers.get(steps[0].delivery_id), consumed)
        for message_id, steps in report.stories.items()
    ]
    return sorted(stories, key=lambda story: story.number or len(numbers) + 1)


def _counted(steps: Sequence[Transition]) -> Sequence[Transition]:
    """With attempts by the count of deliveries, where no consumer of tarry's ever counted any."""
    if any(step.attempt for step in steps):
        return steps
    deliveries = count(1)
    return [replace(step, attempt=next(deliveries)) if step.state is State.IN_FLIGHT else step for step in steps]


def dead_letters_of(stories: Iterable[MessageTimeline], sqs: Sqs, now: float) -> dict[str, DeadLetterSummary]:
    """The dead letters, by the ids of their stories; a story whose letter is nowhere is lost."""
    found = [Found(stored, queue, now) for queue in sqs.queues() for stored in sqs.peek(queue)]
    by_id = {dead_letter.id: dead_letter for dead_letter in found} | {
        dead_letter.delivery_id: dead_letter for dead_letter in found
    }
    dead_letters = {}
    for story in stories:
        if story.state != State.DEAD_LETTERED:
            continue
        ids = [story.id, *(step.delivery_id for step in story.steps)]
        dead_letter = next((by_id[each] for each in ids if each in by_id), None)
        if dead_letter is not None:
            dead_letters[story.id] = DeadLetterSummary(
                story.id, dead_letter.queue, dead_letter.receive_count, dead_letter.failure
            )
        else:
            story.lost = NOT_IN_A_DLQ
    return dead_letters
