"""What became of every message of a run, read when it is over."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from tarry.local.runs.letters import NO_LETTER, Letter
from tarry.local.show.story import Story, story_of
from tarry.outcome import State
from tarry.simulator.sqs import Sqs
from tarry.testing import Report, Transition
from tarry.testing.letters import Letter as Found


def stories_of(report: Report, numbers: Mapping[str, int], consumed: Collection[str]) -> list[Story]:
    """The stories of a sandbox.

    Args:
        report: What has happened there.
        numbers: The places in the event file, by SQS's ids.
        consumed: The queues that feed a function.
    """
    stories = [
        story_of(message_id, _counted(steps), numbers.get(steps[0].delivery_id), consumed)
        for message_id, steps in report.stories.items()
    ]
    return sorted(stories, key=lambda story: story.number or len(numbers) + 1)


def _counted(steps: Sequence[Transition]) -> Sequence[Transition]:
    """With attempts by the count of deliveries, where no consumer of tarry's ever counted any."""
    if any(step.attempt for step in steps):
        return steps
    deliveries = count(1)
    return [replace(step, attempt=next(deliveries)) if step.state is State.IN_FLIGHT else step for step in steps]


def letters_of(stories: Iterable[Story], sqs: Sqs, now: float) -> dict[str, Letter]:
    """The dead letters, by the ids of their stories; a story whose letter is nowhere is lost."""
    found = [Found(stored, queue, now) for queue in sqs.queues() for stored in sqs.peek(queue)]
    by_id = {letter.id: letter for letter in found} | {letter.delivery_id: letter for letter in found}
    letters = {}
    for story in stories:
        if story.state != State.DEAD_LETTERED:
            continue
        ids = [story.id, *(step.delivery_id for step in story.steps)]
        letter = next((by_id[each] for each in ids if each in by_id), None)
        if letter is not None:
            letters[story.id] = Letter(story.id, letter.queue, letter.receive_count, letter.failure)
        else:
            story.lost = NO_LETTER
    return letters
