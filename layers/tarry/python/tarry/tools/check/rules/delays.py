"""Retry policies whose delays are too long for their queue."""

from collections.abc import Iterator

from tarry.decide.backoff import BadDelay, bounds_of
from tarry.decide.retry_policy import FIFO_BACKOFF, STANDARD_BACKOFF
from tarry.tools.check.facts import DAYS, CheckedMapping, CheckedQueue
from tarry.tools.check.finding import Finding

BEYOND_RETENTION = "W9027"
FILLS_IN_FLIGHT = "W9028"
IN_FLIGHT_PLACES = 120_000
"""The most messages of a queue that can be invisible at once."""


def long_delays(mapping: CheckedMapping, queue: CheckedQueue) -> Iterator[Finding]:
    """Compare the sum of the delays of a retry policy with the retention of its queue and its places in flight."""
    function = mapping.function
    total = longest_wait(mapping, queue)
    if function is None or total is None:
        return
    at = queue.at.below("MessageRetentionPeriod")
    kept = queue.retention_seconds
    if kept is not None and total >= kept:
        text = (
            f"The retries of {function.name} take up to {total:,.0f} s, and {queue.title} keeps messages for {kept:,} "
            "s: a message expires before its last attempt. Lower max_attempts or the delays, or set:"
        )
        needed = next((days for days in range(1, 15) if days * DAYS > total), 14)
        yield Finding(BEYOND_RETENTION, (function.name,), text, f"MessageRetentionPeriod: {needed * DAYS}", at=at)
    if total > IN_FLIGHT_PLACES:
        per_hour = IN_FLIGHT_PLACES / total * 3600
        text = (
            f"The retries of {function.name} take up to {total:,.0f} s, during which a message stays in flight: with "
            f"more than {per_hour:,.0f} failing messages an hour, all 120,000 places of {queue.title} are taken, and "
            "SQS delivers no more. Lower max_attempts or the delays, or wait outside of the queue, with SendAgain to "
            "another one."
        )
        yield Finding(FILLS_IN_FLIGHT, (function.name,), text, at=mapping.at)


def longest_wait(mapping: CheckedMapping, queue: CheckedQueue) -> float | None:
    """Return the most seconds that the retries in place of a message take; None if it is not certain."""
    code = mapping.function.code if mapping.function else None
    if code is None or code.attempts is None or not code.is_backoff_known:
        return None
    steps = code.steps_for(queue.name)
    if not any(each.leads_to == "retry" for each in steps):
        return None
    backoff = code.backoff or (FIFO_BACKOFF if queue.is_fifo else STANDARD_BACKOFF)
    try:
        limits = [bounds_of(backoff, attempt) for attempt in range(1, code.attempts.number)]
    except BadDelay:
        return None
    return sum(each[1] for each in limits if each is not None)
