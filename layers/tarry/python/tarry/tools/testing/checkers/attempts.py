"""Rules about attempts: they are counted correctly, and end where the policy says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.record.attribute import MAX_COUNT
from tarry.tools.testing.checkers.dead_letters import is_exhausted
from tarry.tools.testing.checkers.delays import may_be_of_own_step, shortest_when_stuck
from tarry.tools.testing.checkers.doubles import is_by_sqs
from tarry.tools.testing.checkers.violation import MOMENT, Found, violation
from tarry.tools.testing.deliveries import FAILED

if TYPE_CHECKING:
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.testing.deliveries import MessageCopy, ObservedDelivery
    from tarry.tools.testing.recorded_history import RecordedHistory


def attempts_are_counted(history: RecordedHistory) -> Found:
    """A standard queue's attempt is that of the copy before plus the receives; a FIFO queue's is never less than the
    failures so far and this run, and never more than the receives. With an attempt store, it is this run and the
    failures so far, or less if the store has failed.
    """
    for copy in history.copies.values():
        base = attempts_before(copy, history) if copy.deliveries else None
        if base is None or copy.has_unclear_origin:
            continue
        failed, early = 0, _early_receives(copy)
        for delivery in copy.deliveries:
            most_by_receives = base + delivery.count - early
            for run in delivery.runs:
                least, most = base + failed + 1 if copy.is_fifo else most_by_receives, most_by_receives
                if run.is_exact(copy.delivery_id):
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
    number = before.run.attempt(before.copy.delivery_id) if before.run is not None else None
    if number is None:  # not run: it was not due yet, and waits on as a copy
        earlier = attempts_before(before.copy, history)
        if earlier is None:
            return None
        most = max(earlier, earlier + before.count - _early_receives(before.copy) - 1)
        return _as_stored(copy, earlier, most) if history.uses_attempt_store else most
    was_deferred = _was_deferred(before, history)
    if was_deferred is None:
        return None
    number -= was_deferred
    is_exact = before.run is not None and before.run.is_exact(before.copy.delivery_id)
    return _as_stored(copy, number, number + before.count - 1) if is_exact else number


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
    run = delivery.run
    if run is None or not run.terms(delivery.copy.delivery_id).has_own_steps:
        return delivery.verdict == "defer"
    states = [event.fields["event"] for event in delivery.log_lines]
    is_known = states and not any("not_sent" in event.fields for event in delivery.log_lines)
    return "deferred" in states if is_known else None


def _early_receives(copy: MessageCopy) -> int:
    """1 if the first receive came before the message was due, so that its handler did not run; else 0."""
    due = (copy.record or {}).get("due")
    is_early = due is not None and copy.deliveries and int(copy.deliveries[0].at * 1000) / 1000 < due
    return 1 if is_early and not copy.is_fifo else 0


def attempts_are_within_the_policy(history: RecordedHistory) -> Found:
    """A message that has failed for good, or at its last attempt, is retried only if it could not be dead-lettered."""
    rule = "attempts are within the policy"
    for copy in history.copies.values():
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
            if following.at < delivery.decided_at + shortest - MOMENT and not _is_excused(delivery, following, history):
                yield violation(rule, copy, f"came back within {shortest:g} s, {why}", following.at)


GIVEN_UP = frozenset({"dead_lettered", "discarded", "committed", "resent"})
"""Log events of a message that does not come back after the delay that its handler asked for."""


def retries_asked_for_are_made(history: RecordedHistory) -> Found:
    """A retry that a handler asks for is made, whatever the failure steps are, as long as attempts are left (SPEC B7).

    A message that would expire meets the steps (SPEC C10), and a step of the user's may give it another reason.
    """
    for delivery in history.deliveries():
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
    run, delivery_id = delivery.run, delivery.copy.delivery_id
    if run is None or not run.is_exact(delivery_id):
        return 0
    more = int(event.fields.get("attempt", 0)) - run.attempt(delivery_id)
    return max(0, min(more, delivery.count - 1))


def _why_final(delivery: ObservedDelivery) -> str | None:
    """Why a message must not be retried; None if it may be."""
    run, delivery_id = delivery.run, delivery.copy.delivery_id
    given = None if run is None else run.verdicts.get(delivery_id)
    if run is None or given is None or given.kind not in FAILED or run.terms(delivery_id).has_own_steps:
        return None
    if given.kind == "reject":
        return "though it was rejected"
    if given.error == "Undecodable":
        return "though its body cannot be decoded"
    limit = run.terms(delivery_id).limit
    if limit is not None and run.attempt(delivery_id) >= limit:
        return f"though attempt {run.attempt(delivery_id)} of {limit} has failed"
    return None


def _is_excused(delivery: ObservedDelivery, following: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether the change of the message's visibility failed, or came too late."""
    if not delivery.log_lines and history.was_out_of_time(delivery.handled_in):
        return True  # it is only reported (SPEC I2), and a test of its handle (SPEC E6) was the last change
    not_set = any("not_settled" in event.fields for event in delivery.log_lines)
    was_set = any(delivery.decided_at <= change.at <= following.at for change in delivery.visibility_changes)
    return not_set or delivery.handled_in.struck("ChangeMessageVisibilityBatch") or not was_set
