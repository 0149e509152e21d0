"""Rules about the answers of functions and the number of their requests."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from tarry.tools.testing.checkers.violation import Found, Violation, violation

if TYPE_CHECKING:
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.testing.deliveries import ObservedDelivery, ObservedInvocation
    from tarry.tools.testing.recorded_history import RecordedHistory

REPEATED = "beyond the limit", "shorter than"
"""Texts of the refusals that go with one more change of visibility: a wait is made shorter, or a lease was tested for
a copy that is too large for its queue."""


def answers_are_well_formed(history: RecordedHistory) -> Found:
    """A consumer answers with messages of its batch, each once, in their order; it never raises."""
    for request_id, invocation in history.invocations.items():
        connected = next((each for each in history.connected.values() if _is_of(each.fields, invocation)), None)
        if invocation.answered is None or connected is None or not connected.fields["is_tarry"]:
            continue
        text = _problem(invocation)
        if text is not None:
            yield Violation("answers are well-formed", request_id, text, invocation.answered_at)


def _is_of(connected: Any, invocation: ObservedInvocation) -> bool:
    return bool(connected["function"] == invocation.invoked.fields["function"])


def _problem(invocation: ObservedInvocation) -> str | None:
    assert invocation.answered is not None
    kind = invocation.answered.fields["kind"]
    if kind == "error":
        return f"it raised: {invocation.answered.fields['why']}"
    if kind != "returned" or invocation.handler_returned is None:
        return None
    answer = invocation.handler_returned.fields["answer"]
    try:
        failed = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
    except (KeyError, TypeError):
        return f"answered {answer!r}"
    places = [invocation.places.get(each, -1) for each in failed]
    if -1 in places or places != sorted(set(places)) or set(answer) != {"batchItemFailures"}:
        return f"answered {answer!r} to the batch {list(invocation.places)}"
    return None


def tarry_itself_does_not_fail(history: RecordedHistory) -> Found:
    """Tarry raises no unexpected error. If it does, the messages stay in the queue, but it is a bug."""
    for event in history.problems:
        if event.fields["event"] == "runtime_failed":
            request_id = str(event.fields.get("request_id"))
            yield Violation("tarry itself does not fail", request_id, f"it did: {event.fields.get('error')}", event.at)


def requests_keep_their_budget(history: RecordedHistory) -> Found:
    """Without faults a consumer makes few requests: none for a clean batch of fresh messages, else one per ten.

    Messages that its handler sends do not count.
    """
    for request_id, invocation in history.invocations.items():
        if not invocation.requests or invocation.consumed is None or invocation.faults:
            continue
        if not invocation.ended_well or invocation.answered is None:
            continue
        made = Counter(request.fields["operation"] for request in invocation.requests)
        for operation, most_of in BUDGET.items():
            if made[operation] and made[operation] > (most := most_of(invocation, history)):
                text = f"{made[operation]} {operation}, of at most {most}, for a batch of {len(invocation.batch)}"
                yield Violation("requests keep their budget", request_id, text, invocation.answered_at)


def _most_sends(invocation: ObservedInvocation, history: RecordedHistory) -> int:
    return _sends(invocation) + len(invocation.refusals)


def _most_deletes(invocation: ObservedInvocation, history: RecordedHistory) -> int:
    before = _delivered_before(invocation)
    # Once more before and after the message for which an attempt store failed.
    of_store = 2 if _is_fifo(invocation) and history.uses_attempt_store and before else 0
    return _sends(invocation) + _early_deletes(invocation, before) + _keepalives(invocation) + of_store


def _most_changes(invocation: ObservedInvocation, history: RecordedHistory) -> int:
    """The most changes of visibility.

    In tens: waits, and releases; tests of leases before a copy is sent; isolation, or renewal on FIFO; keepalive; short
    waits, one request a second (C11).
    """
    failed, batch = len(invocation.failed), len(invocation.batch)
    before, keepalives, is_fifo = _delivered_before(invocation), _keepalives(invocation), _is_fifo(invocation)
    return (
        math.ceil(failed / 10)
        + (failed > 0)
        + sum(any(text in refusal.fields["text"] for text in REPEATED) for refusal in invocation.refusals)
        + _sends(invocation)
        + math.ceil((batch if is_fifo else before if before > 1 else 0) / 10)
        + keepalives * math.ceil(batch / 10)
        + min(failed, _early_requests(invocation))
        + _extensions(invocation)
    )


def _most_look_ups(invocation: ObservedInvocation, history: RecordedHistory) -> int:
    is_extended = _keepalives(invocation) or _extensions(invocation)
    return 0 if _is_clean(invocation) and not is_extended else 2 * len(history.queues)


BUDGET = {
    "SendMessageBatch": _most_sends,
    "DeleteMessageBatch": _most_deletes,
    "ChangeMessageVisibilityBatch": _most_changes,
    "GetQueueAttributes": _most_look_ups,
}
"""The most requests of an invocation, by operation."""


def _sends(invocation: ObservedInvocation) -> int:
    """The requests for the copies that were sent, without retries."""
    sent = len(invocation.sent)
    if not sent or _is_fifo(invocation):
        return sent
    routes = len({event.fields["queue"] for event in invocation.sent})
    fallbacks = any(_is_fallback(event) for each in invocation.deliveries.values() for event in each.log_lines)
    return (routes + fallbacks) * math.ceil(sent / 10) + min(sent, _early_requests(invocation))


def _early_requests(invocation: ObservedInvocation) -> int:
    """The most requests for short waits while the batch ran: one a second, and none on FIFO."""
    return 0 if _is_fifo(invocation) else math.ceil(_seconds(invocation))


def _is_fifo(invocation: ObservedInvocation) -> bool:
    return any(copy.is_fifo for copy in invocation.copies)


def _delivered_before(invocation: ObservedInvocation) -> int:
    receives = invocation.handler_called.fields["receives"] if invocation.handler_called else []
    return sum(count > 1 for _, count in receives)


def _early_deletes(invocation: ObservedInvocation, before: int) -> int:
    """The most deletes that may be sent before the answer: in tens, or one a second (SPEC G3, G4)."""
    is_eager = invocation.consumed is not None and invocation.consumed.fields["acks_eagerly"]
    if not (is_eager or _keepalives(invocation) or (before and len(invocation.batch) > 1)):
        return 0
    done = len(invocation.batch) - len(invocation.failed)
    return math.ceil(done / 10) + math.ceil(before / 10) + int(_seconds(invocation))


def _keepalives(invocation: ObservedInvocation) -> int:
    """The number of times that leases may have been extended (SPEC I4)."""
    every = invocation.consumed.fields["keepalive"] if invocation.consumed is not None else None
    return 0 if every is None else int(_seconds(invocation) / every)


def _extensions(invocation: ObservedInvocation) -> int:
    """The number of times that handlers extended the message they were working on (SPEC I6).

    SQS ignores a change that comes when the message is visible again.
    """
    times = set()
    for delivery in invocation.deliveries.values():
        changes = delivery.copy.all("visibility_changed", "visibility_change_ignored")
        changed_at = {change.at for change in changes if change.fields.get("by") == invocation.request_id}
        for run in delivery.runs:
            ended_at = math.inf if run.ended is None else run.ended.at
            times |= {at for at in changed_at if run.began.at <= at <= ended_at}
    return len(times)


def _seconds(invocation: ObservedInvocation) -> float:
    return 0.0 if invocation.answered is None else invocation.answered_at - invocation.invoked.at


def _is_fallback(event: HistoryEvent) -> bool:
    """Whether a message was settled by a fallback: SQS refused the first settlement, and it would have expired."""
    fields = event.fields
    return "not_sent" in fields and ("sent_to" in fields or "dead_letter_queue" in fields)


def _is_clean(invocation: ObservedInvocation) -> bool:
    """Whether all messages were fresh and succeeded; one that failed and was dropped did not succeed."""
    if invocation.failed or invocation.sent or _delivered_before(invocation):
        return False
    failed_once = any(run.verdict(each) not in ("ack", "discard") for run in invocation.runs for each in run.messages)
    failed_once |= any("error" in event.fields for each in invocation.deliveries.values() for event in each.log_lines)
    return not failed_once


def the_log_is_true(history: RecordedHistory) -> Found:
    """A copy was sent to the queue in the log; a message that waits is invisible for the delay in the log."""
    for delivery in history.deliveries():
        if delivery.invocation is None:
            continue
        for event in delivery.log_lines:
            contradiction = _contradiction(event, delivery)
            if contradiction is not None:
                yield violation("the log is true", delivery.copy, contradiction, event.at)


def _contradiction(event: HistoryEvent, delivery: ObservedDelivery) -> str | None:
    fields = event.fields
    target = fields.get("dead_letter_queue") or fields.get("sent_to")
    if target is not None:
        sends = [sent for each in (delivery, *delivery.other_copies) for sent in each.sends]
        there = any(sent.fields["queue"] == target and sent.at <= event.at for sent in sends)
        return None if there else f"is in {target} according to the log, but no copy was sent there"
    if fields["state"] in ("DEAD_LETTERED", "RESENT"):
        return f"is {fields['state']} according to the log, which names no queue"
    if fields["state"] in ("WAITING_RETRY", "DEFERRED") and "not_settled" not in fields:
        seconds = [change.fields["seconds"] for change in delivery.visibility_changes if change.at <= event.at]
        if fields.get("delay") not in seconds and not any(delivery.copy.all("visibility_change_ignored")):
            return f"waits {fields.get('delay')} s according to the log, but was made invisible for {seconds or 'none'}"
    return None
