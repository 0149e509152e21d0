"""Dead letters say why, and SQS moves nothing bare that tarry saw fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.envelope import ATTRIBUTE
from tarry.sqs.limits import MAX_ATTRIBUTES, MAX_REQUEST_BYTES, message_size
from tarry.testing.checkers.doubles import is_by_sqs
from tarry.testing.checkers.violation import Found, violation
from tarry.testing.lives import FAILED

if TYPE_CHECKING:
    from tarry.testing.lives import Delivery, Life
    from tarry.testing.past import Past

REASONS = frozenset({"error", "exhausted", "fatal", "undecodable", "expiring"})
SMALLEST_RECORD_BYTES = 700


def letters_say_why(past: Past) -> Found:
    """What tarry dead-lettered has its record, complete, wherever there was room for one."""
    rule = "letters say why"
    for life in past.lives.values():
        if life.came_from is None or not life.is_letter or life.came_from.twins:
            continue
        if life.record is None:
            if _has_room(life, past):
                yield violation(rule, life, "dead-lettered without a record, though there was room", life.sent.at)
            continue
        for what, wanted, told in _compared(life, life.came_from, past):
            if wanted != told:
                text = f"its record says of its {what} {told!r:.200}, not {wanted!r:.200}"
                yield violation(rule, life, text, life.sent.at)


def _has_room(life: Life, past: Past) -> bool:
    limit = int(past.queues.get(life.sent.fields["queue"], {}).get("MaximumMessageSize", MAX_REQUEST_BYTES))
    room = limit - message_size(life.body, dict(life.attributes))
    taken = ATTRIBUTE in life.attributes or len(life.attributes) >= MAX_ATTRIBUTES
    return not taken and room >= SMALLEST_RECORD_BYTES


def _compared(letter: Life, delivery: Delivery, past: Past) -> list[tuple[str, Any, Any]]:
    """What the record must say beside what it says; what was cut for want of room is not there."""
    record: dict[str, Any] = letter.record or {}
    failure: dict[str, Any] = record.get("failure") or {}
    run, queue = delivery.run, delivery.life.sent.fields["queue"]
    origin = str(record.get("origin")).rpartition(":")[2]
    compared: list[tuple[str, Any, Any]] = [
        ("id", delivery.life.id, record.get("id")),
        ("origin", queue, origin),
        ("reason", True, bool(failure.get("reason"))),
        ("carried attempts", 0, record.get("carried", 0)),
        ("step counters", {}, record.get("steps", {})),
    ]
    if run is None:
        never_ran = failure.get("reason") in ("undecodable", "expiring")
        return [*compared, ("run of the handler", True, never_ran)]
    said = run.verdict(delivery.life.delivery_id)
    compared.append(
        ("reason for a failure", True, said in FAILED or said == "left" or failure.get("reason") == "expiring")
    )
    if failure.get("reason") == "exhausted":
        compared.append(("exhaustion", True, _is_exhausted(delivery, past)))
    if said == "reject":
        compared.append(("reason", False, failure.get("reason") in REASONS))
    if "request_id" in failure:  # else it was cut
        invocation = delivery.invocation
        compared.append(("request", invocation.request_id if invocation else None, failure["request_id"]))
    if "attempts" in failure:
        lives_before = _total_before(delivery.life)
        compared.append(("attempts", lives_before + run.attempt(delivery.life.delivery_id), failure["attempts"]))
    error = run.error(delivery.life.delivery_id)
    if "type" in failure and error is not None:
        compared.append(("type", error, failure["type"].rpartition(".")[2]))
    if "first_failed_at" in failure and "failed_at" in failure:
        compared.append(("order of times", True, failure["first_failed_at"] <= failure["failed_at"]))
    return compared


def _total_before(life: Life) -> int:
    """The attempts of earlier lives, which ended in a dead letter that was redriven."""
    while life.came_from is not None and not life.is_letter:
        life = life.came_from.life
    failure = (life.record or {}).get("failure") or {}
    return int(failure.get("attempts") or 0)


def _is_exhausted(delivery: Delivery, past: Past) -> bool:
    run, delivery_id = delivery.run, delivery.life.delivery_id
    assert run is not None
    limit, redrive = run.limit(delivery_id), past.redrive(delivery.life.sent.fields["queue"])
    spent = limit is not None and run.attempt(delivery_id) >= limit
    return spent or (redrive is not None and delivery.count >= redrive[1])


def bare_moves_have_a_cause(past: Past) -> Found:
    """SQS moves a message bare only where no process could say why: it died, never ran, or could not send."""
    for life in past.lives.values():
        moved = next(life.all("moved"), None)
        if moved is None or moved.fields.get("origin") == "redrive" or not life.deliveries:
            continue
        before = [each for each in life.deliveries if each.at <= moved.at]
        last = before[-1]
        is_over = last.invocation is not None and last.invocation.answered and last.invocation.answered.at <= moved.at
        if is_over and last.verdict in FAILED and not _may_be_bare(last, before, past):
            text = "SQS moved it to the dead-letter queue bare, though nothing kept tarry from saying why"
            yield violation("bare moves have a cause", life, text, moved.at)


def _may_be_bare(last: Delivery, before: list[Delivery], past: Past) -> bool:
    invocation = last.invocation
    if invocation is None or not invocation.ended_well:
        return True
    not_sent = any("not_sent" in event.fields for event in past.said_by(last))
    if invocation.struck("SendMessageBatch") or not_sent or past.look_up_failed(last):
        return True
    if len(before) > 1 and is_by_sqs(before[-2], last):
        return True
    if invocation.answered is not None and invocation.answered.at >= last.lease_ends_at:
        return True  # its lease was over by the time there was something to say
    run, delivery_id = last.run, last.life.delivery_id
    assert run is not None
    return run.verdict(delivery_id) != "reject" and not run.began.fields["dead_letters"][delivery_id]
