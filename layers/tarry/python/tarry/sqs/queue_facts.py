"""What is known of a message's queue when it is decided what becomes of the message: values, looked up elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.delay import MAX_VISIBILITY_SECONDS, UNKNOWN_RECEIVE_SECONDS
from tarry.support.value import Value

if TYPE_CHECKING:
    from tarry.delivery import Delivery
    from tarry.support.arn import QueueArn

# SQS's defaults, where the queue's own may not be read
ASSUMED_VISIBILITY_TIMEOUT_SECONDS = 30
ASSUMED_RETENTION_SECONDS = 4 * 86_400

LOOK_UP_SECONDS = MAX_VISIBILITY_SECONDS
"""Up to this sum of age and wait, a retention that is not known is not guessed."""
MARGIN_SECONDS = 3_600
"""A wait that ends within an hour of the expiry is too long (SPEC C10)."""
MARGIN_SHARE = 1 / 12  # of a retention below 12 hours: there an hour would be most of a message's life


class QueueFacts(Value):
    """The attributes of a source queue that decisions depend on; None where SQS does not tell them, or unset."""

    dead_letter: QueueArn | None = None
    """The dead-letter queue of its redrive policy."""
    max_receive_count: int | None = None
    visibility_timeout: int | None = None
    """In seconds, as is the retention."""
    retention: int | None = None
    error: Exception | None = None
    """Why they are not known, if they could not be looked up."""

    def is_last_delivery(self, delivery: Delivery) -> bool:
        """Whether SQS moves the message to the dead-letter queue, without a failure record, at its next receive."""
        return self.max_receive_count is not None and delivery.receive_count >= self.max_receive_count

    def seconds_left_if_short(self, delivery: Delivery, delay: float, now: float) -> float | None:
        """The seconds until the queue drops the message, if that is before, or soon after, a wait of ``delay`` ends.

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
        """Whether the queue has dropped the message, or is about to, when it has waited ``delay`` seconds in place."""
        return self.seconds_left_if_short(delivery, delay, now) is not None
