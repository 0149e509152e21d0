"""Planning a settlement: the ways to carry out a decision, best first, each a fallback for the one before.

Planning does not log, make requests, read the clock, or change a message. It calls the user's hooks: failure steps,
when they must decide once more, and `DeadLetter`'s ``enrich`` and ``redact``. It returns log lines with the plan.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tarry.decide.decision import Decision, ask_steps
from tarry.message.delivery import Failure, StepContext
from tarry.message.failure_record import hops_of
from tarry.message.outcomes import DONE, RUNS_ELSEWHERE, Outcome
from tarry.observe.logs import MAX_FIELD_BYTES
from tarry.sqs.refusals import is_late, is_refused_for_good, may_be_applied
from tarry.support.guards import is_a, text_of
from tarry.support.values import MAX_VISIBILITY_SECONDS, MOMENT_SECONDS, PAGES, Notice, Value, whole_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tarry.decide.decision import Diagnose
    from tarry.decide.retry_policy import RetryPolicy
    from tarry.decide.steps import DeadLetter, FailureSteps
    from tarry.message.delivery import Delivery, QueueFacts
    from tarry.settle.copies import Copy, CopyWriter
    from tarry.support.values import QueueArn


class SizeLimit(NamedTuple):
    """The MaximumMessageSize of a queue."""

    bytes: int
    is_known: bool  # whether the limit was read from SQS; else it is the maximum of SQS


class FactsNeeded(Exception):
    """Planning needs the size limit of a queue that was not looked up yet."""

    def __init__(self, queue: QueueArn) -> None:
        super().__init__(queue.text)
        self.queue = queue


class Situation(NamedTuple):
    """The moment at which a message's settlement is planned."""

    now: float
    time_left: Callable[[], float]
    source: QueueFacts
    limits: Mapping[QueueArn, SizeLimit]  # the size limits of the queues that were looked up
    rng: Random
    diagnose: Diagnose

    def limit_of(self, queue: QueueArn) -> SizeLimit:
        """Return the size limit of a queue. Raises `FactsNeeded` if it was not looked up."""
        if (limit := self.limits.get(queue)) is None:
            raise FactsNeeded(queue)
        return limit


MANY_HOPS = 12  # from this hop on tarry warns or waits in place: Lambda stops a loop at about 16 (PLATFORM 15b)
RECURSIVE_LOOP_VARIABLE = "TARRY_RECURSIVE_LOOP"

SENDS_COPY = frozenset({"dead_letter", "resend"})  # outcomes that send a copy and delete the original
WAITS = frozenset({"retry", "defer", "wait"})  # outcomes with their own delay


class Way(NamedTuple):
    """One way to settle a message.

    ``as_decided``: send a copy where the outcome says. ``copy_waits``: send a copy to the same queue, where it waits.
    ``last_resort``: dead-letter the message with its record, because SQS would move it without one. ``expiring``:
    dead-letter it, because it would expire while it waits. ``in_place``: leave it in its queue for its delay.
    """

    name: Literal["as_decided", "copy_waits", "last_resort", "expiring", "in_place"]
    only_if_refused: bool = False  # only if SQS has refused the way before, and would refuse it the next time


IN_PLACE = Way("in_place")


