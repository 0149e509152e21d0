"""Rules about delays: messages come back when promised, and no request exceeds the limits of SQS."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from tarry.decide.retry_policy import SHORTEST_UNHANDLED_WAIT
from tarry.message.queue_facts import MARGIN_SECONDS, MARGIN_SHARE
from tarry.run.idempotency import REQUESTS_OF_END
from tarry.settle.planner import REPEAT_ON_FIFO_SECONDS, SHORTEST_CUT_SECONDS
from tarry.support.delays import MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS
from tarry.tools.testing.checkers.dead_letters import is_exhausted
from tarry.tools.testing.checkers.doubles import is_by_sqs
from tarry.tools.testing.checkers.leases import known_end
from tarry.tools.testing.checkers.violation import MOMENT, Found, Violation, violation

if TYPE_CHECKING:
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.testing.deliveries import MessageCopy, ObservedDelivery
    from tarry.tools.testing.recorded_history import RecordedHistory

NEVER = re.compile(
    "parameter DelaySeconds|parameter VisibilityTimeout|longer than|too many|Maximum number|not distinct"
)
NO_TIME = re.compile("no time|in the time that was left|redact raised")
TOO_LONG = "Total VisibilityTimeout"
RULE = "delays are kept"
LATE_SECONDS = 2.0
"""How much later than promised a message may be visible: delays are whole seconds, and requests are sent in tens or
after a second."""


def delays_are_kept(history: RecordedHistory) -> Found:
    """A message that failed and stays comes back when its delay is over: the requested one, else the policy's.

    The delay counts from the moment at which the verdict fell, not from the settlement of the batch (SPEC C11).
    """
    for copy in history.copies.values():
        for delivery in copy.deliveries:
            if delivery.sends or delivery.was_reported:
                yield from _check_delay(delivery, history)
        for delivery, following in pairwise(copy.deliveries):
            changes = [
                event for event in delivery.visibility_changes if event.at <= following.at
            ]  # later ones act on that one
            until = changes[-1].fields["visible_until"] if changes else 0.0
            if following.at < until - MOMENT and not is_by_sqs(delivery, following):
                text = f"came back {until - following.at:.3f} s before its wait was over"
                yield violation(RULE, copy, text, following.at)


def _check_delay(delivery: ObservedDelivery, history: RecordedHistory) -> Found:
    """Check the delay of one delivery, in place or by a copy that waits instead of the message."""
    copy, run = delivery.copy, delivery.run
    promised = delivery.promised
    if run is None or run.ended is None or promised is None or not delivery.ended_well:
        return
    if delivery.sends:
        yield from _check_copy_delay(delivery, promised, history)
    elif _is_excused(delivery, history) or may_be_of_own_step(delivery, history):
        return
    elif not delivery.visibility_changes and delivery.following and is_by_sqs(delivery, delivery.following):
        return  # an earlier delivery's request, repeated after a hang, made it visible, and it has ended since
    elif not delivery.visibility_changes:
        yield violation(RULE, copy, "failed, and its visibility was not changed", delivery.decided_at)
    else:
        change = delivery.visibility_changes[-1]
        visible_at = float(change.fields["visible_until"])
        earliest, latest = _bounds(delivery, promised, change.at, history)
        if visible_at < earliest - MOMENT:
            text = f"is visible {earliest - visible_at:.3f} s before its wait is over"
            yield violation(RULE, copy, text, change.at)
        elif visible_at > latest + LATE_SECONDS + _seconds_before(delivery) and not _may_be_late(delivery, history):
            text = f"is visible {visible_at - latest:.3f} s after its wait is over"
            yield violation(RULE, copy, text, change.at)


def may_be_of_own_step(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether a step of the user decided on a retry that was asked for: it was exhausted, or would expire on FIFO."""
    if delivery.run is None or delivery.verdict != "retry":
        return False
    terms, promised = delivery.run.terms(delivery.copy.delivery_id), delivery.promised
    if not terms.has_own_steps:
        return False
    wait = terms.longest if promised is None else promised[0] - delivery.decided_at
    expires = delivery.copy.is_fifo and _expires(delivery, wait, delivery.decided_at, history)
    return expires or is_exhausted(delivery, history)


def _check_copy_delay(delivery: ObservedDelivery, promised: tuple[float, float], history: RecordedHistory) -> Found:
    if delivery.other_copies or delivery.verdict != "defer":
        return  # a failure step may send a copy at any time
    (earliest, latest), decided_at = promised, delivery.decided_at
    wait = earliest - decided_at
    if delivery.copy.is_fifo and _cut(delivery, wait, decided_at, history) < wait:
        return  # it would have expired, so the failure steps got it
    for copy in (history.copies[event.fields["delivery_id"]] for event in delivery.sends if event.what == "sent"):
        if copy.is_dead_letter:
            continue
        if _due(copy) < earliest - MOMENT:
            text = f"its copy is due {earliest - _due(copy):.3f} s before its wait is over"
            yield violation(RULE, copy, text, copy.sent.at)
        elif _due(copy) > max(latest, copy.sent.at) + LATE_SECONDS and not _may_be_late(delivery, history):
            text = f"its copy is due {_due(copy) - latest:.3f} s after its wait is over"
            yield violation(RULE, copy, text, copy.sent.at)


