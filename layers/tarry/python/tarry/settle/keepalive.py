"""``keepalive=``: extending leases while handlers run, however short the visibility timeout is (SPEC I4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tarry.message.notices import WARNING
from tarry.settle.eager_acks import Acks
from tarry.settle.visibility import VisibilityChange, extend_leases, lease_end, lose_lease, prolongation
from tarry.sqs.client import Requests
from tarry.sqs.lookups import Lookups

if TYPE_CHECKING:
    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation, Records
    from tarry.observe.logs import Log
    from tarry.support.values import QueueArn
    from tarry.world import Thread

INTERVALS = 3
"""The length of an extension, in intervals: two extensions may fail before the lease ends."""
PATIENCE_SECONDS = 2.0
"""How long the end of a run waits for an extension in progress."""
SHARE = 0.1
"""The share of the time left for the same wait."""

IF_LOST = "Unless its handler succeeds, it is only reported as failed."


class Keepalive:
    """The thread that extends the leases of a batch at a fixed interval.

    ``pending`` has the messages that run, wait for their turn, or have failed and are not settled. A message that has
    left it is acknowledged: it is deleted, since it would otherwise come back before the response.
    """

    def __init__(self, every: float, pending: Records, invocation: Invocation, log: Log) -> None:
        self._every = every
        self._pending = pending
        self._batch = pending.copy()
        self._invocation = invocation
        self._log = log
        self._requests = Requests(invocation)
        self._lookups = Lookups(self._requests, log)
        self._acks = Acks(invocation, log, waits=False)
        self._ended = invocation.world.threads.event()
        self._idle = invocation.keepalive_idle = invocation.world.threads.event()
        self._idle.set()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread; the first extension follows after one interval."""
        try:
            self._thread = self._invocation.world.threads.start(self._work)
        except RuntimeError:  # the process may have no more threads
            self._log.problem(
                "not_kept_alive",
                "No thread could be started for keepalive=, so the leases of this batch are not extended.",
                level=WARNING,
            )

    def stop(self) -> None:
        """Stop the thread and its requests: a later extension would undo the visibility that a decision asked for."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(min(PATIENCE_SECONDS, max(0.0, self._invocation.time_left() * SHARE)))
        self._requests.close()
        self._acks.close()

    # in its own thread

    def _work(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self._idle.clear()
                pending = self._pending.copy()
                self._extend([self._delivery(*item) for item in pending.items()])
                self._acks.delete_now(self._delivery(*item) for item in self._batch.items() if item[0] not in pending)
            except Exception as error:  # noqa: BLE001 a defect of tarry must not end the thread
                self._log.problem(
                    "runtime_failed",
                    "tarry itself failed to extend leases. It tries again after the interval.",
                    error=error,
                )
            finally:
                self._idle.set()

    def _delivery(self, delivery_id: str, record: dict[str, Any]) -> Delivery:
        return self._invocation.delivery(delivery_id, record)

    def _extend(self, deliveries: list[Delivery]) -> None:
        active = [each for each in deliveries if not (each.is_given_up or each.is_lost)]
        self._find_ends(active)
        changes = [change for delivery in active if (change := self._extension(delivery)) is not None]
        time_left = self._invocation.time_left()
        share = 1.0 if time_left == math.inf else min(1.0, self._every / max(time_left, self._every))
        for result in extend_leases(changes, self._lookups, self._log, share, IF_LOST):
            delivery, error = result.change.delivery, result.error
            if error is not None and not result.is_lost and self._is_over(delivery):
                lose_lease(delivery)
                text = (
                    f"The lease could not be extended and has ended: another consumer may have the message. {IF_LOST}"
                )
                self._log.problem("lease_lost", text, delivery, error=error, level=WARNING)

    def _extension(self, delivery: Delivery) -> VisibilityChange | None:
        """Return the change that extends a lease; None if SQS allows no longer one.

        While the handler extends it, the later of two requests would decide, perhaps the shorter one. So it is left to
        the handler's request, unless the lease ends before the next interval.
        """
        end = delivery.visible_at
        if delivery.is_being_extended and (end is None or end - self._invocation.now() > self._every):
            return None
        change = prolongation(delivery, self._every * INTERVALS, end)
        return change if change.seconds > 0 else None

    def _is_over(self, delivery: Delivery) -> bool:
        """Return whether the lease of a pending message has ended; one that is being settled is not checked."""
        is_ours = delivery.delivery_id in self._pending and not delivery.is_given_up
        return is_ours and delivery.visible_at is not None and delivery.visible_at <= self._invocation.now()

    def _find_ends(self, deliveries: list[Delivery]) -> None:
        """Note when the lease of each delivery ends, if the queue's visibility timeout is known."""
        for delivery in deliveries:
            if (end := lease_end(delivery, self._visibility_timeout(delivery.source))) is not None:
                delivery.visible_at = end

    def _visibility_timeout(self, queue: QueueArn) -> int | None:
        timeout = self._lookups.source(queue).visibility_timeout
        if timeout is not None and self._every >= timeout:
            text = (
                f"keepalive={self._every:g} is too long: the visibility timeout of {queue.name} is {timeout} s. "
                f"Set keepalive={max(1, timeout // INTERVALS)}, or a longer VisibilityTimeout."
            )
            self._log.once(self._invocation.world, "keepalive_too_long", text)
        return timeout
