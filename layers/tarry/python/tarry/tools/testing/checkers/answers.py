"""Rules about the answers of functions and the number of their requests."""

import math
from collections import Counter

from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.testing.checkers.violation import Found, Violation, violation
from tarry.tools.testing.deliveries import ObservedDelivery, ObservedInvocation
from tarry.tools.testing.recorded_history import RecordedHistory

REPEATED = "beyond the limit", "shorter than"
"""Texts of the refusals that go with one more change of visibility: a wait is made shorter, or a lease was tested for
a copy that is too large for its queue."""


def answers_are_well_formed(history: RecordedHistory) -> Found:
    """A consumer answers with messages of its batch, each once, in their order; it never raises."""
    consumers = {event.fields["function"] for event in history.connected.values() if event.fields["is_tarry"]}
    for request_id, invocation in history.invocations.items():
        if invocation.answered is None or invocation.invoked.fields["function"] not in consumers:
            continue
        if (text := _problem(invocation, invocation.answered)) is not None:
            yield Violation("answers are well-formed", request_id, text, invocation.answered.at)


def _problem(invocation: ObservedInvocation, answered: HistoryEvent) -> str | None:
    if answered.fields["kind"] == "error":
        return f"it raised: {answered.fields['why']}"
    if answered.fields["kind"] != "returned" or invocation.handler_returned is None:
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
        for operation, most in _budget(invocation, invocation.consumed, history).items():
            if made[operation] > most:
                text = f"{made[operation]} {operation}, of at most {most}, for a batch of {len(invocation.batch)}"
                yield Violation("requests keep their budget", request_id, text, invocation.answered_at)


def _budget(invocation: ObservedInvocation, consumed: HistoryEvent, history: RecordedHistory) -> dict[str, int]:
    """Return the most requests of an invocation, by operation."""
    batch, failed, sent = len(invocation.batch), len(invocation.failed), len(invocation.sent)
    is_fifo, seconds = any(copy.is_fifo for copy in invocation.copies), invocation.answered_at - invocation.invoked.at
    receives = invocation.handler_called.fields["receives"] if invocation.handler_called else []
    before = sum(count > 1 for _, count in receives)
    every = consumed.fields["keepalive"]
    keepalives = 0 if every is None else int(seconds / every)  # SPEC I4
    early = 0 if is_fifo else math.ceil(seconds)  # short waits while the batch runs: one request a second
    extensions = _extensions(invocation)
    sends = sent
    if sent and not is_fifo:
        routes = len({event.fields["queue"] for event in invocation.sent})
        fallbacks = any(_is_fallback(event) for each in invocation.deliveries.values() for event in each.log_lines)
        sends = (routes + fallbacks) * math.ceil(sent / 10) + min(sent, early)
    deletes = 0
    if (
        consumed.fields["acks_eagerly"] or keepalives or (before and batch > 1)
    ):  # in tens, or one a second (SPEC G3, G4)
        deletes = math.ceil((batch - failed) / 10) + math.ceil(before / 10) + int(seconds)
    # Once more before and after the message for which an attempt store failed.
    of_store = 2 if is_fifo and history.uses_attempt_store and before else 0
    changes = (
        math.ceil(failed / 10) + (failed > 0)  # waits, and releases
        + sum(any(text in refusal.fields["text"] for text in REPEATED) for refusal in invocation.refusals)
        + sends  # tests of leases before a copy is sent
        + math.ceil((batch if is_fifo else before if before > 1 else 0) / 10)  # isolation, or renewal on FIFO
        + keepalives * math.ceil(batch / 10)
        + min(failed, early)  # short waits (SPEC C11)
        + extensions
    )  # fmt: skip
    is_clean = not (before or keepalives or extensions) and _is_clean(invocation)
    return {
        "SendMessageBatch": sends + len(invocation.refusals),
        "DeleteMessageBatch": sends + deletes + keepalives + of_store,
        "ChangeMessageVisibilityBatch": changes,
        "GetQueueAttributes": 0 if is_clean else 2 * len(history.queues),
    }


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


def _is_fallback(event: HistoryEvent) -> bool:
    """Whether a message was settled by a fallback: SQS refused the first settlement, and it would have expired."""
    fields = event.fields
    return "not_sent" in fields and ("sent_to" in fields or "dead_letter_queue" in fields)


def _is_clean(invocation: ObservedInvocation) -> bool:
    """Whether all messages succeeded; one that failed and was dropped did not succeed."""
    if invocation.failed or invocation.sent:
        return False
    failed_once = any(run.verdict(each) not in ("ack", "discard") for run in invocation.runs for each in run.messages)
    return not failed_once and not any(each.logged("error") for each in invocation.deliveries.values())


def the_log_is_true(history: RecordedHistory) -> Found:
    """A copy was sent to the queue in the log; a message that waits is invisible for the delay in the log."""
    for delivery in history.eventful_deliveries:
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
