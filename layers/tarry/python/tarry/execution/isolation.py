"""Isolation: redelivered messages run last, each with a visibility of its own (SPEC G4).

A message that kills its process is among them. Before the first of them starts, acknowledged messages are deleted, and
the redelivered ones get visibilities that end one after the other (on FIFO group by group, when their leases are
renewed: `tarry.visibility.renewal`). After a crash they come back one by one, and the one that crashes comes back
alone: it takes no other message with it to the dead-letter queue.
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
from tarry.telemetry.logs import INFO, WARNING
from tarry.visibility.changes import extend_leases, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.delivery import Delivery
    from tarry.execution.order import Item
    from tarry.execution.run import Run

SHARE = 0.1
"""Of the time left, for isolating them."""

IF_LOST = "Unless its handler succeeds, it is only reported as failed."
NOT_ISOLATED = "Redelivered messages could not be isolated. If the process dies, they come back together."


class Isolation:
    """The redelivered messages of one batch. ``groups`` run in their order, and each comes back by itself."""

    def __init__(self, groups: Sequence[Sequence[Item]], run: Run) -> None:
        self._run = run
        self._left = {message_id: record for items in groups for message_id, record in items}
        self._deliveries = {message_id: receives(items[0][1]) for items in groups for message_id, _ in items}
        """How often each was delivered; on FIFO, how often the first one of its group here was."""
        self._left_with = Counter(self._deliveries.values())
        """How many are left with each number of deliveries."""
        self._deletes = MAX_ENTRIES, MAX_ENTRIES
        """After how many of them acknowledged messages are deleted, the first time and from then on."""
        self._started = 0
        self.is_done = len(run.records) == 1 or run.invocation.deadline == math.inf
        """Whether `isolate` was called, or has nothing to do."""
        self.has_whole_batch = len(self._left) == len(run.records)
        """Whether no message runs before them."""

    def __contains__(self, message_id: str) -> bool:
        """Whether a message is one of them that has not started."""
        return message_id in self._left

    def waiting_behind(self, message_id: str) -> int:
        """How many messages with more deliveries wait behind a message: if time is short, it gives way to them.

        Otherwise they, last in the order, would be released at each delivery until they reach maxReceiveCount.
        """
        own = self._deliveries.get(message_id, 0)
        return sum(left for count, left in self._left_with.items() if count > own)

    def remove(self, message_id: str) -> None:
        """Remove a message that starts, or is released."""
        del self._left[message_id]
        self._left_with[self._deliveries[message_id]] -= 1

    def isolate(self) -> None:
        """Delete acknowledged messages, and have the others come back one by one, from beyond the deadline on."""
        self.is_done = True
        run, invocation = self._run, self._run.invocation
        beyond = invocation.time_left() + run.deadline.margin
        acks = invocation.acks
        if acks is None:
            acks = invocation.acks = Acks(invocation, run.handling.log, waits=not run.handling.is_async)
        done = [self._delivery(*item) for item in run.records.items() if item[0] not in run.pending]
        left = [self._delivery(*item) for item in self._left.items()]
        on_standard = [delivery for delivery in left if not delivery.source.is_fifo]
        if len(on_standard) < len(left):
            self._deletes = deletes_on_fifo(len(done), len(left), left[0].receive_count)
        sqs_answers = acks.delete_now(done)
        if sqs_answers and len(on_standard) > 1:
            self._spread(on_standard, beyond)

    def start(self, delivery: Delivery) -> None:
        """Log that one of them starts: if the process dies now, this is its last line."""
        self.remove(delivery.delivery_id)
        first, others = self._deletes
        if (acks := self._run.invocation.acks) is not None:  # after the last one Lambda deletes them as soon
            acks.together = MAX_ENTRIES if not self._left else first if self._started < first else others
        self._started += 1
        count = delivery.receive_count
        text = f"Delivery {count} of the message starts. If the process dies now, this message killed it."
        self._run.handling.log.problem("suspect_started", text, delivery, level=INFO, receive_count=count)

    def _delivery(self, delivery_id: str, record: dict[str, Any]) -> Delivery:
        return self._run.invocation.delivery(delivery_id, record)

    def _spread(self, deliveries: Sequence[Delivery], beyond: float) -> None:
        requests, log = Requests(self._run.invocation), self._run.handling.log
        try:
            apart = spread([[delivery] for delivery in deliveries], beyond)
            held = extend_leases(apart, Lookups(requests, log), log, SHARE, IF_LOST)
        finally:
            requests.close()  # a late one would undo what is decided of them from now on
        errors = {str(each.error): each.error for each in held if each.error is not None and not each.is_lost}
        for error in errors.values():
            if not is_denied(error_code(error)):
                log.problem("not_set_apart", NOT_ISOLATED, error=error, level=WARNING)


def deletes_on_fifo(done: int, left: int, receive_count: int) -> tuple[int, int]:
    """After how many redelivered messages of a FIFO batch acknowledged ones are deleted: first, and from then on.

    A message that is done comes back with its group if a later one of the group crashes, and would run each time until
    it reaches maxReceiveCount. So they are deleted meanwhile, with as many requests as isolating them would take, and
    at other places each time.
    """
    requests = _tens(done + left) + _tens(left) - _tens(done)
    every = min(MAX_ENTRIES, math.ceil(left / requests))
    return 1 + receive_count % every, every


def _tens(count: int) -> int:
    return -(-count // MAX_ENTRIES)
