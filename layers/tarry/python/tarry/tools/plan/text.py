"""A timeline and a load as text for a terminal of 80 columns, and as a JSON object."""

import textwrap
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from tarry.failed.text import duration, printable
from tarry.tools.plan.request import PlanSubject
from tarry.tools.plan.simulation import LoadResult, LoadRun, LoadSample, Spread, dollars_of
from tarry.tools.plan.timeline import Follows, PlannedAttempt, PolicyTimeline
from tarry.tools.plan.units import LogScale, range_text, rough, time_text
from tarry.tools.simulator.sqs.queue import IN_FLIGHT_LIMIT
from tarry.tools.template import TemplateQueue

WIDTH = 80
TICK_SPACE_AT_END = 19
"""The columns of the last label of a time axis, which ends at its place, and of the one before, which begins there."""
FIRST_ROWS, LAST_ROWS = 12, 3
"""The attempts that are shown of a long timeline."""
Row = TypeVar("Row")


def timeline_text(timeline: PolicyTimeline, today: PolicyTimeline | None = None) -> str:
    """Return the heading, the table, the picture and the notes of a timeline, below those of ``today``."""
    if today is not None:
        return f"{timeline_text(today)}\n\n\n{timeline_text(timeline)}"
    heading = [
        each
        for text in (name_of(timeline), policy_text(timeline), facts_text(timeline.queue))
        for each in wrapped(text)
    ]
    sections = [heading, [*table(timeline)], [*picture(timeline)], [*notes(timeline)]]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def name_of(timeline: PolicyTimeline) -> str:
    """Return the consumer, and its queue if that is known."""
    queue = timeline.queue
    return timeline.policy.name + (f" on {queue.name}" if queue.is_known else "")


def policy_text(timeline: PolicyTimeline) -> str:
    """Return the attempts, the backoff and the failure steps."""
    policy = timeline.policy
    if not policy.is_consumer:
        return "not a consumer of tarry: SQS delivers a failed message again after the visibility timeout"
    steps = f"on_failure=[{', '.join(step.name for step in policy.steps)}]"
    if not policy.retries_in_place:
        return steps
    return f"max_attempts={policy.max_attempts}, backoff={policy.backoff}, {steps}"


def facts_text(queue: TemplateQueue) -> str:
    """Return the facts of a queue that its messages depend on."""
    visibility, retention = duration(queue.visibility_timeout_seconds), duration(queue.retention_seconds)
    facts = [f"visibility timeout {visibility}", f"retention {retention}"]
    if queue.receive_limit is not None:
        facts.append(f"maxReceiveCount {queue.receive_limit}")
    if not queue.is_known:
        return f"queue not known; SQS's defaults: {', '.join(facts)}"
    return ", ".join([*facts, f"dead-letter queue {queue.dead_letters or 'none'}"])


def table(timeline: PolicyTimeline) -> Iterator[str]:
    """Yield a line for each attempt, and one for the end."""
    lines = _table(timeline, time_text)
    yield from lines if max(map(len, lines)) <= WIDTH else _table(timeline, rough)
    yield ""
    yield from wrapped(end_text(timeline))


def _table(timeline: PolicyTimeline, shown: Callable[[float], str]) -> list[str]:
    cells = [("ATTEMPT", "DELAY BEFORE", "EARLIEST", "LATEST", "IF IT FAILS")]
    before = None
    for attempt in timeline.attempts:
        delay = "-" if before is None else range_text(*before.wait, shown)
        earliest, latest = (shown(each) for each in attempt.begins)
        cells.append((f"{attempt.number:,}", delay, earliest, latest, then_text(attempt)))
        before = attempt
    shortened = [(f"... {each:,} more", *[""] * 4) if isinstance(each, int) else each for each in folded(cells[1:])]
    rows = [cells[0], *shortened]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)) for row in rows)
    return [f"{line}  {row[4]}".rstrip() for line, row in zip(lines, rows, strict=True)]


