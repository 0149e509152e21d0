"""The rule about the log: it tells what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.testing.checkers.violation import Found, violation

if TYPE_CHECKING:
    from tarry.simulator.history import HistoryEvent
    from tarry.testing.deliveries import Delivery
    from tarry.testing.history import RecordedHistory


def the_log_is_true(history: RecordedHistory) -> Found:
    """A message that was sent on is where the log says; a message that waits is hidden for as long as the log says."""
    for delivery in history.deliveries():
        if delivery.invocation is None:
            continue
        for event in delivery.log_lines:
            lie = _lie(event, delivery)
            if lie is not None:
                yield violation("the log is true", delivery.copy, lie, event.at)


def _lie(event: HistoryEvent, delivery: Delivery) -> str | None:
    fields = event.fields
    target = fields.get("dead_letter_queue") or fields.get("sent_to")
    if target is not None:
        sends = [sent for each in (delivery, *delivery.twins) for sent in each.sends]
        there = any(sent.fields["queue"] == target and sent.at <= event.at for sent in sends)
        return None if there else f"is said to be in {target}, and is not"
    if fields["state"] in ("DEAD_LETTERED", "RESENT"):
        return f"is said to be {fields['state']}, and not where"
    if fields["state"] in ("WAITING_RETRY", "DEFERRED") and "not_settled" not in fields:
        seconds = [hidden.fields["seconds"] for hidden in delivery.hidden if hidden.at <= event.at]
        if fields.get("delay") not in seconds and not any(delivery.copy.all("visibility_change_ignored")):
            return f"is said to wait for {fields.get('delay')} s, and was hidden for {seconds or 'none'}"
    return None
