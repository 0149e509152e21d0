"""The result of an operation on a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tarry.support.values import Value

if TYPE_CHECKING:
    from tarry.failed.dead_letters import DeadLetterMessage

Outcome = Literal["retried", "deleted", "restored", "skipped", "unconfirmed", "failed"]
Hindrance = Literal["nowhere", "denied", "undecodable"]


class Result(Value):
    """The result for one dead letter, or for an id that was not found."""

    id: str
    outcome: Outcome
    """``retried``: sent back to its queue, or handled in this process. ``deleted``: removed. ``restored``: sent to a
    queue from an archive. ``skipped``: left as it is on purpose. ``unconfirmed``: SQS may have carried out the request,
    or not: an answer was lost. ``failed``: not retried, deleted or restored."""
    error: str | None
    """Why it failed, or was not confirmed."""
    note: str | None
    """An explanation that is not an error."""
    dead_letter: DeadLetterMessage | None
    hindrance: Hindrance | None
    """Why nothing was done, if the caller can change it: no queue is known to send it to, sending is not allowed, or
    the body cannot be decoded."""

    def __init__(
        self,
        id: str,
        outcome: Outcome,
        error: str | None = None,
        *,
        note: str | None = None,
        dead_letter: DeadLetterMessage | None = None,
        hindrance: Hindrance | None = None,
    ) -> None:
        self._freeze(id=id, outcome=outcome, error=error, note=note, dead_letter=dead_letter, hindrance=hindrance)


def failed(dead_letter: DeadLetterMessage, error: str, hindrance: Hindrance | None = None) -> Result:
    """Return the result of a failure."""
    return Result(dead_letter.id, "failed", error, dead_letter=dead_letter, hindrance=hindrance)


def unconfirmed(dead_letter: DeadLetterMessage, error: str) -> Result:
    """Return the result of a request that SQS may have carried out."""
    return Result(dead_letter.id, "unconfirmed", error, dead_letter=dead_letter)


def skipped(dead_letter: DeadLetterMessage, note: str) -> Result:
    """Return the result of a dead letter that was left alone on purpose."""
    return Result(dead_letter.id, "skipped", note=note, dead_letter=dead_letter)


def twice_in(queue: str) -> str:
    """Return the note on a message whose send SQS has confirmed, after the answer to the first try was lost."""
    return f"it may be in {queue} twice: SQS did not answer the first request"