def _bounds(
    delivery: ObservedDelivery, promised: tuple[float, float], changed_at: float, history: RecordedHistory
) -> tuple[float, float]:
    """The moments between which a message must become visible, if its visibility was last changed at ``changed_at``."""
    earliest, latest = promised
    if any(
        event.fields["event"] == "unhandled" and not _keeps_its_delay(delivery, event) for event in delivery.log_lines
    ):
        stuck = shortest_when_stuck(delivery, changed_at, history)
        earliest = delivery.decided_at + stuck
        latest = changed_at + max(stuck, delivery.last_run.terms(delivery.copy.delivery_id).longest)
        if _expires(delivery, promised[0] - changed_at, changed_at, history):
            earliest = min(earliest, promised[0])  # the backoff's delay, of a message that no copy could save
    wait = earliest - changed_at
    possible = MAX_VISIBILITY_SECONDS - (changed_at - delivery.at) - UNKNOWN_RECEIVE_SECONDS - 2
    earliest = min(earliest, changed_at + min(possible, _cut(delivery, wait, changed_at, history)))
    return earliest, max(latest, settled_from(delivery, changed_at))


def _keeps_its_delay(delivery: ObservedDelivery, unhandled: HistoryEvent) -> bool:
    """Whether an unhandled message waits as its handler asked for: a deferral, or a retry with attempts left.

    It did not meet the failure steps (SPEC B7, J5), but should have been put away, and could not: it would expire, or
    it is at its last delivery.
    """
    return delivery.verdict in ("defer", "retry") and unhandled.fields.get("reason") in (None, "error")


def settled_from(delivery: ObservedDelivery, changed_at: float) -> float:
    """The moment before which a message need not be visible, although its delay is over.

    On FIFO it is settled with its group, at the end of the batch. In a batch handler it is settled when the handler
    has ended, even if its verdict was given before that: to be tightened to the moment of the verdict. Otherwise its
    visibility is changed while other messages still run.
    """
    assert delivery.last_run.ended is not None
    if delivery.copy.is_fifo:
        return changed_at
    return delivery.last_run.ended.at if delivery.last_run.is_batch else 0.0


