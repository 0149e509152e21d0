"""Warnings about a load: what passes a limit of SQS or of the function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.failed.text import duration
from tarry.support.delays import MAX_VISIBILITY_SECONDS
from tarry.tools.plan.units import time_text
from tarry.tools.simulator.sqs.queue_context import IN_FLIGHT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.tools.plan.load import LoadResult
    from tarry.tools.plan.timeline import PolicyTimeline


def load_warnings(result: LoadResult, timeline: PolicyTimeline, timeout: float | None) -> Iterator[str]:
    """Yield a sentence for each limit that a load passes."""
    load, consuming = result.load, result.consuming
    capacity = consuming.messages_per_second(load.handler_time)
    if load.rate >= capacity:
        yield (
            f"The function runs at most {capacity:,.4g} messages/s, fewer than arrive: the queue grows without end, "
            "also without an outage. Raise its concurrency, or make the handler faster."
        )
    batch_time = consuming.batch_size * load.handler_time / consuming.per_invocation
    if timeout is not None and batch_time > timeout:
        yield (
            f"A batch of {consuming.batch_size} takes {duration(batch_time)}, longer than the function's timeout of "
            f"{duration(timeout)}. tarry then releases messages that have not started, which is not simulated here."
        )
    in_flight = result.of(lambda run: run.peak_in_flight).most
    if in_flight >= IN_FLIGHT_LIMIT:
        yield (
            f"{in_flight:,.0f} messages are in flight at once, and a standard queue has {IN_FLIGHT_LIMIT:,} places. "
            "When all are taken, SQS delivers no message of the queue, which is not simulated here. Use shorter or "
            "fewer delays, or SendAgain with delays of up to 15 minutes, which take no place."
        )
    if load.outage > MAX_VISIBILITY_SECONDS:
        yield (
            "The outage is longer than 12 hours, the longest that SQS keeps a message invisible: a message needs more "
            "than one attempt to outlast it."
        )
    if timeline.ends.latest < load.outage and timeline.last.follows == "dead_letter":
        yield (
            f"The attempts end after at most {time_text(timeline.ends.latest)}, before the outage does "
            f"({duration(load.outage)}). More attempts, or longer delays, would outlast it."
        )
    if (drained := result.drained) is not None and drained.most > timeline.queue.retention:
        yield (
            f"The queue is drained only after {duration(drained.most)}, and its retention is "
            f"{duration(timeline.queue.retention)}: SQS may delete messages before."
        )
