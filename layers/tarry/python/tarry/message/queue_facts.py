"""The facts of a source queue that decisions depend on, as values; `Lookups` gets them from SQS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.support.delays import MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS
from tarry.support.values import Value

if TYPE_CHECKING:
    from tarry.message.delivery import Delivery
    from tarry.support.values import QueueArn

# SQS's defaults, used if the queue's attributes cannot be read
ASSUMED_VISIBILITY_TIMEOUT_SECONDS = 30
ASSUMED_RETENTION_SECONDS = 4 * 86_400

LOOK_UP_SECONDS = MAX_VISIBILITY_SECONDS  # an unknown retention is assumed only if age and wait exceed this
MARGIN_SECONDS = 3_600  # A wait is too long if it ends less than an hour before the message expires (SPEC C10)
MARGIN_SHARE = 1 / 12  # of a retention below 12 hours, where an hour would be too large a part


class QueueFacts(Value):
    """The attributes of a source queue that decisions depend on; None for one that is unset or unknown."""

    dead_letter: QueueArn | None = None  # the dead-letter queue of its redrive policy
    max_receive_count: int | None = None
    visibility_timeout: int | None = None  # in seconds, like ``retention``
    retention: int | None = None
    error: Exception | None = None  # the error of the look-up, if the attributes are unknown

    def is_last_delivery(self, delivery: Delivery) -> bool:
        """Return whether SQS moves a message to the dead-letter queue, with no failure record, at its next receive."""
        return self.max_receive_count is not None and delivery.receive_count >= self.max_receive_count

    def seconds_left_if_short(self, delivery: Delivery, delay: float, now: float) -> float | None:
        """Return the seconds until the message expires, if it expires before or soon after a wait of ``delay`` seconds.

        0 or less for a message that expired while its handler ran; None for one that outlasts the wait (SPEC C10).
        """
        sent_at, started_at = delivery.sent_to_queue_at, delivery.invocation.started_at
        if sent_at is None:
            return None
        retention = self.retention
        if retention is None:
            if now + delay - sent_at <= LOOK_UP_SECONDS:
                return None
            retention = ASSUMED_RETENTION_SECONDS
        expires_at = sent_at + retention
        if expires_at <= started_at - UNKNOWN_RECEIVE_SECONDS:
            return None  # older than any message can be: a sample event, run by hand
        return expires_at - now if expires_at < now + delay + min(MARGIN_SECONDS, retention * MARGIN_SHARE) else None

    def would_expire(self, delivery: Delivery, delay: float, now: float) -> bool:
        """Return whether the message expires before, or soon after, it has waited ``delay`` seconds in its queue."""
        return self.seconds_left_if_short(delivery, delay, now) is not None
