"""Carrying out settlement plans at SQS: sends with their deletes, delays, and releases.

The executor asks the planner what to do next; it does not ask policies or failure steps itself. A refusal affects only
its own message: a message that is not settled for certain stays reported as failed, and SQS delivers it again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.message.outcomes import DONE, Outcome
from tarry.settle.planner import (
    IN_PLACE,
    SENDS_COPY,
    SettlementPlan,
    Situation,
    SizeLimit,
    seconds_until,
    why_it_could_not_wait,
)
from tarry.settle.requests import (
    ChangeResult,
    Sent,
    VisibilityChange,
    await_keepalive,
    change_visibility,
    delete,
    lease_end,
    lose_lease,
    send_copies,
    tens_by_queue,
)
from tarry.sqs.client import SEND_TO_ITSELF
from tarry.sqs.refusals import Refused, is_stale_handle
from tarry.support.values import MAX_VISIBILITY_SECONDS, WARNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tarry.decide.decision import Decision
    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation
    from tarry.observe.logs import Log
    from tarry.settle.copies import Copy
    from tarry.settle.planner import Planner
    from tarry.sqs.client import Lookups
    from tarry.support.values import QueueArn


class Executor:
    def __init__(self, invocation: Invocation, planner: Planner, lookups: Lookups, log: Log) -> None:
        self._invocation = invocation
        self._planner = planner
        self._lookups = lookups
        self._log = log
        self._limits: dict[QueueArn, SizeLimit] = {}
        self._plans: dict[str, SettlementPlan] = {}  # the plans of messages that are not settled yet, by delivery id
        self._requested = set[str]()  # delivery ids of messages whose delay was requested early, and not confirmed
        self._logged = set[str]()  # the delivery ids of messages for which ``attributes_left_out`` was logged

    # plans

    def plan(self, decision: Decision, *, may_look_up: bool = True) -> None:
        """Plan a settlement; unless it ``may_look_up`` the target, the plan is completed when it is carried out."""
        if decision.outcome.kind == "release":
            self._plans[decision.delivery.delivery_id] = SettlementPlan(decision, decision, (IN_PLACE,))
            return
        self._take(self._planner.start(decision, self._situation(decision.delivery)))
        if may_look_up:
            self.complete(decision.delivery)

    def complete(self, delivery: Delivery) -> None:
        """Look up the queues that a plan needs, and complete it."""
        while not delivery.is_settled and (needed := self.plan_of(delivery).needs) is not None:
            self.look_up(needed)
            self._take(self._planner.go_on(self.plan_of(delivery), self._situation(delivery)))

    def look_up(self, queue: QueueArn) -> None:
        self._limits[queue] = SizeLimit(*self._lookups.maximum_message_size(queue))

    def _take(self, plan: SettlementPlan) -> None:
        delivery = plan.delivery
        for notice in plan.notices:
            is_first = notice.event != "attributes_left_out" or delivery.delivery_id not in self._logged
            if notice.event == "attributes_left_out":
                self._logged.add(delivery.delivery_id)
            if is_first:
                self._log.notices(delivery, [notice])
        self._plans[delivery.delivery_id] = plan
        if plan.is_done:
            delivery.is_settled = delivery.is_done = True
            self._transition(delivery, plan.decision.outcome, None)

    def _situation(self, delivery: Delivery) -> Situation:
        invocation, source = self._invocation, delivery.source
        facts = self._lookups.source(source)
        rng, diagnose = invocation.world.random, invocation.diagnoses.of
        return Situation(invocation.now(), invocation.time_left, facts, self._limits, rng, diagnose)

    def plan_of(self, delivery: Delivery) -> SettlementPlan:
        return self._plans[delivery.delivery_id]

    def sends_copy(self, delivery: Delivery) -> bool:
        return not delivery.is_settled and self._plans[delivery.delivery_id].sends_copy

    def stays(self, delivery: Delivery) -> bool:
        """Return whether a message is still to be delayed or released in its queue."""
        return not (delivery.is_settled or self.sends_copy(delivery))

    # sending

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """Send the copies of messages; if SQS refuses one, try the ways that send another copy."""
        while sending := [each for each in deliveries if self.sends_copy(each)]:
            for delivery in sending:
                self.complete(delivery)
            self._send([delivery for delivery in sending if self.sends_copy(delivery)])

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        self._find_lost_leases(deliveries)
        sending = {each.delivery_id: each for each in deliveries if not each.is_settled}  # each message once
        for delivery in sending.values():
            delivery.is_given_up = True
        copies = [copy for each in sending.values() if (copy := self.plan_of(each).copy) is not None]
        for sent in send_copies(copies, self._lookups):
            if sent.error is None:
                self._note_sent(sent)
            else:
                self._note_not_sent(sent.copy, sent.error)

    def _note_sent(self, sent: Sent) -> None:
        delivery, copy = sent.copy.delivery, sent.copy
        outcome = self.plan_of(delivery).decision.outcome
        delivery.is_settled = delivery.is_done = True
        more: dict[str, Any] = {"dead_letter_queue" if outcome.kind == "dead_letter" else "sent_to": copy.target.name}
        delay = None if outcome.delay is None else int(outcome.delay)
        if outcome.kind not in SENDS_COPY:
            wanted = self._planner.asked_for(self.plan_of(delivery).decision)
            delay = min(MAX_VISIBILITY_SECONDS, wanted)
            more |= {"asked_for": wanted} if delay < wanted else {}
        self._transition(delivery, outcome, delay, **more)
        if sent.not_deleted is not None:
            self._lookups.warn(sent.not_deleted, "delete_message_batch", delivery.source)
            text = "The message was sent on, but the original was not deleted. Lambda deletes it after the response."
            self._log.problem("delete_failed", text, delivery, error=sent.not_deleted, level=WARNING)

    def _note_not_sent(self, copy: Copy, error: Exception) -> None:
        delivery = copy.delivery
        operation = SEND_TO_ITSELF if copy.target == delivery.source else "send_message_batch"
        self._lookups.warn(error, operation, copy.target)
        self._take(self._planner.refused(self.plan_of(delivery), error, self._situation(delivery)))
        self.complete(delivery)

    # leases

    def _find_lost_leases(self, deliveries: Sequence[Delivery]) -> None:
        """Find the messages whose lease is lost: another consumer may have them, so they are not sent (SPEC E6)."""
        # FIFO refuses the handle of an earlier receive, so handles are tested once half of the visibility timeout has
        # passed. A standard queue accepts it: there, a test would change the newer delivery.
        changes: list[VisibilityChange] = []
        for delivery in deliveries:
            self.note_if_lost(delivery)
            if delivery.is_settled or not delivery.source.is_fifo:
                continue
            timeout = self._lookups.visibility_timeout(delivery.source)
            end = lease_end(delivery, timeout)
            if end is not None and end - self._invocation.now() <= timeout / 2:
                changes.append(VisibilityChange(delivery, min(timeout, delivery.longest_wait())))
        for result in self._change(changes):
            delivery = result.change.delivery
            if result.error is None:
                delivery.visible_at = self._invocation.now() + result.change.seconds
            elif isinstance(result.error, Refused) or is_stale_handle(result.error):
                text = "SQS refuses the receipt handle. The message is not sent on, and only reported as failed."
                self._log.problem("lease_lost", text, delivery, error=result.error, level=WARNING)
                lose_lease(delivery)
                self.note_if_lost(delivery)

    def note_if_lost(self, delivery: Delivery) -> None:
        """Settle a message whose lease is lost: it is only reported as failed, whatever its outcome."""
        if delivery.is_settled:
            return
        if not delivery.is_lost:
            end = lease_end(delivery, self._visibility_timeout(delivery))
            if end is None or end > self._invocation.now():
                return
            lose_lease(delivery)
        delivery.is_settled = True
        outcome = self.plan_of(delivery).decision.outcome
        outcome = Outcome.unhandled() if outcome.kind in SENDS_COPY else outcome
        why = "the lease is lost, so the message is only reported as failed"
        self._transition(delivery, outcome, None, not_settled=why)

    def _visibility_timeout(self, delivery: Delivery) -> int | None:
        """Return the queue's visibility timeout in seconds; None if it is unknown, or the lease cannot end soon."""
        invocation = self._invocation
        if (known := self._lookups.known(delivery.source)) is not None:
            return known.visibility_timeout
        # Lambda refuses a mapping whose queue has a shorter visibility timeout than the function's timeout.
        received_at = delivery.received_at
        if received_at is None or invocation.now() - received_at < invocation.began_with:
            return None
        return self._lookups.source(delivery.source).visibility_timeout

    # waiting

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Give up the leases of messages: ``keepalive`` extends them no more, which would undo their delays."""
        for delivery in deliveries:
            delivery.is_given_up |= not delivery.is_settled
        await_keepalive(self._invocation)

    def request_early(self, deliveries: Sequence[Delivery]) -> None:
        """Request short delays while the batch still runs; those not confirmed are requested once more at the end."""
        for delivery in deliveries:
            self.note_if_lost(delivery)
        open_ = [delivery for delivery in deliveries if not delivery.is_settled]
        self.give_up(open_)
        self.send(open_)
        waiting = [delivery for delivery in open_ if self.stays(delivery)]
        for delivery in waiting:
            self._requested.add(delivery.delivery_id)
        self.wait_in_place(waiting, early=True)

    def wait_in_place(self, deliveries: Sequence[Delivery], *, early: bool = False) -> None:
        """Keep messages invisible for their delays, and make released ones visible; ``early``: see `request_early`."""
        self.trace(deliveries, in_background=early)
        self.send(deliveries)  # a message whose run could not be recorded may have no attempt left
        changes, now = list[VisibilityChange](), self._invocation.now()
        for delivery in deliveries:
            self.note_if_lost(delivery)
            if delivery.is_settled:
                continue
            plan = self.plan_of(delivery)
            if delivery.delivery_id in self._requested and not early and self._planner.waits_until(plan, now) <= now:
                delivery.is_settled = True
                why = "SQS did not confirm the delay, and it is over: another delivery may have begun"
                self._transition(delivery, plan.decision.outcome, None, not_settled=why)
                continue
            seconds = self._planner.seconds_in_place(plan, self._lookups.known(delivery.source), now)
            changes.append(VisibilityChange(delivery, seconds))
        for result in self._change(changes):
            if not result.change.delivery.is_settled and not (early and result.error is not None):
                self._note_result(result)

    def trace(self, deliveries: Sequence[Delivery], *, in_background: bool = False) -> None:
        """Write messages that stay in their queue to the attempt store, before they are shown again."""
        if self._invocation.attempt_store is None:
            return
        from tarry.settle.attempts import trace_of, tracking_of

        tracking, now = tracking_of(self._invocation, self._log), self._invocation.now()
        staying = [self.plan_of(delivery) for delivery in deliveries if self.stays(delivery)]
        new = {plan.delivery.delivery_id: plan for plan in staying if not tracking.has(plan.delivery)}
        changes = {each: trace_of(plan, self._planner, self._lookups, now) for each, plan in new.items()}
        tracking.write(changes, in_background=in_background)
        missed = [plan for plan in new.values() if not tracking.is_written(plan.delivery)]
        for plan in missed:
            if self._planner.is_spent_untraced(plan):
                # It is not retried: with a store that can be read but not written, it would run for ever.
                delivery = plan.delivery
                delivery.is_untraced = True
                again = self._planner.untraced(plan, self._situation(delivery))
                delivery.outcome = again.decision.outcome
                self._take(again)
                self.complete(delivery)

    def _change(self, changes: Sequence[VisibilityChange]) -> Iterable[ChangeResult]:
        for result in change_visibility(changes, self._lookups):
            if result.error is not None:
                queue = result.change.delivery.source
                self._lookups.warn(result.error, "change_message_visibility_batch", queue)
            yield result

    def _note_result(self, result: ChangeResult) -> None:
        delivery, now = result.change.delivery, self._invocation.now()
        plan, more = self.plan_of(delivery), dict[str, Any]()
        delivery.is_settled = True
        outcome = plan.decided.outcome
        if outcome.kind in SENDS_COPY or plan.is_stuck:
            outcome = Outcome.unhandled()
            more["not_sent"] = "; ".join(plan.not_sent) or "there is no failure to record"
        elif result.error is None:
            delivery.visible_at = now + result.change.seconds
        wanted = seconds_until(self._planner.waits_until(plan, now), now)
        if result.error is not None:
            more["not_settled"] = f"{result.error}; the message comes back when the queue's visibility timeout ends"
        elif result.change.seconds < wanted:
            more["asked_for"] = self._planner.asked_for(plan.decided)
        self._transition(delivery, outcome, None if result.error else result.change.seconds, **more)

    # deleting

    def delete(self, deliveries: Sequence[Delivery]) -> None:
        """Delete acknowledged messages: the process ends without a response, so Lambda does not delete them."""
        chunks = tens_by_queue(deliveries, lambda delivery: delivery)
        answers = self._lookups.requests.all([partial(delete, chunk, self._lookups) for chunk in chunks])
        for chunk, answer in zip(chunks, answers, strict=True):
            for delivery in chunk:
                error = answer if isinstance(answer, Exception) else answer.get(delivery.delivery_id)
                if error is not None:
                    self._lookups.warn(error, "delete_message_batch", delivery.source)
                    text = "SQS did not confirm that the acknowledged message is deleted. It may be delivered again."
                    self._log.problem("delete_failed", text, delivery, error=error, level=WARNING)

    # the log

    def _transition(self, delivery: Delivery, outcome: Outcome, delay: int | None, **more: Any) -> None:
        plan = self.plan_of(delivery)
        decision, failure = plan.decision, plan.decision.failure
        if decision.step_error is not None:
            text = "A failure step raised an exception, so the message counts as unhandled."
            self._log.problem("step_failed", text, delivery, error=decision.step_error)
        if plan.not_sent:
            more["not_sent"] = "; ".join(plan.not_sent)
        if outcome.kind == "dead_letter":
            is_bound = outcome.reason == "exhausted" and delivery.attempts_at_most  # else attempts did not decide
            at_most = f"at most {delivery.attempt} attempts" if is_bound else None
            why = why_it_could_not_wait(plan.decided, plan.ways[0])
            more["text"] = "; ".join(filter(None, (why, at_most))) or None
        reason = outcome.reason or (failure.reason if failure is not None else None)
        error = failure.diagnosis if failure is not None else None
        said = failure.said if failure is not None else None
        more |= {"failed": failure is not None and outcome.kind in DONE, "failure": failure}
        self._log.transition(delivery, outcome, error=error, delay=delay, reason=reason, said=said, **more)
        del self._plans[delivery.delivery_id]  # frees the failure, its exception, and the copy as well
