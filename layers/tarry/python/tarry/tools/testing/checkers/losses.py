"""Rules about losses and dead letters: nothing is lost or moved without its record, which says why; all settles."""

import math
from typing import Any

from tarry.failed.queue_names import queue_name
from tarry.record.attribute import ATTRIBUTE, is_dead_letter
from tarry.sqs.refusals import MAX_ATTRIBUTES, MAX_REQUEST_BYTES, message_size
from tarry.support.values import MAX_VISIBILITY_SECONDS
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.testing.checkers.leases import known_end
from tarry.tools.testing.checkers.violation import Found, violation
from tarry.tools.testing.deliveries import DONE, FAILED, HandlerRun, MessageCopy, ObservedDelivery
from tarry.tools.testing.recorded_history import RecordedHistory

SETTLING_SECONDS = 60.0
"""The longest time between the decision to wait and the change of visibility."""


def no_message_is_lost(history: RecordedHistory) -> Found:
    """A message is deleted only after it was handled, discarded on purpose, or replaced by a confirmed copy."""
    for copy in history.eventful:
        for end in copy.all("deleted"):
            if "by" not in end.fields:
                continue
            delivery = copy.delivery(end.fields["receive_count"])
            text = "deleted, though no function got that delivery"
            if delivery is not None and delivery.invocation is not None:
                if _may_be_deleted(delivery, end, history):
                    continue
                text = _text(delivery, end, history)
            if not any(copy.all("filtered")):
                yield violation("no message is lost", copy, text, end.at)


def _text(delivery: ObservedDelivery, end: HistoryEvent, history: RecordedHistory) -> str:
    connected = history.connected.get(delivery.copy.sent_to)
    if end.fields["by"] == "mapping" and connected is not None and not connected.fields["reports_failures"]:
        why = "though it was not handled: its event source mapping reports no failures (ReportBatchItemFailures)"
        return f"Lambda deleted it {why}"
    verdict = f"its handler's verdict was {delivery.verdict!r}" if delivery.run else "its handler never ran"
    return f"deleted, though it was not finished: {verdict}, and no copy was sent"


def _may_be_deleted(delivery: ObservedDelivery, end: HistoryEvent, history: RecordedHistory) -> bool:
    if delivery.handled_in.consumed is None:
        return True  # the rule is about consumers; other functions may answer anything
    if delivery.verdict in DONE or _was_done(delivery, end):
        return True
    sends = [sent for each in (delivery, *delivery.other_copies) for sent in each.sends]
    if any(sent.at <= end.at and _is_confirmed(sent, history) for sent in sends):
        return True
    if delivery.run is None and history.had_problem(delivery, "done_before"):
        return True  # by another delivery, or another message with the same key: only the idempotency record shows it
    if delivery.verdict == "left":
        return not delivery.handled_in.stays_before(delivery)
    dropped = {"COMMITTED", "DISCARDED"}  # by a failure step, which only the log shows
    lines = (event for logged in delivery.copy.log_lines.values() for event in logged)
    return any(event.at <= end.at and event.fields["state"] in dropped for event in lines)


def _was_done(delivery: ObservedDelivery, end: HistoryEvent) -> bool:
    """Whether a handler whose process died had acknowledged the message by then (SPEC G3)."""
    run = delivery.run
    given = run.first_verdicts.get(delivery.copy.delivery_id) if run is not None and run.ended is None else None
    return given is not None and given.at <= end.at and given.fields["verdict"] in DONE


def _is_confirmed(sent: HistoryEvent, history: RecordedHistory) -> bool:
    """Whether SQS confirmed the copy as it was sent."""
    garbled = history.copies[sent.fields["delivery_id"]].all("garbled")
    return not any(each.fields.get("request_id") == sent.fields["by"] for each in garbled)


