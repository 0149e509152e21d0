"""Run a script, separate the known differences from the others, and shorten a script that shows another."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulation.referee.differences import Known, explanation
from tests.simulation.referee.implementations import Implementation
from tests.simulation.referee.play import AFTER, Difference, Play
from tests.simulation.referee.script import Script, Step

STEPS = 500


@dataclass
class Result:
    """The steps that were taken, the known differences that were met, and the first other difference."""

    steps: Sequence[Step] = ()
    met: Counter[Known] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    """By implementation: how many answers were compared with the model's."""
    unknown: Difference | None = None


def run(implementations: Mapping[str, Implementation], steps: Iterable[Step], count: int = STEPS) -> Result:
    """Take this many steps, or all up to the first difference that is not known."""
    play, result = Play(implementations), Result()
    for difference in play.take(steps, count):
        known = explanation(difference)
        if known is not None:
            result.met[known] += 1
            if known.lasting:
                play.leave_out(difference)
        elif difference.subject != AFTER:
            result.unknown = difference
            break
    result.steps, result.compared = (*play.steps, *play.current), play.compared
    return result


def run_seed(implementations: Mapping[str, Implementation], seed: int, count: int = STEPS) -> Result:
    return run(implementations, Script(seed), count)


def shortened(implementations: Mapping[str, Implementation], result: Result) -> Result:
    """Return a result with the same difference after fewer steps: none of them can be left out alone."""
    size = len(result.steps) // 2
    while size:
        start = 0
        while start < len(result.steps):
            fewer = [*result.steps[:start], *result.steps[start + size :]]
            again = run(implementations, fewer)
            if _kind(again.unknown) == _kind(result.unknown):
                result = again
            else:
                start += size
        size //= 2
    return result


def _kind(difference: Difference | None) -> tuple[object, ...] | None:
    if difference is None:
        return None
    return difference.who, difference.operation, difference.fault, difference.subject


def described(result: Result) -> str:
    """Return the difference, and the steps to it."""
    lines = [str(result.unknown)]
    for number, step in enumerate(result.steps):
        fault = f"    ({step.fault})" if step.fault else ""
        parameters = ", ".join(f"{name}={value!r}" for name, value in step.parameters.items())
        lines.append(f"{number:3} {step.operation} {step.queue} {parameters}{fault}")
    return "\n".join(lines)
