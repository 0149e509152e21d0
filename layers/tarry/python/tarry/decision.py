"""From what was said of a message to what is to be done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from tarry.delay import whole_seconds
from tarry.errors import DelayNotSupported
from tarry.failure import Failure, StepList
from tarry.message import Ack, Message, Word
from tarry.outcome import Outcome
from tarry.signals import Defer, Discard, Retry, Signal, find_signal
from tarry.value import Value

if TYPE_CHECKING:
    from tarry.policy import RetryPolicy

LastDelivery: TypeAlias = Callable[[Message[Any]], bool]
"""Whether SQS will not deliver a message again if it fails now. May cost a request, so it is asked late."""


class Decision(Value):
    """An outcome, and the failure it came from."""

    __slots__ = ("failed_at", "failure", "message", "outcome", "trouble")
    message: Message[Any]
    outcome: Outcome
    failure: Failure | None
    failed_at: float | None
    """When the handler was done with it, in epoch seconds, if it failed."""
    trouble: Exception | None
    """What was raised instead of an answer, by a failure step or by tarry; it left the message unhandled."""

    def __init__(
        self,
        message: Message[Any],
        outcome: Outcome,
        failure: Failure | None = None,
        failed_at: float | None = None,
        trouble: Exception | None = None,
    ) -> None:
        self._freeze(message=message, outcome=outcome, failure=failure, failed_at=failed_at, trouble=trouble)
        message._decided = outcome


def decide(
    message: Message[Any], said: Word | None, raised: BaseException | None, policy: RetryPolicy, tries: int = 1
) -> Decision | Failure:
    """The decision on a message of which ``said`` was said, and whose handler raised ``raised``.

    Where it has failed, that is its `Failure`, and the failure steps decide.
    """
    word = _word(message, said, raised)
    match word:
        case None | Ack():
            return Decision(message, Outcome.ack())
        case Discard():
            return Decision(message, Outcome.discard(word.reason))
        case Defer():
            return Decision(message, Outcome.defer(word.delay))
    delay = word.delay if isinstance(word, Retry) else None
    seconds = None if delay is None else whole_seconds(delay)
    return Failure(
        message,
        _error(word, said, raised),
        policy.reason(word),
        seconds,
        tries=tries,
        was_said=isinstance(word, Signal),
    )


def ask_steps(
    failure: Failure, failed_at: float, policy: RetryPolicy, steps: StepList, is_last_delivery: LastDelivery
) -> Decision:
    """What the failure steps answer; where they fail, the message stays where it is."""
    message = failure.message
    try:
        failure = _exhausted(_with_opinion(failure, policy), policy, steps, is_last_delivery)
        outcome = steps.handle(failure)
        if not isinstance(outcome, Outcome):
            raise TypeError(f"a failure step answered with {outcome!r}, not with an Outcome or next_step(failure)")
        if outcome.kind == "retry" and outcome.delay is None:
            backoff = policy.backoff_of(fifo=message._source.is_fifo)
            outcome = Outcome.retry(backoff.delay(failure.attempt, message._invocation.world.random))
    except Exception as trouble:  # noqa: BLE001 most likely a step of the user's
        return Decision(message, Outcome.unhandled(), failure, failed_at, trouble)
    return Decision(message, outcome, failure, failed_at)


def _with_opinion(failure: Failure, policy: RetryPolicy) -> Failure:
    try:
        return policy.opinion(failure)
    except Exception as error:  # noqa: BLE001 a hook of the user's: it had no opinion
        text = "retry_when raised, or answered with what is no delay: it had no opinion"
        failure.message._invocation.log.problem("retry_when_failed", text, failure.message, error=error)
        return failure


def _exhausted(failure: Failure, policy: RetryPolicy, steps: StepList, is_last_delivery: LastDelivery) -> Failure:
    if failure.reason != "error":
        return failure
    is_last = (steps.retries_in_place and failure.attempt >= policy.max_attempts) or is_last_delivery(failure.message)
    return failure.changed(reason="exhausted") if is_last else failure


def _word(message: Message[Any], said: Word | None, raised: BaseException | None) -> Word | None:
    """The verdict: what was said counts before what was raised, a signal before the error that carries it."""
    if said is not None:
        signal = None if isinstance(said, Ack) else find_signal(said)
        return said if signal is None else signal  # not `or`: an exception may have a length of 0
    if raised is None:
        return None
    word = find_signal(raised)
    if isinstance(word, (Retry, Defer)):
        try:
            message._check_delay(word)  # a method would have refused it at the call
        except DelayNotSupported as refusal:
            refusal.__cause__ = raised
            return refusal
    return raised if word is None else word


def _error(word: BaseException, said: Word | None, raised: BaseException | None) -> BaseException | None:
    """The error to tell of: of a signal its cause, else the exception it came as, if it came as one."""
    if not isinstance(word, Signal):
        return word
    if word.__cause__ is not None:
        return word.__cause__
    if said is None or isinstance(said, (Ack, Retry, Defer, Discard)):
        return raised
    return said