class SettlementPlan(Value):
    """The settlement of one message: the next way, its copy, and the ways that follow if SQS refuses it."""

    decided: Decision
    decision: Decision  # the decision that the next way carries out: ``decided``, or a dead letter instead
    ways: tuple[Way, ...]  # the next way first; the last one is always ``in_place``
    notices: tuple[Notice, ...] = ()
    copy: Copy | None = None  # the copy to send; None if the message waits in its queue or is released
    needs: QueueArn | None = None  # the queue to look up before planning can go on
    is_done: bool = False  # asked once more, the failure steps acknowledged or discarded it: no request is needed
    tried: frozenset[QueueArn] = frozenset()  # the queues to which a copy could not be sent
    not_sent: tuple[str, ...] = ()  # why the earlier ways failed
    is_refused: bool = True  # whether the way before certainly had no effect, and would have none the next time
    late_delay: float | None = None  # the backoff's delay in seconds, if ways failed only for lack of time
    may_be_sent: bool = False  # whether a copy may have been sent to a FIFO queue, without a confirmation
    is_stuck: bool = False  # whether a dead letter instead of the outcome could not be sent

    changed = Value._changed

    def failed(self, why: str, late_delay: float | None = None, **fields: Any) -> SettlementPlan:
        """Return the plan without its next way, which has failed; ``late_delay``: if it was for lack of time."""
        not_sent = self.not_sent if why in self.not_sent else (*self.not_sent, why)
        if self.not_sent and self.late_delay is None:
            late_delay = None
        is_stuck = self.is_stuck or self.ways[0].name in ("last_resort", "expiring")
        return self._changed(not_sent=not_sent, ways=self.ways[1:], late_delay=late_delay, is_stuck=is_stuck, **fields)

    @property
    def delivery(self) -> Delivery:
        return self.decided.delivery

    @property
    def sends_copy(self) -> bool:
        return self.copy is not None or self.needs is not None


def ways_of(decision: Decision, facts: QueueFacts, longest_delay: float, now: float) -> tuple[Way, ...]:
    """Return the ways to settle a message; ``longest_delay``: for how many seconds an unhandled message waits."""
    delivery, kind = decision.delivery, decision.outcome.kind
    is_fifo, is_last = delivery.source.is_fifo, facts.is_last_delivery(delivery)
    seconds, longest = seconds_to_wait(decision, longest_delay), delivery.longest_wait(now)
    expires = facts.would_expire(delivery, min(longest, seconds), now)
    if kind == "unhandled" and decision.failure is not None and decision.failure.reason == "expiring":
        expires = True  # a failure step has raised, and the message may not wait as it was asked (SPEC C10)
    if decision.outcome.reason == RUNS_ELSEWHERE and kind == "wait":
        return (Way("copy_waits"), IN_PLACE) if expires and not is_fifo and may_hop(delivery) else (IN_PLACE,)
    ways: list[Way] = []
    if kind in SENDS_COPY:
        ways.append(Way("as_decided"))
    elif is_fifo:
        ways += [Way("expiring")] if expires else []  # no copy can wait in its group, so the answer is overruled
    elif kind == "wait":
        ways += _ways_of_delayed(delivery, expires=expires, is_last=is_last)
    elif expires or _waits_by_copy(decision, seconds, longest, is_last=is_last):
        ways.append(Way("copy_waits"))
    if is_last:
        ways.append(Way("last_resort"))
    if expires and kind != "wait":
        ways.append(Way("copy_waits" if kind in SENDS_COPY and not is_fifo else "expiring", only_if_refused=True))
    return (*ways, IN_PLACE)


def _ways_of_delayed(delivery: Delivery, *, expires: bool, is_last: bool) -> list[Way]:
    """Return the ways for a message that is not due: a copy, if it cannot wait in place and Lambda allows the hop."""
    if (expires or is_last) and may_hop(delivery):
        return [Way("copy_waits")]
    return [Way("expiring")] if expires else []


def _waits_by_copy(decision: Decision, seconds: float, longest: int, *, is_last: bool) -> bool:
    """Return whether a copy waits instead of the message: for a deferral, or a delay that SQS cannot keep in place."""
    if decision.outcome.kind == "defer":
        # With an attempt store, a deferral in place costs no attempt (SPEC J5).
        in_place = decision.delivery.counts_runs and seconds <= longest and not is_last
        return not in_place and may_hop(decision.delivery)
    was_asked_for = decision.outcome.kind == "retry" and not decision.by_backoff
    return was_asked_for and longest < seconds <= MAX_VISIBILITY_SECONDS


def may_hop(delivery: Delivery) -> bool:
    """Return whether a message may be sent to its own queue without Lambda stopping the function (SPEC J5)."""
    return os.environ.get(RECURSIVE_LOOP_VARIABLE) == "Allow" or hops_of(delivery) + 1 < MANY_HOPS


