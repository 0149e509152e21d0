"""A load on a queue as text for a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.failed.text import duration
from tarry.tools.plan.load import LoadRun, LoadSample, Spread, costs_of
from tarry.tools.plan.timeline_text import WIDTH, wrapped
from tarry.tools.plan.units import time_text
from tarry.tools.simulator.sqs.queue_context import IN_FLIGHT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tarry.tools.plan.load import LoadResult

HEIGHT = 8
"""The lines of the picture."""
BLOCKS = " ▁▂▃▄▅▆▇█"
PER_CELL = len(BLOCKS) - 1
CHART_LEFT = 10


def load_text(result: LoadResult) -> str:
    """Return the assumptions, the numbers and the picture of a load."""
    lines = [line for text in assumptions(result) for line in wrapped(text)]
    sections = [lines, [*numbers(result)], [*chart(result)]]
    return "\n\n".join("\n".join(lines) for lines in sections)


def assumptions(result: LoadResult) -> list[str]:
    """Return what is simulated, and how."""
    load, consuming = result.load, result.consuming
    outage = duration(load.outage)
    window = f", window {duration(consuming.window)}" if consuming.window else ""
    seeds = f"seeds {result.runs[0].seed} to {result.runs[-1].seed}"
    scale = result.runs[0].scale
    scaled = "" if scale == 1 else f" Each simulated message stands for {scale:,}."
    return [
        f"Load: {rate_text(load.rate)}. During an outage of {outage}, {load.failing * 100:.4g}% of the messages that "
        "arrive fail at each attempt; after it, none.",
        f"Function: {time_text(load.handler_time)} a message, batches of up to {consuming.batch_size:,}{window}, up to "
        f"{consuming.invocations:,} invocation{'s'[: consuming.invocations != 1]} at once.",
        f"Simulated {len(result.runs)} times ({seeds}): mean (lowest to highest).{scaled}",
    ]


def rate_text(rate: float) -> str:
    """Return a rate with a unit in which it is at least 1."""
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if rate * seconds >= 1 or unit == "h":
            return f"{rate * seconds:,.4g} messages/{unit}"
    raise AssertionError


def numbers(result: LoadResult) -> Iterator[str]:
    """Yield the numbers of a load, each with its spread."""
    rows = [
        ("fail at least once", count_text(result.of(lambda run: run.failed))),
        ("waiting for a retry, at most", count_text(result.of(lambda run: run.peak_waiting))),
        ("  at the end of the outage", count_text(result.of(lambda run: run.waiting_at_end))),
        ("ready in the queue, at most", count_text(result.of(lambda run: run.peak_ready))),
        ("in flight, at most", f"{count_text(result.of(lambda run: run.peak_in_flight))} of {IN_FLIGHT_LIMIT:,}"),
        *_drained(result),
    ]
    ends = {"dead_letter": "dead letters", "drop": "dropped", "sent_on": "sent to another queue", "stays": "stay"}
    for end, text in ends.items():
        found = result.of(lambda run, end=end: run.ends[end])  # type: ignore[misc]
        if found.most or end == "dead_letter":
            first = [run.first_end_at for run in result.runs if run.first_end_at is not None]
            since = f", the first after {duration(min(first))}" if first and found.most else ""
            rows.append((text, count_text(found) + since))
    costs = costs_of(result)
    memory = result.consuming.memory_mb
    rows += [
        ("requests to SQS", f"{count_text(costs.requests)}: {money(costs.request_dollars)}"),
        ("invocations", f"{count_text(costs.invocations)}: {money(costs.invocation_dollars)}"),
        ("time of the function", f"{duration(costs.busy_seconds)} at {memory:,} MB: {money(costs.compute_dollars)}"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        yield f"{name:<{width}}  {text}"


def _drained(result: LoadResult) -> list[tuple[str, str]]:
    found, outage = result.drained, result.load.outage
    if found is None:
        return [("drained", f"not within {duration(min(run.ended_at for run in result.runs))}")]
    limits = f"{duration(found.mean)} ({duration(found.least)} to {duration(found.most)})"
    return [("drained after", limits), ("  after the outage", duration(found.mean - outage))]


def count_text(found: Spread) -> str:
    """Return a number with its spread."""
    mean, least, most = (round(each) for each in found)
    return f"{mean:,}" if least == most else f"{mean:,} ({least:,} to {most:,})"


def money(dollars: float) -> str:
    """Return an amount with at least two digits that count."""
    return f"${dollars:,.2f}" if dollars >= 0.1 else f"${dollars:.2g}"


def chart(result: LoadResult) -> Iterator[str]:
    """Yield a picture of the messages that wait or are ready, over the time."""
    columns = WIDTH - CHART_LEFT
    end = max(run.ended_at for run in result.runs)
    values = [value.waiting + value.ready for value in resampled(result.runs, columns, end)]
    highest = max(values) or 1
    yield "messages that wait for a retry, or are ready"
    for line in range(HEIGHT, 0, -1):
        cells = (value / highest * HEIGHT * PER_CELL - (line - 1) * PER_CELL for value in values)
        label = f"{highest:,.0f}" if line == HEIGHT else "0" if line == 1 else ""
        blocks = "".join(BLOCKS[max(0, min(PER_CELL, round(each)))] for each in cells)
        yield f"{label:>{CHART_LEFT - 2}}  {blocks}".rstrip()
    last, label = duration(end), f"outage ends, {duration(result.load.outage)}"
    place = CHART_LEFT + round(result.load.outage / end * (columns - 1))
    place = max(CHART_LEFT + 5, min(place, WIDTH - len(last) - 2 - len(label)))
    yield f"{'0 s':>{CHART_LEFT + 3}}{label:>{place + len(label) - CHART_LEFT - 3}}".ljust(WIDTH - len(last)) + last


def resampled(runs: Sequence[LoadRun], count: int, end: float) -> list[LoadSample]:
    """Return the means of the runs at ``count`` times from 0 to ``end``."""
    found = []
    for place in range(count):
        at = end * place / max(1, count - 1)
        each = [_at(run.samples, at) for run in runs]
        means = (sum(values) / len(each) for values in zip(*(sample[1:] for sample in each), strict=True))
        found.append(LoadSample(at, *means))
    return found


def _at(samples: Sequence[LoadSample], at: float) -> LoadSample:
    """Return the last sample at a time, or before."""
    low, high = 0, len(samples) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if samples[middle].at <= at else (low, middle - 1)
    return samples[low]
