"""The built-in failure steps, and a consumer's lists of them: checking them when it is made, and asking them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import FunctionType

from tarry.decide.retry_policy import Backoff, BadDelay, Wait, as_backoff, delay_of, longest_of
from tarry.errors import ConfigurationError
from tarry.support.guards import name_of
from tarry.support.values import MAX_VISIBILITY_SECONDS, Value, named_queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tarry.message.delivery import Failure, FailureStep, NextStep, Step, StepContext
    from tarry.message.outcomes import Outcome

    Record = Mapping[str, Any]


MAX_RESENDS = 1_000  # the maximum of a counter in the `Tarry` attribute
EVERY_REASON = frozenset({"error", "exhausted", "fatal", "rejected", "undecodable", "expiring"})


class BuiltInStep(Value):
    """A failure step of tarry's. Checks and plans ask it what it does, because they must not run it."""

    leads_to = ""  # the kind of its outcome
    handles = EVERY_REASON  # the reasons of the failures that it may handle; it passes on all others

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


def _outcomes() -> type[Outcome]:
    """Return the class of outcomes, which a cold start does not load: only a failure needs it."""
    from tarry.message.outcomes import Outcome

    return Outcome


class RetryInPlace(BuiltInStep):
    """Retry a message that failed with an error, as the consumer's policy says; pass on every other failure.

    The message stays in its queue, invisible for the delay. No message is sent.
    """

    leads_to = "retry"
    handles = frozenset({"error"})

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """Retry after the delay of the policy if the reason is ``error``; otherwise ask the next step."""
        return _outcomes().retry(failure.policy_delay) if failure.reason in self.handles else next_step(failure)


class DeadLetter(BuiltInStep):
    """Send the message to the dead-letter queue, with a failure record.

    Args:
        queue: The name, URL or ARN of the dead-letter queue, or a function of the failure that returns one; None is the
            queue in the source queue's redrive policy.
        enrich: A function of the failure that returns a dict, which the record has as ``extra``. If it raises, nothing
            is added.
        include_traceback: Whether the record has the traceback.
        redact: A function that changes the record before it leaves the process, to a queue or to the log. If it raises
            or does not end in time, only the ids, the reason and the type of the error are sent.

    Raises:
        ConfigurationError: ``enrich`` or ``redact`` is not a function.
    """

    leads_to = "dead_letter"
    queue: str | Callable[[Failure], str | None] | None
    enrich: Callable[[Failure], Mapping[str, Any]] | None
    include_traceback: bool
    redact: Callable[[dict[str, Any]], Record] | None

    def __init__(
        self,
        queue: str | Callable[[Failure], str | None] | None = None,
        enrich: Callable[[Failure], Mapping[str, Any]] | None = None,
        include_traceback: bool = True,
        redact: Callable[[dict[str, Any]], Record] | None = None,
    ) -> None:
        for name, hook, what in (("enrich", enrich, "failure"), ("redact", redact, "record")):
            if hook is not None and not callable(hook):
                raise ConfigurationError(f"{name} takes a function of the {what}, got {hook!r}")
        self._freeze(queue=queue, enrich=enrich, include_traceback=include_traceback, redact=redact)

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """Dead-letter every failure."""
        return _outcomes().dead_letter(failure.reason, _queue_of(self, failure))


class DropMessage(BuiltInStep):
    """Delete the message; only a log line remains. For queues whose messages may be lost."""

    leads_to = "discard"

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """Discard the message, whatever the failure."""
        return _outcomes().discard(failure.reason)