def folded(rows: Sequence[Row]) -> list[Row | int]:
    """Return the first and the last rows of many, and between them how many are left out."""
    if len(rows) <= FIRST_ROWS + LAST_ROWS + 1:
        return list(rows)
    return [*rows[:FIRST_ROWS], len(rows) - FIRST_ROWS - LAST_ROWS, *rows[-LAST_ROWS:]]


def then_text(attempt: PlannedAttempt) -> str:
    """Return what follows an attempt, in few words."""
    match attempt.follows:
        case "copy":
            return attempt.step if attempt.step.startswith("copy") else "retry as a copy"
        case "sent_on":
            return f"send to {attempt.target}"
        case other:
            return IN_WORDS.get(other, other)


IN_WORDS: dict[Follows, str] = {
    "unhandled": "retry, unhandled",
    "dead_letter": "dead letter",
    "moved": "moved by SQS",
    "expires": "deleted by SQS",
}


def end_text(timeline: PolicyTimeline) -> str:
    """Return how a message ends that fails every time, and when."""
    last, queue = timeline.last, timeline.queue
    when = f"{range_text(*timeline.ends)} after the first attempt" if timeline.ends.latest else "at once"
    match last.follows:
        case "dead_letter" | "sent_on":
            return f"Ends in {last.target or 'the dead-letter queue'}, {when}."
        case "drop":
            return f"Ends deleted, with a log line only, {when}."
        case "moved":
            return f"Ends in {last.target}, moved by SQS without a failure record, {when}."
        case "expires":
            return f"Ends deleted by SQS, because its retention ends, {when}."
    begin = f"from {when} on, it" if timeline.ends.latest else "it"
    return f"Does not end: {begin} stays in {queue.name}."


def picture(timeline: PolicyTimeline) -> Iterator[str]:
    """Yield a line for each attempt: when it can begin, on the logarithm of the time."""
    if not timeline.last.begins.latest:
        return
    left = 5
    scale = scale_of(timeline, left, WIDTH - 2)
    rows = []
    for attempt in timeline.attempts:
        begin, end = (round(scale.x(each)) for each in attempt.begins)
        rows.append((f"{attempt.number:>4}", " " * (begin - left) + "█" * (end - begin + 1)))
    for row in folded(rows):
        yield "   ." if isinstance(row, int) else " ".join(row)
    line = " " * left
    for x, label in scale.ticks(12, before_end=TICK_SPACE_AT_END):
        place = min(round(x), WIDTH - len(label))
        line = f"{line[:place]:<{place}}{label}"
    yield line


def scale_of(timeline: PolicyTimeline, left: float, right: float) -> LogScale:
    """Return the time axis of a timeline."""
    times = [each for attempt in timeline.attempts for each in attempt.begins if each]
    return LogScale(min(times, default=1), max(times, default=1), left, right)


def notes(timeline: PolicyTimeline) -> Iterator[str]:
    """Yield what is special about attempts, the same of several attempts once."""
    found: dict[str, list[int]] = {}
    for attempt in timeline.attempts:
        texts = list(attempt.notes)
        if attempt.runs > 1:
            waits = range_text(*attempt.local_wait)
            texts.insert(0, f"up to {attempt.runs} runs of the handler, with waits of {waits} in all")
        for text in texts:
            found.setdefault(text, []).append(attempt.number)
    for text, numbers in found.items():
        yield from wrapped(f"{numbers_text(numbers)}: {text}")
    if timeline.policy.is_sampled:
        yield from wrapped("The limits of a backoff of your own without bounds() are those of 200 samples.")


def numbers_text(numbers: Sequence[int]) -> str:
    """Return attempt numbers as ranges: ``attempts 1 to 3, 5``."""
    parts = []
    for _, group in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        members = [number for _, number in group]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]} to {members[-1]}")
    return f"attempt{'s'[: len(numbers) != 1]} {', '.join(parts)}"


