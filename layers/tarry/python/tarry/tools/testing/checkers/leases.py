"""Rules about who has a message: leases and releases, duplicates, the order of FIFO groups and their copies."""

import math
from itertools import pairwise
from sys import modules
from typing import Any

from tarry.record.attribute import ATTRIBUTE, is_ours
from tarry.support.values import MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS
from tarry.tools.testing.checkers.violation import MOMENT, Found, violation
from tarry.tools.testing.deliveries import (
    DONE,
    FAILED,
    TRANSFERS,
    HandlerRun,
    MessageCopy,
    ObservedDelivery,
    ObservedInvocation,
)
from tarry.tools.testing.recorded_history import RecordedHistory

ON_ITS_WAY_SECONDS = 0.05
"""The longest time that a request takes to SQS, or its answer back, if no fault strikes it."""
ROUNDING_SECONDS = 1.0
"""By how much a lease may be shorter, since SQS takes whole seconds."""
READINGS_BEFORE_REQUEST = 10
"""The most readings of the clock between the check of a batch's leases, one reading a message, and the request."""


def lost_leases_are_left_alone(history: RecordedHistory) -> Found:
    """Once its lease has ended, as far as an invocation can know, it sends no copy and changes no visibility.

    Another delivery may have finished the message, or may run it: an old receipt handle would affect it (SPEC E6).
    """
    for delivery in history.eventful_deliveries:
        invocation = delivery.invocation
        if invocation is None or invocation.consumed is None:
            continue
        done = [*delivery.visibility_changes, *(() if delivery.other_copies else delivery.sends)]
        if not done or history.look_up_failed(delivery):
            continue
        if invocation.struck("SendMessageBatch", "ChangeMessageVisibilityBatch"):
            continue
        # The time from the check of leases to the request that it allows: on a slow CPU, each reading of the clock.
        to_request = slow_reading(invocation, history) * (len(invocation.batch) + READINGS_BEFORE_REQUEST)
        on_its_way = ON_ITS_WAY_SECONDS + to_request
        ends_at = max(known_end(delivery, history), delivery.lease_ends_at)
        for event in sorted(done, key=lambda event: event.at):
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
    for delivery in history.eventful_deliveries:
        invocation, changes = delivery.invocation, delivery.visibility_changes
        if not changes or invocation is None or history.look_up_failed(delivery):
            continue
        if invocation.struck("ChangeMessageVisibility", "ChangeMessageVisibilityBatch"):
            continue  # one of them may arrive late
        ends_at = min(delivery.lease_ends_at, known_end(delivery, history))
        # A request can ask for 12 hours from the receive, whose time may be unknown.
        longest = delivery.at + MAX_VISIBILITY_SECONDS - UNKNOWN_RECEIVE_SECONDS - 2
        for event in changes:
            is_shorter = event.fields["visible_until"] < min(ends_at, longest) - ROUNDING_SECONDS
            if is_shorter and any(is_undecided(run, delivery.copy.delivery_id, event.at) for run in delivery.runs):
                text = f"its lease was shortened by {ends_at - event.fields['visible_until']:.1f} s while it ran"
                yield violation("running messages keep their lease", delivery.copy, text, event.at)
                break
            ends_at = event.fields["visible_until"]


def is_undecided(run: HandlerRun, delivery_id: str, at: float) -> bool:
    """Whether a handler runs at a moment, and has given no verdict yet: then its delay may be asked for (SPEC C11)."""
    verdict = run.first_verdicts.get(delivery_id)
    is_running = run.ended is not None and not run.was_abandoned and run.began.at < at < run.ended.at
    return is_running and (verdict is None or at < verdict.at)


def slow_reading(invocation: ObservedInvocation, history: RecordedHistory) -> float:
    """The seconds that each reading of the clock takes on the invocation's CPU; 0 if that is not slow."""
    slow = {event.fields["fault"] for event in invocation.faults if event.fields["kind"] == "slow_cpu"}
    seconds = (each.fields["seconds"] for each in history.planned_faults if each.fields["fault"] in slow)
    return float(max(seconds, default=0.0))