class LocalRetry(BuiltInStep):
    """Run the handler again within the same delivery, after the other messages of the batch (on FIFO at once).

    All its runs are one attempt. It passes on a message with a verdict, and one for which there is no time left. For
    handlers of one message only.

    Args:
        times: How many further runs, 1 to 1,000.
        delay: The wait before the next run: seconds (fractions count), a ``timedelta``, or a backoff over the runs.

    Raises:
        ConfigurationError: ``times`` is out of range, or ``delay`` is not a delay.
    """

    leads_to = "again"
    handles = frozenset({"error"})
    times: int
    delay: Backoff

    def __str__(self) -> str:
        return f"LocalRetry({self.times})"

    def __init__(self, times: int, delay: Wait = 0) -> None:
        backoff = as_backoff(delay)
        longest_of("LocalRetry's delay", backoff, _times(times))
        self._freeze(times=times, delay=backoff)

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """Run the handler again while ``times`` and the time allow it; otherwise ask the next step."""
        has_verdict = failure.delivery.verdict is not None
        may_retry = failure.reason in self.handles and not has_verdict and isinstance(failure.error, Exception)
        if not may_retry or failure.tries > self.times:
            return next_step(failure)
        context = _context(failure)
        try:
            delay = delay_of(self.delay, failure.tries, context.rng)
        except BadDelay as error:
            context.notice("backoff_failed", f"LocalRetry's delay failed: {error}. The next failure step decides.")
            return next_step(failure)
        has_time = context.time_left() > delay + RESERVE_SECONDS
        return _outcomes().again(delay) if has_time else next_step(failure)


RESERVE_SECONDS = 2.0  # kept for the run itself and its settlement


class SendAgain(BuiltInStep):
    """Send a copy of the message with its id, attempts and history, then delete the original.

    `RetryInPlace` is cheaper. A copy to the message's own queue is a hop: Lambda stops a function after about 16 hops
    of a message, unless its ``RecursiveLoop`` is ``Allow``. If no copy can be sent, the step passes the failure on,
    with an ERROR in the log.

    Args:
        id: The name of the counter that travels with the message. Use one step object in several lists to share it.
        times: How many copies, 1 to 1,000.
        delay: Seconds, a ``timedelta`` or a backoff over the copies (from 1), at most 12 hours; not on FIFO. None is
            the queue's own delay.
        queue: The name, URL or ARN of the target, or a function of the failure that returns one; None is the message's
            own queue. If the function raises, the message stays in its queue.
        breaks_order: Allow a copy to the same FIFO queue, where it loses its place in its group.

    Raises:
        ConfigurationError: The id is empty, ``times`` is out of range, or SQS cannot keep the delay.
    """

    leads_to = "resend"
    handles = frozenset({"error", "exhausted"})
    id: str
    times: int
    delay: Backoff | None
    queue: str | Callable[[Failure], str | None] | None
    breaks_order: bool
    _longest: float  # the longest delay in seconds; 0 for the queue's own

    def __str__(self) -> str:
        return f"SendAgain({self.id!r}, times={self.times})"

    def __init__(
        self,
        id: str,
        times: int = 1,
        delay: Wait | None = None,
        queue: str | Callable[[Failure], str | None] | None = None,
        breaks_order: bool = False,
    ) -> None:
        if type(id) is not str or not id:
            raise ConfigurationError(f"SendAgain needs an id, the name of its counter, got {id!r}")
        _times(times)
        if queue is not None and not isinstance(queue, str) and not callable(queue):
            raise ConfigurationError(
                f"SendAgain({id!r}) takes a queue's name, URL or ARN, or a function of the failure, got {queue!r}"
            )
        backoff = None if delay is None else as_backoff(delay)
        longest = 0 if backoff is None else longest_of(f"SendAgain({id!r})'s delay", backoff, times)
        self._freeze(id=id, times=times, delay=backoff, queue=queue, breaks_order=bool(breaks_order), _longest=longest)
        self.refuse_delay_on("")

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """Send a copy while ``times`` allows it; otherwise ask the next step."""
        note = failure.note(self.id)
        sent = note if isinstance(note, int) else 0  # a text note is that of another step
        if failure.reason not in self.handles or sent >= self.times:
            return next_step(failure)
        queue = _queue_of(self, failure)
        return _outcomes().resend(queue, self._delay_of(sent + 1, failure), note={self.id: sent + 1})

    def _delay_of(self, number: int, failure: Failure) -> float | None:
        if self.delay is None:
            return None
        context = _context(failure)
        try:
            return delay_of(self.delay, number, context.rng)
        except BadDelay as error:
            from tarry.decide.retry_policy import STANDARD_BACKOFF

            text = f"SendAgain({self.id!r})'s delay failed: {error}. The default backoff delays this copy."
            context.notice("backoff_failed", text)
            return STANDARD_BACKOFF.delay(number, context.rng)

    def refuse_delay_on(self, queue: str) -> None:
        """Raise `ConfigurationError` if the step has a delay and its copies, of messages in ``queue``, go to FIFO."""
        target = queue if self.queue is None else self.queue
        if self._longest and isinstance(target, str) and target.endswith(".fifo"):
            raise ConfigurationError(
                f"SendAgain({self.id!r}) has a delay, and {target} is FIFO: SQS accepts no delay for a single message "
                "there"
            )


