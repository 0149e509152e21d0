"""Durations and times as a user gives them, and the time of a dead letter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tarry.errors import ConfigurationError

if TYPE_CHECKING:
    from tarry.failed.dead_letters import DeadLetterMessage

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_PART = re.compile(r"([\d.]+)([smhd])")


def duration(text: str, of: str) -> float:
    """Return a duration such as ``90s``, ``15m``, ``2h`` or ``1h30m`` in seconds. ``of`` names it in the error.

    Raises:
        ConfigurationError: it is not a duration.
    """
    if not _DURATION.fullmatch(text):
        raise ConfigurationError(f"{of} must be a duration such as 90s, 15m, 2h or 1h30m, got {text!r}")
    return sum(float(number) * SECONDS[unit] for number, unit in _PART.findall(text))


def moment(text: str, of: str, now: float) -> float:
    """Return a time in epoch seconds: a date or time in ISO 8601, in UTC without an offset, or a duration before now.

    Raises:
        ConfigurationError: it is neither, or is before 1970.
    """
    if _DURATION.fullmatch(text):
        if (before := now - duration(text, of)) < 0:
            raise ConfigurationError(f"{of} {text} is before 1970: SQS keeps a message for at most 14 days")
        return before
    seconds = seconds_of(text)
    if seconds is None:
        example = "a time such as 2026-11-21T08:00Z, or a duration such as 2h"
        raise ConfigurationError(f"{of} must be {example}, got {text!r}")
    return seconds


def when(dead_letter: DeadLetterMessage) -> str | None:
    """Return when the message was dead-lettered, in UTC; without a failure record, when it was sent."""
    failed_at = dead_letter.failure.failed_at if dead_letter.failure else None
    return failed_at or dead_letter.sent_at


def is_between(dead_letter: DeadLetterMessage, since: float | None, until: float | None) -> bool:
    """Whether the message was dead-lettered at ``since`` or later, and before ``until``."""
    if since is None and until is None:
        return True
    at = seconds_of(when(dead_letter))
    return at is not None and (since is None or at >= since) and (until is None or at < until)


def seconds_between(first: str | None, last: str | None) -> float | None:
    """Return the seconds from one time to another; None if one is unknown."""
    start, end = seconds_of(first), seconds_of(last)
    return None if start is None or end is None else end - start


def seconds_of(text: str | None) -> float | None:
    """Return a time in ISO 8601, in UTC without an offset, in epoch seconds; None if it is unknown, or is not one."""
    from datetime import UTC, datetime

    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
