"""Rules about retries: attempts are counted and end where the policy says, and messages come back when promised."""

import math
import re
from collections import Counter
from itertools import pairwise

from tarry.decide.retry_policy import SHORTEST_UNHANDLED_WAIT
from tarry.message.delivery import MARGIN_SECONDS, MARGIN_SHARE
from tarry.record.attribute import MAX_COUNT
from tarry.run.idempotency import REQUESTS_OF_END
from tarry.settle.planner import REPEAT_ON_FIFO_SECONDS, SHORTEST_CUT_SECONDS
from tarry.support.values import MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.testing.checkers.leases import is_by_sqs, known_end, may_be_without_effect
from tarry.tools.testing.checkers.losses import is_exhausted
from tarry.tools.testing.checkers.violation import MOMENT, Found, Violation, violation
from tarry.tools.testing.deliveries import FAILED, MessageCopy, ObservedDelivery
from tarry.tools.testing.recorded_history import RecordedHistory


def attempts_are_counted(history: RecordedHistory) -> Found:
    """A standard queue's attempt is that of the copy before plus the receives; a FIFO queue's is never less than the
    failures so far and this run, and never more than the receives. With an attempt store, it is this run and the
    failures so far, or less if the store has failed.
    """
    for copy in history.eventful:
        base = attempts_before(copy, history) if copy.deliveries else None
        if base is None or copy.has_unclear_origin:
            continue
        failed, early = 0, _early_receives(copy)
        for delivery in copy.deliveries:
            most_by_receives = base + delivery.count - early
            for run in delivery.runs:
                least, most = base + failed + 1 if copy.is_fifo else most_by_receives, most_by_receives
                if run.messages[copy.delivery_id].is_exact:
                    carried = int((copy.record or {}).get("carried") or 0)
                    others = sum(each is not delivery and _may_be_counted(each) for each in copy.deliveries)
                    least, most = carried + 1, carried + others + 1
                attempt = run.attempt(copy.delivery_id)
                if not max(1, least) <= attempt <= max(1, most):
                    expected = str(most) if least == most else f"{least} to {most}"
                    text = f"its run has the attempt {attempt}, not {expected}"
                    yield violation("attempts are counted", copy, text, run.began.at)
            failed += copy.is_fifo and _has_failed(delivery)


def _has_failed(delivery: ObservedDelivery) -> bool:
    """Whether the message failed, and the next delivery can know it: on FIFO, because it is the head of its group then.

    After a crash or a late answer, or if a message before it stays in the queue, the next delivery cannot know.
    """
    invocation = delivery.invocation
    if delivery.verdict not in FAILED or invocation is None or invocation.answered is None:
        return False
    if not invocation.ended_well or invocation.answered_at >= delivery.lease_ends_at:
        return False
    return not invocation.stays_before(delivery)


def _may_be_counted(delivery: ObservedDelivery) -> bool:
    """Whether the message failed, or its handler exceeded its time.

    On FIFO any run may be counted: a store that fails may have its start and not its end.
    """
    return bool(delivery.runs) and (delivery.copy.is_fifo or delivery.verdict in (*FAILED, "left", None))


def attempts_before(copy: MessageCopy, history: RecordedHistory) -> int | None:
    """The attempts before a copy, as far as its record can tell (at most 1,000).

    They include the delivery that it replaces, unless that was deferred. A message that SQS moved to a dead-letter
    queue and back keeps its count; a dead letter of tarry's begins a new one. None if it is unknown whether the
    delivery was deferred.
    """
    attempts = _attempts_before(copy, history)
    return None if attempts is None else min(MAX_COUNT, attempts)


def _attempts_before(copy: MessageCopy, history: RecordedHistory) -> int | None:
    if copy.redriven_from is not None and not copy.redriven_from.is_dead_letter:
        return attempts_before(copy.redriven_from, history)
    before = copy.came_from
    if before is None or copy.is_dead_letter:
        return 0
    if before.run is None:  # it was not due yet, and waits on as a copy
        earlier = attempts_before(before.copy, history)
        if earlier is None:
            return None
        most = max(earlier, earlier + before.count - _early_receives(before.copy) - 1)
        return _as_stored(copy, earlier, most) if history.uses_attempt_store else most
    was_deferred = _was_deferred(before, history)
    if was_deferred is None:
        return None
    number = before.message.attempt - was_deferred
    return _as_stored(copy, number, number + before.count - 1) if before.message.is_exact else number


