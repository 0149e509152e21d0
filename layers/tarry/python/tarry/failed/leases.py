"""The leases of an inspection: the dead letters in flight, extended in a thread, released at the end.

Of each dead letter it keeps the receipt handle, not the body, so the memory of a scan does not grow with the size of
the messages.

A lease is extended once a third of it has passed, those that end first before others. With more leases than can be
extended in time, some end: those dead letters are visible again, and are received again or reported. Dead letters that
wait to be sent or deleted are extended first.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tarry.failed.requests import LOG, PatientRequests
from tarry.message.delivery import Delivery
from tarry.settle.requests import VisibilityChange, change_visibility
from tarry.sqs.client import MAX_PARALLEL, Lookups
from tarry.sqs.refusals import MAX_ENTRIES, is_stale_handle
from tarry.support.values import WARNING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tarry.support.values import QueueArn
    from tarry.world import Event, Thread, World

INTERVALS = 3
"""A visibility timeout lasts at least this many keepalive intervals, and is extended after the first, so that
extensions can fail for an interval or more.
"""
LOOKS = 5
"""How often in an interval it is checked which leases are to be extended."""
MESSAGES_PER_SECOND = 50
"""Timeouts get longer with more messages in flight, so that about this many (five requests) for each interval of a
timeout are extended a second.
"""
LOOKED_AT_ONCE = 500
"""The number of messages that are extended before it is checked again which end first."""
EXTENDED_AT_ONCE = MAX_ENTRIES * MAX_PARALLEL
"""The number of messages that are extended together, in parallel requests that are sent at once."""
RELEASED_AT_ONCE = 1_000
"""The number of messages that are released together, in parallel requests."""


class Lease(NamedTuple):
    """The receipt handle of a dead letter, and when its visibility timeout is to be extended, and ends (epoch s)."""

    handle: str
    due_at: float
    until: float


def lease_of(handle: str, since: float, seconds: int) -> Lease:
    """Return a lease of this length, to be extended once a third has passed."""
    return Lease(handle, since + seconds / INTERVALS, since + seconds)


class Leases:
    """The dead letters of one queue that are in flight, by delivery id.

    ``keepalive`` and ``longest`` are those of `tarry.failed.opened`.
    """

    def __init__(self, queue: QueueArn, lookups: Lookups, keepalive: float, longest: float, world: World) -> None:
        self.not_released = 0
        """The number of dead letters that were not released: they become visible when their visibility timeout ends."""
        self.released = 0
        """The number of dead letters that the last release made visible again."""
        self.lost = 0
        """How many leases have ended before they were extended; a dead letter can be received again, and lost again."""
        self.every = min(keepalive, longest / INTERVALS)
        """The interval in seconds."""
        self._queue = queue
        self._lookups = lookups
        self._single = PatientRequests(tries=1)  # a throttled extension is repeated at the next look
        self._extending = Lookups(self._single, LOG)
        self._longest = max(1, math.floor(longest))
        self._world = world
        self._lock = threading.Lock()
        self._held: dict[str, Lease] = {}
        self._chosen: set[str] = set()
        self._ended: set[str] = set()
        self._releasing: set[str] = set()
        self._ids: dict[str, str] = {}
        self._deleting: set[str] = set()
        self._unsure: set[str] = set()
        self._closing: Event | None = None
        self._thread: Thread | None = None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def requests(self) -> int:
        """The number of requests that extended leases before their ends."""
        return self._single.made

    def seconds(self) -> int:
        """Return the visibility timeout to ask for."""
        seconds = max(self.every * INTERVALS, len(self._held) / MESSAGES_PER_SECOND)
        return min(self._longest, math.ceil(seconds))

    def add(self, delivery_id: str, handle: str, since: float, seconds: int) -> None:
        with self._lock:
            self._ended.discard(delivery_id)
            before = self._held.get(delivery_id)
            self.lost += before is not None and before.until <= self._world.clock.time()
            self._held[delivery_id] = lease_of(handle, since, seconds)

    def choose(self, delivery_id: str) -> None:
        """Extend this dead letter before others: it is about to be sent or deleted."""
        self._chosen.add(delivery_id)

    def handle(self, delivery_id: str) -> str | None:
        """Return the last receipt handle, extending a lease that ends soon; None if the lease is lost."""
        self.choose(delivery_id)
        lease = self._held.get(delivery_id)
        if lease is not None and lease.until - self._world.clock.time() < self.every:
            self._extend({delivery_id: lease}, self._lookups)
            lease = self._held.get(delivery_id)
        if lease is None or lease.until <= self._world.clock.time():
            return None
        self._ids[lease.handle] = delivery_id
        return lease.handle

    def is_unsure(self, delivery_id: str) -> bool:
        """Whether a delete may have been carried out: SQS did not answer it, or the lease had ended before it."""
        return delivery_id in self._unsure

    def begin_delete(self, handles: Iterable[str]) -> set[str]:
        """Extend these dead letters no more, since SQS refuses to extend a deleted one; return the handles that last.

        With the receipt handle of a lease that has ended, SQS answers a delete as if it had deleted the message.
        """
        with self._lock:
            self._deleting.update(handles)
            leases = {each: self._held.get(self._ids.get(each, "")) for each in handles}
            now = self._world.clock.time()
            return {each for each, lease in leases.items() if lease and lease.handle == each and lease.until > now}

    def end_delete(self, handles: Iterable[str], lasted: Collection[str], refused: Collection[str]) -> None:
        """Record the answer of a delete.

        ``lasted``: those that SQS says it deleted, and that lasted when it was asked. ``refused``: those that it says
        it did not delete.
        """
        with self._lock:
            for handle in handles:
                delivery_id = self._ids.get(handle)
                lease = None if delivery_id is None else self._held.get(delivery_id)
                if delivery_id is not None and handle in lasted and lease is not None and lease.handle == handle:
                    self._unsure.discard(delivery_id)  # it is deleted; the caller forgets it
                    continue
                self._deleting.discard(handle)
                if delivery_id is not None and handle not in refused:
                    self._unsure.add(delivery_id)

    def forget(self, delivery_ids: Iterable[str]) -> int:
        """Forget deleted dead letters, which need no release; return how many were held."""
        held = 0
        with self._lock:
            for delivery_id in delivery_ids:
                lease = self._held.pop(delivery_id, None)
                self._chosen.discard(delivery_id)
                self._unsure.discard(delivery_id)
                if lease is not None:
                    held += 1
                    self._ids.pop(lease.handle, None)
                    self._deleting.discard(lease.handle)
        return held

    def release(self, keep: Collection[str] = ()) -> Iterator[str]:
        """Release all dead letters but those in ``keep``, counting the failures.

        Yield the delivery id of each, and of those that have become visible themselves.
        """
        self.released = 0
        was_open = self._thread is not None
        self.close()  # an extension that is sent later would undo a release
        self._releasing = {delivery_id for delivery_id in self._held if delivery_id not in keep}
        if was_open:
            self.open()
        held = list(self._releasing)
        for start in range(0, len(held), RELEASED_AT_ONCE):
            now = self._world.clock.time()
            some = {each: lease for each in held[start : start + RELEASED_AT_ONCE] if (lease := self._held.get(each))}
            for delivery_id in [each for each, lease in some.items() if lease.until <= now]:
                del some[delivery_id]  # it is visible already
                self.forget([delivery_id])
                yield delivery_id
            changes = [self._change(delivery_id, lease, 0) for delivery_id, lease in some.items()]
            for changed in change_visibility(changes, self._lookups):
                delivery_id = changed.change.delivery.delivery_id
                self.forget([delivery_id])
                self.released += changed.error is None
                self.not_released += changed.error is not None and not is_stale_handle(changed.error)
                yield delivery_id
        self._releasing = set()
        for delivery_id in self._ended.copy().difference(keep):
            self._ended.discard(delivery_id)
            yield delivery_id

    def _change(self, delivery_id: str, lease: Lease, seconds: int) -> VisibilityChange:
        record = {"messageId": delivery_id, "receiptHandle": lease.handle, "eventSourceARN": self._queue.text}
        return VisibilityChange(Delivery(record, delivery_id, self._lookups.requests.invocation), seconds)

    def _lose(self, delivery_id: str, lease: Lease) -> None:
        with self._lock:
            if lease.handle in self._deleting:
                return  # SQS refuses it because it is deleted
            if self._held.get(delivery_id) is lease:  # not deleted, released or received again in the meantime
                del self._held[delivery_id]
                self._ended.add(delivery_id)
                self.lost += 1

    # the thread that extends

    def open(self) -> None:
        self._closing = self._world.threads.event()
        self._thread = self._world.threads.start(partial(self._keep_alive, self._closing))

    def close(self) -> None:
        """Stop extending, and wait for the current request: a later extension would undo a release."""
        if self._closing is not None and self._thread is not None:
            self._closing.set()
            self._thread.join()
        self._closing = self._thread = None

    def _keep_alive(self, closing: Event) -> None:
        are_more_due = False
        while not closing.wait(0 if are_more_due else self.every / LOOKS):
            try:
                due = self._due()
                are_more_due = self._extend(due, self._extending) > 0 and len(due) == LOOKED_AT_ONCE
            except Exception as error:  # noqa: BLE001 the thread goes on after an error
                are_more_due = False
                LOG.problem("runtime_failed", "visibility of dead letters not extended", error=error, level=WARNING)

    def _due(self) -> dict[str, Lease]:
        """Forget leases that have ended; return those to extend next: chosen ones, then those that end first."""
        now, held = self._world.clock.time(), self._held.copy()  # other threads add and remove meanwhile
        ending = []
        for delivery_id, lease in held.items():
            if lease.due_at > now or delivery_id in self._releasing or lease.handle in self._deleting:
                continue
            if lease.until > now:
                ending.append(delivery_id)
            else:
                self._lose(delivery_id, lease)
        ending.sort(key=lambda each: (each not in self._chosen, held[each].until))
        return {each: held[each] for each in ending[:LOOKED_AT_ONCE]}

    def _extend(self, due: dict[str, Lease], lookups: Lookups) -> int:
        """Extend leases, and forget those that have ended; return how many were extended."""
        todo, extended = list(due), 0
        for start in range(0, len(todo), EXTENDED_AT_ONCE):
            seconds, asked_at, changes = self.seconds(), self._world.clock.time(), []
            for delivery_id in todo[start : start + EXTENDED_AT_ONCE]:
                lease = due[delivery_id]
                if lease.until <= asked_at:
                    self._lose(delivery_id, lease)
                elif self._held.get(delivery_id) is lease and lease.handle not in self._deleting:
                    changes.append(self._change(delivery_id, lease, seconds))
            for changed in change_visibility(changes, lookups):
                delivery_id = changed.change.delivery.delivery_id
                lease = due[delivery_id]
                if changed.error is None:
                    extended += 1
                    with self._lock:
                        if self._held.get(delivery_id) is lease:
                            self._held[delivery_id] = lease_of(lease.handle, asked_at, changed.change.seconds)
                elif changed.is_lost:
                    self._lose(delivery_id, lease)
        return extended
