"""Rules about messages whose leases have ended, and about those that are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.support.delays import MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS
from tarry.tools.testing.checkers.violation import Found, violation

if TYPE_CHECKING:
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.testing.deliveries import HandlerRun, ObservedDelivery, ObservedInvocation
    from tarry.tools.testing.recorded_history import RecordedHistory

ON_ITS_WAY_SECONDS = 0.05
"""The longest time that a request takes to SQS, if no fault strikes it."""
ROUNDING_SECONDS = 1.0
"""By how much a lease may be shorter, since SQS takes whole seconds."""
READINGS_BEFORE_REQUEST = 10
"""The most readings of the clock between the check of a batch's leases, one reading a message, and the request."""


def lost_leases_are_left_alone(history: RecordedHistory) -> Found:
    """Once its lease has ended, as far as an invocation can know, it sends no copy and changes no visibility.

    Another delivery may have finished the message, or may run it: an old receipt handle would affect it (SPEC E6).
    """
    for delivery in history.deliveries():
        invocation = delivery.invocation
        if invocation is None or invocation.consumed is None:
            continue
        done = _actions_on(delivery)
        if not done or history.look_up_failed(delivery):
            continue
        if invocation.struck("SendMessageBatch", "ChangeMessageVisibilityBatch"):
            continue
        on_its_way = ON_ITS_WAY_SECONDS + _seconds_to_request(invocation, history)
        ends_at = max(known_end(delivery, history), delivery.lease_ends_at)
        for event in done:
            if event.at > ends_at + on_its_way:
                what = "a copy was sent" if event in delivery.sends else "its visibility was changed"
                text = f"{what} {event.at - ends_at:.1f} s after its lease had ended"
                yield violation("lost leases are left alone", delivery.copy, text, event.at)
                break
            if event.what == "visibility_changed":
                ends_at = event.fields["visible_until"]


def running_messages_keep_their_lease(history: RecordedHistory) -> Found:
    """No request makes a message visible earlier while its handler runs: it would run twice (SPEC I6).

    An invocation that may not read the queue does not know when the lease ends.
    """
    for delivery in history.deliveries():
        invocation, changes = delivery.invocation, delivery.visibility_changes
        if not changes or invocation is None or history.look_up_failed(delivery):
            continue
        if invocation.struck("ChangeMessageVisibility", "ChangeMessageVisibilityBatch"):
            continue  # one of them may arrive late
        ends_at = min(delivery.lease_ends_at, known_end(delivery, history))
        for event in changes:
            is_shorter = event.fields["visible_until"] < min(ends_at, _longest(delivery)) - ROUNDING_SECONDS
            if is_shorter and any(is_undecided(run, delivery.copy.delivery_id, event.at) for run in delivery.runs):
                text = f"its lease was shortened by {ends_at - event.fields['visible_until']:.1f} s while it ran"
                yield violation("running messages keep their lease", delivery.copy, text, event.at)
                break
            ends_at = event.fields["visible_until"]


def _longest(delivery: ObservedDelivery) -> float:
    """The longest lease that a request can ask for: 12 hours from the receive, whose time may be unknown."""
    return delivery.at + MAX_VISIBILITY_SECONDS - UNKNOWN_RECEIVE_SECONDS - 2


def is_undecided(run: HandlerRun, delivery_id: str, at: float) -> bool:
    """Whether a handler runs at a moment, and has given no verdict yet: then its delay may be asked for (SPEC C11)."""
    verdict = run.first_verdicts.get(delivery_id)
    is_running = run.ended is not None and not run.was_abandoned and run.began.at < at < run.ended.at
    return is_running and (verdict is None or at < verdict.at)


def _seconds_to_request(invocation: ObservedInvocation, history: RecordedHistory) -> float:
    """The time from the check of leases to the request that it allows: on a slow CPU, each reading of the clock."""
    return slow_reading(invocation, history) * (len(invocation.batch) + READINGS_BEFORE_REQUEST)