def no_message_expires_waiting(history: RecordedHistory) -> Found:
    """No message expires while it waits, if the retention of its queue had to be looked up (SPEC C10)."""
    for copy in history.eventful:
        end, delivery = copy.end, copy.deliveries[-1] if copy.deliveries else None
        if end is None or end.what != "expired" or delivery is None:
            continue
        if not delivery.ended_well or not delivery.visibility_changes:
            continue
        change = delivery.visibility_changes[-1]
        wait, due = change.fields["seconds"], change.fields["visible_until"]
        looked_up = change.at + wait - copy.sent.at > MAX_VISIBILITY_SECONDS + SETTLING_SECONDS
        if looked_up and end.fields["expired_at"] <= due and not _may_expire(delivery, history):
            yield violation("no message expires waiting", copy, f"expired in a wait of {wait} s", end.at)


def _may_expire(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether there was no queue for the message, or a look-up or send failed."""
    queue = delivery.copy.sent_to
    nowhere = queue.endswith(".fifo") and history.redrive(queue) is None
    not_sent = delivery.logged("not_sent") or delivery.handled_in.struck("SendMessageBatch")
    return nowhere or not_sent or history.look_up_failed(delivery)


def every_message_settles(history: RecordedHistory) -> Found:
    """At the end of a settled run, no message is left in a queue that feeds a function, unless that is disabled."""
    if not history.settled:
        return
    fed = {queue for queue in history.connected if history.mapping_states.get(queue) != "Disabled"}
    for copy in history.eventful:
        if copy.end is None and copy.queue in fed:
            text = f"is still in {copy.queue}, though the run is over"
            yield violation("every message settles", copy, text, copy.events[-1].at)


NO_TIME_LEFT_SECONDS = 0.3
"""With less time than this before its deadline, a function may only report messages as failed (SPEC I2). A handler that
hangs is interrupted earlier, so that its message is settled."""
DONE_BY_SQS = frozenset({"committed", "discarded"})
"""Log events of messages that the failure steps finished with."""
STAYED = frozenset({"waiting_retry", "deferred", "unhandled"})
"""Log events of messages that were decided on and stay in the queue; a ``released`` message was not run."""


def moves_by_sqs_have_a_cause(history: RecordedHistory) -> Found:
    """If a message fails at its last delivery, or cannot wait any longer, tarry sends it to the dead-letter queue.

    SQS moves it, without a record, only if its process died, if no outcome was decided, or if it could not be sent.
    """
    for copy in history.eventful:
        moved = next(copy.all("moved"), None)
        if moved is None or moved.fields.get("origin") == "redrive":
            continue
        before = [each for each in copy.deliveries if each.at <= moved.at]
        if not before:
            continue
        last, target = before[-1], str(moved.fields["to"])
        if last.sends or last.log_events & DONE_BY_SQS:
            continue  # settled by a copy, or dropped; SQS delivered it again after the delete
        if _was_decided(last, moved.at, history) and not _may_lack_record(last, target, history):
            what = f"its last delivery ended with {last.verdict!r}" if last.run else "it could not wait"
            text = f"SQS moved it to {target} without a record, though {what}, and tarry could have sent it with one"
            yield violation("moves by SQS have a cause", copy, text, moved.at)


def _was_decided(last: ObservedDelivery, moved_at: float, history: RecordedHistory) -> bool:
    """Whether a consumer had the message in its last delivery, and decided on an outcome other than a release."""
    invocation = last.invocation
    if invocation is None or invocation.consumed is None or not invocation.ended_well:
        return False
    is_decided = last.verdict in (*FAILED, "defer") or bool(last.log_events & STAYED)
    return is_decided and invocation.answered_at <= moved_at


def _may_lack_record(last: ObservedDelivery, target: str, history: RecordedHistory) -> bool:
    """Whether an exception of SPEC C8 applies."""
    invocation, copy = last.handled_in, last.copy
    held_until = min(last.held_until, known_end(last, history))
    lease_lost = history.had_problem(last, "lease_lost") or invocation.answered_at >= held_until
    waits_for_twin = any(event.fields.get("reason") == "in_progress" for event in last.log_lines)  # SPEC K4
    was_there_before = target in (dead_lettered_from(copy), copy.sent_to)  # SPEC F7
    deadline = float(invocation.invoked.fields.get("deadline", math.inf))
    # A fault on a send to another queue does not excuse the loss.
    sends = (fault.fields for fault in invocation.faults if fault.fields.get("operation") == "SendMessageBatch")
    limit = int(history.queues.get(target, {}).get("MaximumMessageSize", MAX_REQUEST_BYTES))  # SPEC F3, F5
    return (
        lease_lost
        or waits_for_twin
        or bool(last.other_copies)
        or was_there_before
        or invocation.answered_at > deadline - NO_TIME_LEFT_SECONDS
        or history.look_up_failed(last)
        or any(fields.get("queue") == target for fields in sends)
        or (copy.is_fifo and invocation.struck("ChangeMessageVisibilityBatch"))  # the test of its lease (SPEC E6)
        or message_size(copy.body, users_attributes(copy)) > limit
    )


# dead letters

REASONS = frozenset({"error", "exhausted", "fatal", "undecodable", "expiring"})
SMALLEST_RECORD_BYTES = 700


def dead_letters_say_why(history: RecordedHistory) -> Found:
    """A message that tarry dead-lettered has a complete failure record, if there was room for one."""
    rule = "dead letters say why"
    for copy in history.eventful:
        if copy.came_from is None or not copy.is_dead_letter or copy.has_unclear_origin:
            continue
        if copy.record is None:
            if _has_room(copy, history):
                yield violation(rule, copy, "dead-lettered without a record, though there was room", copy.sent.at)
            continue
        if copy.sent_to in (copy.came_from.copy.sent_to, dead_lettered_from(copy.came_from.copy)):
            yield violation(rule, copy, f"dead-lettered to {copy.sent_to}, where it came from", copy.sent.at)
        for what, expected, actual in _compared(copy, copy.came_from, history):
            if expected != actual:
                text = f"the {what} in its record is {actual!r:.200}, not {expected!r:.200}"
                yield violation(rule, copy, text, copy.sent.at)


def dead_lettered_from(copy: MessageCopy) -> str | None:
    """The queue from which it was dead-lettered before, according to its record."""
    record = copy.record or {}
    return queue_name(str(record.get("origin"))) if is_dead_letter(record) else None


def users_attributes(copy: MessageCopy) -> dict[str, Any]:
    """A message's attributes without tarry's record."""
    ours = copy.record is not None
    return {name: value for name, value in copy.attributes.items() if not (ours and name == ATTRIBUTE)}


def _has_room(copy: MessageCopy, history: RecordedHistory) -> bool:
    limit = int(history.queues.get(copy.sent_to, {}).get("MaximumMessageSize", MAX_REQUEST_BYTES))
    room = limit - message_size(copy.body, dict(copy.attributes))
    taken = ATTRIBUTE in copy.attributes or len(copy.attributes) >= MAX_ATTRIBUTES
    return not taken and room >= SMALLEST_RECORD_BYTES


def _compared(
    dead_letter: MessageCopy, delivery: ObservedDelivery, history: RecordedHistory
) -> list[tuple[str, Any, Any]]:
    """Pairs of the expected and the actual contents of the record, without the parts that were cut for lack of room."""
    record: dict[str, Any] = dead_letter.record or {}
    failure: dict[str, Any] = record.get("failure") or {}
    run, queue = delivery.run, delivery.copy.sent_to
    origin = queue_name(str(record.get("origin")))
    delay = dead_letter.sent.fields["visible_at"] - dead_letter.sent.at
    is_fifo = dead_letter.sent_to.endswith(".fifo")
    compared: list[tuple[str, Any, Any]] = [
        ("delay", 0, 0 if is_fifo else delay),  # the queue may have one of its own
        ("id", delivery.copy.id, record.get("id")),
        ("origin", queue, origin),
        ("reason", True, bool(failure.get("reason")) or "failure" not in record),  # a redaction may remove it
        ("carried attempts", 0, record.get("carried", 0)),
        ("step counters", {}, record.get("steps", {})),
    ]
    if run is None:
        is_undecodable = str(failure.get("type", "Undecodable")).endswith("Undecodable")  # a step may rename it
        may_not_run = is_undecodable or failure.get("reason") == "expiring" or _is_spent_by_crashes(delivery, history)
        return [*compared, ("run of the handler", True, may_not_run)]
    given = run.verdicts.get(delivery.copy.delivery_id)
    kind, error = (None, None) if given is None else (given.kind, given.error)
    had_reason = kind in (*FAILED, "left") or failure.get("reason") == "expiring" or _timed_out(run, failure)
    of_its_own = delivery.message.terms.has_own_steps and failure.get("reason") not in REASONS
    compared.append(("reason for a failure", True, had_reason or of_its_own))
    attempts = _total_before(delivery.copy) + delivery.message.attempt
    untraced = _untraced(delivery, failure, attempts)
    if failure.get("reason") == "exhausted":
        compared.append(("exhaustion", True, is_exhausted(delivery, history, untraced)))
    if kind == "reject":  # a step of the user may ask for a wait that would outlast the message (SPEC C10)
        wrong = REASONS - {"expiring"} if delivery.message.terms.has_own_steps else REASONS
        compared.append(("reason", False, failure.get("reason") in wrong))
    if "request_id" in failure:  # else it was cut
        invocation = delivery.invocation
        compared.append(("request", invocation.request_id if invocation else None, failure["request_id"]))
    if "attempts" in failure:
        compared.append(("attempts", attempts + untraced, failure["attempts"]))
    if "type" in failure and error is not None:
        compared.append(("type", error, failure["type"].rpartition(".")[2]))
    if "first_failed_at" in failure and "failed_at" in failure:
        compared.append(("order of times", True, failure["first_failed_at"] <= failure["failed_at"]))
    return compared


def _is_spent_by_crashes(delivery: ObservedDelivery, history: RecordedHistory) -> bool:
    """Whether a message need not run any more: an attempt store knows that an earlier run crashed (SPEC C9).

    A run that failed is taken for one that crashed if the store did not take its end. With tarry's own failure steps,
    the message has no attempt or no delivery left, or a crash is not retried: an error of a list without `RetryInPlace`
    is a dead letter at once, whatever ``max_attempts`` says (SPEC B7, E1).
    """
    redrive = history.redrive(delivery.copy.sent_to)
    earlier = [each for each in delivery.copy.deliveries if each.count < delivery.count and each.run is not None]
    lost = [each for each in earlier if not each.ended_well or each.verdict in FAILED]
    crashed = [each.message for each in lost if each.message.is_exact and each.verdict not in DONE]
    if not crashed:
        return False
    attempt, terms = crashed[-1].attempt, crashed[-1].terms
    if terms.has_own_steps or (redrive is not None and delivery.count >= redrive[1]):
        return True
    return terms.limit is None or not terms.retries_errors or attempt >= terms.limit


def _timed_out(run: HandlerRun, failure: dict[str, Any]) -> bool:
    """Whether its handler exceeded its timeout, and its process ended after the message was settled (SPEC I3)."""
    return run.ended is None and str(failure.get("type", TimeoutError.__name__)).endswith(TimeoutError.__name__)


def _total_before(copy: MessageCopy) -> int:
    """The attempts of earlier copies, up to a dead letter that was redriven."""
    while not copy.is_dead_letter and copy.before is not None:
        copy = copy.before
    failure = (copy.record or {}).get("failure") or {}
    return int(failure.get("attempts") or 0)


def _untraced(delivery: ObservedDelivery, failure: dict[str, Any], attempts: int) -> int:
    """The deliveries without a trace that count as attempts, because the attempt store did not take the last one.

    ``attempts``: those without them. An earlier copy may be the reason for ``attempts_at_most``.
    """
    if not delivery.message.is_exact or "attempts_at_most" not in failure:
        return 0
    more, most = int(failure.get("attempts", 0)) - attempts, delivery.count - 1
    crashes = failure.get("crashes")  # None: it was cut
    return more if more == crashes or (crashes is None and 0 <= more <= most) else 0


def is_exhausted(delivery: ObservedDelivery, history: RecordedHistory, untraced: int = 0) -> bool:
    """Whether the message has no attempt or no delivery left."""
    limit, redrive = delivery.message.terms.limit, history.redrive(delivery.copy.sent_to)
    spent = limit is not None and delivery.message.attempt + untraced >= limit
    return spent or (redrive is not None and delivery.count >= redrive[1])
