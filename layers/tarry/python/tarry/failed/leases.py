"""The leases of an inspection: the dead letters in flight, extended in a thread, released at the end.

Of each dead letter it keeps the receipt handle, not the body, so the memory of a scan does not grow with the size of
the messages.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tarry.delay import MAX_VISIBILITY_SECONDS
from tarry.delivery import Delivery
from tarry.failed.requests import LOG
from tarry.sqs.refusals import is_stale_handle
from tarry.telemetry.logs import WARNING
from tarry.visibility.changes import VisibilityChange, change_visibility

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tarry.sqs.lookups import Lookups
    from tarry.support.arn import QueueArn
    from tarry.world import Event, Thread, World

INTERVALS = 3
"""A visibility timeout lasts this many keepalive intervals, so two extensions may fail."""
MESSAGES_PER_SECOND = 50
"""Timeouts get longer with more messages in flight, so that at most this many (five requests) are extended a second."""
RELEASED_AT_ONCE = 1_000
"""The number of messages that are released together, in parallel requests."""


class Lease(NamedTuple):
    """The receipt handle of a dead letter, and when its visibility timeout ends (epoch seconds)."""

    handle: str
    until: float


class Leases:
    """The dead letters of one queue that are in flight, by delivery id."""

    def __init__(self, queue: QueueArn, lookups: Lookups, keepalive: float, world: World) -> None:
        self.not_released = 0
        """The number of dead letters that were not released: they become visible when their visibility timeout ends."""
        self.released = 0
        """The number of dead letters that the last release made visible again."""
        self._queue = queue
        self._lookups = lookups
        self._every = keepalive
        self._world = world
        self._held: dict[str, Lease] = {}
        self._ended: Event | None = None
        self._thread: Thread | None = None

    def __len__(self) -> int:
        return len(self._held)

    def seconds(self) -> int:
        """Return the visibility timeout to ask for."""
        seconds = max(self._every * INTERVALS, len(self._held) / MESSAGES_PER_SECOND)
        return min(MAX_VISIBILITY_SECONDS, math.ceil(seconds))

    def add(self, delivery_id: str, handle: str, until: float) -> None:
        """Record the last receive of a dead letter."""
        self._held[delivery_id] = Lease(handle, until)

    def handle(self, delivery_id: str) -> str | None:
        """Return the last receipt handle, extending a lease that ends soon; None if the lease is lost."""
        lease = self._held.get(delivery_id)
        if lease is not None and lease.until - self._world.clock.time() < self._every:
            self._extend({delivery_id: lease})
            lease = self._held.get(delivery_id)
        return None if lease is None else lease.handle

    def forget(self, delivery_ids: Iterable[str]) -> None:
        """Forget deleted dead letters, which need no release."""
        for delivery_id in delivery_ids:
            self._held.pop(delivery_id, None)

    def release(self, keep: Collection[str] = ()) -> Iterator[str]:
        """Release all dead letters but those in ``keep``, counting the failures; yield the delivery id of each."""
        with self._not_extending():
            self.released = 0
            held = [delivery_id for delivery_id in self._held if delivery_id not in keep]
            for start in range(0, len(held), RELEASED_AT_ONCE):
                some = held[start : start + RELEASED_AT_ONCE]
                changes = [self._change(delivery_id, self._held[delivery_id], 0) for delivery_id in some]
                for changed in change_visibility(changes, self._queue, self._lookups):
                    delivery_id = changed.change.delivery.delivery_id
                    self._held.pop(delivery_id, None)
                    self.released += changed.error is None
                    self.not_released += changed.error is not None and not is_stale_handle(changed.error)
                    yield delivery_id

    def _change(self, delivery_id: str, lease: Lease, seconds: int) -> VisibilityChange:
        record = {"messageId": delivery_id, "receiptHandle": lease.handle, "eventSourceARN": self._queue.text}
        return VisibilityChange(Delivery(record, delivery_id, self._lookups.requests.invocation), seconds)

    # the thread that extends

    def open(self) -> None:
        """Start to extend the visibility timeouts."""
        self._ended = self._world.threads.event()
        self._thread = self._world.threads.start(partial(self._keep_alive, self._ended))

    def close(self) -> None:
        """Stop extending, and wait for the current request: a later extension would undo a release."""
        if self._ended is not None and self._thread is not None:
            self._ended.set()
            self._thread.join()
        self._ended = self._thread = None

    @contextmanager
    def _not_extending(self) -> Iterator[None]:
        was_open = self._thread is not None
        self.close()
        try:
            yield
        finally:
            if was_open:
                self.open()

    def _keep_alive(self, ended: Event) -> None:
        while not ended.wait(self._every):
            try:
                horizon = self._world.clock.time() + self._every * (INTERVALS - 1)
                held = self._held.copy()  # other threads add and remove meanwhile
                self._extend({delivery_id: lease for delivery_id, lease in held.items() if lease.until <= horizon})
            except Exception as error:  # noqa: BLE001 the thread goes on after an error
                LOG.problem("runtime_failed", "visibility of dead letters not extended", error=error, level=WARNING)

    def _extend(self, due: dict[str, Lease]) -> None:
        if not due:
            return
        seconds, asked_at = self.seconds(), self._world.clock.time()
        changes = [self._change(delivery_id, lease, seconds) for delivery_id, lease in due.items()]
        for changed in change_visibility(changes, self._queue, self._lookups):
            delivery_id = changed.change.delivery.delivery_id
            current = self._held.get(delivery_id)
            if current is not due[delivery_id]:
                continue  # deleted, released or received again in the meantime
            if changed.error is None:
                self._held[delivery_id] = Lease(current.handle, asked_at + changed.change.seconds)
            elif changed.is_lost:
                self._held.pop(delivery_id, None)
