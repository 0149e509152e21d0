"""Steps of one message that repeat: shown once, with their number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tarry.message.outcomes import State
from tarry.tools.local.show.timeline import text_of
from tarry.tools.testing.timeline import Transition

MOST_REPEATS = 3
"""The number of equal attempts in a row that are shown one by one."""


@dataclass(frozen=True)
class ShownStep:
    """One or more steps as they are shown; ``last`` is the last of them."""

    last: Transition
    text: str


def folded(steps: Sequence[Transition]) -> Iterator[ShownStep]:
    """Yield the steps; attempts in a row with the same end, error and wait are two: the first, and all others."""
    for _, group in groupby(_attempts(steps), key=_kind):
        attempts = list(group)
        whole = attempts if len(attempts) <= MOST_REPEATS else attempts[:1]
        for attempt in whole:
            for step in attempt:
                yield ShownStep(step, text_of(step))
        if len(whole) < len(attempts):
            yield ShownStep(attempts[-1][-1], _repeated(attempts[1:]))


def _attempts(steps: Sequence[Transition]) -> Iterator[list[Transition]]:
    """Yield each attempt with the step that ended it, and every other step by itself."""
    attempt: list[Transition] = []
    for step in steps:
        if attempt and step.state is not State.IN_FLIGHT:
            yield [*attempt, step]
            attempt = []
            continue
        if attempt:
            yield attempt
        attempt = [step] if step.state is State.IN_FLIGHT else []
        if not attempt:
            yield [step]
    if attempt:
        yield attempt


def _kind(attempt: Sequence[Transition]) -> tuple[object, ...]:
    """Return what attempts have in common that are shown as one."""
    last = attempt[-1]
    return len(attempt), last.state, last.delivery_id, last.queue, text_of(last), last.why


def _repeated(attempts: Sequence[Sequence[Transition]]) -> str:
    first, last = attempts[0][0], attempts[-1][0]
    if len(attempts[0]) == 1:
        return f"{text_of(last)}, {len(attempts)} more times"
    numbers = f"{first.attempt}-{last.attempt}" if first.attempt and last.attempt else f"{len(attempts)} more times"
    return f"{State.IN_FLIGHT} {numbers}, each {text_of(attempts[-1][-1])}"
