"""Drawing timelines as SVG: a row for each message, its states as coloured spans, attempts and faults as marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tarry.failed.text import brief, coarse, duration, printable
from tarry.message.outcomes import State
from tarry.tools.story.svg import LEGEND, NORMAL, SMALL, TimeScale, fit, group, picture, text_at, width_of
from tarry.tools.testing.timeline import GONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tarry.tools.testing.report import Report
    from tarry.tools.testing.timeline import Timeline, Transition

WIDTH, MARGIN = 960, 24
LEFT, RIGHT = 200, 648
"""The ends of the time axis."""
TOP = 82
TALL, FLAT = 48, 24
"""The height of a row: with two lines of text, and with one where there are many rows."""
MOST_TALL_ROWS = 25
THINNEST_SPAN = 1.5


@dataclass(frozen=True)
class Row:
    """The timeline of a message. ``broken`` are the times and texts of the rules that were broken."""

    name: str
    body: str
    steps: Sequence[Transition]
    faults: Sequence[tuple[float, str]] = ()
    broken: Sequence[tuple[float, str]] = ()
    id: str = ""


@dataclass(frozen=True)
class Drawing:
    """Rows with a title. ``began`` and ``ended`` are the times of the run's begin and end, in epoch seconds."""

    rows: Sequence[Row]
    title: str
    subtitle: str
    began: float
    ended: float
    alarm: str = ""
    """A part of the subtitle, in the colour of faults."""
    note: str = ""
    """A line below the rows, for what is left out."""

    def svg(self) -> str:
        """Return the picture."""
        height_of_row = TALL if len(self.rows) <= MOST_TALL_ROWS else FLAT
        scale = TimeScale([self.began, self.ended, *_times(self.rows)], LEFT, RIGHT)
        bottom = TOP + height_of_row * len(self.rows)
        parts = [*self._frame(scale, bottom)]
        for number, row in enumerate(self.rows):
            y = TOP + height_of_row * number + height_of_row // 2
            parts += _RowDrawing(row, scale, y, self.began, self.ended, is_flat=height_of_row == FLAT).parts()
        parts += self._legend(scale, bottom + 46)
        height = bottom + 66
        return picture(self.title, parts, WIDTH, height)

    def _frame(self, scale: TimeScale, bottom: int) -> Iterator[str]:
        yield text_at(MARGIN, 34, fit(self.title, WIDTH - 2 * MARGIN, 16), "title")
        alarm = f'<tspan class="alarm">, {escape(printable(self.alarm))}</tspan>' if self.alarm else ""
        yield f'<text x="{MARGIN}" y="56" class="quiet">{escape(printable(self.subtitle))}{alarm}</text>'
        for x, label in scale.ticks(self.began):
            yield f'<line class="grid" x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{bottom}"/>'
            yield text_at(x, bottom + 17, label, "quiet middle")
        if self.note:
            yield text_at(WIDTH - MARGIN, bottom + 17, fit(self.note, WIDTH - MARGIN - RIGHT - 40, 12), "quiet end")

    def _legend(self, scale: TimeScale, y: int) -> Iterator[str]:
        """Explain the marks and colours that occur."""
        states = {step.state for row in self.rows for step, _, _ in spans(row, scale, self.ended)}
        entries = [
            (f'<rect class="span {state}" x="{{0}}" y="{y - 6}" width="20" height="12"/>', 20, text)
            for state, text in LEGEND.items()
            if state in states
        ]
        if any(step.state is State.IN_FLIGHT for row in self.rows for step in row.steps):
            entries.insert(0, (f'<circle class="attempt" cx="{{1}}" cy="{y}" r="7"/>', 14, "attempt"))
        if any(row.faults for row in self.rows):
            entries.append((f'<path class="fault" d="M{{1}} {y + 5} l5 -8 h-10 z"/>', 12, "fault"))
        if any(row.broken for row in self.rows):
            entries.append((f'<circle class="broken" cx="{{1}}" cy="{y}" r="6"/>', 14, "rule broken"))
        x = float(MARGIN)
        for shape, width, text in entries:
            yield shape.format(round(x, 1), round(x + width / 2, 1))
            yield text_at(round(x + width + 6, 1), y + 4, text, "quiet")
            x += width + 6 + width_of(text, 12) + 16


