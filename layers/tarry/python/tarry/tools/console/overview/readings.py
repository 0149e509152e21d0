"""Readings of queues: their numbers of messages at one time, and of the last hour."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarry.failed.queue_names import attributes_of, counts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOUR_SECONDS = 3600.0
DEFAULT_RETENTION_SECONDS = 345_600
APART_SECONDS = 30.0
"""The time between readings that are kept; a later one replaces the last until then."""

Series = tuple[tuple[float, float], ...]
"""Values with their times in epoch seconds, the oldest first."""


@dataclass(frozen=True)
class QueueReading:
    """The numbers of messages in a queue at one time, which SQS counts approximately."""

    at: float
    """Epoch seconds."""
    ready: int
    in_flight: int
    """Received and not deleted: a handler runs, or they wait for a retry."""
    delayed: int
    retention: int = DEFAULT_RETENTION_SECONDS
    """The seconds for which the queue keeps a message."""
    oldest: float | None = None
    """The age of the oldest message in seconds; None if it is not known, or the queue is empty."""
    ever: int | None = None
    """The number of messages that were ever put into the queue; None if it is not known."""

    @property
    def messages(self) -> int:
        return self.ready + self.in_flight + self.delayed


def read_queue(address: str, sqs: Any, now: float, served: Mapping[str, Any] | None = None) -> QueueReading | None:
    """Read a queue by its URL or name; return None if it does not exist. Raises `ClientError`.

    ``served`` is its description by the SQS of `tarry local`, which knows more than SQS tells.
    """
    attributes = attributes_of(address, sqs)
    if attributes is None:
        return None
    served = served or {}
    sent_at = served.get("oldest")
    return QueueReading(
        now,
        *counts_of(attributes),
        retention=int(attributes.get("MessageRetentionPeriod", DEFAULT_RETENTION_SECONDS)),
        oldest=None if sent_at is None else max(0.0, now - sent_at),
        ever=served.get("ever"),
    )


@dataclass
class QueueHistory:
    """The readings of a queue in the last hour, and its metrics from CloudWatch."""

    readings: deque[QueueReading] = field(default_factory=deque)
    metrics: Mapping[str, Series] = field(default_factory=dict)
    """Series by the name of their metric; see `tarry.tools.console.overview.sampling`."""
    problem: str = ""
    """Why the last reading failed; empty if it did not."""
    is_gone: bool = False
    paused: tuple[str, ...] = ()

    @property
    def last(self) -> QueueReading | None:
        return self.readings[-1] if self.readings else None

    def add(self, reading: QueueReading) -> None:
        """Add a reading, and forget those that are older than an hour."""
        if len(self.readings) > 1 and self.readings[-1].at - self.readings[-2].at < APART_SECONDS:
            self.readings.pop()
        self.readings.append(reading)
        while self.readings[0].at < reading.at - HOUR_SECONDS:
            self.readings.popleft()

    def ready(self, now: float) -> Series:
        """Return the numbers of ready messages in the last hour."""
        own = tuple((each.at, float(each.ready)) for each in self.readings)
        return _joined(self.metrics.get("ready", ()), own, now)

    def arrived(self, now: float) -> Series:
        """Return the messages a minute that arrived, in the last hour; empty if it is not known."""
        return _of_last_hour(self.metrics.get("arrived", ()), now) or _rates(
            [(each.at, each.ever) for each in self.readings]
        )

    def left(self, now: float) -> Series:
        """Return the messages a minute that left the queue, in the last hour; empty if it is not known.

        They were deleted, moved or expired.
        """
        gone = [(each.at, None if each.ever is None else each.ever - each.messages) for each in self.readings]
        return _of_last_hour(self.metrics.get("left", ()), now) or _rates(gone)

    def oldest(self, now: float) -> float | None:
        """Return the age of the oldest message in seconds; None if it is not known or the queue is empty."""
        last = self.last
        if last is None or not last.messages:
            return None
        if last.oldest is not None:
            return last.oldest
        series = _of_last_hour(self.metrics.get("age", ()), now)
        return series[-1][1] if series else None


def _joined(earlier: Series, own: Series, now: float) -> Series:
    """Return a series of CloudWatch up to the first own reading, and then the own ones."""
    began = own[0][0] if own else now
    return _of_last_hour((*(each for each in earlier if each[0] < began), *own), now)


def _of_last_hour(series: Series, now: float) -> Series:
    return tuple(each for each in series if each[0] >= now - HOUR_SECONDS)


RATE_STEP_SECONDS = 60.0


def _rates(counted: Sequence[tuple[float, int | None]]) -> Series:
    """Return the increases a minute of a count that only grows, one for each minute; the last minute may be short."""
    known = [(at, count) for at, count in counted if count is not None]
    if len(known) < 2:
        return ()
    times = [at for at, _ in known]
    found: list[tuple[float, float]] = []
    end = len(known) - 1
    while end > 0:
        begin = min(end - 1, max(0, bisect_right(times, times[end] - RATE_STEP_SECONDS) - 1))
        (before, earlier), (after, later) = known[begin], known[end]
        if after > before:
            found.append((after, max(0.0, later - earlier) * 60 / (after - before)))
        end = begin
    return tuple(reversed(found))


def recent(series: Series, now: float, seconds: float) -> float | None:
    """Return the mean of the values within the last ``seconds``; None if there is none."""
    values = [value for at, value in series if at > now - seconds]
    return sum(values) / len(values) if values else None
