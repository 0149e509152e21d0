"""Carrying out what was decided at SQS: sends with their deletes, then delayed retries, then releases.

Most messages are settled when the batch has run. A short wait on a standard queue is asked for earlier, by a thread of
its own, so that the message comes back in time; and where many messages fail, they are settled while the others run.

A settlement that fails changes no other message's fate: what is not done for certain stays reported as failed, and SQS
delivers it again.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.delay import MAX_VISIBILITY_SECONDS, MOMENT_SECONDS, whole_seconds
from tarry.outcome import Outcome
from tarry.policy.decision import Decision, ask_steps
from tarry.policy.failure import Failure
from tarry.policy.steps import StepContext
from tarry.settlement.copies import CannotSendAgain, CopyWriter
from tarry.settlement.early import EarlyWaits
from tarry.settlement.plans import (
    MANY_HOPS,
    SENT_AWAY,
    WAITS,
    Plan,
    Way,
    may_hop,
    seconds_to_wait,
    waits_until,
    ways_of,
    why_it_could_not_wait,
)
from tarry.settlement.sending import Copy, Sent, send_on
from tarry.sqs.client import Requests
from tarry.sqs.deletes import delete
from tarry.sqs.limits import MAX_ENTRIES, tens
from tarry.sqs.lookups import Lookups
from tarry.sqs.permissions import SEND_TO_ITSELF
from tarry.sqs.refusals import Refused, is_refused_for_good, is_stale_handle, may_be_applied
from tarry.support.causes import is_a, text_of
from tarry.telemetry.logs import MAX_FIELD_BYTES, WARNING, Log
from tarry.visibility.changes import Hidden, Hide, change_visibility
from tarry.visibility.leases import lease_end, lose_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tarry.delivery import Delivery
    from tarry.invocation import Invocation
    from tarry.policy.failure import FailureSteps
    from tarry.policy.retry_policy import RetryPolicy
    from tarry.sqs.queue_facts import QueueFacts
    from tarry.support.arn import QueueArn

SHORTEST_CUT_SECONDS = 60  # no wait is cut below, for the sake of an expiry that may be a guess

REPEAT_ON_FIFO_SECONDS = 240
"""SQS swallows the second copy of a message for five minutes: when it is not known whether there was a first."""

SLICE = 100
"""So many messages are settled at once, and before the batch has run where so many have failed."""
FIRST_COST_SECONDS = 0.002
"""What settling a message is taken to cost until it was measured."""
ANSWER_SECONDS = 0.5
"""Kept of the time left, to answer in; of a short invocation less."""
ANSWER_SHARE = 0.05
"""Of the time that an invocation began with: more is not kept."""
PATIENCE_SECONDS = 2.0
"""How long an early request waits for an extension of ``keepalive`` that is under way."""


class Settlement:
    """The settlement of one invocation."""

    def __init__(self, invocation: Invocation, policy: RetryPolicy, steps: FailureSteps, log: Log) -> None:
        self._invocation = invocation
        self._policy = policy
        self._steps = steps
        self._log = log
        self._lookups = Lookups(Requests(invocation), log)
        self._writer = CopyWriter(steps, self._lookups, log)
        self.away: set[str] = set()
        """The delivery ids of messages that are settled elsewhere, and must not be reported as failed."""
        self._plans: list[Plan] = []
        self._releases: list[Plan] = []
        self._lock = threading.Lock()
        self._longest: dict[bool, float] = {}
        self._cost = FIRST_COST_SECONDS
        self.deciding = 0.0
        """What it has been taking to decide on a message, in seconds."""
        self._unsettled = self._too_late = 0
        self._early = EarlyWaits(invocation, self._ask_early, log)

    # what is known of the queues

    def knows(self, delivery: Delivery) -> bool:
        """Whether the message's queue was looked up."""
        return self._lookups.knows(delivery.source)

    def prepare(self, delivery: Delivery, then: Callable[[], None]) -> None:
        """Begin to look its queue up in a thread of its own."""
        self._lookups.prepare(delivery.source, then)

    def facts(self, delivery: Delivery) -> QueueFacts:
        """What is known of the message's queue; it may take a request."""
        return self._lookups.source(delivery.source)

    # what is to be settled

    def add(self, decision: Decision, *, early: bool) -> None:
        """Settle a message with the others, or ``early`` where its wait ends before the invocation may.

        The first look-up of its queue is made here if it was not before.
        """
        if decision.outcome.kind == "release":
            self._releases.append(Plan(decision, [Way("in_place")]))
            return
        plan = self._planned(decision)
        with self._lock:
            self._plans.append(plan)
        if early and (self._is_short(plan) or self._loses_its_lease(plan)):
            self._early.add(plan)

    @property
    def has_slice(self) -> bool:
        """Whether so many messages have failed that they are to be settled while the others run."""
        return len(self._plans) >= SLICE

    def send_now(self, decision: Decision) -> bool:
        """Carry out a decision that sends a message elsewhere; whether it is settled elsewhere for certain."""
        plan = self._planned(decision)
        self._send_all([plan])
        if not plan.is_settled:
            with self._lock:
                self._plans.append(plan)
        return decision.delivery.delivery_id in self.away

    def sort(self, place: Callable[[str], int]) -> None:
        """Put what is to be settled in the order of the batch."""
        for plans in (self._plans, self._releases):
            plans.sort(key=lambda plan: place(plan.decision.delivery.delivery_id))

    def finish(self) -> None:
        """Carry out what is left to do, as far as there is time."""
        self._early.stop()
        plans, self._plans = [plan for plan in self._plans if not plan.is_settled], []
        free = self._early.take(plans)
        for plan in self._releases:
            self._note_if_lost(plan)
        self._settle(free)
        self._in_slices(self._releases, self._wait_in_place)
        if len(free) < len(plans):
            self._early.end()
            settled = set(map(id, free))
            others = [plan for plan in plans if id(plan) not in settled]
            self._settle(self._early.take(others))
        self._unsettled += sum(not plan.is_settled for plan in (*plans, *self._releases))
        if self._unsettled:
            self._log.problem("out_of_time", not_settled(self._unsettled), level=WARNING)

    def _settle(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            self._note_if_lost(plan)
        self._in_slices([plan for plan in plans if plan.copy is not None and not plan.is_settled], self._send_all)
        # One whose copy there was no time to send stays as it is.
        waiting = [plan for plan in plans if plan.copy is None and not plan.is_settled]
        self._in_slices(waiting, self._wait_in_place)

    def stop(self) -> None:
        """Make no request of its own any more."""
        self._early.stop()

    def owed_seconds(self) -> float:
        """What the settlement of those that failed so far is going to cost."""
        return len(self._plans) * self._cost

    @property
    def has_time(self) -> bool:
        """Whether there is time to settle another message; of those for which there is none, a few are told of."""
        if not self._too_late and self._affordable() > 0:
            return True
        self._too_late += 1
        return self._too_late <= MAX_ENTRIES

    def report_only(self) -> None:
        """Note a message that there is no time to settle."""
        self._unsettled += 1

    def delete(self, deliveries: Sequence[Delivery]) -> None:
        """Delete acknowledged messages: there will be no answer after which Lambda does."""
        by_queue: dict[QueueArn, list[Delivery]] = {}
        for delivery in deliveries:
            by_queue.setdefault(delivery.source, []).append(delivery)
        chunks = [chunk for of_queue in by_queue.values() for chunk in tens(of_queue)]
        answers = self._lookups.requests.all([partial(delete, chunk, self._lookups) for chunk in chunks])
        for chunk, answer in zip(chunks, answers, strict=True):
            errors = (
                dict.fromkeys((each.delivery_id for each in chunk), answer) if isinstance(answer, Exception) else answer
            )
            for delivery in chunk:
                if (error := errors.get(delivery.delivery_id)) is not None:
                    self._lookups.warn(error, "delete_message_batch", delivery.source)
                    text = "it is acknowledged, and could not be deleted: it is delivered again"
                    self._log.problem("delete_failed", text, delivery, error=error, level=WARNING)

    # time

    def _affordable(self) -> int:
        """How many messages there is time to decide on and to settle."""
        invocation = self._invocation
        left = invocation.time_left() - min(ANSWER_SECONDS, invocation.began_with * ANSWER_SHARE)
        return SLICE if left == math.inf else int(left / (self._cost + self.deciding)) if left > 0 else 0

    def _in_slices(self, plans: Sequence[Plan], carry_out: Callable[[Sequence[Plan]], None]) -> None:
        start = 0
        while start < len(plans):
            size = min(SLICE, self._affordable())
            if size <= 0 and start:
                return
            self._timed(plans[start : start + max(MAX_ENTRIES, size)], carry_out)
            start += max(MAX_ENTRIES, size)

    def _timed(self, plans: Sequence[Plan], carry_out: Callable[[Sequence[Plan]], None]) -> None:
        clock = self._invocation.world.clock
        began = clock.monotonic()
        carry_out(plans)
        if len(plans) >= MAX_ENTRIES:
            self._cost = max(FIRST_COST_SECONDS / 10, (clock.monotonic() - began) / len(plans))

    def settle_full_requests(self) -> None:
        """Settle those that fill requests, and leave the others for the next: no request more is made for it."""
        with self._lock:
            ready = self._take_full_requests()
        if not ready:
            return
        for plan in ready:
            self._note_if_lost(plan)
        self._give_up(ready)
        self._timed([plan for plan in ready if plan.copy is not None], self._send_all)
        self._timed([plan for plan in ready if not plan.is_settled], self._wait_in_place)

    def _take_full_requests(self) -> list[Plan]:
        routes: dict[tuple[QueueArn, QueueArn | None], list[Plan]] = {}
        for plan in self._plans:
            if not plan.is_settled:
                target = None if plan.copy is None else plan.copy.target
                routes.setdefault((plan.decision.delivery.source, target), []).append(plan)
        full = [plan for of_route in routes.values() for plan in of_route[: len(of_route) // MAX_ENTRIES * MAX_ENTRIES]]
        ready = self._early.take(full)
        taken = set(map(id, ready))
        self._plans = [plan for plan in self._plans if not plan.is_settled and id(plan) not in taken]
        return ready

    # planning

    def _planned(self, decision: Decision) -> Plan:
        plan = Plan(decision, [])
        self._replan(plan, decision)
        return plan

    def _replan(self, plan: Plan, decision: Decision) -> None:
        plan.decided = plan.decision = decision
        if decision.outcome.kind == "defer" and not may_hop(decision.delivery):
            text = (
                f"deferred in place: it was sent again {MANY_HOPS - 1} times, and Lambda stops a function at about 16"
            )
            self._log.problem("many_hops", f"{text}; see RecursiveLoop in docs/sending.md", decision.delivery)
        plan.ways = ways_of(decision, self.facts(decision.delivery), self._longest_delay(decision), self._now())
        self._prepare(plan)

    def _prepare(self, plan: Plan) -> None:
        """Make the copy for the next way; a way for which none can be made is passed over."""
        plan.copy, plan.decision = None, plan.decided
        while not plan.is_settled and (way := plan.next_way()).name != "in_place":
            try:
                plan.copy = self._copy_for(way, plan)
            except BaseException as error:  # noqa: BLE001 whatever it is, the message is still in its queue
                failure = plan.decision.failure
                if is_a(error, CannotSendAgain) and failure is not None and way.name == "as_decided":
                    text = f"{error}: the next failure step is asked"
                    self._log.problem("step_passed_on", text, plan.decision.delivery)
                    self._ask_further(plan, failure)
                    return
                plan.fails(text_of(error, MAX_FIELD_BYTES))
            if plan.copy is not None:
                return
            plan.ways.pop(0)

    def _copy_for(self, way: Way, plan: Plan) -> Copy | None:
        """The copy that a way sends; None where it would be the same that was not sent before.

        Raises what `CopyWriter` raises.
        """
        decision, now = plan.decided, self._now()
        failure, outcome = decision.failure, decision.outcome
        plan.decision = decision
        if way.name == "copy_waits":
            until = min(waits_until(decision, self._longest_delay(decision)), now + MAX_VISIBILITY_SECONDS)
            return self._writer.waiting(decision, until, now)
        if way.name != "as_decided":
            return self._dead_letter_instead(way, plan)
        if failure is None:
            return None
        if outcome.kind == "dead_letter":
            return self._writer.dead_letter(failure, outcome, decision.decided_at)
        return self._writer.again(failure, decision, now)

    def _dead_letter_instead(self, way: Way, plan: Plan) -> Copy | None:
        """The dead letter of a message that would be lost, or moved without a record, where it is."""
        decision = plan.decided
        had_failed = decision.failure is not None
        failure = decision.failure or Failure(
            decision.delivery.message, None, "expiring", failed_at=decision.decided_at
        )
        own_reason = decision.outcome.reason if had_failed else None
        reason = "expiring" if way.name == "expiring" else own_reason or failure.reason
        named = self._steps.of(failure.queue).dead_letter.queue if way.name == "expiring" else None
        dead = Outcome.dead_letter(reason, named if isinstance(named, str) else None)
        text = why_it_could_not_wait(decision)
        copy = self._writer.dead_letter(failure, dead, decision.decided_at, text=text)
        if copy.target in plan.tried:
            return None
        plan.decision = Decision(decision.delivery, dead, decision.decided_at, failure, trouble=decision.trouble)
        return copy

    def _ask_further(self, plan: Plan, failure: Failure) -> None:
        """Have the failure steps decide again, on a message that cannot be sent again."""
        passed = failure.changed(does_not_fit=True)
        context = StepContext(self._invocation.world.random, self._invocation.time_left())
        facts, diagnose = self.facts(failure.delivery), self._invocation.diagnoses.of
        decision = ask_steps(passed, self._policy, self._steps.of(failure.queue), facts, context, diagnose)
        self._log.notices(failure.delivery, decision.notices)
        if decision.outcome.kind in ("resend", "again"):
            decision = Decision(failure.delivery, Outcome.unhandled(), failure.failed_at, passed)
        if decision.outcome.kind in ("ack", "discard"):
            plan.decision, plan.is_settled = decision, True
            self.away.add(failure.delivery.delivery_id)
            self._transition(plan, decision.outcome, None)
        else:
            self._replan(plan, decision)

    # sending

    def _send_all(self, plans: Sequence[Plan]) -> None:
        """Send the copies of these; where SQS refuses one, go the next way that sends one, until there is none."""
        sending = [plan for plan in plans if plan.copy is not None and not plan.is_settled]
        while sending:
            self._send(sending)
            sending = [plan for plan in sending if plan.copy is not None and not plan.is_settled]

    def _send(self, plans: Sequence[Plan]) -> None:
        self._find_lost_leases(plans)
        by_id = {plan.decision.delivery.delivery_id: plan for plan in plans if not plan.is_settled}
        for plan in by_id.values():
            plan.decision.delivery.is_given_up = True
        for sent in send_on([plan.copy for plan in by_id.values() if plan.copy is not None], self._lookups):
            self._note_sent(sent, by_id[sent.copy.delivery.delivery_id])

    def _find_lost_leases(self, plans: Sequence[Plan]) -> None:
        """Find the messages whose lease is lost: another consumer may have them by now, and they are not sent (E6).

        On FIFO, where SQS refuses an old receipt handle, the handles are tested once half of the visibility timeout has
        passed. On a standard queue it takes them, and a test would change the newer delivery.
        """
        hides: dict[QueueArn, list[Hide]] = {}
        by_id = {}
        for plan in plans:
            delivery = plan.decision.delivery
            self._note_if_lost(plan)
            if plan.is_settled or not delivery.source.is_fifo:
                continue
            timeout = self._lookups.visibility_timeout(delivery.source)
            end = lease_end(delivery, timeout)
            if end is not None and end - self._now() <= timeout / 2:
                by_id[delivery.delivery_id] = plan
                hides.setdefault(delivery.source, []).append(Hide(delivery, min(timeout, delivery.longest_wait())))
        for hidden in self._change(hides):
            delivery = hidden.hide.delivery
            if hidden.error is None:
                delivery.visible_at = self._now() + hidden.hide.seconds
            elif isinstance(hidden.error, Refused) or is_stale_handle(hidden.error):
                text = "SQS refuses its receipt handle: it is not sent on here, only reported as failed"
                self._log.problem("lease_lost", text, delivery, error=hidden.error, level=WARNING)
                lose_lease(delivery)
                self._note_if_lost(by_id[delivery.delivery_id])

    def _note_if_lost(self, plan: Plan) -> None:
        """Settle a message whose lease is lost: whatever was decided, it is only reported as failed."""
        delivery = plan.decision.delivery
        if plan.is_settled:
            return
        if not delivery.is_lost:
            end = lease_end(delivery, self._visibility_timeout(delivery))
            if end is None or end > self._now():
                return
            lose_lease(delivery)
        plan.is_settled = True
        outcome = plan.decision.outcome
        outcome = Outcome.unhandled() if outcome.kind in SENT_AWAY else outcome
        self._transition(plan, outcome, None, not_settled="its lease is lost: it is only reported as failed")

    def _visibility_timeout(self, delivery: Delivery) -> int | None:
        """The queue's, in seconds, if the end of the lease may be near; None where it is not known, or not needed.

        Lambda makes no mapping whose queue has a shorter one than the function's timeout.
        """
        invocation = self._invocation
        if not self._lookups.knows(delivery.source):
            received_at = delivery.first_received_at if delivery.receive_count == 1 else None
            held = 0.0 if received_at is None else max(0.0, invocation.started_at - received_at)
            if held + invocation.elapsed() < invocation.began_with:
                return None
        return self.facts(delivery).visibility_timeout

    def _note_sent(self, sent: Sent, plan: Plan) -> None:
        delivery, decision, copy = sent.copy.delivery, plan.decision, sent.copy
        if sent.error is not None:
            self._note_not_sent(plan, copy, sent.error)
            return
        plan.is_settled = True
        self.away.add(delivery.delivery_id)
        is_dead = decision.outcome.kind == "dead_letter"
        more: dict[str, Any] = {"dead_letter_queue" if is_dead else "sent_to": copy.target.name}
        delay = None if decision.outcome.delay is None else int(decision.outcome.delay)
        if decision.outcome.kind not in SENT_AWAY:
            wanted = whole_seconds(seconds_to_wait(decision, self._longest_delay(decision)))
            delay = min(MAX_VISIBILITY_SECONDS, wanted)
            more |= {"asked_for": wanted} if delay < wanted else {}
        self._transition(plan, decision.outcome, delay, **more)
        if sent.not_deleted is not None:
            self._lookups.warn(sent.not_deleted, "delete_message_batch", delivery.source)
            text = "the message that was sent on is left to Lambda to delete"
            self._log.problem("delete_failed", text, delivery, error=sent.not_deleted, level=WARNING)

    def _note_not_sent(self, plan: Plan, copy: Copy, error: Exception) -> None:
        is_open = may_be_applied(error)
        plan.fails(f"{copy.target.name}: {error}" + (" (it may be there all the same)" if is_open else ""))
        plan.tried.add(copy.target)
        plan.is_perhaps_sent |= is_open and copy.target.is_fifo
        plan.is_refused = is_refused_for_good(error)
        operation = SEND_TO_ITSELF if copy.target == copy.delivery.source else "send_message_batch"
        self._lookups.warn(error, operation, copy.target)
        plan.ways.pop(0)
        self._prepare(plan)

    # waiting

    def _is_short(self, plan: Plan) -> bool:
        """Whether its wait may be over before the invocation is, so that it is asked for now (SPEC C11)."""
        decision, delay = plan.decision, plan.decision.outcome.delay
        if plan.is_settled or decision.delivery.source.is_fifo or (plan.copy is not None and delay is None):
            return False
        until = self._until(plan) if plan.copy is None else decision.until or decision.decided_at + (delay or 0)
        return until - self._now() < self._invocation.time_left()

    def _loses_its_lease(self, plan: Plan) -> bool:
        """Whether its lease may end before the invocation does, so that it could not be settled then (SPEC E6)."""
        delivery = plan.decision.delivery
        if plan.is_settled or delivery.source.is_fifo:
            return False
        end = lease_end(delivery, self.facts(delivery).visibility_timeout)
        return end is not None and end - self._now() < self._invocation.time_left()

    def _until(self, plan: Plan) -> float:
        if plan.decision.outcome.kind == "release":
            return 0
        if plan.decided.outcome.kind in WAITS:
            return waits_until(plan.decided, 0)
        longest = self._longest_delay(plan.decided)
        return self._now() + (min(longest, REPEAT_ON_FIFO_SECONDS) if plan.is_perhaps_sent else longest)

    def _longest_delay(self, decision: Decision) -> float:
        is_fifo = decision.delivery.source.is_fifo
        if is_fifo not in self._longest:
            self._longest[is_fifo] = whole_seconds(self._policy.longest_delay(fifo=is_fifo))
        return self._longest[is_fifo]

    def _ask_early(self, plans: Sequence[Plan]) -> None:
        """Ask for short waits while the batch still runs; what is not confirmed is left for the end."""
        for plan in plans:
            self._note_if_lost(plan)
        plans = [plan for plan in plans if not plan.is_settled]
        self._give_up(plans)
        self._send_all(plans)
        plans = [plan for plan in plans if plan.copy is None and not plan.is_settled]
        for plan in plans:
            plan.has_asked = True
        self._wait_in_place(plans, early=True)

    def _give_up(self, plans: Sequence[Plan]) -> None:
        """Have these extended no more while the batch runs: an extension that arrives later would undo the wait."""
        for plan in plans:
            plan.decision.delivery.is_given_up |= not plan.is_settled
        if (idle := self._invocation.keepalive_idle) is not None:
            idle.wait(PATIENCE_SECONDS)

    def _wait_in_place(self, plans: Sequence[Plan], *, early: bool = False) -> None:
        """Make these invisible until their time, and those that are released visible.

        What SQS does not confirm ``early`` is asked for again at the end, if there is anything left of its wait.
        """
        hides: dict[QueueArn, list[Hide]] = {}
        by_id: dict[str, Plan] = {}
        now = self._now()
        for plan in plans:
            delivery, until = plan.decision.delivery, self._until(plan)
            if plan.is_settled:
                continue
            if plan.has_asked and not early and until <= now:
                self._note_perhaps_asked(plan)
                continue
            by_id[delivery.delivery_id] = plan
            seconds = self._seconds_in_place(delivery, _seconds_until(until, now))
            hides.setdefault(delivery.source, []).append(Hide(delivery, seconds))
        for hidden in self._change(hides):
            plan = by_id[hidden.hide.delivery.delivery_id]
            if not plan.is_settled and not (early and hidden.error is not None):
                self._note_hidden(hidden, plan)

    def _seconds_in_place(self, delivery: Delivery, wanted: int) -> int:
        """As long as SQS can hide it. What would expire and could not be sent comes back in time to try that again."""
        seconds = min(wanted, delivery.longest_wait()) if wanted else 0
        if not seconds or not self._lookups.knows(delivery.source):
            return seconds
        left = self.facts(delivery).seconds_left_if_short(delivery, seconds, self._now())
        return seconds if left is None else min(seconds, max(SHORTEST_CUT_SECONDS, int(left / 2)))

    def _change(self, hides: dict[QueueArn, list[Hide]]) -> Iterable[Hidden]:
        for queue, of_queue in hides.items():
            for hidden in change_visibility(of_queue, queue, self._lookups):
                if hidden.error is not None:
                    self._lookups.warn(hidden.error, "change_message_visibility_batch", queue)
                yield hidden

    def _note_hidden(self, hidden: Hidden, plan: Plan) -> None:
        plan.is_settled = True
        decision, more = plan.decided, dict[str, Any]()
        outcome = decision.outcome
        if outcome.kind in SENT_AWAY:
            outcome = Outcome.unhandled()
            if not plan.not_sent:
                plan.fails("no failure to tell of")
        elif hidden.error is None:
            decision.delivery.visible_at = self._now() + hidden.hide.seconds
        wanted = _seconds_until(self._until(plan), self._now())
        if hidden.error is not None:
            more["not_settled"] = f"{hidden.error}; it comes back when the queue's visibility timeout ends"
        elif hidden.hide.seconds < wanted:
            more["asked_for"] = whole_seconds(seconds_to_wait(decision, self._longest_delay(decision)))
        self._transition(plan, outcome, None if hidden.error else hidden.hide.seconds, **more)

    def _note_perhaps_asked(self, plan: Plan) -> None:
        plan.is_settled = True
        text = "its wait was asked for, SQS did not confirm it, and it is over: another delivery may have begun"
        self._transition(plan, plan.decision.outcome, None, not_settled=text)

    # what is said

    def _now(self) -> float:
        return self._invocation.now()

    def _transition(self, plan: Plan, outcome: Outcome, delay: int | None, **more: Any) -> None:
        decision = plan.decision
        failure = decision.failure
        if decision.trouble is not None:
            text = "a failure step raised, or tarry did, while it was decided what becomes of the message"
            self._log.problem("step_failed", text, decision.delivery, error=decision.trouble)
        if plan.not_sent:
            more["not_sent"] = "; ".join(plan.not_sent)
        reason = outcome.reason or (failure.reason if failure is not None else None)
        error = failure.diagnosis if failure is not None else None
        said = failure.said if failure is not None else None
        failed = failure is not None and outcome.kind in ("ack", "discard")
        self._log.transition(
            decision.delivery, outcome, error=error, delay=delay, reason=reason, said=said, failed=failed, **more
        )


def _seconds_until(moment: float, now: float) -> int:
    """The whole seconds that are left, at least 0."""
    return max(0, math.ceil(moment - now - MOMENT_SECONDS))


def not_settled(count: int) -> str:
    """What is said of messages that failed, and that there was no time to settle."""
    return (
        f"{count} messages are only reported as failed, since there was no time left to settle them: they come back "
        "when the queue's visibility timeout ends; set a smaller BatchSize, or give the function a longer Timeout"
    )