def slow_reading(invocation: ObservedInvocation, history: RecordedHistory) -> float:
    """The seconds that each reading of the clock takes on the invocation's CPU; 0 if that is not slow."""
    slow = {event.fields["fault"] for event in invocation.faults if event.fields["kind"] == "slow_cpu"}
    seconds = (each.fields["seconds"] for each in history.planned_faults if each.fields["fault"] in slow)
    return float(max(seconds, default=0.0))


def known_end(delivery: ObservedDelivery, history: RecordedHistory) -> float:
    """When the lease ends, as far as an invocation knows: an SQS record has only the time of the first receive.

    If the lease would end before the invocation, Lambda made it longer, for its batching window.
    """
    began, seconds = delivery.handled_in.invoked.at, visibility_timeout(delivery, history)
    return (delivery.at if delivery.count == 1 and delivery.at + seconds > began else began) + seconds


def visibility_timeout(delivery: ObservedDelivery, history: RecordedHistory) -> float:
    """The visibility timeout of the queue, in seconds."""
    return float(history.queues.get(delivery.copy.sent_to, {}).get("VisibilityTimeout", 30))


def _actions_on(delivery: ObservedDelivery) -> list[HistoryEvent]:
    """The copies that its invocation sent of the message, and the changes of its visibility, in order."""
    changes, sends = delivery.visibility_changes, [] if delivery.other_copies else delivery.sends
    return sorted([*changes, *sends], key=lambda event: event.at) if changes or sends else []


NOT_DECIDED = frozenset({None, "release", "left"})
"""Verdicts of messages that did not run, or without one of their own."""


def released_messages_are_visible(history: RecordedHistory) -> Found:
    """A message that was not handled, and is reported as failed, is visible again when the function has answered.

    On FIFO an invisible message would block its group when the head is due.
    """
    for delivery in history.deliveries():
        if not delivery.ended_well or not delivery.was_reported or delivery.verdict not in NOT_DECIDED:
            continue
        if (
            delivery.sends
            or _is_excused(delivery, history)
            or any(each.fields["seconds"] == 0 for each in delivery.visibility_changes)
        ):
            continue
        text = "was released, but stays invisible until its lease ends"
        yield violation("released messages are visible", delivery.copy, text, delivery.at)


def _is_excused(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether it waits for a delay of its own, or the request that makes it visible failed."""
    invocation = delivery.handled_in
    states = {event.fields["event"] for event in delivery.log_lines}
    if invocation.consumed is None or states & {"deferred", "unhandled", "waiting_retry"}:
        return True
    left_at = delivery.copy.left_at
    if left_at is not None and left_at <= invocation.answered_at:
        return True  # it has expired in the meantime
    later = delivery.following
    is_anothers = later is not None and later.at <= invocation.answered_at
    is_late = delivery.lease_ends_at <= invocation.answered_at
    if invocation.struck("ChangeMessageVisibilityBatch") or is_anothers or is_late:
        return True
    if any(each.fields["by"] == invocation.request_id for each in delivery.copy.all("visibility_change_ignored")):
        return True  # it was visible already: an earlier delivery's request, which was repeated late, had made it so
    if not delivery.log_lines and history.was_out_of_time(invocation):
        return True  # it is only reported (SPEC I2): the first of these have a line each, and one line counts them all
    return _is_out_of_time(delivery, history) or _has_lost_group(delivery, history)


def _has_lost_group(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether SQS refused a receipt handle of its FIFO group: then the group is not run, only reported (SPEC H4).

    The log says so, or the line of the message whose handler asked for more time (SPEC I6).
    """
    group = delivery.copy.group
    return delivery.copy.is_fifo and any(
        each.copy.group == group and (history.had_problem(each, "lease_lost") or _is_lost(each))
        for each in delivery.handled_in.deliveries.values()
    )


def _is_lost(delivery: ObservedDelivery) -> bool:
    return any("the lease is lost" in str(event.fields.get("not_settled")) for event in delivery.log_lines)


def _is_out_of_time(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    return any("not_settled" in event.fields for event in delivery.log_lines)
