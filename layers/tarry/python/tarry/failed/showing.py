"""Show dead letters: the selected ones, oldest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.failed.periods import when
from tarry.failed.selection import Selection, by_ids
from tarry.support.values import Value

if TYPE_CHECKING:
    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection

MAX_SHOWN = 50


class Shown(Value):
    """The dead letters to show, and the ids that were not found."""

    dead_letters: tuple[DeadLetterMessage, ...]
    missing: tuple[str, ...]

    def __init__(self, dead_letters: tuple[DeadLetterMessage, ...], missing: tuple[str, ...] = ()) -> None:
        self._freeze(dead_letters=dead_letters, missing=missing)


def show(inspection: Inspection, selection: Selection, most: int = MAX_SHOWN) -> Shown:
    """Return the selected dead letters: in the order of the ids, otherwise at most ``most``, oldest first.

    Without conditions, receive no more than ``most``; with conditions, receive until ``most`` match or no more come.
    """
    if selection.ids:
        found = by_ids(inspection, selection.ids)
        dead_letters = dict.fromkeys(each for each in (found.get(name) for name in selection.ids) if each is not None)
        return Shown(tuple(dead_letters), tuple(name for name in selection.ids if name not in found))
    chosen: list[DeadLetterMessage] = []
    for polled in inspection.polls() if selection.is_filter else inspection.polls(total=most):
        chosen += [dead_letter for dead_letter in polled if selection.matches(dead_letter)]
        if len(chosen) >= most:
            break
    return Shown(tuple(sorted(chosen[:most], key=_age)))


def _age(dead_letter: DeadLetterMessage) -> tuple[str, str]:
    return when(dead_letter) or "", dead_letter.delivery_id
