"""A consumer's lists of failure steps: checking them when it is made, and asking them about a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tarry.delay import MAX_VISIBILITY_SECONDS
from tarry.errors import ConfigurationError
from tarry.policy.steps import EVERY_REASON, MAX_RESENDS, BuiltInStep, DeadLetter, LocalRetry, RetryInPlace, SendAgain
from tarry.support.arn import named_queue
from tarry.support.causes import name_of
from tarry.support.value import Value

if TYPE_CHECKING:
    from tarry.outcome import Outcome
    from tarry.policy.failure import Failure, FailureStep, NextStep, Step, StepContext

NEVER_UNHANDLED = frozenset({"fatal", "rejected", "undecodable", "expiring"})
"""Reasons for which a message must not wait in place: if no step takes it, it is dead-lettered (SPEC E1)."""


class FunctionStep(Value):
    """A failure step that calls a function."""

    function: Callable[[Failure, NextStep], Outcome]

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        return self.function(failure, next_step)

    @property
    def breaks_order(self) -> bool:
        return getattr(self.function, "breaks_order", False) is True


class FailureSteps(Value):
    """The lists of failure steps of one consumer: one for all its queues, or several by queue name.

    One step object may be in several lists; it has one counter.

    Raises:
        ConfigurationError: An element is not a step, or two `SendAgain` steps have the same id.
    """

    default: StepList
    by_queue: Mapping[str, StepList]

    def __init__(self, steps: Sequence[Step] | Mapping[str, Sequence[Step]] | None = None) -> None:
        if not isinstance(steps, Mapping):
            self._freeze(default=StepList(steps), by_queue={})
            return
        default = StepList(steps.get("default"))
        by_queue = {name: StepList(given) for name, given in steps.items() if given and name != "default"}
        self._freeze(default=default, by_queue=by_queue)
        self._refuse_shared_ids()
        for name, of_queue in by_queue.items():
            for step in of_queue.steps:
                if isinstance(step, SendAgain):
                    step.refuse_delay_on(name)

    def _refuse_shared_ids(self) -> None:
        by_id: dict[str, SendAgain] = {}
        for step in (step for steps in self.all for step in steps.steps if isinstance(step, SendAgain)):
            if by_id.setdefault(step.id, step) is not step:
                raise ConfigurationError(
                    f"two SendAgain steps have the id {step.id!r}, and would share one counter: give each an id of its "
                    "own, or put one step object into both lists"
                )

    def of(self, queue: str) -> StepList:
        """Return the list for messages from ``queue``: its own, if that is not empty, else the default."""
        return self.by_queue.get(queue, self.default)

    @property
    def all(self) -> tuple[StepList, ...]:
        return (self.default, *self.by_queue.values())


class StepList(Value):
    """The failure steps for one queue, in order."""

    steps: tuple[FailureStep, ...]
    retries_in_place: bool
    """Whether the policy's ``max_attempts`` applies: a step retries in place."""

    def __init__(self, steps: Sequence[Step] | None) -> None:
        if steps is not None and not isinstance(steps, (list, tuple)):
            raise ConfigurationError(
                f"on_failure takes a list of failure steps, or a dict of such lists by queue name, got {steps!r}"
            )
        steps = tuple(_step(step) for step in steps) if steps else (RetryInPlace(), DeadLetter())
        ids = [step.id for step in steps if isinstance(step, SendAgain)]
        for twice in {each for each in ids if ids.count(each) > 1}:
            raise ConfigurationError(f"two SendAgain steps of a list have the id {twice!r}: give each an id of its own")
        for step in steps[:-1]:
            if isinstance(step, BuiltInStep) and step.handles == EVERY_REASON:
                raise ConfigurationError(f"{step!r} handles every failure, so it must be the last step, got {steps!r}")
        self._freeze(steps=steps, retries_in_place=any(isinstance(step, RetryInPlace) for step in steps))

    @cached_property
    def dead_letter(self) -> DeadLetter:
        """The list's first `DeadLetter`: its options apply to all dead letters, whichever step asks for one."""
        return next((step for step in self.steps if isinstance(step, DeadLetter)), DeadLetter())

    @property
    def tries_locally(self) -> bool:
        return any(isinstance(step, LocalRetry) for step in self.steps)

    def without_local_retry(self) -> StepList:
        """Return the list without `LocalRetry`, for a message that cannot run again within this delivery."""
        rest = StepList(None)
        steps = tuple(step for step in self.steps if not isinstance(step, LocalRetry))
        rest._freeze(steps=steps, retries_in_place=self.retries_in_place)
        return rest

    def handle(self, failure: Failure) -> Outcome:
        """Ask the steps about a failure. Exceptions of a step are raised."""
        return self._from(0, failure, failure.context)

    def _from(self, index: int, failure: Failure, context: StepContext | None) -> Outcome:
        from tarry.outcome import Outcome

        if failure.context is not context:  # a step made a failure of its own
            failure = failure.changed(context=context)
        if index < len(self.steps):
            step, of_others = self.steps[index], list[Outcome]()

            def next_step(passed: Failure) -> Outcome:
                of_others.append(self._from(index + 1, passed, context))
                return of_others[-1]

            answer = _answer(step, failure, next_step)
            is_own = isinstance(answer, Outcome) and not any(answer is each for each in of_others)
            if not is_own or (why := _why_not(answer, step, failure)) is None:
                outcome: Outcome = answer
                return outcome
            if context is not None and not failure.does_not_fit:  # else it was logged when the copy was made
                name = name_of_step(step)
                text = f"The answer of {name} cannot be carried out: {why}. The next failure step decides."
                context.notice("step_passed_on", text)
            return self._from(index + 1, failure, context)
        if failure.reason in NEVER_UNHANDLED:
            return DeadLetter().handle(failure, self.handle)
        return Outcome.unhandled()


