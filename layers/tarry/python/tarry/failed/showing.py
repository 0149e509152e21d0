"""Letters, to be looked at: the queue is left as it was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.envelope.attribute import dump
from tarry.failed.letter import Letter, as_record, fresh_record, user_attributes
from tarry.failed.selection import Selection, by_ids
from tarry.failed.where import plain
from tarry.sqs.limits import MAX_ATTRIBUTES
from tarry.support.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.failed.look import Look

MOST_SHOWN = 50


class Shown(Value):
    """The letters that were found, and the ids of which no letter was."""

    __slots__ = ("letters", "missing")
    letters: tuple[Letter, ...]
    missing: tuple[str, ...]

    def __init__(self, letters: tuple[Letter, ...], missing: tuple[str, ...] = ()) -> None:
        self._freeze(letters=letters, missing=missing)


def show(look: Look, selection: Selection, most: int = MOST_SHOWN) -> Shown:
    """The letters that are meant: those with ids in the order of these, else at most so many, the oldest first.

    Without conditions it looks at no more than it shows; with some it looks on until it has found so many.
    """
    if selection.ids:
        found = by_ids(look, selection.ids)
        letters = dict.fromkeys(each for each in (found.get(name) for name in selection.ids) if each is not None)
        return Shown(tuple(letters), tuple(name for name in selection.ids if name not in found))
    chosen: list[Letter] = []
    for letters_at_once in look.polls() if selection.conditions else look.polls(total=most):
        chosen += [letter for letter in letters_at_once if selection.holds(letter)]
        if len(chosen) >= most:
            break
    return Shown(tuple(sorted(chosen[:most], key=_age)))


def _age(letter: Letter) -> tuple[str, str]:
    died_at = letter.failure.failed_at if letter.failure else None
    return died_at or letter.sent_at or "", letter.delivery_id


def as_json(letter: Letter) -> dict[str, Any]:
    """The letter as JSON has it: what is known of it, by name."""
    failure = letter.failure
    told = None
    if failure is not None:
        fields = {name: getattr(failure, name) for name in failure.__slots__ if name != "history"}
        told = {name: value for name, value in fields.items() if value is not None}
    return {
        "delivery_id": letter.delivery_id,
        "id": letter.id,
        "queue": letter.queue,
        "origin": letter.origin,
        "sent_at": letter.sent_at,
        "body": letter.body,
        "attributes": plain(letter.attributes),
        "failure": told,
        "history": [dict(entry) for entry in letter.history],
    }


def as_event(letters: Iterable[Letter]) -> dict[str, Any]:
    """The SQS event that the letters' function would get if they were sent back: for `tarry invoke`, or a test.

    Where a letter does not say where it came from, it is its dead-letter queue that the event names.
    """
    now = world.current().clock.time()
    return {"Records": [_event_record(letter, now) for letter in letters]}


def _event_record(letter: Letter, now: float) -> dict[str, Any]:
    has_room = len(user_attributes(letter)) < MAX_ATTRIBUTES
    record = dump(fresh_record(letter)) if has_room else None
    return as_record(letter, letter.origin or letter._source.text, now, record)
