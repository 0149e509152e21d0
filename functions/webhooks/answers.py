"""The meaning of a receiver's response for its message."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tarry import Reject

LONGEST_WAIT = 11 * 3_600
"""A Retry-After beyond it is cut: SQS keeps a message invisible for at most 12 hours from its receive."""


@dataclass(frozen=True)
class Answer:
    """The response of a receiver, as far as it matters."""

    host: str
    status: int
    retry_after: str | None = None
    excerpt: str = ""
    """The beginning of the body."""

    def __str__(self) -> str:
        return f"{self.host} answered {self.status}" + (f": {self.excerpt}" if self.excerpt else "")


class ReceiverFailed(Exception):
    """The receiver failed, or did not answer; it may succeed later."""


class ReceiverBusy(ReceiverFailed):
    """The receiver asks to be tried again no sooner than after ``wait`` seconds."""

    def __init__(self, answer: Answer, wait: int) -> None:
        super().__init__(f"{answer} (Retry-After: {wait} s)")
        self.wait = wait


class WebhookRefused(Reject):
    """The receiver does not accept this request, and would not accept it later."""


def error_of(answer: Answer, now: datetime) -> Exception | None:
    """Return the error that an answer means at the time ``now``; None if the receiver has accepted the webhook."""
    if 200 <= answer.status < 300:
        return None
    if answer.status in (429, 503):
        wait = seconds_until(answer.retry_after, now)
        return ReceiverFailed(str(answer)) if wait is None else ReceiverBusy(answer, wait)
    if 500 <= answer.status < 600:
        return ReceiverFailed(str(answer))
    if answer.status in (301, 302, 303):
        return WebhookRefused(f"{answer}; a redirect is followed only with 307 or 308, which repeat the POST")
    return WebhookRefused(str(answer))


def seconds_until(retry_after: str | None, now: datetime) -> int | None:
    """Return the seconds that a Retry-After header asks for, at most `LONGEST_WAIT`; None if it is no time ahead.

    The header has a number of seconds or an HTTP date.
    """
    text = (retry_after or "").strip()
    if re.fullmatch("[0-9]+", text):
        seconds = LONGEST_WAIT if len(text) > 9 else int(text)
    else:
        try:
            seconds = _seconds_to_date(text, now)
        except (ValueError, OverflowError):
            return None
    return min(seconds, LONGEST_WAIT) if seconds > 0 else None


def _seconds_to_date(text: str, now: datetime) -> int:
    at = parsedate_to_datetime(text)
    if at.tzinfo is None:  # "-0000", or a date without a zone: HTTP dates are in UTC
        at = at.replace(tzinfo=UTC)
    return math.ceil((at - now).total_seconds())