def _queue_of(step: DeadLetter | SendAgain, failure: Failure) -> str | None:
    """Return the queue of a step, by its function if it has one."""
    if not callable(step.queue):
        return step.queue
    from tarry.support.hooks import call

    return call(f"{type(step).__name__}'s queue", step.queue, failure)


def _context(failure: Failure) -> StepContext:
    """Return the context of a failure; a new one for a failure made by hand to test a step."""
    if failure.context is not None:
        return failure.context
    from tarry.message.delivery import StepContext

    invocation = failure.delivery.invocation
    return StepContext(invocation.world.random, invocation.time_left)


def _times(times: int) -> int:
    if type(times) is not int or not 1 <= times <= MAX_RESENDS:
        raise ConfigurationError(f"times must be a whole number from 1 to {MAX_RESENDS}, got {times!r}")
    return times


NEVER_UNHANDLED = frozenset({"fatal", "rejected", "undecodable", "expiring"})
"""Reasons for which a message must not wait in place: if no step takes it, it is dead-lettered (SPEC E1)."""


class FunctionStep(Value):
    function: Callable[[Failure, NextStep], Outcome]

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        return self.function(failure, next_step)

    @property
    def breaks_order(self) -> bool:
        return getattr(self.function, "breaks_order", False) is True


class FailureSteps(Value):
    """The lists of failure steps of a consumer, by queue name. A step object in several lists has one counter."""

    default: StepList
    by_queue: Mapping[str, StepList]

    def __init__(self, steps: Sequence[Step] | Mapping[str, Sequence[Step]] | None = None) -> None:
        lists = steps if isinstance(steps, Mapping) else {"default": steps}
        by_queue = {name: StepList(given) for name, given in lists.items() if given and name != "default"}
        self._freeze(default=StepList(lists.get("default")), by_queue=by_queue)
        self._refuse_shared_ids()
        for name, step in ((name, step) for name, of_queue in by_queue.items() for step in of_queue.steps):
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
    retries_in_place: bool  # whether the policy's ``max_attempts`` applies: a step retries in place

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
        return self._changed(steps=tuple(step for step in self.steps if not isinstance(step, LocalRetry)))

    def handle(self, failure: Failure) -> Outcome:
        """Ask the steps about a failure. Exceptions of a step are raised."""
        return self._from(0, failure, failure.context)

    def _from(self, index: int, failure: Failure, context: StepContext | None) -> Outcome:
        if failure.context is not context:  # a step made a failure of its own
            failure = failure.changed(context=context)
        if index < len(self.steps):
            step = self.steps[index]
            of_others: list[Any] = []

            def next_step(passed: Failure) -> Outcome:
                of_others.append(outcome := self._from(index + 1, passed, context))
                return outcome

            answer = _answer(step, failure, next_step)
            is_own = isinstance(answer, _outcomes()) and not any(answer is each for each in of_others)
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
        return _outcomes().unhandled()


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
    """Return an element of a list as an object with a method ``handle``."""
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
