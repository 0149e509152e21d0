"""The lease on a delivery: until when its message stays invisible to others, and when that right is lost (SPEC E6).

A lease is lost when SQS refuses its receipt handle, or when its known end has passed: another consumer may have the
message by now. tarry makes no further request for such a message. If its handler succeeded, it is still acknowledged;
otherwise it is only reported as failed. On FIFO no further message of its group runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.delivery import Delivery
    from tarry.invocation import Invocation

PATIENCE_SECONDS = 2.0
"""How long a request waits for an extension by ``keepalive`` that is in progress."""


def lose_lease(delivery: Delivery) -> None:
    """Note that the lease on a delivery is lost."""
    delivery.is_lost = True
    if delivery.source.is_fifo:
        vars(delivery.invocation).setdefault("lost_groups", set()).add(delivery.group)  # any thread may call this


def is_stopped_by_lost_lease(delivery: Delivery) -> bool:
    """Return whether a message must not run here: on FIFO, if a lease of its group is lost."""
    lost = delivery.invocation.lost_groups
    return bool(lost) and delivery.group in lost


def lease_end(delivery: Delivery, visibility_timeout: int | None) -> float | None:
    """Return when the lease on a delivery ends, in epoch seconds; None if that is not known.

    ``visibility_timeout`` is the queue's, in seconds. A lease begins at its receive; an event record has only the time
    of the first receive.
    """
    if delivery.visible_at is not None or visibility_timeout is None:
        return delivery.visible_at
    started_at, received_at = delivery.invocation.started_at, delivery.received_at
    if received_at is None or started_at >= received_at + visibility_timeout:
        # The receive is not known, or Lambda keeps the messages invisible for longer: with a batching window for the
        # window, the function's timeout and 30 s. (Or it is a sample event, received long ago.)
        received_at = started_at
    return min(started_at, received_at) + visibility_timeout


def await_keepalive(invocation: Invocation) -> None:
    """Wait for an extension by ``keepalive`` in progress: reaching SQS after the next request, it would undo that."""
    if (idle := invocation.keepalive_idle) is not None:
        idle.wait(PATIENCE_SECONDS)