def seconds_to_wait(decision: Decision, longest_delay: float) -> float:
    """Return the delay in seconds from the verdict on; for an unhandled message, the policy's longest (SPEC E4)."""
    return (decision.outcome.delay or 0) if decision.outcome.kind in WAITS else longest_delay


def waits_until(decision: Decision, longest_delay: float) -> float:
    """Return until when a message waits, in epoch seconds (SPEC C11)."""
    if decision.until is not None and decision.outcome.kind in WAITS:
        shortest = 1 if decision.outcome.kind == "defer" else 0
        return max(decision.until, decision.decided_at + shortest)
    return decision.decided_at + seconds_to_wait(decision, longest_delay)


def why_it_could_not_wait(decision: Decision, way: Way) -> str | None:
    """Return why a message is dead-lettered without a failure, for its record and the log; None if it had failed."""
    delay = f"{decision.outcome.delay or 0:g} s"
    if decision.outcome.kind == "wait":
        return (
            f"sent with a delay; {delay} of it were left when the queue was about to delete or move the message, which "
            "could not be sent again"
        )
    if decision.outcome.kind == "defer":
        when = "before it would expire" if way.name == "expiring" else "at the queue's last delivery (maxReceiveCount)"
        return f"deferred for {delay} {when}, and could not be sent again"
    return None


SHORTEST_CUT_SECONDS = 60  # the shortest delay to which an expected expiry, possibly a guess, may cut a delay
REPEAT_ON_FIFO_SECONDS = 240  # if a copy on FIFO may have been sent: SQS drops a second one for 5 minutes


