"""Dead letters and their groups in words, for a terminal and for the console. Control characters are escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.tooling.queues import queue_name
from tarry.tooling.text import printable, without_message_id

if TYPE_CHECKING:
    from tarry.envelope.attribute import FailureRecord
    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.groups import Group

BRIEF_LENGTH = 200
NO_RECORD = "no failure record (not dead-lettered by tarry)"
DATE_LENGTH = len("2026-11-21 ")


def count_of(number: int) -> str:
    """Return a number of dead letters as text."""
    return f"{number:,} dead letter{'s'[: number != 1]}"


def attempts_of(failure: FailureRecord) -> str:
    """Return the number of attempts, after "at most" if it may be too high; empty if it is unknown."""
    at_most = "at most " if failure.attempts_at_most else ""
    return "" if failure.attempts is None else f"{at_most}{failure.attempts}"


def brief(dead_letter: DeadLetterMessage) -> str:
    """Return why the message was dead-lettered, as one line."""
    return brief_failure(dead_letter.failure)


def brief_failure(failure: FailureRecord | None) -> str:
    """Return a failure as one line; None is that of a message that SQS moved."""
    if failure is None:
        return NO_RECORD
    error = ": ".join(filter(None, [failure.type, failure.message]))
    if failure.reason in (None, "exhausted", "error") and error:
        return printable(_cut(error))
    if (failure.type or "").startswith("tarry."):
        # The reason says it already, such as "rejected: tarry.Reject: ...".
        error = without_message_id(failure.message or "")
    return printable(_cut(": ".join(filter(None, [failure.reason, error])) or "no reason recorded"))


def origin_name(dead_letter: DeadLetterMessage) -> str:
    """Return the name of the queue it came from; empty if unknown."""
    return queue_name(dead_letter.origin or "")


def minute(moment: str | None) -> str:
    """Return a time to the minute; empty if it is unknown."""
    return (moment or "")[:16].replace("T", " ")


def period(group: Group) -> str:
    """Return when the dead letters of a group came, and how often."""
    first, last = minute(group.first), minute(group.last)
    if not first:
        return "time unknown"
    often = group.per_minute
    between = first if first == last else f"{first} to {last[DATE_LENGTH:] if first[:10] == last[:10] else last}"
    return f"{between} UTC" + (f", {often_text(often)}" if often is not None else "")


def often_text(per_minute: float) -> str:
    """Return a rate as text."""
    return f"{per_minute:,.0f} a minute" if per_minute >= 10 else f"{per_minute:.2g} a minute"


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= BRIEF_LENGTH else text[: BRIEF_LENGTH - 3] + "..."
