"""Delays: how a user may say one, and how long SQS can keep a message waiting in place.

Limits: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-visibility-timeout.html
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, SupportsFloat, TypeAlias

from tarry import world

if TYPE_CHECKING:
    from datetime import datetime, timedelta

Delay: TypeAlias = "float | timedelta | datetime"

END_OF_TIME = 253_402_300_800  # the year 10000, where datetime ends

MAX_VISIBILITY_SECONDS = 43_200
"""SQS hides a message for at most 12 hours in all since this receive; more is refused, not cut."""

MAX_DELAY_SECONDS = 900
"""SQS's longest ``DelaySeconds``."""

MOMENT_SECONDS = 0.001
"""How much earlier than its time a message may come back, rather than a second later: times are floats."""

UNKNOWN_RECEIVE_SECONDS = 330
"""How long before an invocation its messages may have been received, when the record does not say it: the longest
batching window (300 s) and half a minute. A record tells only its *first* receive."""


def whole_seconds(delay: Delay) -> int:
    """``delay`` as whole seconds from now, rounded up; a past ``datetime`` is 0.

    Raises `ValueError` if it is negative, not finite, a naive ``datetime`` or not a delay at all.
    """
    seconds = _as_seconds(delay)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a delay must be a finite number of seconds, 0 or more, got {delay!r}")
    return math.ceil(seconds)


def moment_of(delay: object) -> float | None:
    """The epoch seconds of a delay given as a ``datetime``; None for one that counts from the failure (SPEC C11)."""
    if delay is None or isinstance(delay, (int, float)):
        return None
    from datetime import datetime

    return delay.timestamp() if isinstance(delay, datetime) and delay.utcoffset() is not None else None


def _as_seconds(delay: object) -> float:
    if isinstance(delay, bool):
        raise ValueError(f"a delay is a number of seconds, a timedelta or an aware datetime, got {delay!r}")
    if isinstance(delay, (int, float)):
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
    if isinstance(delay, (Real, Decimal)):
        return _as_float(delay)
    raise ValueError(f"a delay is a number of seconds, a timedelta or an aware datetime, got {delay!r}")


def _as_float(number: SupportsFloat) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def epoch_seconds(milliseconds: object) -> float | None:
    """SQS's timestamps, which are milliseconds as text, as epoch seconds; None for what is none."""
    try:
        seconds = int(milliseconds) / 1000  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < END_OF_TIME else None


def longest_wait(*, received_at: float | None, invoked_at: float, now: float) -> int:
    """For how many whole seconds from ``now`` SQS lets a message be hidden that it delivered at ``received_at``.

    ``received_at`` is the time of *this* receive, None if unknown (any but the first). All times are epoch seconds.
    """
    if received_at is None or now - received_at > MAX_VISIBILITY_SECONDS:  # no lease is that old: an old sample event
        received_at = invoked_at - UNKNOWN_RECEIVE_SECONDS
    return max(0, math.floor(MAX_VISIBILITY_SECONDS - max(0.0, now - received_at) - 1))
