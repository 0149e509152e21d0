"""The traces that a message leaves in the attempt store: before it runs, and before it is shown again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.attempts.tracking import NOT_ATTEMPTS, change_of
from tarry.envelope.attribute import history_of
from tarry.envelope.records import trace_record
from tarry.outcome import State
from tarry.settlement.copy_writer import redacted

if TYPE_CHECKING:
    from tarry.attempts.store import AttemptChange
    from tarry.delivery import Delivery
    from tarry.policy.failure import Failure
    from tarry.policy.steps import DeadLetter
    from tarry.settlement.plans import SettlementPlan
    from tarry.telemetry.notices import Notice


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
