"""Which letters are meant: by their ids, by conditions, or all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.errors import ConfigurationError
from tarry.failed.where import Condition, condition, matches
from tarry.support.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.failed.letter import Letter
    from tarry.failed.look import Look


class Selection(Value):
    """Which letters are meant. Made by `select`."""

    __slots__ = ("conditions", "everything", "ids")
    ids: tuple[str, ...]
    conditions: tuple[Condition, ...]
    everything: bool

    def __init__(self, ids: tuple[str, ...], conditions: tuple[Condition, ...], everything: bool) -> None:
        self._freeze(ids=ids, conditions=conditions, everything=everything)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of which letters are meant."""
        return not (self.ids or self.conditions or self.everything)

    def holds(self, letter: Letter) -> bool:
        """Whether the letter is meant, where it is not by ids."""
        return matches(letter, self.conditions)


def select(ids: Iterable[str] = (), where: Iterable[str] = (), *, everything: bool = False) -> Selection:
    """The letters with these ids (stable ones, or SQS's), or those for which all conditions hold, or all.

    Raises `ConfigurationError` for ids together with conditions or with all, `BadFilter` for a wrong condition.
    """
    ids = tuple(dict.fromkeys(ids))
    conditions = tuple(condition(text) for text in where)
    if ids and (conditions or everything):
        raise ConfigurationError("name ids, or say which by --where or --all: not both")
    return Selection(ids, conditions, everything)


def offered(look: Look, letters: Iterable[Letter], selection: Selection) -> list[Letter]:
    """Those that are meant, and of which none of the same id was tried before in this look."""
    chosen: dict[str, Letter] = {}
    for letter in letters:
        if selection.holds(letter):
            if letter.id in look.done or letter.id in chosen:
                look.not_offered += 1
            else:
                chosen[letter.id] = letter
    return list(chosen.values())


def by_ids(look: Look, ids: Iterable[str]) -> dict[str, Letter]:
    """The letters of these ids, as far as they are found; these are held, the others are shown again."""
    wanted = set(ids)
    found: dict[str, Letter] = {}
    for letters in look.polls():
        for letter in letters:
            for name in (letter.id, letter.delivery_id):
                if name in wanted:
                    found.setdefault(name, letter)
        if len(found) == len(wanted):
            break
    look.release(but={letter.delivery_id for letter in found.values()})
    return found


def not_found(look: Look) -> str:
    """What is said of an id that no letter has, as far as was seen."""
    return f"no such letter was found in {look.queue.name}: {scanned(look)}"


def scanned(look: Look) -> str:
    """How many letters were seen, of about how many."""
    return f"scanned {look.scanned:,} of about {max(look.queue.about, look.scanned):,}"
