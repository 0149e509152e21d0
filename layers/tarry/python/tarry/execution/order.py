"""The order in which the messages of a batch run: redelivered ones, which were delivered before, come last (SPEC G4).

A message that kills its process is a redelivered one from its second delivery on. So the fresh messages have run before
it starts. Each delivery puts the messages redelivered with it in another order, so that they are not always behind it.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tarry.execution.intake import receives

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
    try:  # for a batch of thousands, all of them fresh
        if set(map(_count_of, map(_attributes_of, records.values()))) == {"1"}:
            return iter(records.items()), []
    except (KeyError, TypeError):
        pass  # an odd record: looked at one by one
    return _by_group(records)


def _by_group(records: Records) -> tuple[Iterator[Item], list[list[Item]]]:
    groups: dict[object, list[Item]] = {}
    for item in records.items():
        groups.setdefault(_group_of(item), []).append(item)
    redelivered = [items for items in groups.values() if receives(items[0][1]) > 1]
    if len(redelivered) > 1:
        redelivered.sort(key=_rank)
    ids = {message_id for items in redelivered for message_id, _ in items}
    return iter([item for item in records.items() if item[0] not in ids]), redelivered


def _group_of(item: Item) -> object:
    """A key of its FIFO group, or of the message itself on a standard queue, where a group id means no order."""
    message_id, record = item
    source = record.get("eventSourceARN")
    if not isinstance(source, str) or not source.endswith(".fifo"):
        return message_id
    attributes = record.get("attributes")
    group = attributes.get("MessageGroupId") if isinstance(attributes, dict) else None
    return source, group if isinstance(group, str) else None


def _rank(items: list[Item]) -> tuple[int, bytes]:
    """Fewest deliveries first; equals in an order that changes with each delivery."""
    from hashlib import sha256

    message_id, record = items[0]
    count = receives(record)
    return count, sha256(f"{message_id} {count}".encode("utf-8", "surrogatepass")).digest()
