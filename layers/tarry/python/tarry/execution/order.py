"""The order in which the messages of a batch run: redelivered messages come last (SPEC G4).

From its second delivery on, a message that kills the process is redelivered. So all fresh messages have run before it
starts. Redelivered messages run in another order at each delivery, so that the same ones are not always behind it.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tarry.execution.intake import receives
from tarry.support.fifo import group_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.execution.intake import Records

_attributes_of, _count_of = itemgetter("attributes"), itemgetter("ApproximateReceiveCount")

Item = tuple[str, dict[str, Any]]
"""A message id and its record."""


def fresh_first(records: Records) -> tuple[Iterator[Item], list[list[Item]]]:
    """Return the fresh messages, in the order of the batch, and the redelivered ones, which run after them, in groups.

    On a standard queue each redelivered message is a group. On FIFO a whole group is redelivered if its first message
    here is; it keeps its order.
    """
    try:  # the fast path for thousands of fresh messages
        if set(map(_count_of, map(_attributes_of, records.values()))) == {"1"}:
            return iter(records.items()), []
    except (KeyError, TypeError):
        pass  # an incomplete record: check the records one by one
    return _by_group(records)


def _by_group(records: Records) -> tuple[Iterator[Item], list[list[Item]]]:
    groups: dict[object, list[Item]] = {}
    for item in records.items():
        groups.setdefault(group_of(item[1]) or item[0], []).append(item)
    redelivered = [items for items in groups.values() if receives(items[0][1]) > 1]
    if len(redelivered) > 1:
        redelivered.sort(key=_rank)
    ids = {message_id for items in redelivered for message_id, _ in items}
    return iter([item for item in records.items() if item[0] not in ids]), redelivered


def _rank(items: list[Item]) -> tuple[int, bytes]:
    """Return a sort key: fewest deliveries first; equal counts in an order that changes with each delivery."""
    from hashlib import sha256

    message_id, record = items[0]
    count = receives(record)
    return count, sha256(f"{message_id} {count}".encode("utf-8", "surrogatepass")).digest()
