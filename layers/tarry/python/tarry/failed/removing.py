"""Deleting letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.failed.deleting import check_may_delete, delete_patiently
from tarry.failed.result import Result, failed
from tarry.failed.selection import Selection, by_ids, not_found
from tarry.sqs.limits import MAX_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tarry.failed.letter import Letter
    from tarry.failed.look import Look


def remove(look: Look, selection: Selection, *, concurrency: int = 1) -> Iterator[Result]:
    """Deletes the letters that are meant; what came of each. ``concurrency``: how many requests go out at once.

    Raises `NotAllowed`, and whatever botocore raises.
    """
    check_may_delete(look)
    if not selection.ids:
        for letters in look.polls(MAX_ENTRIES * concurrency):
            yield from remove_letters(look, [each for each in letters if selection.holds(each)])
        return
    found = by_ids(look, selection.ids)
    if look.is_stopped:
        return
    letters = list(dict.fromkeys(found.values()))
    by_letter = dict(zip(letters, remove_letters(look, letters), strict=True))
    for name in selection.ids:
        yield by_letter[found[name]] if name in found else Result(name, "failed", not_found(look))


def remove_letters(look: Look, letters: Sequence[Letter]) -> list[Result]:
    """Deletes these."""
    kept = delete_patiently(look, letters)
    return [
        failed(letter, kept[letter.delivery_id])
        if letter.delivery_id in kept
        else Result(letter.id, "deleted", letter=letter)
        for letter in letters
    ]
