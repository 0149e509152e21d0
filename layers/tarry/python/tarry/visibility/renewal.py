"""FIFO: leases are renewed before anything runs, where they may be about to end (SPEC H4).

The order of a group holds as long as the lease does: a message whose lease has ended is delivered again, and would run
here and there at once. Groups that were delivered before get one of their own each, so that after a crash they come
back apart, and the one that crashes alone (SPEC G4).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.delivery import Delivery
    from tarry.execution.intake import Records
    from tarry.execution.order import Item
    from tarry.invocation import Invocation
    from tarry.telemetry.logs import Log

FRESH_SECONDS = 10
"""A lease is taken to be whole for so long after the receive."""
SHARE = 0.1
"""Of the time left, for renewing."""

IF_LOST = "Its FIFO group does not run here, and is only reported as failed."


def renew(
    records: Records, invocation: Invocation, margin: float, log: Log, apart: Sequence[Sequence[Item]] = ()
) -> None:
    """Renews the leases of a batch until beyond the deadline, if one of them may be about to end.

    ``apart``: the groups of it that are to come back one by one.
    """
    deliveries = [invocation.delivery(delivery_id, record) for delivery_id, record in records.items()]
    on_fifo = [delivery for delivery in deliveries if delivery.source.is_fifo]
    if invocation.deadline == math.inf or not any(_may_end_soon(each, invocation.started_at) for each in on_fifo):
        return
    from tarry.sqs.client import Requests
    from tarry.sqs.lookups import Lookups
    from tarry.visibility.changes import hold, spread, until

    beyond = invocation.time_left() + margin
    by_id = {each.delivery_id: each for each in on_fifo}
    groups = [[by_id.pop(message_id) for message_id, _ in group if message_id in by_id] for group in apart]
    hides = [*(until(each, beyond) for each in by_id.values()), *spread(groups, beyond)]
    requests = Requests(invocation)
    try:
        hold([hide for hide in hides if hide.delivery.receipt_handle], Lookups(requests, log), log, SHARE, IF_LOST)
    finally:
        requests.close()  # what is late would undo what is decided of them from now on


def _may_end_soon(delivery: Delivery, invoked_at: float) -> bool:
    """A record says when its first receive was, and nothing of a later one."""
    received_at = delivery.first_received_at
    return delivery.receive_count > 1 or received_at is None or invoked_at - received_at > FRESH_SECONDS