def wrapped(text: str) -> list[str]:
    """Return a text as lines of a terminal."""
    return textwrap.wrap(printable(text), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


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
    if result.is_guarded:
        return [f"The same load with the outage guard: {result.suspensions()}."]
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
    units = ("s", 1), ("min", 60), ("h", 3600)
    unit, seconds = next((each for each in units if rate * each[1] >= 1), units[-1])
    return f"{rate * seconds:,.4g} messages/{unit}"


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
        if found.highest or end == "dead_letter":
            first = [run.first_end_at for run in result.runs if run.first_end_at is not None]
            since = f", the first after {duration(min(first))}" if first and found.highest else ""
            rows.append((text, count_text(found) + since))
    requests, invocations = result.of(lambda run: run.requests), result.of(lambda run: run.invocations)
    busy, dollars = duration(result.of(lambda run: run.busy_seconds).mean), dollars_of(result)
    rows += [
        ("requests to SQS", f"{count_text(requests)}: {money(dollars['requests'])}"),
        ("invocations", f"{count_text(invocations)}: {money(dollars['invocations'])}"),
        ("time of the function", f"{busy} at {result.consuming.memory_mb:,} MB: {money(dollars['compute'])}"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        yield f"{name:<{width}}  {text}"


def _drained(result: LoadResult) -> list[tuple[str, str]]:
    found, outage = result.drained, result.load.outage
    if found is None:
        return [("drained", f"not within {duration(min(run.ended_at for run in result.runs))}")]
    limits = f"{duration(found.mean)} ({duration(found.lowest)} to {duration(found.highest)})"
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
        each = [run.samples[max(1, bisect_right(run.samples, at, key=attrgetter("at"))) - 1] for run in runs]
        means = (sum(values) / len(each) for values in zip(*(sample[1:] for sample in each), strict=True))
        found.append(LoadSample(at, *means))
    return found


def document(subject: PlanSubject, result: LoadResult | None, guarded: LoadResult | None = None) -> dict[str, Any]:
    """Return all numbers; times are seconds."""
    found = _timeline(subject.timeline, subject.warnings(result))
    if subject.today is not None:
        found["today"] = _timeline(subject.today, subject.today.warnings)
    if result is not None:
        found["load"] = _load(result)
    if guarded is not None:
        phases = [{"at": at, "phase": phase or None} for at, phase in guarded.runs[0].phases]
        found["with_guard"] = _load(guarded) | {"phases": phases}
    return found


def _timeline(timeline: PolicyTimeline, warnings: Sequence[str]) -> dict[str, Any]:
    policy, queue = timeline.policy, timeline.queue
    return {
        "consumer": policy.name,
        "queue": {
            "name": queue.name,
            "is_fifo": queue.is_fifo,
            "visibility_timeout": queue.visibility_timeout_seconds,
            "retention": queue.retention_seconds,
            "max_receive_count": queue.receive_limit,
            "dead_letter_queue": queue.dead_letters,
            "delay": queue.delay_seconds,
            "is_known": queue.is_known,
        },
        "max_attempts": policy.max_attempts if policy.retries_in_place else None,
        "backoff": policy.backoff if policy.retries_in_place else None,
        "steps": [step.name for step in policy.steps],
        "attempts": [_attempt(each) for each in timeline.attempts],
        "end": {"how": timeline.last.follows, "queue": timeline.last.target or None, **timeline.ends._asdict()},
        "warnings": list(warnings),
    }


def _attempt(attempt: PlannedAttempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "receive_count": attempt.receive_count,
        **attempt.begins._asdict(),
        "runs": attempt.runs,
        "then": attempt.follows,
        "step": attempt.step or None,
        "delay": attempt.wait._asdict(),
        "queue": attempt.target or None,
        "notes": list(attempt.notes),
    }


def _load(result: LoadResult) -> dict[str, Any]:
    numbers = "failed waiting_at_end peak_waiting peak_ready peak_in_flight messages runs invocations requests".split()
    return {
        **asdict(result.load),
        "seeds": [run.seed for run in result.runs],
        "messages_per_simulated_message": result.runs[0].scale,
        **{name: result.of(attrgetter(name))._asdict() for name in numbers},
        "drained_at": None if result.drained is None else result.drained._asdict(),
        "dead_letters": result.of(lambda run: run.dead)._asdict(),
        "dollars": dollars_of(result),
    }
