"""The rule about releases: a released message is visible at once, without waiting for its lease to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.tools.testing.checkers.violation import Found, violation

if TYPE_CHECKING:
    from tarry.tools.testing.deliveries import ObservedDelivery
    from tarry.tools.testing.recorded_history import RecordedHistory

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
    invocation = delivery.invocation
    assert invocation is not None
    assert invocation.answered is not None
    states = {event.fields["event"] for event in delivery.log_lines}
    if invocation.consumed is None or states & {"deferred", "unhandled", "waiting_retry"}:
        return True
    left_at = delivery.copy.left_at
    if left_at is not None and left_at <= invocation.answered.at:
        return True  # it has expired in the meantime
    later = delivery.following
    is_anothers = later is not None and later.at <= invocation.answered.at
    is_late = delivery.lease_ends_at <= invocation.answered.at
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
    assert delivery.invocation is not None
    group = delivery.copy.group
    return delivery.copy.is_fifo and any(
        each.copy.group == group and (history.had_problem(each, "lease_lost") or _is_lost(each))
        for each in delivery.invocation.deliveries.values()
    )


def _is_lost(delivery: ObservedDelivery) -> bool:
    return any("the lease is lost" in str(event.fields.get("not_settled")) for event in delivery.log_lines)


def _is_out_of_time(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    return any("not_settled" in event.fields for event in delivery.log_lines)
