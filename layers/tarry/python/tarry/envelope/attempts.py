"""Which attempt a delivery is, or whether it is one at all: functions of SQS's count and the message's record."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.envelope.attribute import Envelope


def receive_count(text: object) -> int:
    """SQS's ``ApproximateReceiveCount``; 1 where it is missing, unreadable or not positive."""
    try:
        return max(1, int(text))  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 1


def attempt_number(
    receives: int, envelope: Envelope | None, first_received_at: float | None, *, due: float | None, behind: bool
) -> int:
    """The number of this run of the handler, from 1, an upper bound: SQS counts receives, not runs.

    ``behind``: on FIFO, behind another message of its group in this batch. Such a message has not run before, however
    often it was received, since what stopped its head stopped it too.
    """
    carried = envelope.carried if envelope else 0
    if behind:
        return carried + 1
    if due is not None and first_received_at is not None and first_received_at < due:
        receives -= 1  # the first receive only hid it until its due time
    return max(1, carried + receives)


def seconds_until_due(due: float | None, first_received_at: float | None, receives: object, now: float) -> int | None:
    """For how many whole seconds a message is to be hidden instead of run; None if it may run.

    A first receive before ``due`` only hides it, as `attempt_number` counts on: where its invocation began after
    ``due``, behind a batching window, that is for 0 seconds. ``receives`` is SQS's count as the event has it: without
    one, no receive is known to be the first.
    """
    if due is None:
        return None
    if now < due:
        return math.ceil(due - now)
    is_first = str(receives).strip() == "1"
    return 0 if is_first and first_received_at is not None and first_received_at < due else None
