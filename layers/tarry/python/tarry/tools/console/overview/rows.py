"""The overview as values: a row for each queue, those that need attention first."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from tarry.tools.console.overview import concerns
from tarry.tools.console.overview.chart import Chart, TimeSpan, chart
from tarry.tools.console.overview.readings import HOUR_SECONDS, QueueHistory, recent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tarry.tools.console.access import WatchedQueue
    from tarry.tools.console.overview.concerns import Concern
    from tarry.tools.console.overview.readings import QueueReading

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
    """The functions that are paused."""

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
    """Whether the queues were read at least once."""

    @property
    def urgent(self) -> tuple[OverviewRow, ...]:
        """The rows that need attention."""
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

    Args:
        queues: The queues.
        histories: What is known about each queue and dead-letter queue, by its URL or name.
        now: The time in epoch seconds.
        note: Why ages and rates are not known.
        place_options: The options of a command that acts at the same place.
        latest_errors: Why the latest message came to each dead-letter queue, by its name.
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
    found = [*concerns.of_queue(own, now, resume), *concerns.of_dead_letters(dead, now, latest_error)]
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