def known_end(delivery: ObservedDelivery, history: RecordedHistory) -> float:
    """When the lease ends, as far as an invocation knows: an SQS record has only the time of the first receive.

    If the lease would end before the handler is called, Lambda made it longer, for its batching window.
    """
    began = (delivery.handled_in.handler_called or delivery.handled_in.invoked).at
    seconds = float(history.queues.get(delivery.copy.sent_to, {}).get("VisibilityTimeout", 30))
    return (delivery.at if delivery.count == 1 and delivery.at + seconds > began else began) + seconds


NOT_DECIDED = frozenset({None, "release", "left"})
"""Verdicts of messages that did not run, or without one of their own."""


def released_messages_are_visible(history: RecordedHistory) -> Found:
    """A message that was not handled, and is reported as failed, is visible again when the function has answered.

    On FIFO an invisible message would block its group when the head is due.
    """
    for delivery in history.eventful_deliveries:
        if not delivery.ended_well or not delivery.was_reported or delivery.verdict not in NOT_DECIDED:
            continue
        is_visible = any(each.fields["seconds"] == 0 for each in delivery.visibility_changes)
        if not (delivery.sends or is_visible or _is_excused(delivery, history)):
            text = "was released, but stays invisible until its lease ends"
            yield violation("released messages are visible", delivery.copy, text, delivery.at)


