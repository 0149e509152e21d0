"""The rule about the order of FIFO groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tarry.tools.testing.checkers.violation import MOMENT, Found, violation
from tarry.tools.testing.deliveries import DONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.tools.testing.deliveries import MessageCopy, ObservedDelivery
    from tarry.tools.testing.handler_runs import HandlerRun
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
