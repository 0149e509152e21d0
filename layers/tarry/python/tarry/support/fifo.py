"""FIFO groups, from the records of an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Group = tuple[str, str | None]
"""The ARN of a FIFO queue and the group id. Messages without a group id form one group."""


def group_of(record: dict[str, Any]) -> Group | None:
    """Return the FIFO group of a record; None on a standard queue, where a group id implies no order."""
    source = record.get("eventSourceARN")
    if not isinstance(source, str) or not source.endswith(".fifo"):
        return None
    attributes = record.get("attributes")
    group = attributes.get("MessageGroupId") if isinstance(attributes, dict) else None
    return source, group if isinstance(group, str) else None


def ids_behind(items: Iterable[tuple[str, dict[str, Any]]]) -> set[str]:
    """Return the ids of the messages that are behind another message of their FIFO group.

    ``items``: the ids and records of a batch, in its order.
    """
    seen: set[Group] = set()
    behind: set[str] = set()
    for message_id, record in items:
        if (group := group_of(record)) in seen:
            behind.add(message_id)
        elif group is not None:
            seen.add(group)
    return behind
