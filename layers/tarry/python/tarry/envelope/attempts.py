"""The attempt number of a delivery, and whether it is due, from the receive count and the `Tarry` attribute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.envelope.attribute import Envelope


def receive_count(text: object) -> int:
    """Return SQS's ``ApproximateReceiveCount`` as a number; 1 if it is missing, unreadable or not positive."""
    try:
        return max(1, int(text))  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 1


def attempt_number(
    receives: int, envelope: Envelope | None, first_received_at: float | None, *, due: float | None, behind: bool
) -> int:
    """Return the number of this run of the handler, from 1; an upper bound, since SQS counts receives, not runs.

    ``behind``: whether, on FIFO, the message is behind another message of its group in this batch. It has then never
    run, however often it was received: each time, the message before it stopped the group.
    """
    carried = envelope.carried if envelope else 0
    if behind:
        return carried + 1
    if due is not None and first_received_at is not None and first_received_at < due:
        receives -= 1  # the first receive only hid the message until its due time
    return max(1, carried + receives)


def seconds_until_due(due: float | None, first_received_at: float | None, receives: object, now: float) -> int | None:
    """Return for how many whole seconds to keep a message invisible instead of running it; None if it may run.

    A first receive before ``due`` never runs the message, because `attempt_number` does not count that receive: if
    ``due`` passed before the invocation began (a batching window), the message is made visible at once. ``receives`` is
    the receive count as the event has it; if it is missing, the receive is not taken for the first.
    """
    if due is None:
        return None
    if now < due:
        return math.ceil(due - now)
    is_first = str(receives).strip() == "1"
    return 0 if is_first and first_received_at is not None and first_received_at < due else None
