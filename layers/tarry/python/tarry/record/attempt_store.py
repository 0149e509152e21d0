"""The protocol of attempt stores. A store has one record for each message that failed, was deferred or released.

A record is a dict of JSON values. Its first three keys are lists of receive counts. Any key can be missing:

    runs             the deliveries whose runs failed or crashed: attempts
    deliveries       all deliveries that left a trace when they ended: ``runs``, deferrals, releases
    started          on FIFO, redelivered messages, written before their handler ran; those that are not in
                     ``deliveries`` have crashed, and are attempts too
    queue, message   the name of the queue, and the message's stable id
    state            see `State`; ``COMMITTED``, ``DEAD_LETTERED``, ``DISCARDED`` and ``RESENT`` end a message
    attempt          the attempt of the last delivery
    failure          the last failure, as the failure record of a dead letter has it, without a traceback
    history          the first failure and the last nine
    next_try         when the message is visible again, in epoch seconds
    latest           the receive count of the last delivery that wrote; an earlier one changes only the three lists
    closed           the receive count of the delivery that ended the message
    expires          when the record can be deleted, in epoch seconds: after the queue deletes the message
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal

from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

if not TYPE_CHECKING:
    Protocol = object  # creating a protocol class is slow, and no code needs one at run time


MAX_READS = 100
"""The most ids of one `AttemptStore.read`: as many as a BatchGetItem takes."""
MAX_CHANGES = 25
"""The most changes of one `AttemptStore.write`."""
OF_OPEN_MESSAGES = ("failure", "history", "next_try")
"""The keys that a record has until its message ends."""


class AttemptChange(Value):
    """One change of a record, by one delivery. Made twice, or in another order, changes give the same counts."""

    id: str
    """The key of the record."""
    receive_count: int
    """The receive count of the delivery."""
    kind: Literal["start", "run", "seen", "end"]
    """Whether the handler is about to run; or whether the delivery was an attempt that failed, was not an attempt, or
    ended the message."""
    fields: Mapping[str, Any]
    """The keys of the record to set, unless a later delivery has set them."""
    crashed: tuple[int, ...] = ()
    """The receive counts of earlier deliveries whose runs crashed: they are attempts, like those that failed."""

    @property
    def counts(self) -> dict[str, set[int]]:
        """The receive counts that the change adds to the record, by key."""
        crashed, own = set(self.crashed), {self.receive_count}
        counts = {
            "runs": crashed | own if self.kind == "run" else crashed,
            "deliveries": crashed if self.kind == "start" else crashed | own,
            "started": own if self.kind == "start" else set(),
        }
        return {name: numbers for name, numbers in counts.items() if numbers}

    def applied_to(self, record: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the record after this change, from the one before (None if there is none); None to write nothing.

        For stores of your own: read, apply and write in one transaction. A change is void if a later delivery has
        ended the message; it only adds its `counts` if a later delivery has written.
        """
        if record is None and self.kind == "end":
            return None
        after = dict(record or {})
        if after.get("closed", 0) >= self.receive_count:
            return None
        after |= {name: sorted(numbers.union(after.get(name, ()))) for name, numbers in self.counts.items()}
        if self.kind == "end":
            after = {name: value for name, value in {**after, **self.fields}.items() if name not in OF_OPEN_MESSAGES}
            after["closed"] = self.receive_count
        elif after.get("latest", 0) <= self.receive_count:
            after |= {**self.fields, "latest": self.receive_count}
        return after


class AttemptStore(Protocol):
    """A store for ``attempts=``, such as `DynamoDBAttempts`. tarry calls it from several threads at once.

    Whatever it raises, and if it takes longer than half a second, receive counts serve instead.
    """

    def read(self, ids: Sequence[str], /) -> Mapping[str, Mapping[str, Any]]:
        """Return the records with these ids, at most 100, as last written; an id without a record is left out."""

    def write(self, changes: Sequence[AttemptChange], /) -> None:
        """Apply changes (`AttemptChange.applied_to`), at most 25, of different records."""


class MemoryAttempts:
    """An attempt store in this process, for tests: on Lambda each environment would count for itself."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        """The records by id."""
        self._lock = threading.Lock()

    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """See `AttemptStore.read`."""
        with self._lock:
            return {key: dict(self.records[key]) for key in ids if key in self.records}

    def write(self, changes: Sequence[AttemptChange]) -> None:
        """See `AttemptStore.write`."""
        with self._lock:
            for change in changes:
                if (record := change.applied_to(self.records.get(change.id))) is not None:
                    self.records[change.id] = record
