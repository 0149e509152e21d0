"""Causes: the groups of several queues that have the same error, for display."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.failed.groups import Group

WORD = re.compile(r"[\w-]+")
DIGITS_OF_IDS = 4
"""A word with so many digits is an id, which differs from message to message. An HTTP status has three."""


class Cause(Value):
    """The groups with one error, in one queue or several. Made by `causes`."""

    groups: tuple[tuple[str, Group], ...]
    """Each group with the name of its queue, the largest first."""

    def __init__(self, groups: Iterable[tuple[str, Group]]) -> None:
        self._freeze(groups=tuple(sorted(groups, key=lambda each: -each[1].count)))

    @property
    def count(self) -> int:
        """The number of dead letters."""
        return sum(group.count for _, group in self.groups)

    @property
    def queues(self) -> dict[str, int]:
        """The number of dead letters of each queue, the queue with the largest group first."""
        found: dict[str, int] = {}
        for queue, group in self.groups:
            found[queue] = found.get(queue, 0) + group.count
        return found


def causes(found: Iterable[tuple[str, Iterable[Group]]]) -> list[Cause]:
    """Return the groups of several queues by cause, the largest first.

    A fingerprint has the place of an error, down from the handler, so an error of code that two handlers share has two.
    Groups with the same fingerprint are one cause, and so are those with the same reason, type and text, apart from ids
    in it.

    Args:
        found: The name of each queue, and its groups; all are by the same.
    """
    by_value: dict[str | None, object] = {}
    by_error: dict[object, list[tuple[str, Group]]] = {}
    for queue, groups in found:
        for group in groups:
            by_error.setdefault(by_value.setdefault(group.value, _error(group)), []).append((queue, group))
    return sorted(map(Cause, by_error.values()), key=lambda cause: -cause.count)


def _error(group: Group) -> object:
    failure = group.failure
    if group.by != "fingerprint" or failure is None:
        return group.value
    return failure.reason, failure.type, WORD.sub(_without_id, failure.message or "")


def _without_id(word: re.Match[str]) -> str:
    return "#" if sum(map(str.isdigit, word[0])) >= DIGITS_OF_IDS else word[0]
