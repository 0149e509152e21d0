"""The protocol of attempt stores. A store has one record for each message that failed, was deferred or released.

A record is a dict of JSON values, with these keys; only ``deliveries`` is always there:

    runs             the receive counts of the deliveries whose runs count as attempts, as a list
    deliveries       the receive counts of all deliveries that left a trace: ``runs``, deferrals, releases
    queue, message   the name of the queue, and the message's stable id
    state            see `State`; ``COMMITTED``, ``DEAD_LETTERED``, ``DISCARDED`` and ``RESENT`` end a message
    attempt          the attempt of the last delivery
    failure          the last failure, as the failure record of a dead letter has it, without a traceback
    history          the first failure and the last nine
    next_try         when the message is visible again, in epoch seconds
    closed           the receive count of the delivery that ended the message
    expires          when the record can be deleted, in epoch seconds: after the queue deletes the message
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tarry.support.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol
else:
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
    kind: Literal["run", "seen", "end"]
    """Whether the delivery was an attempt that failed, was not an attempt, or ended the message."""
    fields: Mapping[str, Any]
    """The keys of the record to set."""

    def applied_to(self, record: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the record after this change, from the one before (None if there is none); None to write nothing.

        For stores of your own: read, apply and write in one transaction. A change is void if a later delivery has
        ended the message.
        """
        if record is None and self.kind == "end":
            return None
        before = dict(record or {})
        if before.get("closed", 0) >= self.receive_count:
            return None
        number = {self.receive_count}
        after = {**before, **self.fields, "deliveries": sorted(number.union(before.get("deliveries", ())))}
        if self.kind == "run":
            after["runs"] = sorted(number.union(before.get("runs", ())))
        if self.kind == "end":
            after = {name: value for name, value in after.items() if name not in OF_OPEN_MESSAGES}
            after["closed"] = self.receive_count
        return after


class AttemptStore(Protocol):
    """A store for ``attempts=``, such as `DynamoDBAttempts`. tarry calls it from several threads at once.

    Whatever it raises, and if it takes longer than half a second, receive counts serve instead.
    """

    def read(self, ids: Sequence[str], /) -> Mapping[str, Mapping[str, Any]]:
        """Return the records with these ids, at most 100, as last written; an id without a record is left out."""

    def write(self, changes: Sequence[AttemptChange], /) -> None:
        """Apply changes (`AttemptChange.applied_to`), at most 25, of different records."""
