"""The order of FIFO groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tarry.testing.checkers.violation import MOMENT, Found, violation
from tarry.testing.deliveries import DONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.testing.deliveries import Delivery, HandlerRun, MessageCopy
    from tarry.testing.history import RecordedHistory


def groups_keep_their_order(history: RecordedHistory) -> Found:
    """On FIFO nothing of a group runs beside another of it, or before one that was sent earlier is out of the way.

    The order holds as long as the lease does.
    """
    rule = "groups keep their order"
    for queue, group, lives in _groups(history):
        runs = [(run, delivery) for life in lives for delivery in life.deliveries for run in delivery.runs]
        runs.sort(key=lambda each: each[0].began.at)
        latest: tuple[HandlerRun, Delivery] | None = None
        for run, delivery in runs:
            if latest is not None and latest[0] is not run and run.began.at < _alone_until(*latest, history) - MOMENT:
                text = f"runs while {latest[1].life.id} of its group {group!r} in {queue} still runs"
                yield violation(rule, delivery.life, text, run.began.at)
            if latest is None or _end_of(run, history) >= _end_of(latest[0], history):
                latest = run, delivery
        places = {life.delivery_id: place for place, life in enumerate(lives)}
        for run, delivery in runs:
            for before in lives[: places[delivery.life.delivery_id]]:
                if not _out_of_the_way(before, run, history):
                    text = f"runs before {before.id}, which was sent to group {group!r} of {queue} earlier"
                    yield violation(rule, delivery.life, text, run.began.at)


def _groups(history: RecordedHistory) -> Iterator[tuple[str, str, list[MessageCopy]]]:
    groups: dict[tuple[str, str], list[MessageCopy]] = {}
    for life in history.lives.values():
        queue, group = life.sent.fields["queue"], life.sent.fields.get("group")
        if queue.endswith(".fifo") and group is not None:
            groups.setdefault((queue, group), []).append(life)
    for (queue, group), lives in groups.items():
        yield queue, group, lives


def _alone_until(run: HandlerRun, delivery: Delivery, history: RecordedHistory) -> float:
    """Until when nothing else of its group may run: as long as it runs and its lease holds."""
    return min(_end_of(run, history), delivery.lease_ends_at)


def _end_of(run: HandlerRun, history: RecordedHistory) -> float:
    if run.ended is not None:
        return run.ended.at
    answered = history.invocations[run.request_id].answered
    return answered.at if answered is not None else math.inf


def _out_of_the_way(before: MessageCopy, run: HandlerRun, history: RecordedHistory) -> bool:
    """Whether a message was done with, for its group, when a run of a later one began."""
    began = run.began.at
    if before.left_at is not None and before.left_at <= began:
        return True
    if before.delivery_id in run.delivery_ids:
        return True  # in one batch, whose handler keeps the order itself
    here = [each for each in before.deliveries if each.invocation and each.invocation.request_id == run.request_id]
    if not here:
        return False
    delivery = here[-1]
    ended = delivery.run is not None and delivery.run.ended is not None and delivery.run.ended.at <= began
    if ended and delivery.verdict in DONE:
        return True
    if any(copy.at <= began for copy in delivery.copies):
        return not (delivery.ended_well and delivery.was_reported)  # it was sent on, and confirmed
    said = (event for event in history.said_by(delivery) if event.at <= began)
    return any(event.fields["state"] in ("COMMITTED", "DISCARDED") for event in said)