def spans(row: Row, scale: TimeScale, ended: float) -> Iterator[tuple[Transition, float, float]]:
    """Yield the steps of a row that are long enough to be seen, and the places of their begin and end."""
    for step, following in zip(row.steps, [*row.steps[1:], None], strict=True):
        if following is None and step.is_gone:
            return
        begin, end = scale.x(step.at), scale.x(ended if following is None else following.at)
        if end - begin >= THINNEST_SPAN:
            yield step, begin, end


class _RowDrawing:
    def __init__(self, row: Row, scale: TimeScale, y: int, began: float, ended: float, *, is_flat: bool) -> None:
        self._row = row
        self._scale = scale
        self._y = y
        self._began = began
        self._ended = ended
        self._is_flat = is_flat
        self._bar = 10 if is_flat else 14
        self._radius = 6 if is_flat else 9

    def parts(self) -> Iterator[str]:
        yield from self._names()
        yield from self._spans()
        yield from self._attempts()
        yield from self._faults()
        yield from self._result()

    def _names(self) -> Iterator[str]:
        row, y, width = self._row, self._y, LEFT - MARGIN - 24
        title = f"{row.id or row.name}\n{row.body}"
        if self._is_flat or not row.body:
            together = f"{row.name} {row.body}".rstrip()
            yield group(title, text_at(MARGIN, y + 4, fit(together, width, 12), "quiet" if self._is_flat else ""))
        else:
            name, body = fit(row.name, width, NORMAL), fit(row.body, width, 12)
            yield group(title, text_at(MARGIN, y - 2, name), text_at(MARGIN, y + 14, body, "quiet"))

    def _spans(self) -> Iterator[str]:
        for step, begin, end in spans(self._row, self._scale, self._ended):
            shape = (
                f'<rect class="span {step.state}" x="{begin}" y="{self._y - self._bar / 2:g}"'
                f' width="{round(end - begin, 1)}" height="{self._bar}"/>'
            )
            yield group(_words(step, self._began), shape, *self._delay(step, begin, end))

    def _delay(self, step: Transition, begin: float, end: float) -> Iterator[str]:
        if not step.delay or self._is_flat:
            return
        text, space = coarse(step.delay), end - begin - 4 * self._radius
        if step.delay >= 1 and width_of(text, SMALL) <= space:
            yield text_at(round((begin + end) / 2, 1), self._y + 4, text, "small middle")

    def _attempts(self) -> Iterator[str]:
        last_x = -float(WIDTH)
        steps = [step for step in self._row.steps if step.state is State.IN_FLIGHT]
        for step in steps:
            x = self._scale.x(step.at)
            is_dot = x - last_x < 2 * self._radius
            last_x = x if not is_dot else last_x
            shape = f'<circle class="attempt" cx="{x}" cy="{self._y}" r="{3 if is_dot else self._radius}"/>'
            number = "" if is_dot or step.attempt is None or self._is_flat or step.attempt > 99 else str(step.attempt)
            texts = [text_at(x, self._y + 4, number, "number")] if number else []
            yield group(_words(step, self._began), shape, *texts)

    def _faults(self) -> Iterator[str]:
        """Mark the faults, and write next to each what it was, if there is space."""
        marks = [(at, text, True) for at, text in self._row.faults] + [
            (at, text, False) for at, text in self._row.broken
        ]
        marks.sort(key=lambda mark: mark[0])
        places = [self._scale.x(at) for at, _, _ in marks]
        top = self._y - self._radius - (2 if self._is_flat else 4)
        for (at, text, is_fault), x, following in zip(marks, places, [*places[1:], WIDTH], strict=False):
            title = f"{_time(at, self._began)}  {'fault' if is_fault else 'rule broken'}: {text}"
            if is_fault:
                label = fit(text, 1_000, SMALL)
                has_space = not self._is_flat and width_of(label, SMALL) < min(following, RIGHT) - x - 12
                texts = [text_at(x + 8, top, label, "alarm small")] if has_space else []
                yield group(title, f'<path class="fault" d="M{x} {top} l5 -8 h-10 z"/>', *texts)
            else:
                yield group(title, f'<circle class="broken" cx="{x}" cy="{self._y}" r="{self._radius + 2}"/>')

    def _result(self) -> Iterator[str]:
        row, y, last = self._row, self._y, self._row.steps[-1]
        if last.state in GONE:
            x = self._scale.x(last.at) + self._radius + 2
            yield f'<rect class="{last.state}" x="{x:g}" y="{y - 5}" width="10" height="10" rx="2"/>'
        x, width = RIGHT + 40, WIDTH - MARGIN - RIGHT - 40
        why, kind = brief(last.why), "quiet"
        if row.broken:
            why, kind = row.broken[0][1], "alarm"
        colour = last.state if last.state in GONE - {State.RESENT} else ""
        title = "\n".join([_words(last, self._began), *(text for _, text in row.broken)])
        if self._is_flat:
            state = text_at(x, y + 4, last.state, f"state small {colour}".strip())
            used = width_of(last.state, SMALL) + 12
            reason = fit(why, width - used, SMALL)
            yield group(title, state, text_at(round(x + used, 1), y + 4, reason, f"{kind} small") if reason else "")
        elif width_of(why, 12) > width:
            state = text_at(x, y + 4, last.state, f"state {colour}".strip())
            yield group(
                title, state, text_at(WIDTH - MARGIN, y + 21, fit(why, WIDTH - MARGIN - LEFT, 12), f"{kind} end")
            )
        elif why:
            state = text_at(x, y - 2, last.state, f"state {colour}".strip())
            yield group(title, state, text_at(x, y + 14, why, kind))
        else:
            yield group(title, text_at(x, y + 4, last.state, f"state {colour}".strip()))


