"""Planning a settlement: the requests that carry out a decision, and the next way if SQS refuses them.

Planning does not log, make requests, read the clock, or change a message. It calls the user's hooks: failure steps,
when they must decide once more, and `DeadLetter`'s ``enrich`` and ``redact``. It returns log lines with the plan.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tarry.decide.decision import Decision, ask_steps
from tarry.message.failure import Failure, StepContext
from tarry.message.notices import Notice
from tarry.message.outcomes import Outcome
from tarry.observe.logs import MAX_FIELD_BYTES
from tarry.settle.copies import CannotCopy, CopyWriter
from tarry.settle.plans import (
    MANY_HOPS,
    WAITS,
    FactsNeeded,
    NoDeadLetterQueue,
    SettlementPlan,
    dead_letter_queue,
    may_hop,
    seconds_to_wait,
    waits_until,
    ways_of,
    why_it_could_not_wait,
)
from tarry.sqs.refusals import is_late, is_refused_for_good, may_be_applied
from tarry.support.causes import is_a, text_of
from tarry.support.delays import MAX_VISIBILITY_SECONDS, MOMENT_SECONDS, whole_seconds

if TYPE_CHECKING:
    from tarry.decide.retry_policy import RetryPolicy
    from tarry.decide.steps import DeadLetter, FailureSteps
    from tarry.message.delivery import Delivery
    from tarry.message.queue_facts import QueueFacts
    from tarry.settle.copies import Copy
    from tarry.settle.plans import Situation, Way
    from tarry.support.values import QueueArn

SHORTEST_CUT_SECONDS = 60
"""The shortest delay to which an expected expiry, possibly a guess, may cut a delay."""
REPEAT_ON_FIFO_SECONDS = 240
"""The longest delay of a message whose copy on FIFO may have been sent: SQS drops a second one for 5 minutes."""


class Planner:
    """The planner of one consumer, with its policy and failure steps."""

    def __init__(self, policy: RetryPolicy, steps: FailureSteps) -> None:
        self._policy = policy
        self._steps = steps
        self._longest: dict[bool, float] = {}

    def start(self, decision: Decision, situation: Situation) -> SettlementPlan:
        """Return the plan for a decision; like that of `go_on` and `refused`, it may need a look-up (``needs``)."""
        ways, notices = self._ways(decision, situation)
        return self._with_copy(SettlementPlan(decision, ways, notices), situation)

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
            writer = CopyWriter(self._steps, situation)
            try:
                decision, copy = self._copy_for(way, plan, writer, situation)
            except FactsNeeded as needed:
                return plan.changed(needs=needed.queue)
            except BaseException as error:  # noqa: BLE001 whatever the error, the message is still in its queue
                plan = plan.changed(notices=(*plan.notices, *writer.notices))
                failure = plan.decided.failure
                if is_a(error, CannotCopy) and failure is not None and way.name == "as_decided":
                    notice = Notice(
                        "step_passed_on", f"The message is not sent again: {error}. The next failure step decides."
                    )
                    plan = plan.changed(notices=(*plan.notices, notice))
                    return self._ask_again(plan, failure.changed(does_not_fit=True), situation)
                lacks_time = isinstance(error, NoDeadLetterQueue) and error.is_late
                late_delay = self._backoff(plan, situation) if lacks_time else None
                plan = plan.failed(text_of(error, MAX_FIELD_BYTES), late_delay)
                continue
            notices = (*plan.notices, *writer.notices)
            if copy is not None:
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
        """Return until when a message waits in its queue, in epoch seconds; 0 for a released message."""
        if plan.decision.outcome.kind == "release":
            return 0
        if plan.decided.outcome.kind in WAITS:
            return waits_until(plan.decided, 0)
        if plan.late_delay is not None:
            until = plan.decided.decided_at + plan.late_delay
        else:
            until = now + self.longest_delay(plan.delivery)
        return min(until, now + REPEAT_ON_FIFO_SECONDS) if plan.may_be_sent else until

    def _backoff(self, plan: SettlementPlan, situation: Situation) -> float | None:
        """Return the backoff's delay for the failed attempt, as which a message waits that there was no time to send.

        At its next delivery, what settling it needs is fetched before it runs (SPEC C8).
        """
        if plan.late_delay is not None or (failure := plan.decided.failure) is None:
            return plan.late_delay
        is_fifo = plan.delivery.source.is_fifo
        return self._policy.delay_after(failure.attempt, fifo=is_fifo, rng=situation.rng)[0]

    def seconds_in_place(self, plan: SettlementPlan, facts: QueueFacts | None, now: float) -> int:
        """Return for how many seconds to keep a message invisible, at most as long as SQS allows.

        A message that would expire, and could not be sent, comes back in time for another attempt at sending it.
        ``facts``: the facts of its queue; None if it was not looked up.
        """
        delivery, wanted = plan.delivery, seconds_until(self.waits_until(plan, now), now)
        seconds = min(wanted, delivery.longest_wait(now)) if wanted else 0
        if not seconds or facts is None:
            return seconds
        left = facts.seconds_left_if_short(delivery, seconds, now)
        return seconds if left is None else min(seconds, max(SHORTEST_CUT_SECONDS, int(left / 2)))

    def asked_for(self, decision: Decision) -> int:
        """Return the requested delay in seconds, from the verdict on, also if SQS cannot keep all of it."""
        return whole_seconds(seconds_to_wait(decision, self.longest_delay(decision.delivery)))

    def options_of(self, delivery: Delivery) -> DeadLetter:
        """Return the options of the failure records of a message's queue."""
        return self._steps.of(delivery.queue).dead_letter

    def target_of(self, delivery: Delivery, facts: QueueFacts) -> QueueArn | None:
        """Return the dead-letter queue of a message; None if it is not known before the message has failed."""
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

    def _restarted(self, plan: SettlementPlan, decision: Decision, situation: Situation) -> SettlementPlan:
        """Return the plan for another decision, which remembers what has failed."""
        ways, notices = self._ways(decision, situation)
        again = self.go_on(plan.changed(decided=decision, ways=ways), situation)
        return again.changed(notices=(*plan.notices, *notices, *again.notices))

    def _ways(self, decision: Decision, situation: Situation) -> tuple[tuple[Way, ...], tuple[Notice, ...]]:
        """Return the ways to settle a message, and log lines about them."""
        notices: tuple[Notice, ...] = ()
        if decision.outcome.kind == "defer" and not (decision.delivery.counts_runs or may_hop(decision.delivery)):
            text = (
                f"The message was sent again {MANY_HOPS - 1} times, so it is deferred in place: Lambda stops "
                "a function at about 16. See RecursiveLoop in docs/reference/permissions.md."
            )
            notices = (Notice("many_hops", text),)
        return ways_of(decision, situation.source, self.longest_delay(decision.delivery), situation.now), notices

    def _copy_for(
        self, way: Way, plan: SettlementPlan, writer: CopyWriter, situation: Situation
    ) -> tuple[Decision, Copy | None]:
        """Return the copy of a way, and the decision that it carries out; None if it would repeat a failed send.

        Raises:
            CannotCopy, NoDeadLetterQueue, FactsNeeded: As for `CopyWriter`.
        """
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
        if decision.outcome.kind in ("ack", "discard"):
            return plan.changed(decision=decision, is_done=True)
        return self._restarted(plan, decision, situation)


def seconds_until(moment: float, now: float) -> int:
    """Return the whole seconds from ``now`` to ``moment``, at least 0."""
    return max(0, math.ceil(moment - now - MOMENT_SECONDS))
