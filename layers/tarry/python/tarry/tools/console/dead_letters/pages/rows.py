"""Pages of a longer list, and the rows of dead letters and groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tarry.failed.causes import causes
from tarry.failed.periods import when
from tarry.failed.text import shortened
from tarry.failed.wording import attempts_of, brief, brief_failure, origin_name, period
from tarry.tools.console.dead_letters.choices import Choice

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tarry.failed import DeadLetterMessage, Group
    from tarry.tools.console.dead_letters.snapshots import Snapshot

T = TypeVar("T")

ROWS = 100
"""The rows of a page of a list."""
SHOWN_IDS = 20


class Page(NamedTuple):
    """A page of a longer list."""

    rows: Sequence[Any]
    number: int
    pages: int
    first: int
    total: int


class ListRow(NamedTuple):
    """A dead letter in the list."""

    delivery_id: str
    id: str
    when: str
    error: str
    attempts: str
    origin: str


@dataclass(frozen=True)
class GroupRow:
    """A group in the table of groups."""

    count: int
    title: str
    under: str
    """The text below the title."""
    period: str
    example: str
    query: str


def page_of(rows: Sequence[T], number: int, size: int = ROWS) -> Page:
    """Return a page of the rows, the nearest one if the number is out of range."""
    pages = max(1, math.ceil(len(rows) / size))
    number = min(max(1, number), pages)
    first = (number - 1) * size
    return Page(rows[first : first + size], number, pages, first + 1 if rows else 0, len(rows))


def row_of(dead_letter: DeadLetterMessage) -> ListRow:
    """Return a dead letter as a row."""
    failure = dead_letter.failure
    return ListRow(
        dead_letter.delivery_id,
        dead_letter.id,
        (when(dead_letter) or "")[:19].replace("T", " "),
        brief(dead_letter),
        "" if failure is None else attempts_of(failure),
        origin_name(dead_letter),
    )


def group_row(group: Group) -> GroupRow:
    """Return a group as a row."""
    error = brief_failure(group.failure)
    value = shortened(group.value or "(none)", 200)
    if group.by == "fingerprint":  # an error tells a person more
        title, under = error, f"fingerprint {value}" if group.value else ""
    else:
        title, under = value, "" if group.by == "error" or error == value else error
    return GroupRow(
        group.count,
        title,
        under,
        period(group),
        group.example,
        choice_of_group(group).query,
    )


@dataclass(frozen=True)
class CauseRow:
    """The dead letters of several queues that have the same error."""

    count: int
    title: str
    groups: tuple[tuple[str, int, str], ...]
    """The queue of each group, its count, and the query of its dead letters in the list; the largest first."""


def cause_rows(snapshots: Iterable[Snapshot]) -> list[CauseRow]:
    """Return the causes of the dead letters of several queues as rows, the largest first."""
    return [
        CauseRow(
            cause.count,
            group_row(cause.groups[0][1]).title,
            tuple((name, group.count, choice_of_group(group).query) for name, group in cause.groups),
        )
        for cause in causes((each.queue.name, each.groups("fingerprint")) for each in snapshots)
    ]


def choice_of_group(group: Group) -> Choice:
    """Return the choice of all dead letters of a group."""
    return Choice(where=group.conditions)
