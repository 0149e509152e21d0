"""The traces that a message leaves in the attempt store: before it runs, and before it is shown again.

`Traces` writes those of messages that stay in their queue; `tarry.run.order` those of messages about to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.message.failure_record import trace_record
from tarry.message.outcomes import State
from tarry.record.attribute import history_of
from tarry.settle.attempts import NOT_ATTEMPTS, change_of, tracking_of
from tarry.settle.copies import redacted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.decide.steps import DeadLetter
    from tarry.message.delivery import Delivery
    from tarry.message.failure import Failure
    from tarry.message.invocation import Invocation
    from tarry.message.notices import Notice
    from tarry.observe.logs import Log
    from tarry.record.attempt_store import AttemptChange
    from tarry.settle.planner import Planner
    from tarry.settle.plans import SettlementPlan, Situation
    from tarry.sqs.lookups import Lookups


class Traces:
    """The traces of messages that stay in their queue, in the attempt store of one invocation."""

    def __init__(self, invocation: Invocation, planner: Planner, lookups: Lookups, log: Log) -> None:
        self._invocation = invocation
        self._planner = planner
        self._lookups = lookups
        self._log = log
        self._tracking = tracking_of(invocation, log)

    def write(self, plans: Iterable[SettlementPlan], *, in_background: bool) -> list[SettlementPlan]:
        """Write the messages of plans to the store, each once in an invocation.

        Return the plans that need `count_run`: those of messages that the store did not take, and that have no attempt
        left if deliveries that the store does not know count as attempts.
        """
        now = self._invocation.now()
        new = {plan.delivery.delivery_id: plan for plan in plans if not self._tracking.has(plan.delivery)}
        changes = {delivery_id: self._change_of(plan, now) for delivery_id, plan in new.items()}
        self._tracking.write(changes, in_background=in_background)
        missed = [plan for plan in new.values() if not self._tracking.is_written(plan.delivery)]
        return [plan for plan in missed if self._planner.is_spent_untraced(plan)]

    def _change_of(self, plan: SettlementPlan, now: float) -> AttemptChange:
        delivery = plan.delivery
        known = self._lookups.known(delivery.source)
        retention = None if known is None else known.retention
        next_try = self._planner.waits_until(plan, now)
        options = self._planner.options_of(delivery)
        change, notice = trace_of(plan, options, next_try=next_try, retention=retention, now=now)
        if notice is not None:
            self._log.notices(delivery, [notice])
        return change

    def count_run(self, plan: SettlementPlan, situation: Situation) -> SettlementPlan:
        """Count a run that the store did not take, and return the plan of the failure steps' new decision.

        The message is not retried: with a store that can be read but not written, it would run for ever.
        """
        delivery = plan.delivery
        delivery.is_untraced = True
        again = self._planner.untraced(plan, situation)
        delivery.outcome = again.decision.outcome
        return again


def trace_of(
    plan: SettlementPlan, options: DeadLetter, *, next_try: float, retention: float | None, now: float
) -> tuple[AttemptChange, Notice | None]:
    """Return the change of a message's record, and a log line if the hook ``redact`` of ``options`` failed.

    ``next_try``: when the message is visible again. ``retention``: for how many seconds its queue keeps it, if known.
    """
    delivery, decision = plan.delivery, plan.decided
    failure, outcome = decision.failure, decision.outcome
    is_run = failure is not None and outcome.kind not in NOT_ATTEMPTS and not failure.was_deferral
    is_run = is_run and not delivery.is_of_crash
    fields: dict[str, Any] = {"state": str(outcome.state), "next_try": round(max(now, next_try), 3)}
    notice = None
    if failure is not None:
        delay = max(0, round(next_try - decision.decided_at))
        record, notice = redacted(trace_record(failure, decision.decided_at, delay), delivery, options)
        fields["failure"] = record["failure"]
        if delivery.counts_runs:  # else the earlier history is not known, and must not be overwritten
            fields["history"] = record.get("history")
    elif delivery.crashed and delivery.stored:  # it was not claimed, so its start, with the crash, was not written
        fields["failure"] = delivery.stored["failure"]
        fields["history"] = [*delivery.stored["history"]]
    return change_of(delivery, "run" if is_run else "seen", now, retention=retention, **fields), notice


def start_of(
    delivery: Delivery, crash: Failure | None, options: DeadLetter, now: float
) -> tuple[AttemptChange, Notice | None]:
    """Return the change of a record for a message that is about to run, and a log line like that of `trace_of`.

    ``crash``: the failure of its last run, if that crashed. It becomes a part of the delivery's history.
    """
    back_at = delivery.visible_at or now + max(0, delivery.invocation.time_left())
    fields: dict[str, Any] = {"state": str(State.IN_FLIGHT), "next_try": round(back_at, 3)}
    notice = None
    if crash is not None:
        record, notice = redacted(trace_record(crash, crash.failed_at, delay=0), delivery, options)
        fields |= {"failure": record["failure"], "history": record.get("history")}
        earlier = delivery.stored or {}
        delivery.stored = {**earlier, "failure": record["failure"], "history": history_of(record.get("history"))}
    return change_of(delivery, "start", now, **fields), notice
