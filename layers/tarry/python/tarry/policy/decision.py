"""From the verdict on a message to its outcome: pure functions of the message, the policy, the steps and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.errors import DelayNotSupported
from tarry.outcome import Outcome
from tarry.policy.failure import Failure, StepList
from tarry.signals import Defer, Discard, Retry, Signal, delay_of, find_signal, reason_of, told_beside, until_of
from tarry.support.causes import cause_of, is_a
from tarry.support.value import Value
from tarry.verdict import ACK, Verdict

if TYPE_CHECKING:
    from tarry.message import Message
    from tarry.policy.retry_policy import RetryPolicy
    from tarry.sqs.queue_facts import QueueFacts
    from tarry.telemetry.diagnosis import Diagnosis


class Decision(Value):
    """An outcome, and the failure it came from."""

    __slots__ = ("by_backoff", "decided_at", "failure", "message", "outcome", "trouble", "until")
    message: Message[Any]
    outcome: Outcome
    decided_at: float
    """When the verdict fell, in epoch seconds: its delay counts from then (SPEC C11)."""
    failure: Failure | None
    until: float | None
    """The epoch seconds until which it is to wait, where the handler asked for a ``datetime``."""
    trouble: Diagnosis | None
    """The exception that a failure step, or tarry, raised instead of deciding; it left the message unhandled."""
    by_backoff: bool
    """Whether the delay is the backoff's, to be cut to what SQS can keep in place. One that was asked for never is."""

    def __init__(
        self,
        message: Message[Any],
        outcome: Outcome,
        decided_at: float,
        failure: Failure | None = None,
        *,
        until: float | None = None,
        trouble: Diagnosis | None = None,
        by_backoff: bool = False,
    ) -> None:
        self._freeze(
            message=message,
            outcome=outcome,
            decided_at=decided_at,
            failure=failure,
            until=until,
            trouble=trouble,
            by_backoff=by_backoff,
        )


def decide(
    message: Message[Any],
    said: Verdict | None,
    raised: BaseException | None,
    policy: RetryPolicy,
    decided_at: float,
    tries: int = 1,
) -> Decision | Failure:
    """The decision on a message about which ``said`` was said, and whose handler raised ``raised``.

    A `Failure` where the handler failed: then the failure steps decide (`ask_steps`).
    """
    word = _word(message, said, raised)
    if word is None or word is ACK:
        return Decision(message, Outcome.ack(), decided_at)
    assert isinstance(word, BaseException)
    if is_a(word, Discard):
        return Decision(message, Outcome.discard(reason_of(word)), decided_at)
    if is_a(word, Defer):
        delay = delay_of(word)
        return Decision(message, Outcome.defer(delay), decided_at, until=until_of(word))  # type: ignore[arg-type]  # None is no delay: refused
    return Failure(
        message,
        _error(word, said, raised),
        policy.reason(word),
        delay_of(word) if is_a(word, Retry) else None,
        failed_at=decided_at,
        until=until_of(word) if is_a(word, Retry) else None,
        said=told_beside(word, _error(word, said, raised)),
        tries=tries,
        was_said=is_a(word, Signal),
    )


def ask_steps(failure: Failure, policy: RetryPolicy, steps: StepList, facts: QueueFacts) -> Decision:
    """The decision of the failure steps; where one of them raises, the message is unhandled."""
    try:
        return _asked(failure, policy, steps, facts)
    except BaseException as trouble:  # noqa: BLE001 most likely a step of the user's, which may also call sys.exit()
        failure = _exhausted(failure, policy, steps, facts)
        told = failure.message._invocation.diagnoses.of(trouble)
        return Decision(failure.message, Outcome.unhandled(), failure.failed_at, failure, trouble=told)


def _asked(failure: Failure, policy: RetryPolicy, steps: StepList, facts: QueueFacts) -> Decision:
    message = failure.message
    failure = _exhausted(_with_opinion(failure, policy), policy, steps, facts)
    outcome, by_backoff = _with_delay(_answer(steps, failure), failure, policy)
    if message._source.is_fifo and _would_expire(failure, outcome, policy, facts):
        failure = failure.changed(reason="expiring")
        outcome, by_backoff = _with_delay(_answer(steps, failure), failure, policy)
    if outcome.kind == "retry" and facts.is_last_delivery(message):
        outcome, by_backoff = _instead_of_bare(failure), False
    until = failure.until if outcome.kind == "retry" and outcome.delay == failure.delay else None
    return Decision(message, outcome, failure.failed_at, failure, until=until, by_backoff=by_backoff)


