"""Dead-letter queues: missing, or unfit for the messages they are to keep."""

from collections.abc import Iterator

from tarry.tools.check.facts import DAYS, LONGEST_RETENTION_SECONDS, CheckedMapping, CheckedQueue, Facts
from tarry.tools.check.finding import Finding, SafeChange

NO_DEAD_LETTERS = "W9014"
OTHER_TYPE = "E9015"
SHORT_RETENTION = "W9016"
OWN_DEAD_LETTERS = "E9017"
DEAD_LETTERS_OF_DEAD_LETTERS = "W9018"
SMALL_DEAD_LETTERS = "W9019"


def no_dead_letters(mapping: CheckedMapping, queue: CheckedQueue, facts: Facts) -> Iterator[Finding]:
    """Find a queue with a function and without a dead-letter queue; dead-letter queues need none."""
    if queue.has_redrive is not False or any(each.dead_letters == queue.name for each in facts.queues.values()):
        return
    function = mapping.function
    other = ""
    if function is not None and function.has_dead_letter_config:
        other = f" The one that {function.name} has is for asynchronous invocations, not for queues."
    text = (
        f"{queue.title} has no dead-letter queue: a message that always fails is delivered until its retention ends, "
        f"and then lost.{other} Add a queue, and to {queue.title}:"
    )
    target = f"!GetAtt {queue.logical_id}DeadLetters.Arn" if queue.logical_id else "the ARN of the new queue"
    snippet = f"RedrivePolicy: {{deadLetterTargetArn: {target}, maxReceiveCount: 15}}"
    yield Finding(NO_DEAD_LETTERS, (mapping.consumer,), text, snippet, at=queue.at)


def unfit_dead_letters(queue: CheckedQueue, facts: Facts) -> Iterator[Finding]:
    """Compare a queue with its dead-letter queue."""
    if queue.dead_letters is None:
        return
    at = queue.at.below("RedrivePolicy")
    functions = tuple(each.function.name for each in facts.consumers_of(queue.name) if each.function)
    if queue.dead_letters == queue.name:
        text = (
            f"{queue.title} is its own dead-letter queue: SQS keeps delivering a message that always fails. Name "
            "another queue as deadLetterTargetArn."
        )
        yield Finding(OWN_DEAD_LETTERS, functions, text, at=at)
        return
    if queue.is_fifo != queue.dead_letters.endswith(".fifo"):
        kinds = ("FIFO", "a standard queue") if queue.is_fifo else ("a standard queue", "FIFO")
        text = (
            f"{queue.title} is {kinds[0]}, and its dead-letter queue {facts.title_of(queue.dead_letters)} is "
            f"{kinds[1]}: SQS refuses the RedrivePolicy. Name a queue of the same type."
        )
        yield Finding(OTHER_TYPE, functions, text, at=at)
        return
    if (dead_letters := facts.queues.get(queue.dead_letters)) is not None:
        yield from _retention(queue, dead_letters, functions)
        yield from _size(queue, dead_letters, functions)
        yield from _own_redrive(queue, dead_letters, facts)


def _retention(queue: CheckedQueue, dead_letters: CheckedQueue, functions: tuple[str, ...]) -> Iterator[Finding]:
    kept, kept_dead = queue.retention_seconds, dead_letters.retention_seconds
    if queue.is_fifo or kept is None or kept_dead is None or kept_dead > kept:
        return
    if kept >= LONGEST_RETENTION_SECONDS:
        return  # no retention is longer
    text = (
        f"{dead_letters.title} keeps messages for {_days(kept_dead)}, not longer than {queue.title} ({_days(kept)}): a "
        "message that SQS moves keeps its age, so it may be deleted before it is seen. Set:"
    )
    at = dead_letters.at.below("MessageRetentionPeriod")
    value = str(LONGEST_RETENTION_SECONDS)
    yield Finding(
        SHORT_RETENTION, functions, text, f"MessageRetentionPeriod: {value}", at=at, changes=(SafeChange(at, value),)
    )


def _size(queue: CheckedQueue, dead_letters: CheckedQueue, functions: tuple[str, ...]) -> Iterator[Finding]:
    most, most_dead = queue.maximum_bytes, dead_letters.maximum_bytes
    if most is None or most_dead is None or most_dead >= most:
        return
    text = (
        f"{dead_letters.title} takes messages of at most {most_dead:,} bytes, {queue.title} of {most:,}: a larger dead "
        "letter cannot be sent. Set:"
    )
    at = dead_letters.at.below("MaximumMessageSize")
    yield Finding(
        SMALL_DEAD_LETTERS, functions, text, f"MaximumMessageSize: {most}", at=at, changes=(SafeChange(at, str(most)),)
    )


def _own_redrive(queue: CheckedQueue, dead_letters: CheckedQueue, facts: Facts) -> Iterator[Finding]:
    """Find the redrive policy of a dead-letter queue without a function."""
    target = dead_letters.dead_letters
    if target is None or target == dead_letters.name or facts.consumers_of(dead_letters.name):
        return
    text = (
        f"{dead_letters.title}, the dead-letter queue of {queue.title}, has a dead-letter queue of its own: looking at "
        f"its messages counts as a receive, and SQS then moves them to {facts.title_of(target)}. Remove its "
        "RedrivePolicy."
    )
    yield Finding(DEAD_LETTERS_OF_DEAD_LETTERS, (), text, at=dead_letters.at.below("RedrivePolicy"))


def _days(seconds: int) -> str:
    return f"{seconds / DAYS:g} days" if seconds >= DAYS else f"{seconds:,} s"