def _as_stored(copy: MessageCopy, least: int, most: int) -> int:
    """The attempts that a copy carries, if they are possible with an attempt store, else ``least``.

    A store knows which deliveries were runs. If it fails, deliveries without a trace count as attempts too.
    """
    carried = int((copy.record or {}).get("carried") or 0)
    return carried if least <= carried <= most else least


def _was_deferred(delivery: ObservedDelivery, history: RecordedHistory) -> bool | None:
    """Whether its handler or a custom failure step deferred it (only the log shows the latter); None if unknown.

    Where another outcome took the place of one that could not be sent, the log shows the other one.
    """
    if not delivery.message.terms.has_own_steps:
        return delivery.verdict == "defer"
    return "deferred" in delivery.log_events if delivery.log_lines and not delivery.logged("not_sent") else None


def _early_receives(copy: MessageCopy) -> int:
    """1 if the first receive came before the message was due, so that its handler did not run; else 0."""
    due = (copy.record or {}).get("due")
    is_early = due is not None and copy.deliveries and int(copy.deliveries[0].at * 1000) / 1000 < due
    return 1 if is_early and not copy.is_fifo else 0


def attempts_are_within_the_policy(history: RecordedHistory) -> Found:
    """A message that has failed for good, or at its last attempt, is retried only if it could not be dead-lettered."""
    rule = "attempts are within the policy"
    for copy in history.eventful:
        for delivery in copy.deliveries:
            why = _why_final(delivery)
            if why is None or not delivery.ended_well or not delivery.was_reported:
                continue
            for event in delivery.log_lines:
                if event.fields["event"] == "waiting_retry":
                    yield violation(rule, copy, f"is to be tried again, {why}", event.at)
            following = delivery.following
            if following is None or is_by_sqs(delivery, following) or not following.runs:
                continue
            shortest = shortest_when_stuck(delivery, delivery.decided_at, history)
            is_early = following.at < delivery.decided_at + shortest - MOMENT
            if is_early and not _could_not_wait(delivery, following, history):
                yield violation(rule, copy, f"came back within {shortest:g} s, {why}", following.at)


GIVEN_UP = frozenset({"dead_lettered", "discarded", "committed", "resent"})
"""Log events of a message that does not come back after the delay that its handler asked for."""


def retries_asked_for_are_made(history: RecordedHistory) -> Found:
    """A retry that a handler asks for is made, whatever the failure steps are, as long as attempts are left (SPEC B7).

    A message that would expire meets the steps (SPEC C10), and a step of the user's may give it another reason.
    """
    for delivery in history.eventful_deliveries:
        if delivery.run is None or delivery.verdict != "retry" or not delivery.ended_well:
            continue
        for event in delivery.log_lines:
            if event.fields["event"] not in GIVEN_UP or event.fields.get("reason") == "expiring":
                continue
            is_last = is_exhausted(delivery, history, _untraced(delivery, event))
            if not is_last and not may_be_of_own_step(delivery, history):
                text = f"its handler asked for a retry, and it was {event.fields['event']}"
                yield violation("retries asked for are made", delivery.copy, text, event.at)


def _untraced(delivery: ObservedDelivery, event: HistoryEvent) -> int:
    """The earlier deliveries that count as attempts, since the attempt store did not take this one (SPEC O4)."""
    if not delivery.message.is_exact:
        return 0
    more = int(event.fields.get("attempt", 0)) - delivery.message.attempt
    return max(0, min(more, delivery.count - 1))


def _why_final(delivery: ObservedDelivery) -> str | None:
    """Why a message must not be retried; None if it may be."""
    given = None if delivery.run is None else delivery.run.verdicts.get(delivery.copy.delivery_id)
    if given is None or given.kind not in FAILED or delivery.message.terms.has_own_steps:
        return None
    if given.kind == "reject":
        return "though it was rejected"
    if given.error == "Undecodable":
        return "though its body cannot be decoded"
    attempt, limit = delivery.message.attempt, delivery.message.terms.limit
    if limit is not None and attempt >= limit:
        return f"though attempt {attempt} of {limit} has failed"
    return None