def _words(step: Transition, began: float) -> str:
    """A step in words, to be read while the pointer is over it."""
    parts = [f"{_time(step.at, began)}  {step.state}", f"in {step.queue}"]
    if step.attempt is not None:
        parts.append(f"attempt {step.attempt}")
    if step.delay:
        parts.append(f"for {duration(step.delay)}")
    return ", ".join(parts) + (f"\n{brief(step.why)}" if step.why else "")


def _time(at: float, began: float) -> str:
    return f"{at - began:.3f} s" if at - began < 60 else duration(at - began)


def _times(rows: Iterable[Row]) -> Iterator[float]:
    for row in rows:
        yield from (step.at for step in row.steps)
        yield from (at for at, _ in (*row.faults, *row.broken))


MOST_ROWS = 100
ID_CHARACTERS = 8
BODY_CHARACTERS = 2_000
"""The most characters of a body, which is shown in full while the pointer is over it."""


def draw(report: Report) -> str:
    """Return the draw as SVG."""
    timelines = [each for each in report.history.timelines.values() if each.transitions]
    broken: dict[str, list[tuple[float, str]]] = {}
    for violation in report.violations:
        for timeline in report.concerned(violation):
            broken.setdefault(timeline.id, []).append((violation.at, f"{violation.rule}: {violation.text}"))
    shown = _most_important(timelines, broken)
    count = len(report.violations)
    return Drawing(
        [_row(each, broken.get(each.id, ())) for each in shown],
        title=_title(report),
        subtitle=f"{coarse(report.seconds) if report.seconds else '0 s'} of virtual time, seed {report.seed}",
        began=report.began,
        ended=report.began + report.seconds,
        alarm=f"{count} violation{'s'[: count != 1]} of rules" if count else "",
        note=_left_out(timelines, shown),
    ).svg()


def _most_important(timelines: Sequence[Timeline], broken: dict[str, list[tuple[float, str]]]) -> list[Timeline]:
    """Return at most 100 timelines in their order: those of broken rules before uncommitted ones before others."""
    ranked = sorted(timelines, key=lambda each: (each.id not in broken, each.state is State.COMMITTED))
    chosen = {each.id for each in ranked[:MOST_ROWS]}
    return [each for each in timelines if each.id in chosen]


def _row(timeline: Timeline, broken: Sequence[tuple[float, str]]) -> Row:
    name, body = timeline.id[:ID_CHARACTERS], timeline.latest_body[:BODY_CHARACTERS]
    return Row(name, body, timeline.transitions, timeline.faults, broken, timeline.id)


def _title(report: Report) -> str:
    counts = {state: report.count(state) for state in State}
    total = sum(counts.values())
    states = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    return f"{total:,} message{'s'[: total != 1]}: {states}" if total else "no messages"


def _left_out(timelines: Sequence[Timeline], shown: Sequence[Timeline]) -> str:
    more = len(timelines) - len(shown)
    return f"and {more:,} more message{'s'[: more != 1]}" if more else ""
