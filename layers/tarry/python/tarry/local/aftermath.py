"""What became of every message of a run in virtual time, read when it is over."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from tarry.local.letters import NO_LETTER, Letter
from tarry.local.story import Story
from tarry.outcome import State
from tarry.testing import Report, Sandbox, Transition

EXPIRED = "it expired: nobody was done with it as long as its queue kept it"


def stories_of(report: Report, numbers: Mapping[str, int], consumed: Collection[str]) -> list[Story]:
    """The stories of a sandbox.

    Args:
        report: What has happened there.
        numbers: The places in the event file, by SQS's ids.
        consumed: The queues that feed a function.
    """
    stories = [_story(message_id, steps, numbers, consumed) for message_id, steps in report.stories.items()]
    return sorted(stories, key=lambda story: story.number or len(numbers) + 1)


def _story(
    message_id: str, steps: Sequence[Transition], numbers: Mapping[str, int], consumed: Collection[str]
) -> Story:
    last, number = steps[-1], numbers.get(steps[0].delivery_id)
    shown = steps if number is None else steps[1:]  # that it was sent goes without saying
    alive = [step.queue for step in steps if step.state is not State.DEAD_LETTERED]
    is_lost = last.why == "expired" and not any(step.state is State.DEAD_LETTERED for step in steps)
    return Story(
        message_id,
        alive[-1] if alive else last.queue,
        number,
        list(_counted(shown[:-1] if is_lost else shown)),
        lost=EXPIRED if is_lost else "",
        is_left=last.queue not in consumed,
    )


def _counted(steps: Sequence[Transition]) -> Iterable[Transition]:
    """With attempts by the count of deliveries, where no consumer of tarry's ever counted any."""
    if any(step.attempt for step in steps):
        return steps
    deliveries = count(1)
    return [replace(step, attempt=next(deliveries)) if step.state is State.IN_FLIGHT else step for step in steps]


def letters_of(stories: Iterable[Story], sandbox: Sandbox) -> dict[str, Letter]:
    """The dead letters, by the ids of their stories; a story whose letter is nowhere is lost."""
    report = sandbox.report()
    ids = {steps[0].delivery_id: message_id for message_id, steps in report.stories.items()}
    found = {
        ids[report.story(letter.delivery_id)[0].delivery_id]: letter
        for queue in sandbox.sqs.queues()
        for letter in sandbox.messages(queue)
    }
    letters = {}
    for story in stories:
        letter = found.get(story.id)
        if story.state == State.DEAD_LETTERED and letter is not None:
            letters[story.id] = Letter(story.id, letter.queue, letter.receive_count, letter.failure)
        elif story.state == State.DEAD_LETTERED:
            story.lost = NO_LETTER
    return letters
