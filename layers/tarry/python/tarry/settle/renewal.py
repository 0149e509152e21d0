"""FIFO: renewing leases before anything runs, if they may be about to end (SPEC H4).

SQS keeps the order of a group only as long as the lease: a message whose lease has ended is delivered again and would
run twice at the same time. Redelivered groups each get a visibility timeout of their own, so that after a crash they
come back one by one and the group that crashes comes back alone (SPEC G4).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tarry.support.delays import epoch_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation, Records
    from tarry.observe.logs import Log

FRESH_SECONDS = 10
"""A lease this old, or younger, needs no renewal."""
SHARE = 0.1
"""The share of the time left for renewing."""

IF_LOST = "Its FIFO group does not run here, and is only reported as failed."


def renew(
    records: Records,
    invocation: Invocation,
    margin: float,
    log: Log,
    one_by_one: Sequence[Sequence[tuple[str, object]]] = (),
) -> None:
    """Renew the leases of a batch until after the deadline, if one of them may be about to end.

    ``one_by_one``: the groups that are to become visible one after the other.
    """
    if invocation.deadline == math.inf or _were_just_received(records, invocation):
        return
    deliveries = [invocation.delivery(delivery_id, record) for delivery_id, record in records.items()]
    on_fifo = [delivery for delivery in deliveries if delivery.source.is_fifo]
    if not any(_may_end_soon(each, invocation.started_at) for each in on_fifo):
        return
    from tarry.settle.visibility import extend_leases, extension, spread
    from tarry.sqs.client import Requests
    from tarry.sqs.lookups import Lookups

    beyond = invocation.time_left() + margin
    by_id = {each.delivery_id: each for each in on_fifo}
    groups = [[by_id.pop(message_id) for message_id, _ in group if message_id in by_id] for group in one_by_one]
    changes = [*(extension(each, beyond) for each in by_id.values()), *spread(groups, beyond)]
    requests = Requests(invocation)
    try:
        possible = [change for change in changes if change.delivery.receipt_handle]
        extend_leases(possible, Lookups(requests, log), log, SHARE, IF_LOST)
    finally:
        requests.close()  # a late renewal would undo the visibility that a decision asks for


def _were_just_received(records: Records, invocation: Invocation) -> bool:
    """Return whether no lease may end soon, as in most batches: none of their messages needs an object."""
    if not invocation.are_plain:
        return False
    try:
        received = {record["attributes"]["ApproximateFirstReceiveTimestamp"] for record in records.values()}
    except (KeyError, TypeError):
        return False  # an incomplete record
    latest = invocation.started_at - FRESH_SECONDS
    return all((at := epoch_seconds(text)) is not None and at >= latest for text in received)


def _may_end_soon(delivery: Delivery, invoked_at: float) -> bool:
    """Return whether a lease may end soon; an event record has only the time of the first receive."""
    received_at = delivery.first_received_at
    return delivery.receive_count > 1 or received_at is None or invoked_at - received_at > FRESH_SECONDS
