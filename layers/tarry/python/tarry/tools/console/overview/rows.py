"""The overview as values: the readings of the last hour, and a row for each queue with its charts."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from tarry.failed.queue_names import attributes_of, counts_of
from tarry.failed.text import coarse, count_of, minutes
from tarry.tools.console.access import WatchedQueue
from tarry.tools.simulator.sqs.queue import IN_FLIGHT_LIMIT

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
    """Read a queue; None if it does not exist. ``served``: what `tarry local` tells of it. Raises `ClientError`."""
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
    """Series by the name of their metric; see `tarry.tools.console.overview.METRICS`."""
    problem: str = ""
    """Why the last reading failed; empty if it did not."""
    is_gone: bool = False
    paused: tuple[str, ...] = ()
    guard: str = ""
    """The act of the outage guard on its consumer; empty for none."""

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
        """Return the numbers of ready messages in the last hour: those of CloudWatch, then the own readings."""
        own = tuple((each.at, float(each.ready)) for each in self.readings)
        began = own[0][0] if own else now
        return _of_last_hour((*(each for each in self.metrics.get("ready", ()) if each[0] < began), *own), now)

    def arrived(self, now: float) -> Series:
        """Return the messages a minute that arrived, in the last hour; empty if it is not known."""
        ever = [(each.at, each.ever) for each in self.readings]
        return _of_last_hour(self.metrics.get("arrived", ()), now) or _rates(ever)

    def left(self, now: float) -> Series:
        """Return the messages a minute that were deleted, moved or expired, in the last hour; empty if unknown."""
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


def _of_last_hour(series: Series, now: float) -> Series:
    return tuple(each for each in series if each[0] >= now - HOUR_SECONDS)


def _rates(counted: Sequence[tuple[float, int | None]]) -> Series:
    """Return the increases a minute of a count that only grows, one for each minute; the last minute may be short."""
    known = [(at, count) for at, count in counted if count is not None]
    if len(known) < 2:
        return ()
    times = [at for at, _ in known]
    found: list[tuple[float, float]] = []
    end = len(known) - 1
    while end > 0:
        begin = min(end - 1, max(0, bisect_right(times, times[end] - 60) - 1))
        (before, earlier), (after, later) = known[begin], known[end]
        if after > before:
            found.append((after, max(0.0, later - earlier) * 60 / (after - before)))
        end = begin
    return tuple(reversed(found))


def recent(series: Series, now: float, seconds: float) -> float | None:
    """Return the mean of the values within the last ``seconds``; None if there is none."""
    values = [value for at, value in series if at > now - seconds]
    return sum(values) / len(values) if values else None


# charts

WIDTH, HEIGHT = 120, 28
MAX_POINTS = 60
TOP = 2
"""The space above the highest value, so that its line is not cut."""


@dataclass(frozen=True)
class Chart:
    """One or two lines. ``label`` says the same in words."""

    lines: tuple[str, ...]
    area: str
    """The points of the area below the first line."""
    label: str
    width: int = WIDTH
    height: int = HEIGHT


class TimeSpan(NamedTuple):
    """The time that charts show, up to ``end`` in epoch seconds."""

    end: float
    seconds: float

    def x(self, at: float) -> float:
        return round(min(1.0, max(0.0, (at - self.end) / self.seconds + 1)) * WIDTH, 1)


def chart(what: str, *named: tuple[str, Series], span: TimeSpan) -> Chart | None:
    """Return the chart of named series, an only one without a name; None without two values, or if all are 0."""
    drawn = [(name, series) for name, series in named if len(series) > 1]
    highest = [max(value for _, value in series) for _, series in drawn]
    if not any(highest):
        return None
    lines = tuple(_points(_thinned(series, span), max(highest), span) for _, series in drawn)
    words = (
        f"{name} at most {most:,.0f}, now {series[-1][1]:,.0f}".strip()
        for (name, series), most in zip(drawn, highest, strict=True)
    )
    begin, end = (span.x(at) for at, _ in (drawn[0][1][0], drawn[0][1][-1]))
    area = f"{begin:g},{HEIGHT} {lines[0]} {end:g},{HEIGHT}"
    return Chart(lines, area, f"{what}, the last {minutes(span.seconds)}: {'; '.join(words)}")


def _thinned(series: Series, span: TimeSpan) -> Series:
    """Return the highest value of each part of the time; the first and the last value stay."""
    step = span.seconds / MAX_POINTS
    parts = groupby(series[1:-1], key=lambda each: int(each[0] / step))
    return (series[0], *(max(part, key=itemgetter(1)) for _, part in parts), series[-1])


def _points(series: Series, highest: float, span: TimeSpan) -> str:
    scale = (HEIGHT - TOP - 1) / highest
    return " ".join(f"{span.x(at):g},{round(HEIGHT - 1 - value * scale, 1):g}" for at, value in series)


WINDOW_SECONDS = 600.0
"""The time over which a queue is compared with itself."""
MUCH_GROWTH = 100
EXPIRING_SHARE = 0.8
IN_FLIGHT_SHARE = 0.9
URGENT, SOON = 2, 1


class Concern(NamedTuple):
    """One reason why a queue needs attention. A higher level is more urgent."""

    level: int
    text: str
    command: str = ""
    """A command that helps."""


def of_queue(history: QueueHistory, now: float, resume: Sequence[str]) -> Iterator[Concern]:
    """Yield the concerns about a queue. ``resume``: the command that resumes its consumers."""
    last = history.last
    if history.is_gone:
        yield Concern(URGENT, "The queue does not exist.")
        return
    if history.problem:
        yield Concern(URGENT, f"It cannot be read: {history.problem}")
    if last is None:
        return
    if history.guard:
        yield Concern(SOON, f"Its consumer is {history.guard}.", shlex.join(resume))
    elif history.paused:
        are, them = ("are", "them") if len(history.paused) > 1 else ("is", "it")
        text = f"{' and '.join(history.paused)} {are} paused: Lambda delivers no messages of this queue to {them}."
        yield Concern(SOON, text, shlex.join(resume))
    yield from _expiry(history, last, now)
    yield from _backlog(history, last, now)
    if last.in_flight >= IN_FLIGHT_SHARE * IN_FLIGHT_LIMIT:
        text = f"{last.in_flight:,} messages are in flight; at {IN_FLIGHT_LIMIT:,} SQS delivers no more of them."
        yield Concern(URGENT, text)


def of_dead_letters(history: QueueHistory, now: float, latest_error: str = "") -> Iterator[Concern]:
    """Yield the concerns about a dead-letter queue. ``latest_error``: that of its latest message, if it is known."""
    last, ready = history.last, history.ready(now)
    if history.is_gone:
        yield Concern(URGENT, "The dead-letter queue does not exist: SQS refuses to move messages there.")
        return
    if history.problem:
        yield Concern(URGENT, f"The dead-letter queue cannot be read: {history.problem}")
    if last is None or not last.messages:
        return
    latest = f" The latest: {latest_error}" if latest_error else ""
    more = round(ready[-1][1] - ready[0][1]) if ready else 0
    if more > 0:
        seconds = now - ready[0][0]
        since = "hour" if round(seconds / 60) == 60 else minutes(seconds)
        text = f"{count_of(last.messages)}; {more:,} arrived in the last {since}.{latest}"
        yield Concern(URGENT, text)
    else:
        wait = "waits" if last.messages == 1 else "wait"
        yield Concern(SOON, f"{count_of(last.messages)} {wait} for a decision.{latest}")
    yield from _expiry(history, last, now)


def _expiry(history: QueueHistory, last: QueueReading, now: float) -> Iterator[Concern]:
    oldest = history.oldest(now)
    if oldest is not None and oldest >= EXPIRING_SHARE * last.retention:
        left = max(0.0, last.retention - oldest)
        yield Concern(URGENT, f"The oldest message is deleted in {coarse(left)}, when its retention ends.")


def _backlog(history: QueueHistory, last: QueueReading, now: float) -> Iterator[Concern]:
    """Yield whether a queue is stuck, or grows."""
    if not last.ready:
        return
    left, began = history.left(now), now - WINDOW_SECONDS
    before = [value for at, value in history.ready(now) if at <= began]
    since = [value for at, value in history.ready(now) if at > began]
    ready = f"{last.ready:,} {'is' if last.ready == 1 else 'are'} ready"
    is_known = bool(left) and left[0][0] <= began
    if is_known and recent(left, now, WINDOW_SECONDS) == 0 and min(since, default=0) > 0:
        yield Concern(URGENT, f"No message has left the queue for {coarse(WINDOW_SECONDS)}; {ready}.")
    elif before and last.ready - before[-1] >= MUCH_GROWTH and last.ready >= 2 * before[-1]:
        yield Concern(SOON, f"The queue grows: {ready}, {before[-1]:,.0f} were {coarse(WINDOW_SECONDS)} ago.")


RATE_SECONDS = 300.0
"""The time over which rates are averaged."""
LEAST_SECONDS = 300.0
"""The shortest time that charts show."""


class OverviewRow:
    """A queue with its consumers, its dead-letter queue, and what is known about both."""

    def __init__(
        self,
        watched: WatchedQueue,
        histories: Mapping[str, QueueHistory],
        span: TimeSpan,
        place_options: Sequence[str],
        latest_errors: Mapping[str, str],
    ) -> None:
        now, dead_name = span.end, watched.dead_letter_queue
        own, dead = (histories.get(each or "", QueueHistory()) for each in (watched.address, watched.dead_letters))
        arrived, left = own.arrived(now), own.left(now)
        resume = ["tarry", "resume", "--queue", watched.name or "", *place_options]
        found = [*of_queue(own, now, resume), *of_dead_letters(dead, now, latest_errors.get(dead_name or "", ""))]
        self.name = watched.name or dead_name or ""
        """The name of the queue, or of a dead-letter queue whose source is not known."""
        self.queue = watched.name
        self.functions = watched.functions
        self.interrupted = "suspended" if own.guard else "paused" if own.paused else ""
        self.reading = own.last
        self.oldest = own.oldest(now)
        """In seconds."""
        self.arrived = recent(arrived, now, RATE_SECONDS)
        """Messages a minute."""
        self.left = recent(left, now, RATE_SECONDS)
        self.ready_chart = chart("Messages ready", ("", own.ready(now)), span=span)
        self.rate_chart = chart("Messages a minute", ("arrived", arrived), ("left", left), span=span)
        self.dead_letter_queue = dead_name
        self.dead_letters = dead.last
        self.dead_letter_chart = chart("Dead letters", ("", dead.ready(now)), span=span)
        self.concerns = tuple(sorted(found, key=lambda each: -each.level))
        self.level = max((each.level for each in found), default=0)
        """The level of the most urgent concern; 0 without one."""


@dataclass(frozen=True)
class OverviewRows:
    """The rows, and the counts that the page shows above them."""

    rows: Sequence[OverviewRow]
    span: float
    """The time that the charts show, in seconds."""
    read_at: float | None
    """When the queues were read last, in epoch seconds."""
    note: str
    """Why ages and rates are not known; empty if they are."""
    is_read: bool

    @property
    def urgent(self) -> Sequence[OverviewRow]:
        return [each for each in self.rows if each.concerns]

    @property
    def summary(self) -> str:
        """The state of all queues in one sentence."""
        if not self.is_read:
            return "Reading the queues."
        count, all_rows = len(self.urgent), len(self.rows)
        if not count:
            return f"No queue needs attention ({all_rows:,} read)."
        return f"{count:,} of {all_rows:,} queue{'s'[: all_rows != 1]} need{'s'[: count == 1]} attention."


def rows_of(
    queues: Sequence[WatchedQueue],
    histories: Mapping[str, QueueHistory],
    now: float,
    note: str = "",
    place_options: Sequence[str] = (),
    latest_errors: Mapping[str, str] = MappingProxyType({}),
) -> OverviewRows:
    """Return the overview.

    ``histories`` are by the URL or name of each queue and dead-letter queue, ``latest_errors`` by the name. ``note``
    says why ages and rates are not known; ``place_options`` are those of a command that acts at the same place.
    """
    begins = [series[0][0] for each in histories.values() if (series := each.ready(now))]
    span = TimeSpan(now, min(HOUR_SECONDS, max(LEAST_SECONDS, now - min(begins, default=now))))
    rows = [OverviewRow(each, histories, span, place_options, latest_errors) for each in queues]
    rows.sort(key=lambda row: (-row.level, -(row.dead_letters.messages if row.dead_letters else 0), row.name))
    is_read = any(each.last or each.problem or each.is_gone for each in histories.values())
    read_at = max((each.last.at for each in histories.values() if each.last), default=None)
    return OverviewRows(rows, span.seconds, read_at, note, is_read)
