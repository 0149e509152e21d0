"""Rules about duplicates: no message is handled again without a cause."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tarry.tools.testing.checkers.leases import is_undecided
from tarry.tools.testing.checkers.violation import MOMENT, Found, violation
from tarry.tools.testing.deliveries import DONE, FAILED

if TYPE_CHECKING:
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.testing.deliveries import ObservedDelivery, ObservedInvocation
    from tarry.tools.testing.recorded_history import RecordedHistory

UNANSWERED = frozenset({"lost_answer", "hang", "late", "garbled", "crash_after"})
"""Faults after which a sender cannot know that SQS has its message."""

IN_FLIGHT_SECONDS = 0.05
"""The longest time that the answer to a request takes."""


def duplicates_have_a_cause(history: RecordedHistory) -> Found:
    """A message that was finished, or replaced by a copy, comes again only after a fault, a crash, or by SQS itself."""
    rule = "duplicates have a cause"
    for copy in history.copies.values():
        for delivery, following in pairwise(copy.deliveries):
            if delivery.other_copies:
                continue
            if (delivery.sends or delivery.verdict in DONE) and (text := _missing_cause(delivery, following, history)):
                yield violation(rule, copy, text, following.at)
    for delivery in history.deliveries():
        kept = [sent for sent in delivery.sends if sent.what == "sent" and not delivery.other_copies]
        if len(kept) > 1 and delivery.invocation is not None and not _no_answer_came(delivery.invocation):
            text = f"{len(kept)} copies were sent in one invocation, and no answer was lost"
            yield violation(rule, delivery.copy, text, kept[-1].at)
        if kept and delivery.verdict in DONE:
            yield violation(rule, delivery.copy, "a copy was sent, though its handler had finished it", kept[-1].at)


def _missing_cause(delivery: ObservedDelivery, following: ObservedDelivery, history: RecordedHistory) -> str | None:
    """Return why a second delivery is a violation; None if it has a cause."""
    if not delivery.ended_well or is_by_sqs(delivery, following):
        return None
    if delivery.was_reported:
        if not delivery.sends:
            return "its handler had finished it, and it was reported as failed"
        return None if _may_be_sent_twice(delivery) else "a copy was sent, but it was reported as failed"
    if following.at >= _lease_end(delivery) - MOMENT:
        return None  # the delete came too late
    still_ran = delivery.handled_in.answered is not None and following.at < delivery.handled_in.answered_at
    if delivery.handled_in.struck("ChangeMessageVisibilityBatch") and (
        still_ran or history.had_problem(delivery, "lease_lost")
    ):
        return None  # its lease could not be extended
    return "it was received again before its lease had ended, though it was finished"


def _lease_end(delivery: ObservedDelivery) -> float:
    """When its lease ends, at the earliest: as it was received, or as its handler asked for.

    With a batching window, Lambda receives messages for longer than the queue's visibility timeout. An invocation does
    not know that, so an extension may shorten such a lease (SPEC I6); `running_messages_keep_their_lease` checks how.
    """
    changes = delivery.visibility_changes
    asked = [
        each for each in changes if any(is_undecided(run, delivery.copy.delivery_id, each.at) for run in delivery.runs)
    ]
    return min([delivery.lease_ends_at, *(float(each.fields["visible_until"]) for each in asked[-1:])])


def is_by_sqs(delivery: ObservedDelivery, following: ObservedDelivery) -> bool:
    """Whether a message came again because SQS delivered it twice, or because another consumer made it visible.

    On a standard queue this may be an earlier delivery: its receipt handle still works.
    """
    if following.received.fields.get("duplicate"):
        return True
    handle = delivery.received.fields["receipt_handle"]
    changes = delivery.copy.changed_between(delivery.at, following.at)
    return any("by" not in event.fields or event.fields["receipt_handle"] != handle for event in changes)


def _may_be_sent_twice(delivery: ObservedDelivery) -> bool:
    """Whether its invocation cannot have known the result of a send: SQS did not answer, or too late."""
    invocation = delivery.handled_in
    return _no_answer_came(invocation) or delivery.sends[-1].at > invocation.answered_at - IN_FLIGHT_SECONDS


def _no_answer_came(invocation: ObservedInvocation) -> bool:
    faults = (fault.fields for fault in invocation.faults)
    return any(fault["kind"] in UNANSWERED and fault["operation"] == "SendMessageBatch" for fault in faults)


def finished_messages_do_not_run_again(history: RecordedHistory) -> Found:
    """In one invocation a message runs again only by `LocalRetry`, if it has failed; a deleted message never runs.

    A custom failure step may run it again after any failure.
    """
    rule = "finished messages do not run again"
    for delivery in history.deliveries():
        for earlier, later in pairwise(delivery.runs):
            verdict = earlier.verdict(delivery.copy.delivery_id)
            if verdict != "fail" and not (verdict in FAILED and earlier.terms(delivery.copy.delivery_id).has_own_steps):
                text = f"ran again in the same invocation, after the verdict {verdict!r}"
                yield violation(rule, delivery.copy, text, later.began.at)
    for copy in history.copies.values():
        end: HistoryEvent | None = None
        for event in copy.events:
            if event.what == "reappeared":
                end = None  # SQS may deliver a message once more after its deletion
            elif end is None and event.what in ("deleted", "purged"):
                end = event
            elif event.what == "received" and end is not None and event.at > end.at:
                yield violation(rule, copy, f"received after it was {end.what}", event.at)
