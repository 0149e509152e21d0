"""Rules about the order of FIFO groups, and about the queues that messages come from."""

from __future__ import annotations

import math
from sys import modules
from typing import TYPE_CHECKING, Any

from tarry.record.attribute import ATTRIBUTE, is_ours
from tarry.tools.testing.checkers.violation import MOMENT, Found, violation
from tarry.tools.testing.deliveries import DONE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tarry.tools.testing.deliveries import HandlerRun, MessageCopy, ObservedDelivery
    from tarry.tools.testing.recorded_history import RecordedHistory


def groups_keep_their_order(history: RecordedHistory) -> Found:
    """On FIFO the messages of a group run one after the other, in the order of sending, while their leases hold."""
    rule = "groups keep their order"
    for queue, group, copies in _groups(history):
        runs = [(run, delivery) for copy in copies for delivery in copy.deliveries for run in delivery.runs]
        runs.sort(key=lambda each: each[0].began.at)
        latest: tuple[HandlerRun, ObservedDelivery] | None = None
        for run, delivery in runs:
            if latest is not None and latest[0] is not run and run.began.at < _alone_until(*latest, history) - MOMENT:
                text = f"runs while {latest[1].copy.id} of its group {group!r} in {queue} still runs"
                yield violation(rule, delivery.copy, text, run.began.at)
            if latest is None or _end_of(run, history) >= _end_of(latest[0], history):
                latest = run, delivery
        places = {copy.delivery_id: place for place, copy in enumerate(copies)}
        present = 0  # the first that has not left the queue
        for run, delivery in runs:
            while present < len(copies) and _has_left(copies[present], run.began.at):
                present += 1
            for before in copies[present : places[delivery.copy.delivery_id]]:
                if not _has_made_way(before, run, history):
                    text = f"runs before {before.id}, which was sent to group {group!r} of {queue} earlier"
                    yield violation(rule, delivery.copy, text, run.began.at)


def _groups(history: RecordedHistory) -> Iterator[tuple[str, str, list[MessageCopy]]]:
    groups: dict[tuple[str, str], list[MessageCopy]] = {}
    for copy in history.copies.values():
        queue, group = copy.sent_to, copy.group
        if queue.endswith(".fifo") and group is not None:
            groups.setdefault((queue, group), []).append(copy)
    for (queue, group), copies in groups.items():
        yield queue, group, copies


def _alone_until(run: HandlerRun, delivery: ObservedDelivery, history: RecordedHistory) -> float:
    """The end of the run or of its lease: until then, no other message of its group may run."""
    return min(_end_of(run, history), delivery.lease_ends_at)


def _end_of(run: HandlerRun, history: RecordedHistory) -> float:
    if run.ended is not None:
        return run.ended.at
    answered = history.invocations[run.request_id].answered
    return answered.at if answered is not None else math.inf


def _has_left(copy: MessageCopy, at: float) -> bool:
    return copy.left_at is not None and copy.left_at <= at


def _has_made_way(before: MessageCopy, run: HandlerRun, history: RecordedHistory) -> bool:
    """Whether a message no longer blocked its group when a run of a later one began."""
    began = run.began.at
    if _has_left(before, began):
        return True
    if before.delivery_id in run.messages:
        return True  # in one batch, whose handler keeps the order itself
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
    for copy in history.copies.values():
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
            yield violation(
                rule, history.copies[strange[0]], "ran in an invocation that was not handed it", run.began.at
            )


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
    return {name: value for name, value in copy.attributes.items() if name != ATTRIBUTE or not _is_ours(value)}


def _propagated() -> frozenset[str]:
    """Return the names of the attributes with which OpenTelemetry's propagators trace a copy, as tarry sends it."""
    propagate = modules.get("opentelemetry.propagate")
    try:
        return frozenset() if propagate is None else frozenset(propagate.get_global_textmap().fields)
    except Exception:  # noqa: BLE001 a propagator of the user's
        return frozenset()


def _is_ours(attribute: Mapping[str, Any]) -> bool:
    return is_ours({"stringValue": attribute.get("StringValue")})