def _is_excused(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether it waits for a delay of its own, or the request that makes it visible failed."""
    invocation = delivery.handled_in
    if invocation.consumed is None or delivery.log_events & {"deferred", "unhandled", "waiting_retry"}:
        return True
    if may_be_without_effect(delivery) or delivery.lease_ends_at <= invocation.answered_at:
        return True
    if history.is_only_reported(delivery):
        return True  # the first of these have a line each, and one line counts them all
    return delivery.logged("not_settled") or _has_lost_group(delivery, history)


def may_be_without_effect(delivery: ObservedDelivery) -> bool:
    """Whether the change of its visibility may have failed, though its lease held."""
    invocation, copy, later = delivery.handled_in, delivery.copy, delivery.following
    if invocation.struck("ChangeMessageVisibilityBatch"):
        return True
    if copy.left_at <= invocation.answered_at or (later is not None and later.at <= invocation.answered_at):
        return True  # it has expired in the meantime, or another delivery has it
    # An earlier delivery's request, which was repeated late, may have made it visible already.
    return any(each.fields.get("by") == invocation.request_id for each in copy.all("visibility_change_ignored"))


def _has_lost_group(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether SQS refused a receipt handle of its FIFO group: then the group is not run, only reported (SPEC H4).

    The log says so, or the line of the message whose handler asked for more time (SPEC I6).
    """
    if not delivery.copy.is_fifo:
        return False
    batch = delivery.handled_in.deliveries.values()
    group = [each for each in batch if each.copy.group == delivery.copy.group]
    lines = (event for each in group for event in each.log_lines)
    return any(history.had_problem(each, "lease_lost") for each in group) or any(
        "the lease is lost" in str(event.fields.get("not_settled")) for event in lines
    )


# duplicates

UNANSWERED = frozenset({"lost_answer", "hang", "late", "garbled", "crash_after"})
"""Faults after which a sender cannot know that SQS has its message."""


def duplicates_have_a_cause(history: RecordedHistory) -> Found:
    """A message that was finished, or replaced by a copy, comes again only after a fault, a crash, or by SQS itself."""
    rule = "duplicates have a cause"
    for copy in history.eventful:
        for delivery, following in pairwise(copy.deliveries):
            if delivery.other_copies:
                continue
            if (delivery.sends or delivery.verdict in DONE) and (text := _missing_cause(delivery, following, history)):
                yield violation(rule, copy, text, following.at)
    for delivery in history.eventful_deliveries:
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
        was_late = delivery.sends[-1].at > delivery.handled_in.answered_at - ON_ITS_WAY_SECONDS
        is_unknown = was_late or _no_answer_came(delivery.handled_in)  # the result of the send, to its invocation
        return None if is_unknown else "a copy was sent, but it was reported as failed"
    if following.at >= _lease_end(delivery) - MOMENT:
        return None  # the delete came too late
    still_ran = following.at < delivery.handled_in.answered_at
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
    if following.is_duplicate:
        return True
    handle = delivery.handle
    changes = delivery.copy.changed_between(delivery.at, following.at)
    return any("by" not in event.fields or event.fields["receipt_handle"] != handle for event in changes)


def _no_answer_came(invocation: ObservedInvocation) -> bool:
    faults = (fault.fields for fault in invocation.faults)
    return any(fault["kind"] in UNANSWERED and fault["operation"] == "SendMessageBatch" for fault in faults)


def finished_messages_do_not_run_again(history: RecordedHistory) -> Found:
    """In one invocation a message runs again only by `LocalRetry`, if it has failed; a deleted message never runs.

    A custom failure step may run it again after any failure.
    """
    rule = "finished messages do not run again"
    for delivery in history.eventful_deliveries:
        for earlier, later in pairwise(delivery.runs):
            verdict = earlier.verdict(delivery.copy.delivery_id)
            if verdict != "fail" and not (verdict in FAILED and earlier.terms(delivery.copy.delivery_id).has_own_steps):
                text = f"ran again in the same invocation, after the verdict {verdict!r}"
                yield violation(rule, delivery.copy, text, later.began.at)
    for copy in history.eventful:
        end = None
        for event in copy.events:
            if event.what == "reappeared":
                end = None  # SQS may deliver a message once more after its deletion
            elif end is None and event.what in ("deleted", "purged"):
                end = event
            elif event.what == "received" and end is not None and event.at > end.at:
                yield violation(rule, copy, f"received after it was {end.what}", event.at)


# the order of FIFO groups, and copies


def groups_keep_their_order(history: RecordedHistory) -> Found:
    """On FIFO the messages of a group run one after the other, in the order of sending, while their leases hold."""
    rule = "groups keep their order"
    for (queue, group), copies in _groups(history).items():
        runs = [(run, delivery) for copy in copies for delivery in copy.deliveries for run in delivery.runs]
        runs.sort(key=lambda each: each[0].began.at)
        latest: tuple[HandlerRun, ObservedDelivery] | None = None
        for run, delivery in runs:
            # Until the end of a run or of its lease, no other message of its group may run.
            until = -math.inf if latest is None else min(_end_of(latest[0], history), latest[1].lease_ends_at)
            if latest is not None and latest[0] is not run and run.began.at < until - MOMENT:
                text = f"runs while {latest[1].copy.id} of its group {group!r} in {queue} still runs"
                yield violation(rule, delivery.copy, text, run.began.at)
            if latest is None or _end_of(run, history) >= _end_of(latest[0], history):
                latest = run, delivery
        places = {copy.delivery_id: place for place, copy in enumerate(copies)}
        present = 0  # the first that has not left the queue
        for run, delivery in runs:
            while present < len(copies) and copies[present].left_at <= run.began.at:
                present += 1
            for before in copies[present : places[delivery.copy.delivery_id]]:
                if not _has_made_way(before, run, history):
                    text = f"runs before {before.id}, which was sent to group {group!r} of {queue} earlier"
                    yield violation(rule, delivery.copy, text, run.began.at)


def _groups(history: RecordedHistory) -> dict[tuple[str, str], list[MessageCopy]]:
    groups: dict[tuple[str, str], list[MessageCopy]] = {}
    for copy in history.copies.values():
        if copy.sent_to.endswith(".fifo") and copy.group is not None:
            groups.setdefault((copy.sent_to, copy.group), []).append(copy)
    return groups


def _end_of(run: HandlerRun, history: RecordedHistory) -> float:
    return history.invocations[run.request_id].answered_at if run.ended is None else run.ended.at


def _has_made_way(before: MessageCopy, run: HandlerRun, history: RecordedHistory) -> bool:
    """Whether a message no longer blocked its group when a run of a later one began."""
    began = run.began.at
    if before.left_at <= began or before.delivery_id in run.messages:
        return True  # in one batch, the handler keeps the order itself
    delivery = history.invocations[run.request_id].deliveries.get(before.delivery_id)
    if delivery is None:
        return False
    if delivery.run is None and history.had_problem(delivery, "done_before"):
        return True  # acknowledged without running: a message with the same idempotency key was done
    ended = delivery.run is not None and delivery.run.ended is not None and delivery.run.ended.at <= began
    if ended and delivery.verdict in DONE:
        return True
    if any(sent.at <= began for sent in delivery.sends):
        return not (delivery.ended_well and delivery.was_reported)  # it was sent on, and confirmed
    logged = (event for event in delivery.log_lines if event.at <= began)
    return any(event.fields["state"] in ("COMMITTED", "DISCARDED") for event in logged)


def copies_match_their_originals(history: RecordedHistory) -> Found:
    """A copy that a function sends is of a message that it had, with the same group and trace header.

    Body and attributes are the same too, unless the copy's record says that a failure step edited them. OpenTelemetry's
    propagators may add attributes.
    """
    rule = "copies match their originals"
    for copy in history.eventful:
        if copy.sender not in history.invocations:
            continue
        if copy.came_from is None:
            if TRANSFERS & set(copy.record or ()):
                yield violation(rule, copy, "a copy of a message that its sender did not have", copy.sent.at)
            continue
        for what, had, has in _compared(copy.came_from.copy, copy):
            if had != has:
                yield violation(rule, copy, f"its copy has {what}: {has!r:.200}, not {had!r:.200}", copy.sent.at)
    for run in history.runs:
        strange = [each for each in run.messages if each not in history.invocations[run.request_id].batch]
        if strange:
            text = "ran in an invocation that was not handed it"
            yield violation(rule, history.copies[strange[0]], text, run.began.at)


def _compared(original: MessageCopy, copy: MessageCopy) -> list[tuple[str, Any, Any]]:
    had, has = original.sent.fields, copy.sent.fields
    group = has.get("group") if copy.sent_to.endswith(".fifo") or had.get("group") else None
    own_group = had.get("group") or (original.id if copy.sent_to.endswith(".fifo") else None)
    edited = (copy.record or {}).get("edited")
    is_edited = edited is not None and edited != (original.record or {}).get("edited")
    attributes = _users(original)
    traced = _propagated().difference(attributes)
    carried = {name: value for name, value in _users(copy).items() if name not in traced}
    contents = [("another body", original.body, copy.body), ("other attributes", attributes, carried)]
    return [
        *([] if is_edited else contents),
        ("another group", own_group, group),
        ("another trace header", had.get("trace_header"), has.get("trace_header")),
    ]


def _users(copy: MessageCopy) -> dict[str, Any]:
    """The attributes that are not tarry's."""
    found, ours = dict(copy.attributes), copy.attributes.get(ATTRIBUTE)
    if ours is not None and is_ours({"stringValue": ours.get("StringValue")}):
        del found[ATTRIBUTE]
    return found


def _propagated() -> frozenset[str]:
    """Return the names of the attributes with which OpenTelemetry's propagators trace a copy, as tarry sends it."""
    propagate = modules.get("opentelemetry.propagate")
    try:
        return frozenset() if propagate is None else frozenset(propagate.get_global_textmap().fields)
    except Exception:  # noqa: BLE001 a propagator of the user's
        return frozenset()
