"""Compute what an outage of an hour costs: requests and dollars, with a backoff and with plain visibility timeouts.

python -m benchmarks.outage

The deliveries of each message are counted one by one, with tarry's own backoff. The prices are those of us-east-1 in
November 2026, without the free tier.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.contenders import BACKOFF
from benchmarks.results import progress, report

OUTAGE_SECONDS = 3_600
RATE = 50
"""Messages a second."""
SAMPLE = 3_600
"""The messages that are counted, evenly over the hour; the others are like them."""
BATCH = 10
FAILING_SECONDS = 1.0
"""The time until a call to the service that is down fails."""
MEMORY_GB = 0.5
LOG_LINE_BYTES = 1_000

MILLION, GIGABYTE = 1_000_000, 1_000_000_000
SQS_PRICE = 0.40 / MILLION
INVOCATION_PRICE = 0.20 / MILLION
GB_SECOND_PRICE = 0.0000133334
"""Lambda on arm64."""
LOG_PRICE = 0.50 / GIGABYTE
"""CloudWatch Logs, ingestion."""


@dataclass(frozen=True)
class Strategy:
    """How a failed message comes back."""

    name: str
    delay: Callable[[int, Random], float]
    """The seconds until the next delivery, by attempt."""
    requests: float
    """The requests that delay one message."""
    logs: bool
    """Whether the library, or the code that people write, logs each failure."""


STRATEGIES = (
    Strategy("visibility timeout of 30 s, Powertools", lambda *_: 30, 0, logs=False),
    Strategy("visibility timeout of 180 s, Powertools", lambda *_: 180, 0, logs=False),
    Strategy("backoff by hand", lambda attempt, _: min(900, 30 * 3 ** min(attempt - 1, 9)), 1, logs=True),
    Strategy("tarry", BACKOFF.delay, 1 / BATCH, logs=True),
)


def cost_of(strategy: Strategy, rng: Random) -> dict[str, Any]:
    """Return the failed deliveries of all messages that arrive in the outage, the requests and dollars they cost."""
    failed = most = 0
    latest = 0.0
    for number in range(SAMPLE):
        at, attempt = number * OUTAGE_SECONDS / SAMPLE, 1
        while at < OUTAGE_SECONDS:
            at += strategy.delay(attempt, rng)
            attempt += 1
        failed += attempt - 1
        most = max(most, attempt)
        latest = max(latest, at - OUTAGE_SECONDS)
    deliveries = failed / SAMPLE * RATE * OUTAGE_SECONDS
    requests = deliveries * (1 / BATCH + strategy.requests)
    invocations = deliveries / BATCH
    dollars = {
        "SQS": requests * SQS_PRICE,
        "Lambda": invocations * INVOCATION_PRICE + deliveries * FAILING_SECONDS * MEMORY_GB * GB_SECOND_PRICE,
        "logs": deliveries * LOG_LINE_BYTES * LOG_PRICE if strategy.logs else 0.0,
    }
    return {
        "strategy": strategy.name,
        "failed_deliveries": failed / SAMPLE,
        "requests": requests,
        "dollars": dollars,
        "receives_needed": most,
        "last_after_minutes": latest / 60,
    }


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the cost of each strategy."""
    progress("an hour's outage")
    del quick
    for strategy in STRATEGIES:
        yield cost_of(strategy, Random(1))


if __name__ == "__main__":
    report(rows)
