"""The rule about dead letters: they say why they failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.failed.queue_names import queue_name
from tarry.record.attribute import ATTRIBUTE, is_dead_letter
from tarry.sqs.limits import MAX_ATTRIBUTES, MAX_REQUEST_BYTES, message_size
from tarry.tools.testing.checkers.violation import Found, violation
from tarry.tools.testing.deliveries import DONE, FAILED

if TYPE_CHECKING:
    from tarry.tools.testing.deliveries import HandlerRun, MessageCopy, ObservedDelivery
    from tarry.tools.testing.recorded_history import RecordedHistory

REASONS = frozenset({"error", "exhausted", "fatal", "undecodable", "expiring"})
SMALLEST_RECORD_BYTES = 700


def dead_letters_say_why(history: RecordedHistory) -> Found:
    """A message that tarry dead-lettered has a complete failure record, if there was room for one."""
    rule = "dead letters say why"
    for copy in history.copies.values():
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
    of_its_own = run.terms(delivery.copy.delivery_id).has_own_steps and failure.get("reason") not in REASONS
    compared.append(("reason for a failure", True, had_reason or of_its_own))
    attempts = _total_before(delivery.copy) + run.attempt(delivery.copy.delivery_id)
    untraced = _untraced(delivery, failure, attempts)
    if failure.get("reason") == "exhausted":
        compared.append(("exhaustion", True, is_exhausted(delivery, history, untraced)))
    if kind == "reject":  # a step of the user may ask for a wait that would outlast the message (SPEC C10)
        wrong = REASONS - {"expiring"} if run.terms(delivery.copy.delivery_id).has_own_steps else REASONS
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
    delivery_id, redrive = delivery.copy.delivery_id, history.redrive(delivery.copy.sent_to)
    earlier = [each for each in delivery.copy.deliveries if each.count < delivery.count]
    lost = [each for each in earlier if not each.ended_well or each.verdict in FAILED]
    crashed = [
        each.run
        for each in lost
        if each.run is not None and each.run.is_exact(delivery_id) and each.verdict not in DONE
    ]
    if not crashed:
        return False
    last = crashed[-1]
    terms = last.terms(delivery_id)
    if terms.has_own_steps or (redrive is not None and delivery.count >= redrive[1]):
        return True
    return terms.limit is None or not terms.retries_errors or last.attempt(delivery_id) >= terms.limit


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
    run = delivery.run
    if run is None or not run.is_exact(delivery.copy.delivery_id) or "attempts_at_most" not in failure:
        return 0
    more, most = int(failure.get("attempts", 0)) - attempts, delivery.count - 1
    crashes = failure.get("crashes")  # None: it was cut
    return more if more == crashes or (crashes is None and 0 <= more <= most) else 0


def is_exhausted(delivery: ObservedDelivery, history: RecordedHistory, untraced: int = 0) -> bool:
    """Whether the message has no attempt or no delivery left."""
    run, delivery_id = delivery.run, delivery.copy.delivery_id
    assert run is not None
    limit, redrive = run.terms(delivery_id).limit, history.redrive(delivery.copy.sent_to)
    spent = limit is not None and run.attempt(delivery_id) + untraced >= limit
    return spent or (redrive is not None and delivery.count >= redrive[1])
