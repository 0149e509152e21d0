"""A timeline and a load as SVG, for light and dark mode."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tarry.failed.text import duration
from tarry.failed.usage import UsageError
from tarry.tools.plan.request import PlanSubject
from tarry.tools.plan.simulation import LoadResult
from tarry.tools.plan.text import (
    assumptions,
    count_text,
    end_text,
    facts_text,
    folded,
    name_of,
    policy_text,
    resampled,
    scale_of,
    then_text,
)
from tarry.tools.plan.timeline import WAITS, PlannedAttempt, PolicyTimeline
from tarry.tools.plan.units import TICKS, range_text, rough, time_text
from tarry.tools.story.svg import NORMAL, fit, group, picture, text_at, width_of

WIDTH, MARGIN = 960, 24
LEFT, RIGHT = 120, 660
"""The ends of the time axis of the attempts."""
TOP, ROW, BAR = 116, 28, 14
CHART_LEFT, CHART_RIGHT, CHART_HEIGHT = 88, 936, 200
COLUMNS = 240
"""The times at which the lines of a load have a point."""
TICK_SPACE = 72
TEXT = RIGHT + 24
"""Where the text of an attempt begins."""


def check_directory(path: Path | None) -> None:
    """Raise `UsageError` if the directory of a picture does not exist, before it is simulated."""
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"--svg {path} cannot be written: there is no directory {path.parent}")


def write_picture(path: Path, subject: PlanSubject, *results: LoadResult | None) -> None:
    """Write the picture to a file. Raises `UsageError` if it cannot be written."""
    try:
        path.write_text(picture_of(subject.timeline, *results, today=subject.today), "utf-8")
    except OSError as error:
        raise UsageError(f"--svg {path} cannot be written: {error.strerror}") from error


def picture_of(timeline: PolicyTimeline, *results: LoadResult | None, today: PolicyTimeline | None = None) -> str:
    """Return the picture as SVG, below that of ``today``. It follows the light or dark mode of its viewer."""
    parts, height = _PlanDrawing(timeline, results).parts()
    if today is not None:
        above, top = _PlanDrawing(today).parts()
        parts = [*above, f'<g transform="translate(0 {top})">', *parts, "</g>"]
        height += top
    return picture(f"{timeline.policy.name}: {end_text(timeline)}", parts, WIDTH, height)


class _PlanDrawing:
    def __init__(self, timeline: PolicyTimeline, results: Sequence[LoadResult | None] = ()) -> None:
        self._timeline = timeline
        self._results = [each for each in results if each is not None]
        self._end = max((run.ended_at for each in self._results for run in each.runs), default=0)
        """The end of the time axis of the loads."""
        self._rows: list[PlannedAttempt | int] = folded(timeline.attempts)
        self._scale = scale_of(timeline, LEFT, RIGHT)
        self._bottom = TOP + ROW * len(self._rows)

    def parts(self) -> tuple[list[str], int]:
        """Return what is drawn, and its height."""
        parts = [*self._title(), *self._axis(), *self._attempts()]
        height = self._bottom + 44
        for each in self._results:
            parts += self._load(each, height + 16)
            height += CHART_HEIGHT + 184
        return parts, height

    # the timeline

    def _title(self) -> Iterator[str]:
        timeline, width = self._timeline, WIDTH - 2 * MARGIN
        yield text_at(MARGIN, 34, fit(name_of(timeline), width, 16), "title")
        yield text_at(MARGIN, 56, fit(policy_text(timeline), width, NORMAL))
        yield text_at(MARGIN, 75, fit(facts_text(timeline.queue), width, 12), "quiet")
        yield text_at(MARGIN, 94, fit(end_text(timeline), width, 12), "quiet")

    def _axis(self) -> Iterator[str]:
        if not self._timeline.last.begins.latest:
            return
        for x, label in self._scale.ticks(TICK_SPACE):
            yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{self._bottom}"/>'
            yield text_at(x, self._bottom + 18, label, "quiet middle")

    def _attempts(self) -> Iterator[str]:
        before: PlannedAttempt | None = None
        for place, row in enumerate(self._rows):
            y = TOP + ROW * place + ROW // 2
            if isinstance(row, int):
                before = None
                yield text_at(MARGIN, y + 4, f"... {row:,} more", "quiet")
                continue
            begin, end = (self._scale.x(each) for each in row.begins)
            if before is not None:
                waits = self._scale.x(before.begins.latest)
                yield _bar("WAITING_RETRY", waits, begin, y, 2)
            yield group(_words(row), _bar("attempt", begin - 3, end + 3, y, BAR))
            yield text_at(MARGIN, y + 4, f"attempt {row.number}")
            if row.follows in END_COLOURS:
                yield _bar(END_COLOURS[row.follows], end + 9, end + 19, y, 10)
            text = f"{range_text(*row.begins, rough)}: {then_text(row)}"
            yield text_at(TEXT, y + 4, fit(text, WIDTH - MARGIN - TEXT, 12), "quiet")
            before = row

    # the load

    def _load(self, result: LoadResult, top: int) -> Iterator[str]:
        width = WIDTH - 2 * MARGIN
        yield f'<line class="grid" x1="{MARGIN}" y1="{top - 14}" x2="{WIDTH - MARGIN}" y2="{top - 14}"/>'
        for place, line in enumerate(assumptions(result)):
            kind = "" if place == 0 else "quiet"
            yield text_at(MARGIN, top + 10 + 20 * place, fit(line, width, NORMAL if place == 0 else 12), kind)
        drained = result.drained
        facts = [
            f"waiting at most {count_text(result.of(lambda run: run.peak_waiting))}",
            f"dead letters {count_text(result.of(lambda run: run.dead))}",
            "not drained" if drained is None else f"drained after {duration(drained.mean)}",
        ]
        yield text_at(MARGIN, top + 70, fit(", ".join(facts), width, NORMAL))
        yield from self._chart(result, top + 100)

    def _chart(self, result: LoadResult, top: int) -> Iterator[str]:
        end = self._end
        samples = resampled(result.runs, COLUMNS, end)
        highest = max(max(each.waiting + each.ready, each.dead) for each in samples) or 1
        bottom = top + CHART_HEIGHT

        def x(at: float) -> float:
            return round(CHART_LEFT + (CHART_RIGHT - CHART_LEFT) * at / end, 1)

        def y(value: float) -> float:
            return round(bottom - CHART_HEIGHT * value / highest, 1)

        outage = x(result.load.outage)
        size = f'width="{outage - CHART_LEFT:.1f}" height="{CHART_HEIGHT}"'
        yield f'<rect class="READY" fill-opacity="0.35" x="{CHART_LEFT}" y="{top}" {size}/>'
        for value in (highest, highest / 2, 0):
            yield f'<line class="grid" x1="{CHART_LEFT}" y1="{y(value)}" x2="{CHART_RIGHT}" y2="{y(value)}"/>'
            yield text_at(CHART_LEFT - 8, y(value) + 4, f"{value:,.0f}", "quiet end")
        below = [(x(each.at), y(0)) for each in samples]
        waiting = [(x(each.at), y(each.waiting)) for each in samples]
        ready = [(x(each.at), y(each.waiting + each.ready)) for each in samples]
        yield _area("WAITING_RETRY", waiting, below)
        yield _area("IN_FLIGHT", ready, waiting)
        yield _line("broken", [(x(each.at), y(each.dead)) for each in samples])
        last = -1e9
        for at, label in _chart_ticks(end):
            if x(at) - last >= TICK_SPACE:
                last = x(at)
                yield text_at(last, bottom + 18, label, "quiet middle")
        yield text_at(CHART_LEFT, top - 6, f"outage, {duration(result.load.outage)}", "quiet")
        place = float(CHART_LEFT)
        for kind, text in LEGEND.items():
            yield _bar(kind, place, place + 20, bottom + 40, 12)
            yield text_at(place + 26, bottom + 44, text, "quiet")
            place += 26 + width_of(text, 12) + 16


END_COLOURS = {
    **dict.fromkeys(("dead_letter", "stays", "moved", "expires"), "DEAD_LETTERED"),
    "drop": "DISCARDED",
    "sent_on": "RESENT",
}
LEGEND = {"WAITING_RETRY": "waiting for a retry", "IN_FLIGHT": "ready", "DEAD_LETTERED": "dead letters so far"}


def _chart_ticks(end: float) -> Iterator[tuple[float, str]]:
    """Yield times at even distances, and their labels."""
    steps = [step * times for step in TICKS for times in (1, 2, 5, 10, 20, 30)]
    step = next((each for each in sorted(steps) if end / each <= 8), end)
    number = 0
    while number * step <= end:
        yield number * step, time_text(number * step)
        number += 1


def _words(attempt: PlannedAttempt) -> str:
    """Return an attempt in words, to be read while the pointer is over it."""
    lines = [f"attempt {attempt.number}: {range_text(*attempt.begins)} after the first, then {then_text(attempt)}"]
    if attempt.follows in WAITS:
        lines.append(f"the next one after {range_text(*attempt.wait)}")
    return "\n".join([*lines, *attempt.notes])


def _bar(kind: str, begin: float, end: float, y: float, height: float) -> str:
    """Return a rectangle around the line ``y``."""
    size = f'width="{max(0.0, end - begin):.1f}" height="{height:g}"'
    return f'<rect class="{kind}" x="{begin:.1f}" y="{y - height / 2:g}" {size} rx="{min(3, height / 4):g}"/>'


def _area(kind: str, upper: list[tuple[float, float]], lower: list[tuple[float, float]]) -> str:
    points = " ".join(f"{x:g},{y:g}" for x, y in [*upper, *reversed(lower)])
    return f'<polygon class="{kind}" points="{points}"/>'


def _line(kind: str, points: list[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>'
