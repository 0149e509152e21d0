"""Whether a message outlasts its wait: its queue drops it when its retention is over, hidden or not (SPEC C10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.delay import MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS

if TYPE_CHECKING:
    from tarry.message import Message
    from tarry.sqs.lookups import Lookups

LOOK_UP_SECONDS = MAX_VISIBILITY_SECONDS
"""Age and wait together, up to which no retention is looked up for this alone."""
MARGIN_SECONDS = 3_600
MARGIN_SHARE = 1 / 12  # of a retention below 12 hours: there an hour would be most of a message's life


def seconds_left_if_short(message: Message[Any], delay: float, lookups: Lookups) -> float | None:
    """The seconds until its queue drops it, if it would have, or be about to, after waiting ``delay`` in place.

    0 or less for what expired while its handler ran; None for what outlasts the wait.
    """
    sent_at, invocation, source = message._sent_to_queue_at, message._invocation, message._source
    if sent_at is None:
        return None
    now = invocation.world.clock.time()
    is_worth_asking = now + delay - sent_at > LOOK_UP_SECONDS
    retention = lookups.retention(source) if is_worth_asking else lookups.last_known_retention(source)
    if retention is None:
        return None
    expires_at = sent_at + retention
    if expires_at <= invocation.started_at - UNKNOWN_RECEIVE_SECONDS:
        return None  # older than any message can be: a sample event, run by hand
    return expires_at - now if expires_at < now + delay + min(MARGIN_SECONDS, retention * MARGIN_SHARE) else None