def _could_not_wait(delivery: ObservedDelivery, following: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether the change of the message's visibility failed, or came too late."""
    if history.is_only_reported(delivery):
        return True  # a test of its handle (SPEC E6) was the last change
    was_set = any(delivery.decided_at <= change.at <= following.at for change in delivery.visibility_changes)
    return delivery.logged("not_settled") or delivery.handled_in.struck("ChangeMessageVisibilityBatch") or not was_set


# delays

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
    for copy in history.eventful:
        for delivery in copy.deliveries:
            if delivery.sends or delivery.was_reported:
                yield from _check_delay(delivery, history)
        for delivery, following in pairwise(copy.deliveries):
            # Later changes act on the delivery that follows.
            changes = [each for each in delivery.visibility_changes if each.at <= following.at]
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
    if delivery.run is None or delivery.verdict != "retry" or not delivery.message.terms.has_own_steps:
        return False
    terms, promised = delivery.message.terms, delivery.promised
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
        latest = changed_at + max(stuck, delivery.message.terms.longest)
        if _expires(delivery, promised[0] - changed_at, changed_at, history):
            earliest = min(earliest, promised[0])  # the backoff's delay, of a message that no copy could save
    wait = earliest - changed_at
    possible = MAX_VISIBILITY_SECONDS - (changed_at - delivery.at) - UNKNOWN_RECEIVE_SECONDS - 2
    earliest = min(earliest, changed_at + min(possible, _cut(delivery, wait, changed_at, history)))
    # A message need not be visible before it is settled: on FIFO with its group, at the end of the batch; in a batch
    # handler when that has ended, even if its verdict was given before. Otherwise it is while others still run.
    ended, is_batch = delivery.last_run.ended, delivery.last_run.is_batch
    settled = changed_at if delivery.copy.is_fifo else ended.at if is_batch and ended is not None else 0.0
    return earliest, max(latest, settled)


def _keeps_its_delay(delivery: ObservedDelivery, unhandled: HistoryEvent) -> bool:
    """Whether an unhandled message waits as its handler asked for: a deferral, or a retry with attempts left.

    It did not meet the failure steps (SPEC B7, J5), but should have been put away, and could not: it would expire, or
    it is at its last delivery.
    """
    return delivery.verdict in ("defer", "retry") and unhandled.fields.get("reason") in (None, "error")


def _may_be_late(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether a fault delayed its invocation or the look-up of its queue, or no time was left to settle it.

    Or no time was left for a run by `LocalRetry`, which other messages had.
    """
    runs = Counter(each for run in delivery.handled_in.runs for each in run.messages)
    waited_its_turn = len(delivery.runs) < max(runs.values(), default=0)
    had_fault = bool(delivery.handled_in.faults) or history.look_up_failed(delivery)
    return had_fault or delivery.logged("not_settled") or waited_its_turn


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
    return min(most, _cut(delivery, max(most, delivery.message.terms.longest), now, history))


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
    settled_by, was_only_reported = _settled_by(delivery), history.is_only_reported(delivery)
    if delivery.held_until <= settled_by:
        return True  # SQS accepts a handle only as long as the lease holds
    if known_end(delivery, history) <= settled_by + MOMENT:  # an SQS record tells it in whole milliseconds
        return True  # the lease has ended, as far as its invocation can know (SPEC E6)
    if delivery.handled_in.faults and (delivery.logged("not_settled") or was_only_reported):
        return True  # it began late, or earlier requests took the remaining time (SPEC G6)
    return history.had_problem(delivery, "lease_lost") or may_be_without_effect(delivery)


def _settled_by(delivery: ObservedDelivery) -> float:
    """The latest moment for the change of its visibility: with the batch, or soon after its verdict (SPEC C11).

    Hooks of the user come between the verdict and the settlement.
    """
    answered, deadline = delivery.handled_in.answered_at, float(delivery.handled_in.invoked.fields["deadline"])
    is_long = delivery.promised is not None and delivery.promised[0] >= deadline  # it is asked for at the end
    # `LocalRetry` would run it again in this delivery, for which no time may be left in the end.
    may_rerun = delivery.verdict == "fail" and len(delivery.runs) <= delivery.message.terms.local_retries
    if is_long or delivery.copy.is_fifo or delivery.last_run.is_batch or may_rerun:
        return answered
    return min(answered, delivery.decided_at + LATE_SECONDS + _seconds_before(delivery))


def _due(copy: MessageCopy) -> float:
    record = copy.record or {}
    return max(float(copy.sent.fields["visible_at"]), float(record.get("due", 0)))


def no_message_runs_before_it_is_due(history: RecordedHistory) -> Found:
    """A message that was sent with a long delay does not run before the delay is over."""
    for delivery in history.eventful_deliveries:
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