def _answer(step: FailureStep, failure: Failure, next_step: NextStep) -> Any:
    if isinstance(step, BuiltInStep):  # what it calls of the user's has its own limit
        return step.handle(failure, next_step)
    from tarry.support.hooks import call

    return call(f"the failure step {name_of_step(step)}", step.handle, failure, next_step)


NOT_OF_STEPS = frozenset({"release", "wait"})
"""Outcomes of messages that have not run: a failed one would run again and again, until SQS moves it bare. Only a step
with an attribute ``releases`` may answer so: that of `tarry failed retry --via local`, which settles by itself."""
MOST_RUNS = MAX_RESENDS + 1
"""The most runs of a message within one delivery, as `LocalRetry` allows: a handler may fail in no time at all."""


def _why_not(outcome: Outcome, step: FailureStep, failure: Failure) -> str | None:
    """Return why the answer of a failure step cannot be carried out as it is; None if it can (SPEC E7)."""
    delivery, delay = failure.delivery, outcome.delay or 0
    longest: float = MAX_VISIBILITY_SECONDS
    if outcome.kind == "resend":
        if failure.does_not_fit:
            return "there is no space for its failure record"
        target = named_queue(outcome.queue, delivery.source) if outcome.queue else delivery.source
        if delay and target.is_fifo:
            return f"a delay of {delay:g} s was asked for, and SQS accepts none for a single message of a FIFO queue"
        if target.is_fifo and target == delivery.source and getattr(step, "breaks_order", False) is not True:
            return "a copy in the same FIFO queue loses its place in its group (breaks_order=True allows that)"
    elif outcome.kind in NOT_OF_STEPS and getattr(step, "releases", False) is not True:
        return f"the outcome {outcome.kind} is of messages that have not run"
    elif outcome.kind == "again" and failure.tries >= MOST_RUNS:
        return f"the message has run {MOST_RUNS} times in this delivery"
    elif outcome.kind in ("retry", "defer"):
        longest = delivery.longest_delay(failure.failed_at)
        if failure.context is not None and failure.context.is_policy_delay(outcome):
            return None  # the delay of the policy is cut (SPEC C6)
    else:
        return None
    return None if delay <= longest else f"a delay of {delay:g} s was asked for, and SQS keeps at most {longest:g} s"


def name_of_step(step: FailureStep) -> str:
    """Return a failure step for a text: as it was made, or the name of the user's class or function."""
    if isinstance(step, BuiltInStep):
        return str(step)
    function: Any = step.function if isinstance(step, FunctionStep) else None
    return getattr(function, "__name__", None) or name_of(type(function or step))


def _step(step: Any) -> FailureStep:
    """Return an element of a list as an object with a method ``handle``.

    Raises:
        ConfigurationError: The element is not a step.
    """
    is_object = not isinstance(step, type) and callable(getattr(step, "handle", None))
    if isinstance(step, type) or not (is_object or callable(step)):
        raise ConfigurationError(
            "on_failure takes objects with a method handle(failure, next_step), or functions of these two, got "
            f"{step!r}{': make an object of the class' if isinstance(step, type) else ''}"
        )
    code = getattr(step.handle if is_object else step, "__code__", None)
    if code is not None and code.co_flags & _ASYNC_OR_GENERATOR:
        raise ConfigurationError(f"a failure step must not be async or a generator, got {step!r}")
    if is_object:
        handles: FailureStep = step
        return handles
    if isinstance(step, FunctionType) and not _takes_two(step):
        raise ConfigurationError(f"a function as a failure step takes (failure, next_step), got {step!r}")
    return FunctionStep(step)


_CO_VARARGS = 0x04
_ASYNC_OR_GENERATOR = 0x20 | 0x80 | 0x200  # generator, coroutine, async generator: inspect's flags, without its import


def _takes_two(function: FunctionType) -> bool:
    code = function.__code__
    needed = code.co_argcount - len(function.__defaults__ or ())
    return needed <= 2 and (code.co_argcount >= 2 or bool(code.co_flags & _CO_VARARGS))