class Planner:
    def __init__(self, policy: RetryPolicy, steps: FailureSteps) -> None:
        self._policy = policy
        self._steps = steps
        self._longest: dict[bool, float] = {}

    def start(self, decision: Decision, situation: Situation) -> SettlementPlan:
        """Return the plan for a decision; like that of `go_on` and `refused`, it may need a look-up (``needs``)."""
        ways, notices = self._ways(decision, situation)
        return self._with_copy(SettlementPlan(decision, decision, ways, notices), situation)

    def go_on(self, plan: SettlementPlan, situation: Situation) -> SettlementPlan:
        """Return the plan with the copy for its next way; ways for which no copy can be made are skipped."""
        return self._with_copy(plan.changed(copy=None, decision=plan.decided, needs=None, notices=()), situation)

    def _with_copy(self, plan: SettlementPlan, situation: Situation) -> SettlementPlan:
        """Return a plan with the copy for the first way that is possible."""
        while True:
            while plan.ways[0].only_if_refused and not plan.is_refused:
                plan = plan.changed(ways=plan.ways[1:])
            way = plan.ways[0]
            if way.name == "in_place":
                return plan
            from tarry.settle.copies import CannotCopy, CopyWriter, NoDeadLetterQueue

            writer = CopyWriter(self._steps, situation)
            try:
                decision, copy = self._copy_for(way, plan, writer, situation)
            except FactsNeeded as needed:
                return plan.changed(needs=needed.queue)
            except BaseException as error:  # noqa: BLE001 whatever the error, the message is still in its queue
                plan = plan.changed(notices=(*plan.notices, *writer.notices))
                failure = plan.decided.failure
                if is_a(error, CannotCopy) and failure is not None and way.name == "as_decided":
                    text = f"The message is not sent again: {error}. The next failure step decides."
                    plan = plan.changed(notices=(*plan.notices, Notice("step_passed_on", text)))
                    return self._ask_again(plan, failure.changed(does_not_fit=True), situation)
                lacks_time = isinstance(error, NoDeadLetterQueue) and error.is_late
                late_delay = self._backoff(plan, situation) if lacks_time else None
                plan = plan.failed(text_of(error, MAX_FIELD_BYTES), late_delay)
                continue
            notices = (*plan.notices, *writer.notices)
            if copy is not None:
                if (way.name == "copy_waits" or decision.outcome.kind == "resend") and not may_hop(plan.delivery):
                    times = hops_of(plan.delivery) + 1
                    text = (
                        f"The message was sent again {times} times. Lambda stops at about 16, unless RecursiveLoop is "
                        "Allow."
                    )
                    notices = (*notices, Notice("many_hops", text))
                return plan.changed(copy=copy, decision=decision, notices=notices)
            plan = plan.changed(ways=plan.ways[1:], notices=notices)

    def refused(self, plan: SettlementPlan, error: Exception, situation: Situation) -> SettlementPlan:
        """Return the plan with the next way, after SQS did not confirm the copy."""
        copy = plan.copy
        assert copy is not None
        is_open = may_be_applied(error)
        why = f"{copy.target.name}: {error}" + (" (it may be there all the same)" if is_open else "")
        plan = plan.failed(
            why,
            self._backoff(plan, situation) if is_late(error) else None,
            tried=plan.tried | {copy.target},
            may_be_sent=plan.may_be_sent or (is_open and copy.target.is_fifo),
            is_refused=is_refused_for_good(error),
        )
        return self.go_on(plan, situation)

    def is_spent_untraced(self, plan: SettlementPlan) -> bool:
        """Return whether a message that is to be retried has no attempt left if its run cannot be recorded."""
        delivery, decided = plan.delivery, plan.decided
        if decided.failure is None or decided.outcome.kind != "retry" or not delivery.crashes:
            return False
        limit = delivery.max_attempts
        return limit is not None and delivery.attempt + delivery.crashes >= limit

    def untraced(self, plan: SettlementPlan, situation: Situation) -> SettlementPlan:
        """Return the plan of a message whose run was not recorded; the failure steps decide once more."""
        failure = plan.decided.failure
        assert failure is not None
        return self._ask_again(plan, failure.changed(attempt=plan.delivery.attempt), situation)

    def waits_until(self, plan: SettlementPlan, now: float) -> float:
        """Return until when a message waits in its queue, in epoch seconds; for a released message, ``now``."""
        if plan.decision.outcome.kind == "release":
            return now
        if plan.decided.outcome.kind in WAITS:
            return waits_until(plan.decided, 0)
        if plan.late_delay is not None:
            until = plan.decided.decided_at + plan.late_delay
        else:
            until = now + self.longest_delay(plan.delivery)
        return min(until, now + REPEAT_ON_FIFO_SECONDS) if plan.may_be_sent else until

    def _backoff(self, plan: SettlementPlan, situation: Situation) -> float | None:
        """Return the backoff's delay, as which a message waits that there was no time to send."""
        if plan.late_delay is not None or (failure := plan.decided.failure) is None:
            return plan.late_delay
        # At its next delivery, what settling it needs is fetched before it runs (SPEC C8).
        is_fifo = plan.delivery.source.is_fifo
        return self._policy.delay_after(failure.attempt, fifo=is_fifo, rng=situation.rng)[0]

    def seconds_in_place(self, plan: SettlementPlan, facts: QueueFacts | None, now: float) -> int:
        """Return for how many seconds to keep a message invisible, at most as long as SQS allows."""
        delivery, wanted = plan.delivery, seconds_until(self.waits_until(plan, now), now)
        seconds = min(wanted, delivery.longest_wait(now)) if wanted else 0
        if not seconds or facts is None:
            return seconds
        # One that would expire, and could not be sent, comes back in time for another attempt at sending it.
        left = facts.seconds_left_if_short(delivery, seconds, now)
        return seconds if left is None else min(seconds, max(SHORTEST_CUT_SECONDS, int(left / 2)))

    def asked_for(self, decision: Decision) -> int:
        """Return the requested delay in seconds, from the verdict on, also if SQS cannot keep all of it."""
        return whole_seconds(seconds_to_wait(decision, self.longest_delay(decision.delivery)))

    def options_of(self, delivery: Delivery) -> DeadLetter:
        return self._steps.of(delivery.queue).dead_letter

    def target_of(self, delivery: Delivery, facts: QueueFacts) -> QueueArn | None:
        """Return the dead-letter queue of a message; None if it is not known before the message has failed."""
        from tarry.settle.copies import NoDeadLetterQueue, dead_letter_queue

        named = self.options_of(delivery).queue
        try:
            return dead_letter_queue(delivery, named if isinstance(named, str) else None, facts)
        except NoDeadLetterQueue:
            return None

    def longest_delay(self, delivery: Delivery) -> float:
        """Return for how many seconds an unhandled message waits."""
        is_fifo = delivery.source.is_fifo
        if is_fifo not in self._longest:
            self._longest[is_fifo] = whole_seconds(self._policy.longest_delay(fifo=is_fifo))
        return self._longest[is_fifo]

    def _ways(self, decision: Decision, situation: Situation) -> tuple[tuple[Way, ...], tuple[Notice, ...]]:
        notices: tuple[Notice, ...] = ()
        if decision.outcome.kind == "defer" and not (decision.delivery.counts_runs or may_hop(decision.delivery)):
            text = (
                f"The message was sent again {MANY_HOPS - 1} times, so it is deferred in place: Lambda stops "
                f"a function at about 16. See RecursiveLoop in {PAGES}/reference/permissions.md."
            )
            notices = (Notice("many_hops", text),)
        return ways_of(decision, situation.source, self.longest_delay(decision.delivery), situation.now), notices

    def _copy_for(
        self, way: Way, plan: SettlementPlan, writer: CopyWriter, situation: Situation
    ) -> tuple[Decision, Copy | None]:
        """Return the copy of a way, and the decision that it carries out; None if it would repeat a failed send."""
        decision, now = plan.decided, situation.now
        failure, outcome = decision.failure, decision.outcome
        if way.name == "copy_waits":
            until = min(waits_until(decision, self.longest_delay(decision.delivery)), now + MAX_VISIBILITY_SECONDS)
            return decision, writer.waiting(decision, until)
        if way.name != "as_decided":
            return self._dead_letter_instead(way, plan, writer)
        if failure is None:
            return decision, None
        if outcome.kind == "dead_letter":
            return decision, writer.dead_letter(failure, outcome, decision.decided_at)
        return decision, writer.resend(failure, decision)

    def _dead_letter_instead(self, way: Way, plan: SettlementPlan, writer: CopyWriter) -> tuple[Decision, Copy | None]:
        """Return the dead letter of a message that SQS would otherwise delete, or move without a failure record."""
        decision, delivery = plan.decided, plan.delivery
        had_failed = decision.failure is not None
        failure = decision.failure or Failure(delivery.message, None, "expiring", failed_at=decision.decided_at)
        own_reason = decision.outcome.reason if had_failed else None
        reason = "expiring" if way.name == "expiring" else own_reason or failure.reason
        dead_letter = Outcome.dead_letter(reason)
        copy = writer.dead_letter(failure, dead_letter, decision.decided_at, text=why_it_could_not_wait(decision, way))
        if copy.target in plan.tried:
            return decision, None
        return Decision(delivery, dead_letter, decision.decided_at, failure, step_error=decision.step_error), copy

    def _ask_again(self, plan: SettlementPlan, failure: Failure, situation: Situation) -> SettlementPlan:
        """Have the failure steps decide once more, on a failure that has changed."""
        context = StepContext(situation.rng, situation.time_left)
        steps = self._steps.of(failure.queue)
        decision = ask_steps(failure, self._policy, steps, situation.source, context, situation.diagnose)
        plan = plan.changed(notices=(*plan.notices, *decision.notices))
        if decision.outcome.kind == "again" or (decision.outcome.kind == "resend" and failure.does_not_fit):
            decision = Decision(failure.delivery, Outcome.unhandled(), failure.failed_at, failure)
        if decision.outcome.kind in DONE:
            return plan.changed(decision=decision, is_done=True)
        ways, notices = self._ways(decision, situation)
        again = self.go_on(plan.changed(decided=decision, ways=ways), situation)  # it remembers what has failed
        return again.changed(notices=(*plan.notices, *notices, *again.notices))


def seconds_until(moment: float, now: float) -> int:
    return max(0, math.ceil(moment - now - MOMENT_SECONDS))
