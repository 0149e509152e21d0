"""The attempt number of a delivery, and whether it is due, from the receive count and the `Tarry` attribute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.envelope.attribute import Envelope


def receive_count(text: object) -> int:
    """Return SQS's ``ApproximateReceiveCount`` as a number; 1 if it is missing, unreadable or not positive."""
    try:
        return max(1, int(text))  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 1


def attempt_number(
    receives: int,
    envelope: Envelope | None,
    stored: Mapping[str, Any] | None = None,
    *,
    due: float | None = None,
    first_received_at: float | None = None,
    behind: bool = False,
    untraced: bool = False,
) -> int:
    """Return the number of this run of the handler, from 1.

    ``stored`` is what an attempt store has about this delivery id, empty if it has nothing; the number is then exact.
    ``untraced``: the store did not take this run, so earlier deliveries that it does not know may have been runs too.
    Without a store (None) it is an upper bound, since SQS counts receives, not runs. ``behind``: whether, on FIFO, the
    message is behind another message of its group in this batch. It has then never run, however often it was received:
    each time, the message before it stopped the group.
    """
    carried = envelope.carried if envelope else 0
    if stored is not None:
        runs = _before(receives, stored, "runs") + (crashes(receives, stored) if untraced else 0)
        return carried + runs + 1
    if behind:
        return carried + 1
    return max(1, carried + _receives_that_may_have_run(receives, due, first_received_at))


def is_upper_bound(
    receives: int,
    envelope: Envelope | None,
    stored: Mapping[str, Any] | None = None,
    *,
    due: float | None = None,
    first_received_at: float | None = None,
    behind: bool = False,
    untraced: bool = False,
) -> bool:
    """Return whether `attempt_number` may be higher than the number of runs; the arguments are the same."""
    if envelope is not None and envelope.carried and (envelope.failure is None or envelope.failure.attempts_at_most):
        return True  # without a failure, the copy was deferred after receives that were counted
    if stored is not None:
        return untraced and crashes(receives, stored) > 0
    return not behind and _receives_that_may_have_run(receives, due, first_received_at) > 1


def _receives_that_may_have_run(receives: int, due: float | None, first_received_at: float | None) -> int:
    only_hid = due is not None and first_received_at is not None and first_received_at < due
    return receives - 1 if only_hid else receives  # the first one kept the message invisible until its due time


def crashes(receives: int, stored: Mapping[str, Any]) -> int:
    """Return how many earlier deliveries left no trace in the store: the process died, or Lambda did not start it."""
    return receives - 1 - _before(receives, stored, "deliveries")


def _before(receives: int, stored: Mapping[str, Any], name: str) -> int:
    """Return how many deliveries before this one a set of the record has; other numbers cannot be deliveries."""
    return sum(1 <= number < receives for number in stored.get(name, ()))


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
