"""The overview as values: a row for each queue with its charts, those that need attention first."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tarry.failed.text import coarse, minutes
from tarry.tools.console.overview.readings import HOUR_SECONDS, QueueHistory, Series, recent
from tarry.tools.simulator.sqs.queue import IN_FLIGHT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tarry.tools.console.access import WatchedQueue
    from tarry.tools.console.overview.readings import QueueReading

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
    highest: float
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
    """Return the chart of series; None if no series has two values, or all are 0.

    ``what`` it shows is for its label. ``named``: the series with their names; an only one may have an empty name.
    """
    drawn = [(name, series) for name, series in named if len(series) > 1]
    if not drawn:
        return None
    highest = max(value for _, series in drawn for _, value in series)
    if not highest:
        return None
    lines = tuple(_points(_thinned(series, span), highest, span) for _, series in drawn)
    first = drawn[0][1]
    area = f"{span.x(first[0][0]):g},{HEIGHT} {lines[0]} {span.x(first[-1][0]):g},{HEIGHT}"
    words = "; ".join(_words(name, series) for name, series in drawn)
    return Chart(lines, area, highest, f"{what}, the last {minutes(span.seconds)}: {words}")


def _thinned(series: Series, span: TimeSpan) -> Series:
    """Return the highest value of each part of the time; the first and the last value stay."""
    step = span.seconds / MAX_POINTS
    highest: dict[int, tuple[float, float]] = {}
    for at, value in series[1:-1]:
        part = int(at / step)
        if part not in highest or value > highest[part][1]:
            highest[part] = at, value
    return (series[0], *highest.values(), series[-1])


def _points(series: Series, highest: float, span: TimeSpan) -> str:
    scale = (HEIGHT - TOP - 1) / (highest)
    return " ".join(f"{span.x(at):g},{round(HEIGHT - 1 - value * scale, 1):g}" for at, value in series)


def _words(name: str, series: Series) -> str:
    highest = max(value for _, value in series)
    return f"{name} at most {highest:,.0f}, now {series[-1][1]:,.0f}".strip()


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
    if history.paused:
        names, are = " and ".join(history.paused), "are" if len(history.paused) > 1 else "is"
        text = f"{names} {are} paused: Lambda delivers no messages of this queue to {'them' if are == 'are' else 'it'}."
        yield Concern(SOON, text, shlex.join(resume))
    yield from _expiry(history, last, now)
    yield from _backlog(history, last, now)
    if last.in_flight >= IN_FLIGHT_SHARE * IN_FLIGHT_LIMIT:
        yield Concern(
            URGENT,
            f"{last.in_flight:,} messages are in flight; at {IN_FLIGHT_LIMIT:,} SQS delivers no more of them.",
        )


def of_dead_letters(history: QueueHistory, now: float, latest_error: str = "") -> Iterator[Concern]:
    """Yield the concerns about a dead-letter queue. ``latest_error``: that of its latest message, if it is known."""
    last = history.last
    if history.is_gone:
        yield Concern(URGENT, "The dead-letter queue does not exist: SQS refuses to move messages there.")
        return
    if history.problem:
        yield Concern(URGENT, f"The dead-letter queue cannot be read: {history.problem}")
    if last is None or not last.messages:
        return
    count = f"{last.messages:,} dead letter{'s'[: last.messages != 1]}"
    latest = f" The latest: {latest_error}" if latest_error else ""
    more, since = _increase(history.ready(now), now)
    if more:
        yield Concern(URGENT, f"{count}; {more:,} arrived in the last {_period(since)}.{latest}")
    else:
        yield Concern(SOON, f"{count} wait{'s'[: last.messages == 1]} for a decision.{latest}")
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
    left = history.left(now)
    is_known = bool(left) and left[0][0] <= now - WINDOW_SECONDS
    ready = f"{last.ready:,} {'is' if last.ready == 1 else 'are'} ready"
    if is_known and recent(left, now, WINDOW_SECONDS) == 0 and _was_ready(history, now):
        yield Concern(URGENT, f"No message has left the queue for {coarse(WINDOW_SECONDS)}; {ready}.")
        return
    before = _value_at(history.ready(now), now - WINDOW_SECONDS)
    if before is not None and last.ready - before >= MUCH_GROWTH and last.ready >= 2 * before:
        yield Concern(SOON, f"The queue grows: {ready}, {before:,.0f} were {coarse(WINDOW_SECONDS)} ago.")


def _was_ready(history: QueueHistory, now: float) -> bool:
    """Whether messages were ready during the whole window."""
    values = [value for at, value in history.ready(now) if at > now - WINDOW_SECONDS]
    return bool(values) and min(values) > 0


def _value_at(series: Series, at: float) -> float | None:
    """Return the last value up to a time; None if the series begins later."""
    values = [value for each, value in series if each <= at]
    return values[-1] if values else None


def _increase(series: Series, now: float) -> tuple[int, float]:
    """Return by how much a number has grown in the last hour, and in how many seconds; 0 if it has not."""
    if len(series) < 2:
        return 0, 0.0
    since, first = series[0]
    return max(0, round(series[-1][1] - first)), min(HOUR_SECONDS, now - since)


def _period(seconds: float) -> str:
    return "hour" if round(seconds / 60) == 60 else minutes(seconds)


RATE_SECONDS = 300.0
"""The time over which rates are averaged."""
LEAST_SECONDS = 300.0
"""The shortest time that charts show."""


@dataclass(frozen=True)
class OverviewRow:
    """A queue with its consumers, its dead-letter queue, and what is known about both."""

    name: str
    """The name of the queue, or of a dead-letter queue whose source is not known."""
    queue: str | None
    functions: tuple[str, ...]
    reading: QueueReading | None
    oldest: float | None
    """In seconds."""
    arrived: float | None
    """Messages a minute."""
    left: float | None
    """Messages a minute."""
    ready_chart: Chart | None
    rate_chart: Chart | None
    dead_letter_queue: str | None
    dead_letters: QueueReading | None
    dead_letter_chart: Chart | None
    concerns: tuple[Concern, ...]
    paused: tuple[str, ...] = ()

    @property
    def level(self) -> int:
        """The level of the most urgent concern; 0 without one."""
        return max((each.level for each in self.concerns), default=0)

    @property
    def is_gone(self) -> bool:
        """Whether the queue is not read, because it does not exist or could not be read yet."""
        return self.queue is not None and self.reading is None


@dataclass(frozen=True)
class OverviewRows:
    """The rows, and the counts that the page shows above them."""

    rows: tuple[OverviewRow, ...]
    span: float
    """The time that the charts show, in seconds."""
    read_at: float | None = None
    """When the queues were read last, in epoch seconds."""
    note: str = ""
    """Why ages and rates are not known; empty if they are."""
    is_read: bool = True

    @property
    def urgent(self) -> tuple[OverviewRow, ...]:
        return tuple(each for each in self.rows if each.concerns)

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
    rows = [
        _row(each, histories, span, place_options, latest_errors.get(each.dead_letter_queue or "", ""))
        for each in queues
    ]
    rows.sort(key=lambda row: (-row.level, -(row.dead_letters.messages if row.dead_letters else 0), row.name))
    is_read = any(each.last or each.problem or each.is_gone for each in histories.values())
    read_at = max((each.last.at for each in histories.values() if each.last), default=None)
    return OverviewRows(tuple(rows), span.seconds, read_at, note, is_read)


def _row(
    watched: WatchedQueue,
    histories: Mapping[str, QueueHistory],
    span: TimeSpan,
    place_options: Sequence[str],
    latest_error: str,
) -> OverviewRow:
    now = span.end
    own, dead = (histories.get(each or "", QueueHistory()) for each in (watched.address, watched.dead_letters))
    arrived, left, ready = own.arrived(now), own.left(now), own.ready(now)
    resume = ["tarry", "resume", "--queue", watched.name or "", *place_options]
    found = [*of_queue(own, now, resume), *of_dead_letters(dead, now, latest_error)]
    return OverviewRow(
        name=watched.name or watched.dead_letter_queue or "",
        queue=watched.name,
        functions=watched.functions,
        reading=own.last,
        oldest=own.oldest(now),
        arrived=recent(arrived, now, RATE_SECONDS),
        left=recent(left, now, RATE_SECONDS),
        ready_chart=chart("Messages ready", ("", ready), span=span),
        rate_chart=chart("Messages a minute", ("arrived", arrived), ("left", left), span=span),
        dead_letter_queue=watched.dead_letter_queue,
        dead_letters=dead.last,
        dead_letter_chart=chart("Dead letters", ("", dead.ready(now)), span=span),
        concerns=tuple(sorted(found, key=lambda each: -each.level)),
        paused=own.paused,
    )
