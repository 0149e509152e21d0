"""From what was said of a message to what is to be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tarry.causes import cause_of, is_a
from tarry.errors import DelayNotSupported
from tarry.failure import Failure, StepList
from tarry.message import ACK, Message, Word
from tarry.outcome import Outcome
from tarry.signals import Defer, Discard, Retry, Signal, delay_of, find_signal, reason_of
from tarry.value import Value

if TYPE_CHECKING:
    from tarry.policy import RetryPolicy


class Facts(Protocol):
    """What the queue knows and the decision needs. It may cost a request, so it is asked late."""

    def is_last_delivery(self, message: Message[Any]) -> bool:
        """Whether SQS will not deliver a message again if it fails now (SPEC C8)."""

    def would_expire(self, message: Message[Any], delay: float) -> bool:
        """Whether it would be about to expire, or gone, when that wait in place ends (SPEC C10)."""


class Decision(Value):
    """An outcome, and the failure it came from."""

    __slots__ = ("by_backoff", "failed_at", "failure", "message", "outcome", "trouble")
    message: Message[Any]
    outcome: Outcome
    failure: Failure | None
    failed_at: float | None
    """When the handler was done with it, in epoch seconds, if it failed."""
    trouble: BaseException | None
    """What was raised instead of an answer, by a failure step or by tarry; it left the message unhandled."""
    by_backoff: bool
    """Whether the delay is the backoff's, to be cut to what SQS can keep in place. One that was asked for never is."""

    def __init__(
        self,
        message: Message[Any],
        outcome: Outcome,
        failure: Failure | None = None,
        failed_at: float | None = None,
        trouble: BaseException | None = None,
        by_backoff: bool = False,
    ) -> None:
        self._freeze(
            message=message,
            outcome=outcome,
            failure=failure,
            failed_at=failed_at,
            trouble=trouble,
            by_backoff=by_backoff,
        )
        message._decided = outcome


def decide(
    message: Message[Any], said: Word | None, raised: BaseException | None, policy: RetryPolicy, tries: int = 1
) -> Decision | Failure:
    """The decision on a message of which ``said`` was said, and whose handler raised ``raised``.

    Where it has failed, that is its `Failure`, and the failure steps decide.
    """
    word = _word(message, said, raised)
    if word is None or word is ACK:
        return Decision(message, Outcome.ack())
    assert isinstance(word, BaseException)
    if is_a(word, Discard):
        return Decision(message, Outcome.discard(reason_of(word)))
    if is_a(word, Defer):
        return Decision(message, Outcome.defer(delay_of(word)))  # type: ignore[arg-type]  # None is no delay: refused
    return Failure(
        message,
        _error(word, said, raised),
        policy.reason(word),
        delay_of(word) if is_a(word, Retry) else None,
        tries=tries,
        was_said=is_a(word, Signal),
    )


def ask_steps(failure: Failure, failed_at: float, policy: RetryPolicy, steps: StepList, facts: Facts) -> Decision:
    """What the failure steps answer; where they fail, the message stays where it is."""
    message = failure.message
    try:
        failure = _exhausted(_with_opinion(failure, policy), policy, steps, facts)
        outcome, by_backoff = _with_delay(_answer(steps, failure), failure, policy)
        if message._source.is_fifo and _would_expire(message, outcome, policy, facts):
            failure = failure.changed(reason="expiring")
            outcome, by_backoff = _with_delay(_answer(steps, failure), failure, policy)
        if outcome.kind == "retry" and facts.is_last_delivery(message):
            outcome, by_backoff = _instead_of_bare(failure), False
    except BaseException as trouble:  # noqa: BLE001 most likely a step of the user's, which may also call sys.exit()
        return Decision(message, Outcome.unhandled(), failure, failed_at, trouble)
    return Decision(message, outcome, failure, failed_at, by_backoff=by_backoff)


def _instead_of_bare(failure: Failure) -> Outcome:
    """What becomes of a message that a step of the user's wants back, and SQS would move without a word (SPEC C8)."""
    text = (
        "a failure step asks for another try at the queue's last delivery, after which SQS would move the message "
        "without a word: it is dead-lettered with its record; raise maxReceiveCount above what the step asks for"
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
    backoff = policy.backoff_of(fifo=failure.message._source.is_fifo)
    return Outcome.retry(backoff.delay(failure.attempt, failure.message._invocation.world.random)), True


def _would_expire(message: Message[Any], outcome: Outcome, policy: RetryPolicy, facts: Facts) -> bool:
    """Whether it is to wait in its queue, and would not outlast that. What nothing takes waits too (SPEC E4)."""
    if outcome.kind not in ("retry", "defer", "unhandled"):
        return False
    delay = policy.longest_delay(fifo=True) if outcome.kind == "unhandled" else outcome.delay
    return facts.would_expire(message, delay or 0)


def _with_opinion(failure: Failure, policy: RetryPolicy) -> Failure:
    try:
        return policy.opinion(failure)
    except BaseException as error:  # noqa: BLE001 a hook of the user's: it had no opinion
        text = "retry_when raised, or answered with what is no delay: it had no opinion"
        failure.message._invocation.log.problem("retry_when_failed", text, failure.message, error=error)
        return failure


def _exhausted(failure: Failure, policy: RetryPolicy, steps: StepList, facts: Facts) -> Failure:
    if failure.reason != "error":
        return failure
    is_last = (steps.retries_in_place and failure.attempt >= policy.max_attempts) or facts.is_last_delivery(
        failure.message
    )
    return failure.changed(reason="exhausted") if is_last else failure


def _word(message: Message[Any], said: Word | None, raised: BaseException | None) -> Word | None:
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


def _error(word: BaseException, said: Word | None, raised: BaseException | None) -> BaseException | None:
    """The error to tell of: of a signal its cause, else the exception it came as, if it came as one."""
    if not is_a(word, Signal):
        return word
    if (cause := cause_of(word)) is not None:
        return cause
    if is_a(said, BaseException) and not is_a(said, (Retry, Defer, Discard)):
        return said
    return raised
