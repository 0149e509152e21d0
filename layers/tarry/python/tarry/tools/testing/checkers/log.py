"""The rule about the log: it agrees with the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.tools.testing.checkers.violation import Found, violation

if TYPE_CHECKING:
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.testing.deliveries import ObservedDelivery
    from tarry.tools.testing.recorded_history import RecordedHistory


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
