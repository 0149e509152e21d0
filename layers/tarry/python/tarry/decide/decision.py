"""Deciding the outcome of a message from its verdict: functions of the message, policy, failure steps and queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tarry.decide import circuits
from tarry.errors import DelayNotSupported
from tarry.message.failure import Failure, StepContext
from tarry.message.outcomes import Outcome
from tarry.message.signals import (
    Defer,
    Discard,
    Retry,
    Signal,
    delay_of,
    find_signal,
    reason_beside,
    reason_of,
    until_of,
)
from tarry.message.verdicts import ACK, Verdict
from tarry.support.causes import cause_of, drop_tracebacks, is_a
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.decide.retry_policy import RetryPolicy
    from tarry.decide.steps import StepList
    from tarry.message.delivery import Delivery
    from tarry.message.diagnosis import Diagnosis
    from tarry.message.notices import Notice
    from tarry.message.queue_facts import QueueFacts


class Decision(Value):
    """An outcome, with the failure that led to it."""

    delivery: Delivery
    outcome: Outcome
    decided_at: float
    """When the verdict was given, in epoch seconds: its delay counts from then (SPEC C11)."""
    failure: Failure | None = None
    until: float | None = None
    """The epoch seconds of a delay that the handler gave as a ``datetime``; else None."""
    step_error: Diagnosis | None = None
    """The exception of a failure step, or of tarry, that left the message unhandled."""
    by_backoff: bool = False
    """Whether the backoff set the delay: it is cut to what SQS can keep in place. A requested delay is never cut."""
    notices: tuple[Notice, ...] = ()
    """Log lines about the decision."""

    def noticed(self, notices: Iterable[Notice]) -> Decision:
        """Return the same decision with more notices."""
        more = (*self.notices, *notices)
        return self._changed(notices=more) if more else self


Diagnose = Callable[[BaseException], "Diagnosis"]
"""Returns the diagnosis of an error: `Diagnoses.of`."""


def decide(
    delivery: Delivery,
    given: Verdict | None,
    raised: BaseException | None,
    policy: RetryPolicy,
    decided_at: float,
    *,
    diagnose: Diagnose,
    tries: int = 1,
) -> Decision | Failure:
    """Decide on a message from the verdict that its handler has ``given``, and the exception that it ``raised``.

    Return a `Failure` if the handler failed: the failure steps then decide (`ask_steps`).
    """
    verdict = _verdict(delivery, given, raised, decided_at)
    if verdict is None or verdict is ACK:
        return Decision(delivery, Outcome.ack(), decided_at)
    assert isinstance(verdict, BaseException)
    is_signal = is_a(verdict, Signal)
    if is_signal and is_a(verdict, Discard):
        return Decision(delivery, Outcome.discard(reason_of(verdict)), decided_at)
    if is_signal and is_a(verdict, Defer):
        delay = delay_of(verdict)
        return Decision(delivery, Outcome.defer(delay), decided_at, until=until_of(verdict))  # type: ignore[arg-type]  # None is refused
    if (deferral := circuits.deferral(verdict, delivery, decided_at)) is not None:
        return Decision(delivery, deferral, decided_at)
    error = _error(verdict, given, raised)
    retry = verdict if is_signal and is_a(verdict, Retry) else None
    return Failure(
        delivery.message,
        error,
        policy.reason(verdict),
        None if retry is None else delay_of(retry),
        failed_at=decided_at,
        until=None if retry is None else until_of(retry),
        said=reason_beside(verdict, error) if is_signal else None,
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
    """Have the failure steps decide; if one of them raises, the message is unhandled.

    ``facts``: the facts of the source queue.
    """
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
    return decision.noticed(context.notices)


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


FIELDS = ("kind", "delay", "reason", "queue", "note", "body", "attributes")
_PLAIN = frozenset({str, int, float, type(None)})


def _plain(outcome: Outcome) -> Outcome:
    """Return the outcome with plain strings: a step may have used a subclass of ``str`` with methods of its own."""
    fields = {name: getattr(outcome, name) for name in FIELDS}
    odd = {name: value for name, value in fields.items() if type(value) not in _PLAIN and is_a(value, str)}
    if not odd and type(outcome) is Outcome:
        return outcome
    plain = Outcome(outcome.kind)
    plain._freeze(**{**fields, **{name: str.__str__(value) for name, value in odd.items()}})
    return plain


def _would_expire(failure: Failure, outcome: Outcome, policy: RetryPolicy, facts: QueueFacts) -> bool:
    """Return whether a message would expire in its queue while it waits. An unhandled message waits too (SPEC E4)."""
    if outcome.kind not in ("retry", "defer", "unhandled"):
        return False
    delay = policy.longest_delay(fifo=True) if outcome.kind == "unhandled" else outcome.delay
    return facts.would_expire(failure.delivery, delay or 0, failure.failed_at)


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
