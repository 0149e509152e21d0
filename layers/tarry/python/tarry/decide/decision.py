"""Deciding the outcome of a message from its verdict: functions of the message, policy, failure steps and queue.

A message that meets an open circuit of Powertools' circuit breaker is deferred (SPEC K5). It has not failed,
because its handler did not reach the service behind the circuit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tarry.errors import DelayNotSupported
from tarry.message.delivery import Failure, StepContext
from tarry.message.outcomes import (
    ACK,
    Defer,
    Discard,
    Outcome,
    Reject,
    Retry,
    Signal,
    Verdict,
    delay_of,
    find_signal,
    reason_of,
    until_of,
)
from tarry.record.attribute import MAX_COUNT
from tarry.support.guards import cause_of, drop_tracebacks, is_a, leaves_of, traceback_of
from tarry.support.values import Value

if TYPE_CHECKING:
    from tarry.decide.retry_policy import RetryPolicy
    from tarry.decide.steps import StepList
    from tarry.message.delivery import Delivery, QueueFacts
    from tarry.message.diagnosis import Diagnosis
    from tarry.support.values import Notice


ACKNOWLEDGED = Outcome.ack()


class Decision(Value):
    """An outcome, with the failure that led to it."""

    delivery: Delivery
    outcome: Outcome
    decided_at: float  # when the verdict was given, in epoch seconds: its delay counts from then (SPEC C11)
    failure: Failure | None = None
    until: float | None = None  # the epoch seconds of a delay that the handler gave as a ``datetime``; else None
    step_error: Diagnosis | None = None  # the exception of a failure step, or of tarry, that left the message unhandled
    by_backoff: bool = False  # whether the backoff set the delay, which may then be cut to what SQS can keep
    notices: tuple[Notice, ...] = ()  # log lines about the decision


Diagnose = Callable[[BaseException], "Diagnosis"]


def decide(
    delivery: Delivery,
    given: Verdict | None,
    raised: BaseException | None,
    policy: RetryPolicy,
    decided_at: float,
    *,
    diagnose: Diagnose,
    tries: int,
) -> Decision | Failure:
    """Decide on a message from the verdict ``given`` and the error ``raised``; a `Failure` is for `ask_steps`."""
    verdict = _verdict(delivery, given, raised, decided_at)
    if verdict is None or verdict is ACK:
        return Decision(delivery, ACKNOWLEDGED, decided_at)
    assert isinstance(verdict, BaseException)
    is_signal = is_a(verdict, Signal)
    if is_signal and is_a(verdict, Discard):
        return Decision(delivery, Outcome.discard(reason_of(verdict)), decided_at)
    if is_signal and is_a(verdict, Defer):
        delay = delay_of(verdict)
        return Decision(delivery, Outcome.defer(delay), decided_at, until=until_of(verdict))  # type: ignore[arg-type]  # None is refused
    if (deferred := deferral(verdict, delivery, decided_at)) is not None:
        return Decision(delivery, deferred, decided_at)
    error = _error(verdict, given, raised)
    retry = verdict if is_signal and is_a(verdict, Retry) else None
    return Failure(
        delivery.message,
        error,
        policy.reason(verdict),
        None if retry is None else delay_of(retry),
        failed_at=decided_at,
        until=None if retry is None else until_of(retry),
        said=reason_of(verdict) if is_signal and is_a(verdict, Reject) and verdict is not error else None,
        tries=tries,
        was_requested=is_signal,
        diagnosis=None if error is None else diagnose(error),
    )


def ask_steps(
    failure: Failure,
    policy: RetryPolicy,
    steps: StepList,
    facts: QueueFacts,
    context: StepContext,
    diagnose: Diagnose,
) -> Decision:
    """Have the failure steps decide; if one of them raises, the message is unhandled."""
    context.policy = policy
    try:
        decision = _ask(failure.changed(context=context), policy, steps, facts, context)
    except BaseException as error:  # noqa: BLE001 a user's step may raise anything, also call sys.exit()
        failure = (
            failure.changed(reason="expiring") if context.is_expiring else _exhausted(failure, policy, steps, facts)
        )
        unhandled, diagnosis = Outcome.unhandled(), diagnose(error)
        drop_tracebacks(error)
        decision = Decision(failure.delivery, unhandled, failure.failed_at, failure, step_error=diagnosis)
    return decision._changed(notices=tuple(context.notices)) if context.notices else decision


def _ask(failure: Failure, policy: RetryPolicy, steps: StepList, facts: QueueFacts, context: StepContext) -> Decision:
    delivery = failure.delivery
    failure = _exhausted(_with_opinion(failure, policy, context), policy, steps, facts)
    outcome = _answer(steps, failure, context)
    if delivery.source.is_fifo and failure.reason != "expiring" and _would_expire(failure, outcome, policy, facts):
        context.is_expiring = True
        failure = failure.changed(reason="expiring")
        outcome = _answer(steps, failure, context)
    if outcome.kind == "retry" and facts.is_last_delivery(delivery):
        text = (
            "A failure step asked for a retry at the queue's last delivery, after which SQS would move the message "
            "without a failure record. The message is dead-lettered with its record. Raise the queue's maxReceiveCount."
        )
        context.notice("no_delivery_left", text)  # SPEC C8
        outcome = Outcome.dead_letter(failure.reason)
    until = failure.until if outcome.kind == "retry" and outcome.delay == failure.delay else None
    by_backoff = context.is_policy_delay(outcome)
    return Decision(delivery, outcome, failure.failed_at, failure, until=until, by_backoff=by_backoff)


def _answer(steps: StepList, failure: Failure, context: StepContext) -> Outcome:
    """Return the outcome of a failure: the retry that was asked for, else the answer of the failure steps (SPEC B7)."""
    outcome: object = Outcome.retry(failure.delay) if failure.asks_for_retry else steps.handle(failure)
    if not isinstance(outcome, Outcome):
        raise TypeError(f"a failure step returned {outcome!r}: return an Outcome, or next_step(failure)")
    if outcome.kind == "retry" and outcome.delay is None:
        return Outcome.retry(context.policy_delay(failure))
    return _plain(outcome)


_PLAIN = frozenset({str, int, float, type(None)})


def _plain(outcome: Outcome) -> Outcome:
    """Return the outcome with plain strings: a step may have used a subclass of ``str`` with methods of its own."""
    fields = {name: getattr(outcome, name) for name in Outcome._names}
    texts = {name: value for name, value in fields.items() if type(value) not in _PLAIN and is_a(value, str)}
    odd = {name: str.__str__(value) for name, value in texts.items()}
    if not odd and type(outcome) is Outcome:
        return outcome
    plain = Outcome(outcome.kind)
    plain._freeze(**{**fields, **odd})
    return plain


def _would_expire(failure: Failure, outcome: Outcome, policy: RetryPolicy, facts: QueueFacts) -> bool:
    """Return whether a message would expire in its queue while it waits. An unhandled message waits too (SPEC E4)."""
    if outcome.kind not in ("retry", "defer", "unhandled"):
        return False
    delivery, delay = failure.delivery, outcome.delay
    if outcome.kind == "unhandled":
        delay = policy.longest_delay(fifo=delivery.source.is_fifo)
    return facts.would_expire(delivery, delay or 0, failure.failed_at)


def _with_opinion(failure: Failure, policy: RetryPolicy, context: StepContext) -> Failure:
    try:
        return policy.opinion(failure)
    except BaseException as error:  # noqa: BLE001 a user's hook that raises has no opinion
        text = (
            "retry_when raised an exception, or returned a value that is not a bool, a delay or None. The policy "
            "decides without it."
        )
        context.notice("retry_when_failed", text, error)
        return failure


def _exhausted(failure: Failure, policy: RetryPolicy, steps: StepList, facts: QueueFacts) -> Failure:
    if failure.reason != "error":
        return failure
    limit = policy.limit(retries_in_place=steps.retries_in_place, was_asked_for=failure.asks_for_retry)
    is_last = (limit is not None and failure.attempt >= limit) or facts.is_last_delivery(failure.delivery)
    return failure.changed(reason="exhausted") if is_last else failure


def _verdict(delivery: Delivery, given: Verdict | None, raised: BaseException | None, now: float) -> Verdict | None:
    """Return the effective verdict: a given verdict counts before a raised error, a signal before its error."""
    if given is not None:
        signal = find_signal(given) if is_a(given, BaseException) else None
        return given if signal is None else signal  # not `or`: an exception may have a length of 0
    if raised is None:
        return None
    if (signal := find_signal(raised)) is None:
        return raised
    if is_a(signal, Retry) or is_a(signal, Defer):
        try:
            delivery.check_delay(signal, now)  # `Message.retry` and `defer` check it when they are called
        except DelayNotSupported as refusal:
            refusal.__cause__ = raised
            return refusal
    return signal


def _error(verdict: BaseException, given: Verdict | None, raised: BaseException | None) -> BaseException | None:
    """Return the error to record: the cause of a signal, else the exception that was given or raised."""
    if not is_a(verdict, Signal):
        return verdict
    if (cause := cause_of(verdict)) is not None:
        return cause
    if is_a(given, BaseException) and not is_a(given, (Retry, Defer, Discard)):
        return given
    return raised


MAX_DEFERRAL_SECONDS = 900
DEFAULT_RECOVERY_SECONDS = 30  # Powertools' default ``recovery_timeout``
CIRCUIT_COUNTER = "tarry.circuit"  # in the `Tarry` attribute: how often the message was deferred for a circuit
_CIRCUITS = "aws_lambda_powertools.utilities.circuit_breaker"


def deferral(error: BaseException, delivery: Delivery, now: float) -> Outcome | None:
    """Return the deferral for an open circuit, each twice as long as the last; None for any other error."""
    exceptions = sys.modules.get(f"{_CIRCUITS}.exceptions")  # an error of its class exists only if it is loaded
    kind = getattr(exceptions, "CircuitBreakerOpenError", None)
    if kind is None:
        return None
    errors = leaves_of(error) if is_a(error, BaseExceptionGroup) else (error,)
    if not all(is_a(each, kind) for each in errors):
        return None
    before = delivery.envelope.steps.get(CIRCUIT_COUNTER, 0) if delivery.envelope else 0
    waits = before + delivery.waits_in_place  # in place, no copy keeps the count
    seconds = max(_seconds_closed(each, now) for each in errors)
    delay = min(MAX_DEFERRAL_SECONDS, seconds * 2 ** min(waits, MAX_COUNT))
    return Outcome("defer", delay, "circuit_open", note={CIRCUIT_COUNTER: min(before + 1, MAX_COUNT)})


def _seconds_closed(error: BaseException, now: float) -> float:
    """Return for how many seconds the circuit lets no call through."""
    recovery = _recovery_seconds(error)
    opened_at = getattr(getattr(error, "circuit", None), "opened_at", None)
    left = opened_at + recovery - now if isinstance(opened_at, (int, float)) else recovery
    return max(1.0, min(left, recovery))


def _recovery_seconds(error: BaseException) -> float:
    """Return the ``recovery_timeout`` of the circuit, which only the frames of Powertools know; else its default."""
    trace = traceback_of(error)
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals.get("__name__") == f"{_CIRCUITS}.base":
            handler: Any = frame.f_locals.get("self")
            seconds = getattr(getattr(handler, "config", None), "recovery_timeout", None)
            if isinstance(seconds, (int, float)) and seconds > 0:
                return seconds
        trace = trace.tb_next
    return DEFAULT_RECOVERY_SECONDS
