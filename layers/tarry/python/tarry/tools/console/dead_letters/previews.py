"""The plan of a retry, made of the dead letters that a scan has found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tarry.failed import NowhereToGo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tarry.failed import DeadLetterMessage
    from tarry.support.values import QueueArn

REPEATED = "another dead letter with the same id is sent first: retry again after it"
UNDECODABLE = "the body cannot be decoded: edit it first"


@dataclass(frozen=True)
class Destination:
    """The dead letters that go to one queue."""

    queue: str
    count: int


@dataclass(frozen=True)
class Hindered:
    """The dead letters that stay for one reason."""

    why: str
    count: int


class Plan(NamedTuple):
    """The effect of a retry on the dead letters that are chosen."""

    destinations: tuple[Destination, ...]
    """The largest first."""
    hindered: tuple[Hindered, ...]

    @property
    def sent(self) -> int:
        """The number of dead letters that are sent."""
        return sum(each.count for each in self.destinations)

    @property
    def stay(self) -> int:
        """The number of dead letters that stay in their queue."""
        return sum(each.count for each in self.hindered)


def planned(
    dead_letters: Iterable[DeadLetterMessage], target: Callable[[DeadLetterMessage], QueueArn], *, by_id: bool = False
) -> Plan:
    """Return what a retry does. ``target`` returns the queue to send one to; it is asked once for each origin.

    It raises `NowhereToGo` for an unknown one. ``by_id``: the dead letters are selected one by one.
    """
    answers: dict[str | None, tuple[str, bool]] = {}
    ids: set[str] = set()
    counts: Counter[tuple[str, bool]] = Counter()
    for each in dead_letters:
        if each.id in ids and not by_id:
            counts[REPEATED, False] += 1
            continue
        ids.add(each.id)
        if each.is_undecodable:
            counts[UNDECODABLE, False] += 1
            continue
        if each.origin not in answers:
            try:
                answers[each.origin] = target(each).name, True
            except NowhereToGo as error:
                answers[each.origin] = str(error), False
        counts[answers[each.origin]] += 1
    found = counts.most_common()
    return Plan(
        tuple(Destination(text, count) for (text, is_sent), count in found if is_sent),
        tuple(Hindered(text, count) for (text, is_sent), count in found if not is_sent),
    )
