"""What came of a letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tarry.support.value import Value

if TYPE_CHECKING:
    from tarry.failed.letter import Letter

Outcome = Literal["retried", "deleted", "skipped", "failed"]
Hindrance = Literal["nowhere", "denied", "undecodable"]


class Result(Value):
    """What came of one letter, or of an id that is no letter's."""

    __slots__ = ("id", "outcome", "error", "note", "letter", "hindrance")  # noqa: RUF023
    id: str
    outcome: Outcome
    """``retried``: it is in its queue again, or its handler is done with it. ``deleted``. ``skipped``: it was not to be
    touched. ``failed``: it is where it was, or may be."""
    error: str | None
    """Why it failed."""
    note: str | None
    """What else is to be known of it."""
    letter: Letter | None
    hindrance: Hindrance | None
    """Why nothing was done for it, where that is for the caller to change: it is not known where it is to go, sending
    there is not allowed, or no handler can read it."""

    def __init__(
        self,
        id: str,
        outcome: Outcome,
        error: str | None = None,
        *,
        note: str | None = None,
        letter: Letter | None = None,
        hindrance: Hindrance | None = None,
    ) -> None:
        self._freeze(id=id, outcome=outcome, error=error, note=note, letter=letter, hindrance=hindrance)


def failed(letter: Letter, error: str, hindrance: Hindrance | None = None) -> Result:
    """It has failed."""
    return Result(letter.id, "failed", error, letter=letter, hindrance=hindrance)


def skipped(letter: Letter, note: str) -> Result:
    """It was left alone."""
    return Result(letter.id, "skipped", note=note, letter=letter)
