"""The state of a queue that needs attention, in words."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from tarry.failed.text import coarse, minutes
from tarry.tools.console.overview.readings import HOUR_SECONDS, Series, recent
from tarry.tools.simulator.sqs.queue_context import IN_FLIGHT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tarry.tools.console.overview.readings import QueueHistory, QueueReading

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
