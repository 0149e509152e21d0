"""The facts of a consumer's policy and failure steps that its timeline depends on, as values of any process."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.decide.backoff import bounds_of, delay_of, is_known
from tarry.decide.steps import BuiltInStep, name_of_step
from tarry.support.causes import name_of
from tarry.support.values import fields_of

if TYPE_CHECKING:
    from tarry.decide.backoff import Backoff
    from tarry.decide.retry_policy import RetryPolicy
    from tarry.decide.steps import StepList
    from tarry.message.failure import FailureStep

SAMPLES = 200
"""How often the delay of a backoff of your own is asked for, if it does not tell its bounds."""


class DelayBounds(NamedTuple):
    """The shortest and the longest delay, or the earliest and the latest time, in seconds."""

    earliest: float
    latest: float

    def plus(self, other: DelayBounds) -> DelayBounds:
        """Return the sum of two bounds."""
        return DelayBounds(self.earliest + other.earliest, self.latest + other.latest)

    def at_most(self, seconds: float) -> DelayBounds:
        """Return the bounds, cut at ``seconds``."""
        return DelayBounds(min(self.earliest, seconds), min(self.latest, seconds))


@dataclass(frozen=True)
class PlannedStep:
    """A failure step. ``delays`` are those of its re-sends or runs, in order; None for the queue's own delay."""

    leads_to: str
    """The kind of its outcome; empty for a step of your own."""
    name: str
    """Its class and id, or the function's name."""
    handles: frozenset[str] = frozenset()
    """The reasons of the failures that it may handle."""
    id: str = ""
    times: int = 0
    delays: tuple[DelayBounds, ...] | None = None
    queue: str | None = None
    """The name, URL or ARN of the target; None for the message's own queue, or its dead-letter queue."""
    chooses_queue: bool = False
    """Whether a function chooses the target."""
    breaks_order: bool = False


@dataclass(frozen=True)
class PlannedPolicy:
    """The policy of a consumer for one queue."""

    name: str
    max_attempts: int
    retries_in_place: bool
    """Whether ``max_attempts`` applies: a failure step retries in place."""
    backoff: str
    """The backoff as text."""
    delays: tuple[DelayBounds, ...]
    """The delays after attempts 1 to ``max_attempts - 1``."""
    is_sampled: bool
    """Whether bounds of a backoff of your own are those of samples."""
    unhandled_wait: float
    """For how many seconds a message waits that no failure step takes."""
    steps: tuple[PlannedStep, ...]
    concurrency: int = 1
    is_consumer: bool = True
    """Whether the function is a consumer of tarry."""


def policy_of(name: str, policy: RetryPolicy, steps: StepList, *, fifo: bool, concurrency: int = 1) -> PlannedPolicy:
    """Return the facts of a policy and its failure steps for a standard or a FIFO queue."""
    backoff = policy.backoff_of(fifo=fifo)
    planned = tuple(_step(each) for each in steps.steps)
    built_in = (fields_of(each) for each in steps.steps if isinstance(each, BuiltInStep))
    waits = [backoff, *(options["delay"] for options in built_in if options.get("delay"))]
    return PlannedPolicy(
        name=name,
        max_attempts=policy.max_attempts,
        retries_in_place=steps.retries_in_place,
        backoff=_shown(backoff),
        delays=_delays(backoff, policy.max_attempts - 1),
        is_sampled=any(bounds_of(each, 1) is None for each in waits),
        unhandled_wait=policy.longest_delay(fifo=fifo),
        steps=planned,
        concurrency=concurrency,
    )


def _step(step: FailureStep) -> PlannedStep:
    if not isinstance(step, BuiltInStep):
        return PlannedStep("", name_of_step(step))
    options = fields_of(step)
    times, delay, queue = options.get("times", 0), options.get("delay"), options.get("queue")
    return PlannedStep(
        step.leads_to,
        name_of_step(step),
        step.handles,
        id=options.get("id", ""),
        times=times,
        delays=None if delay is None else _delays(delay, times),
        queue=queue if isinstance(queue, str) else None,
        chooses_queue=callable(queue),
        breaks_order=options.get("breaks_order", False),
    )


def _delays(backoff: Backoff, last: int) -> tuple[DelayBounds, ...]:
    return tuple(_bounds(backoff, attempt) for attempt in range(1, last + 1))


def _bounds(backoff: Backoff, attempt: int) -> DelayBounds:
    """Return the bounds of a delay: as the backoff tells them, or as samples show them."""
    known = bounds_of(backoff, attempt)
    if known is not None:
        return DelayBounds(*known)
    rng = Random(attempt)
    found = [delay_of(backoff, attempt, rng) for _ in range(SAMPLES)]
    return DelayBounds(min(found), max(found))


def _shown(backoff: Backoff) -> str:
    """Return a backoff as it is written, without defaults."""
    if not is_known(backoff):
        return f"{name_of(type(backoff))}, a backoff of your own"
    fields: Any = backoff
    jitter = "" if fields.jitter is None else f", jitter={_number(fields.jitter)}"
    match type(backoff).__name__:
        case "Fixed":
            return f"Fixed({_number(fields.seconds)}{jitter})"
        case "Linear":
            return f"Linear({_numbers(fields.initial, fields.increment, fields.maximum)}{jitter})"
        case "Exponential":
            return f"Exponential({_numbers(fields.initial, fields.multiplier, fields.maximum)}{jitter})"
        case _:
            return f"Schedule([{_numbers(*fields.delays)}]{jitter})"


def _numbers(*numbers: float) -> str:
    return ", ".join(map(_number, numbers))


def _number(number: float | str) -> str:
    return repr(number) if isinstance(number, str) else f"{number:.10g}"
