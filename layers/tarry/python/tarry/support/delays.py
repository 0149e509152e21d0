"""Delays: the types that users may pass, and how long SQS can keep a message invisible.

Limits: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-visibility-timeout.html
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, SupportsFloat, TypeAlias

from tarry import world

if TYPE_CHECKING:
    from datetime import datetime, timedelta

Delay: TypeAlias = "float | timedelta | datetime"

END_OF_TIME = 253_402_300_800  # the year 10000, beyond the range of datetime

MAX_VISIBILITY_SECONDS = 43_200
"""The longest visibility timeout, counted from the receive: 12 hours. SQS refuses more; it does not cut it."""

MAX_DELAY_SECONDS = 900  # SQS's longest ``DelaySeconds``

MOMENT_SECONDS = 0.001  # a message may come back so early: float errors must not round its delay up by a second

UNKNOWN_RECEIVE_SECONDS = 330
"""The assumed time between a receive and its invocation, if the record does not have the time of the receive: the
longest batching window (300 s) and 30 s. A record has only the time of the *first* receive."""


def whole_seconds(delay: Delay) -> int:
    """Return ``delay`` as whole seconds from now, rounded up; 0 for a past ``datetime``.

    Raises:
        ValueError: The delay is negative, not finite, a naive ``datetime``, or of another type.
    """
    seconds = _as_seconds(delay)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a delay must be a finite number of seconds, 0 or more, got {delay!r}")
    return math.ceil(seconds)


def moment_of(delay: object) -> float | None:
    """Return the epoch seconds of a delay given as a ``datetime``; None for a delay from the failure (SPEC C11)."""
    if delay is None or isinstance(delay, (int, float)):
        return None
    from datetime import datetime

    return delay.timestamp() if isinstance(delay, datetime) and delay.utcoffset() is not None else None


def _as_seconds(delay: object) -> float:
    is_bool = isinstance(delay, bool)
    if isinstance(delay, (int, float)) and not is_bool:
        return _as_float(delay)
    from datetime import datetime, timedelta
    from decimal import Decimal
    from numbers import Real

    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, datetime):
        if delay.utcoffset() is None:
            raise ValueError(f"a delay as a datetime needs a time zone, got the naive {delay!r}")
        return max(0.0, delay.timestamp() - world.current().clock.time())
    if isinstance(delay, (Real, Decimal)) and not is_bool:
        return _as_float(delay)
    raise ValueError(f"a delay is a number of seconds, a timedelta or an aware datetime, got {delay!r}")


def _as_float(number: SupportsFloat) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def epoch_seconds(milliseconds: object) -> float | None:
    """Return a timestamp of SQS (milliseconds as text) in epoch seconds; None if it is invalid."""
    try:
        seconds = int(milliseconds) / 1000  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < END_OF_TIME else None


def longest_wait(*, received_at: float | None, invoked_at: float, now: float) -> int:
    """Return for how many whole seconds from ``now`` SQS can keep a message invisible, by its ``received_at``.

    ``received_at``: the time of *this* receive, known only for the first one, else None. Times are epoch seconds.
    """
    if received_at is None or now - received_at > MAX_VISIBILITY_SECONDS:  # no lease is that old: an old sample event
        received_at = invoked_at - UNKNOWN_RECEIVE_SECONDS
    return max(0, math.floor(MAX_VISIBILITY_SECONDS - max(0.0, now - received_at) - 1))
