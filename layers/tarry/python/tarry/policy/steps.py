"""The built-in failure steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tarry.errors import ConfigurationError
from tarry.policy.backoff import Backoff, BadDelay, Wait, as_backoff, delay_of, longest_of
from tarry.support.value import Value

if TYPE_CHECKING:
    from tarry.outcome import Outcome
    from tarry.policy.failure import Failure, NextStep, StepContext

Record = Mapping[str, Any]

MAX_RESENDS = 1_000  # the maximum of a counter in the `Tarry` attribute


EVERY_REASON = frozenset({"error", "exhausted", "fatal", "rejected", "undecodable", "expiring"})
"""The reasons of failures (`Failure.reason`)."""


class BuiltInStep(Value):
    """A failure step of tarry's. Checks and plans ask it what it does, because they must not run it."""

    leads_to = ""
    """The kind of its outcome."""
    handles = EVERY_REASON
    """The reasons of the failures that it may handle; it passes on all others."""

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


class RetryInPlace(BuiltInStep):
    """Retry a message that failed with an error, as the consumer's policy says; pass on every other failure.

    The message stays in its queue, invisible for the delay. No message is sent.
    """

    leads_to = "retry"
    handles = frozenset({"error"})

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        from tarry.outcome import Outcome

        return Outcome.retry(failure.policy_delay) if failure.reason in self.handles else next_step(failure)


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
        from tarry.outcome import Outcome

        return Outcome.dead_letter(failure.reason, _queue_of(self, failure))


class DropMessage(BuiltInStep):
    """Delete the message; only a log line remains. For queues whose messages may be lost."""

    leads_to = "discard"

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        from tarry.outcome import Outcome

        return Outcome.discard(failure.reason)


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
        from tarry.outcome import Outcome

        has_verdict = failure.delivery.verdict is not None
        may_retry = failure.reason in self.handles and not has_verdict and isinstance(failure.error, Exception)
        if not may_retry or failure.tries > self.times:
            return next_step(failure)
        context = _context(failure)
        try:
            delay = delay_of(self.delay, failure.tries, context.rng)
        except BadDelay as error:
            text = f"LocalRetry's delay failed: {error}. The next failure step decides."
            context.notice("backoff_failed", text)
            return next_step(failure)
        has_time = context.time_left() > delay + RESERVE_SECONDS
        return Outcome.again(delay) if has_time else next_step(failure)


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
    _longest: float
    """The longest delay in seconds; 0 for the queue's own."""

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
        from tarry.outcome import Outcome

        note = failure.note(self.id)
        sent = note if isinstance(note, int) else 0  # a text note is that of another step
        if failure.reason not in self.handles or sent >= self.times:
            return next_step(failure)
        queue = _queue_of(self, failure)
        return Outcome.resend(queue, self._delay_of(sent + 1, failure), note={self.id: sent + 1})

    def _delay_of(self, number: int, failure: Failure) -> float | None:
        if self.delay is None:
            return None
        context = _context(failure)
        try:
            return delay_of(self.delay, number, context.rng)
        except BadDelay as error:
            from tarry.policy.retry_policy import STANDARD_BACKOFF

            text = f"SendAgain({self.id!r})'s delay failed: {error}. The default backoff delays this copy."
            context.notice("backoff_failed", text)
            return STANDARD_BACKOFF.delay(number, context.rng)

    def refuse_delay_on(self, queue: str) -> None:
        """Raise `ConfigurationError` if the step has a delay, and its copies go to a FIFO queue.

        ``queue``: the name, URL or ARN of the source queue, used if the step has no queue of its own.
        """
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
    from tarry.policy.failure import StepContext

    invocation = failure.delivery.invocation
    return StepContext(invocation.world.random, invocation.time_left)


def _times(times: int) -> int:
    if type(times) is not int or not 1 <= times <= MAX_RESENDS:
        raise ConfigurationError(f"times must be a whole number from 1 to {MAX_RESENDS}, got {times!r}")
    return times