def _instead_of_bare(failure: Failure) -> Outcome:
    """The outcome of a message that a step of the user's wants back at the queue's last delivery (SPEC C8)."""
    text = (
        "a failure step asks for another try at the queue's last delivery, after which SQS would move the message "
        "without a record: it is dead-lettered with its record; raise maxReceiveCount above what the step asks for"
    )
    failure.message._invocation.log.problem("no_delivery_left", text, failure.message)
    return Outcome.dead_letter(failure.reason)


def _answer(steps: StepList, failure: Failure) -> Outcome:
    outcome: object = steps.handle(failure)
    if not isinstance(outcome, Outcome):
        raise TypeError(f"a failure step answered with {outcome!r}, not with an Outcome or next_step(failure)")
    return _plain(outcome)


def _plain(outcome: Outcome) -> Outcome:
    """The outcome with plain strings: a step may have given others, whose methods run code of its own."""
    fields = {name: getattr(outcome, name) for name in Outcome.__slots__}
    odd = {name: value for name, value in fields.items() if is_a(value, str) and type(value) is not str}
    if not odd and type(outcome) is Outcome:
        return outcome
    plain = Outcome(outcome.kind)
    plain._freeze(**{**fields, **{name: str.__str__(value) for name, value in odd.items()}})
    return plain


def _with_delay(outcome: Outcome, failure: Failure, policy: RetryPolicy) -> tuple[Outcome, bool]:
    """A retry without a delay takes the backoff's; whether it did."""
    if outcome.kind != "retry" or outcome.delay is not None:
        return outcome, False
    message = failure.message
    rng = message._invocation.world.random
    seconds, trouble = policy.delay_after(failure.attempt, fifo=message._source.is_fifo, rng=rng)
    if trouble is not None:
        message._invocation.log.problem("backoff_failed", f"{trouble}; the default backoff sets this delay", message)
    return Outcome.retry(seconds), True


def _would_expire(failure: Failure, outcome: Outcome, policy: RetryPolicy, facts: QueueFacts) -> bool:
    """Whether it is to wait in its queue, and would not outlast the wait. An unhandled message waits too (SPEC E4)."""
    if outcome.kind not in ("retry", "defer", "unhandled"):
        return False
    delay = policy.longest_delay(fifo=True) if outcome.kind == "unhandled" else outcome.delay
    return facts.would_expire(failure.message, delay or 0, failure.failed_at)


def _with_opinion(failure: Failure, policy: RetryPolicy) -> Failure:
    try:
        return policy.opinion(failure)
    except BaseException as error:  # noqa: BLE001 a hook of the user's: it had no opinion
        text = "retry_when raised, or answered with what is no delay: it had no opinion"
        failure.message._invocation.log.problem("retry_when_failed", text, failure.message, error=error)
        return failure


def _exhausted(failure: Failure, policy: RetryPolicy, steps: StepList, facts: QueueFacts) -> Failure:
    if failure.reason != "error":
        return failure
    is_spent = steps.retries_in_place and failure.attempt >= policy.max_attempts
    is_last = is_spent or facts.is_last_delivery(failure.message)
    return failure.changed(reason="exhausted") if is_last else failure


def _word(message: Message[Any], said: Verdict | None, raised: BaseException | None) -> Verdict | None:
    """The verdict: what was said counts before what was raised, a signal before the error that carries it."""
    if said is not None:
        signal = find_signal(said) if is_a(said, BaseException) else None
        return said if signal is None else signal  # not `or`: an exception may have a length of 0
    if raised is None:
        return None
    word = find_signal(raised)
    if is_a(word, Retry) or is_a(word, Defer):
        try:
            message._check_delay(word)  # a method would have refused it at the call
        except DelayNotSupported as refusal:
            refusal.__cause__ = raised
            return refusal
    return raised if word is None else word


def _error(word: BaseException, said: Verdict | None, raised: BaseException | None) -> BaseException | None:
    """The error to tell of: of a signal its cause, else the exception it came as, if it came as one."""
    if not is_a(word, Signal):
        return word
    if (cause := cause_of(word)) is not None:
        return cause
    if is_a(said, BaseException) and not is_a(said, (Retry, Defer, Discard)):
        return said
    return raised