def _may_be_late(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether a fault delayed its invocation or the look-up of its queue, or no time was left to settle it.

    Or no time was left for a run by `LocalRetry`, which other messages had.
    """
    not_settled = any("not_settled" in event.fields for event in delivery.log_lines)
    runs = Counter(each for run in delivery.handled_in.runs for each in run.messages)
    waited_its_turn = len(delivery.runs) < max(runs.values(), default=0)
    had_fault = bool(delivery.handled_in.faults) or history.look_up_failed(delivery)
    return had_fault or not_settled or waited_its_turn


def _seconds_before(delivery: ObservedDelivery) -> float:
    """The time that its invocation may need before it settles the message.

    That of the user's hooks, whose messages are decided before it or log first, and of the requests that end its claim
    (SPEC K4). The first run of the invocation waited for one request, that of its own claim.
    """
    invocation = delivery.handled_in
    returned, consumed = invocation.handler_returned, invocation.consumed
    seconds = 0.0 if returned is None else float(returned.fields["in_hooks"])
    if consumed is not None and consumed.fields.get("has_claims"):
        seconds += REQUESTS_OF_END * (invocation.runs[0].began.at - invocation.invoked.at)
    return seconds


def shortest_when_stuck(delivery: ObservedDelivery, now: float, history: RecordedHistory) -> float:
    """The shortest delay of a message that could not be settled (SPEC E4).

    Where only the time was lacking, it waits no longer than its backoff says (SPEC C8). On FIFO a copy that may have
    been sent is sent again while SQS still drops duplicates. The delay may be that of the policy, cut to the message's
    retention.
    """
    if any(NO_TIME.search(str(event.fields.get("not_sent", ""))) for event in delivery.log_lines):
        return 0.0
    is_perhaps_sent = delivery.copy.is_fifo and delivery.handled_in.struck("SendMessageBatch")
    most = REPEAT_ON_FIFO_SECONDS if is_perhaps_sent else SHORTEST_UNHANDLED_WAIT
    return min(
        most, _cut(delivery, max(most, delivery.last_run.terms(delivery.copy.delivery_id).longest), now, history)
    )


def _cut(delivery: ObservedDelivery, wait: float, now: float, history: RecordedHistory) -> float:
    """The delay of a message that would expire, cut to leave time for sending its copy again (SPEC C10)."""
    if not _expires(delivery, wait, now, history):
        return wait
    left = delivery.copy.sent.at + _retention(delivery, history) - now
    return max(SHORTEST_CUT_SECONDS, math.floor(left / 2) - 1)


def _expires(delivery: ObservedDelivery, wait: float, now: float, history: RecordedHistory) -> bool:
    """Whether a message would expire before, or soon after, it has waited (SPEC C10)."""
    retention = _retention(delivery, history)
    left = delivery.copy.sent.at + retention - now
    return bool(retention) and left <= wait + min(MARGIN_SECONDS, retention * MARGIN_SHARE) + MOMENT


def _retention(delivery: ObservedDelivery, history: RecordedHistory) -> int:
    """For how many seconds the queue keeps messages; 0 if that is unknown."""
    return int(history.queues.get(delivery.copy.sent_to, {}).get("MessageRetentionPeriod", 0))


def _is_excused(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether the request that changes its visibility may have failed: by a fault, or because its lease had ended."""
    invocation, copy = delivery.handled_in, delivery.copy
    left = copy.left_at is not None and copy.left_at <= invocation.answered_at
    if left or invocation.struck("ChangeMessageVisibilityBatch"):
        return True
    if any(each.fields.get("by") == invocation.request_id for each in copy.all("visibility_change_ignored")):
        return True  # an earlier delivery's request, repeated late, had made it visible
    if delivery.held_until <= _settled_by(delivery):
        return True  # SQS accepts a handle only as long as the lease holds
    if known_end(delivery, history) <= _settled_by(delivery) + MOMENT:  # an SQS record tells it in whole milliseconds
        return True  # the lease has ended, as far as its invocation can know (SPEC E6)
    not_settled = any("not_settled" in event.fields for event in delivery.log_lines)
    if invocation.faults and (not_settled or (not delivery.log_lines and history.was_out_of_time(invocation))):
        return True  # it began late, or earlier requests took the remaining time (SPEC G6)
    later = delivery.following
    return history.had_problem(delivery, "lease_lost") or (later is not None and later.at <= invocation.answered_at)


def _settled_by(delivery: ObservedDelivery) -> float:
    """The latest moment for the change of its visibility: with the batch, or soon after its verdict (SPEC C11).

    Hooks of the user come between the verdict and the settlement.
    """
    answered, deadline = delivery.handled_in.answered_at, float(delivery.handled_in.invoked.fields["deadline"])
    is_long = delivery.promised is not None and delivery.promised[0] >= deadline  # it is asked for at the end
    if is_long or delivery.copy.is_fifo or delivery.last_run.is_batch or _may_run_again(delivery):
        return answered
    return min(answered, delivery.decided_at + LATE_SECONDS + _seconds_before(delivery))


def _may_run_again(delivery: ObservedDelivery) -> bool:
    """Whether `LocalRetry` would run it again in this delivery, for which no time may be left in the end."""
    is_failed = delivery.verdict == "fail"
    return is_failed and len(delivery.runs) <= delivery.last_run.terms(delivery.copy.delivery_id).local_retries


def _due(copy: MessageCopy) -> float:
    record = copy.record or {}
    return max(float(copy.sent.fields["visible_at"]), float(record.get("due", 0)))


def no_message_runs_before_it_is_due(history: RecordedHistory) -> Found:
    """A message that was sent with a long delay does not run before the delay is over."""
    for delivery in history.deliveries():
        record = delivery.copy.record
        if record is None or delivery.copy.sent_to.endswith(".fifo"):
            continue
        due = float(record.get("due", 0))
        for run in delivery.runs:
            if run.began.at < due - MOMENT:
                text = f"ran {due - run.began.at:.3f} s before it was due"
                yield violation("no message runs before it is due", delivery.copy, text, run.began.at)


def no_wait_exceeds_sqs_limits(history: RecordedHistory) -> Found:
    """No request exceeds the limits of SQS: 12 hours from the receive, 900 s of delay, ten entries.

    A consumer knows the time of a message's first receive only; later ones may have waited for their invocation.
    """
    for request_id, invocation in history.invocations.items():
        if not invocation.refusals:
            continue
        latest = max((each.at for each in invocation.deliveries.values()), default=invocation.invoked.at)
        for event in invocation.refusals:
            text = event.fields["text"]
            is_late = invocation.struck("ChangeMessageVisibilityBatch")  # by an earlier try without an answer
            was_known = TOO_LONG in text and invocation.invoked.at - latest < UNKNOWN_RECEIVE_SECONDS and not is_late
            if (TOO_LONG not in text and NEVER.search(text)) or was_known:
                yield Violation("no wait exceeds SQS limits", request_id, f"SQS refused a request: {text}", event.at)
