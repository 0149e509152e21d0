"""The order in which the messages of a batch run: those that were delivered before come last (SPEC G4).

A message that kills its process was delivered before, from its second delivery on. So the fresh ones are through before
it starts, and among those that came back with it, each delivery has another order: it is not always the same ones that
are behind it.
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
    """What runs first, in the order of the batch, and the suspects, which run after it, in what must run in one go.

    On a standard queue the messages that were delivered before are suspects. On FIFO they are whole groups, by their
    first message here, and keep the order within.
    """
    try:  # for a batch of thousands, all of them fresh
        if set(map(_count_of, map(_attributes_of, records.values()))) == {"1"}:
            return iter(records.items()), []
    except (KeyError, TypeError):
        pass  # an odd record: looked at one by one
    return _apart(records)


def _apart(records: Records) -> tuple[Iterator[Item], list[list[Item]]]:
    groups: dict[object, list[Item]] = {}
    for item in records.items():
        groups.setdefault(_unit(item), []).append(item)
    suspects = [items for items in groups.values() if receives(items[0][1]) > 1]
    if len(suspects) > 1:
        suspects.sort(key=_rank)
    ids = {message_id for items in suspects for message_id, _ in items}
    return iter([item for item in records.items() if item[0] not in ids]), suspects


def _unit(item: Item) -> object:
    """What must run in one go: a FIFO group, or a message of a standard queue, where a group id is no order."""
    message_id, record = item
    source = record.get("eventSourceARN")
    if not isinstance(source, str) or not source.endswith(".fifo"):
        return message_id
    attributes = record.get("attributes")
    group = attributes.get("MessageGroupId") if isinstance(attributes, dict) else None
    return source, group if isinstance(group, str) else None


def _rank(items: list[Item]) -> tuple[int, bytes]:
    """Fewest deliveries first; equals in an order that is another one at each delivery."""
    from hashlib import sha256

    message_id, record = items[0]
    count = receives(record)
    return count, sha256(f"{message_id} {count}".encode("utf-8", "surrogatepass")).digest()
