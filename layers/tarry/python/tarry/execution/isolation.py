"""The messages of a batch that were delivered before: one that kills the process is among them (SPEC G4).

Before the first of them starts, what is done is made certain, and they are set apart from each other (on FIFO group by
group, when their leases are renewed: `tarry.visibility.renewal`): after a crash they come back one by one, and the one
that crashes comes back alone. So it takes nobody with it to the dead-letter queue.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from tarry.execution.intake import receives
from tarry.sqs.acks import Acks
from tarry.sqs.client import Requests
from tarry.sqs.limits import MAX_ENTRIES
from tarry.sqs.lookups import Lookups
from tarry.sqs.refusals import error_code, is_denied
from tarry.telemetry.logs import INFO, WARNING, Log
from tarry.visibility.changes import hold, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.delivery import Delivery
    from tarry.execution.intake import Records
    from tarry.execution.order import Item
    from tarry.invocation import Invocation

SHARE = 0.1
"""Of the time left, for setting them apart."""

IF_LOST = "unless it succeeds, it is only reported as failed"
NOT_SET_APART = "messages that were delivered before could not be set apart: after a crash they come back together"


class Suspects:
    """The suspects of one batch, which run last. ``batch`` is all of it, as it was when it began."""

    def __init__(self, suspects: Sequence[Sequence[Item]], batch: Records, invocation: Invocation, log: Log) -> None:
        self._batch = batch
        self._left = {message_id: record for items in suspects for message_id, record in items}
        self._deliveries = {message_id: receives(items[0][1]) for items in suspects for message_id, _ in items}
        """How often each was delivered; on FIFO, how often the first one of its group here was."""
        self._left_with = Counter(self._deliveries.values())
        """How many are left with so many deliveries."""
        self._invocation = invocation
        self._log = log
        self._deletes = MAX_ENTRIES, MAX_ENTRIES
        """After how many of them what is acknowledged is deleted, the first time and from then on."""
        self._started = 0
        self.are_set_apart = len(batch) == 1 or invocation.deadline == math.inf
        """Whether there is nothing more to send: they have been, or there is nobody to be set apart from."""
        self.are_all = len(self._left) == len(batch)
        """Whether nothing runs before them."""

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._left

    def waiting_behind(self, message_id: str) -> int:
        """How many wait behind a message that gives way to them when time is short: those with more deliveries.

        Else they would be given back at each delivery, as the last in the order, until SQS has no more of them.
        """
        own = self._deliveries.get(message_id, 0)
        return sum(left for count, left in self._left_with.items() if count > own)

    def leaves(self, message_id: str) -> None:
        """One is started, or there is no time for it."""
        del self._left[message_id]
        self._left_with[self._deliveries[message_id]] -= 1

    def set_apart(self, pending: Records, beyond: float, *, waits: bool) -> None:
        """Deletes what is acknowledged, and has those that are left come back one by one, from ``beyond`` seconds on.

        ``pending`` is what is not done. ``waits``: as for `Acks`.
        """
        self.are_set_apart = True
        invocation, log = self._invocation, self._log
        acks = invocation.acks
        if acks is None:
            acks = invocation.acks = Acks(invocation, log, waits=waits)
        done = [self._delivery(*item) for item in self._batch.items() if item[0] not in pending]
        left = [self._delivery(*item) for item in self._left.items()]
        on_standard = [delivery for delivery in left if not delivery.source.is_fifo]
        if len(on_standard) < len(left):
            self._deletes = deletes_on_fifo(len(done), len(left), left[0].receive_count)
        sqs_answers = acks.delete_now(done)
        if sqs_answers and len(on_standard) > 1:
            self._spread(on_standard, beyond)

    def starts(self, delivery: Delivery) -> None:
        """Names it in the log: if the process dies now, this is its last line."""
        self.leaves(delivery.delivery_id)
        first, others = self._deletes
        if (acks := self._invocation.acks) is not None:  # what the last one ends with, Lambda deletes as soon
            acks.together = MAX_ENTRIES if not self._left else first if self._started < first else others
        self._started += 1
        count = delivery.receive_count
        text = f"delivered {count} times: if the process dies now, it is this message that killed it"
        self._log.problem("suspect_started", text, delivery, level=INFO, receive_count=count)

    def _delivery(self, delivery_id: str, record: dict[str, Any]) -> Delivery:
        return self._invocation.delivery(delivery_id, record)

    def _spread(self, deliveries: Sequence[Delivery], beyond: float) -> None:
        requests = Requests(self._invocation)
        try:
            apart = spread([[delivery] for delivery in deliveries], beyond)
            hidden = hold(apart, Lookups(requests, self._log), self._log, SHARE, IF_LOST)
        finally:
            requests.close()  # what is late would undo what is decided of them from now on
        errors = {str(each.error): each.error for each in hidden if each.error is not None and not each.is_lost}
        for error in errors.values():
            if not is_denied(error_code(error)):
                self._log.problem("not_set_apart", NOT_SET_APART, error=error, level=WARNING)


def deletes_on_fifo(done: int, left: int, receive_count: int) -> tuple[int, int]:
    """After how many suspects of a FIFO batch what is acknowledged is deleted: the first time, and from then on.

    What is done comes back with its group if that crashes later, and would run each time, until SQS has no more of it.
    So it is deleted as they go, with the requests that setting them apart would take, and at other places each time.
    """
    requests = _tens(done + left) + _tens(left) - _tens(done)
    every = min(MAX_ENTRIES, math.ceil(left / requests))
    return 1 + receive_count % every, every


def _tens(count: int) -> int:
    return -(-count // MAX_ENTRIES)
