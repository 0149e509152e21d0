"""The timeline of a policy as text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from tarry.failed.text import duration, printable
from tarry.tools.plan.scale import LogScale
from tarry.tools.plan.units import range_text, rough, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tarry.tools.plan.timeline import Follows, PlannedAttempt, PlannedQueue, PolicyTimeline

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
    rows = [*table(timeline)]
    sections = [[*heading(timeline)], rows, [*picture(timeline)], [*notes(timeline)]]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def heading(timeline: PolicyTimeline) -> Iterator[str]:
    """Yield the consumer, its policy, and the facts of its queue."""
    policy, queue = timeline.policy, timeline.queue
    yield from wrapped(f"{policy.name} on {queue.name}" if queue.is_known else policy.name)
    yield from wrapped(policy_text(timeline))
    yield from wrapped(facts_text(queue))


def policy_text(timeline: PolicyTimeline) -> str:
    """Return the attempts, the backoff and the failure steps."""
    policy = timeline.policy
    if not policy.is_consumer:
        return "not a consumer of tarry: SQS delivers a failed message again after the visibility timeout"
    steps = f"on_failure=[{', '.join(step.name for step in policy.steps)}]"
    if not policy.retries_in_place:
        return steps
    return f"max_attempts={policy.max_attempts}, backoff={policy.backoff}, {steps}"


def facts_text(queue: PlannedQueue) -> str:
    """Return the facts of a queue that its messages depend on."""
    facts = [f"visibility timeout {duration(queue.visibility_timeout)}", f"retention {duration(queue.retention)}"]
    if queue.max_receive_count is not None:
        facts.append(f"maxReceiveCount {queue.max_receive_count}")
    if not queue.is_known:
        return f"queue not known; SQS's defaults: {', '.join(facts)}"
    return ", ".join([*facts, f"dead-letter queue {queue.dead_letter_queue or 'none'}"])


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
    rows = [cells[0], *(left_out(each) if isinstance(each, int) else each for each in folded(cells[1:]))]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)) for row in rows)
    return [f"{line}  {row[4]}".rstrip() for line, row in zip(lines, rows, strict=True)]


def left_out(count: int) -> tuple[str, str, str, str, str]:
    """Return the row that stands for attempts that are not shown."""
    return f"... {count:,} more", "", "", "", ""


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
        case "dead_letter":
            target = last.target or "the dead-letter queue"
            return f"Ends in {target}, {when}."
        case "drop":
            return f"Ends deleted, with a log line only, {when}."
        case "sent_on":
            return f"Ends in {last.target}, {when}."
        case "moved":
            return f"Ends in {last.target}, moved by SQS without a failure record, {when}."
        case "expires":
            return f"Ends deleted by SQS, because its retention ends, {when}."
        case _ if not timeline.ends.latest:
            return f"Does not end: it stays in {queue.name}."
        case _:
            return f"Does not end: from {when} on, it stays in {queue.name}."


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
