"""Drawing timelines as SVG: a row for each message, its states as coloured spans, attempts and faults as marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape

from tarry.failed.text import brief, coarse, duration, printable
from tarry.message.outcomes import State
from tarry.tools.story import svg
from tarry.tools.story.svg import MARGIN, NORMAL, RADIUS, SMALL, WIDTH, TimeScale
from tarry.tools.testing.timeline import GONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tarry.tools.testing.report import Report
    from tarry.tools.testing.timeline import Timeline, Transition

LEFT, RIGHT = 200, 648
"""The ends of the time axis."""
TOP = 82
TALL, FLAT = 48, 28
"""The height of a row: with two lines of text, and with one where there are many rows."""
MOST_TALL_ROWS = 25
MOST_ROWS = 100
ID_CHARACTERS = 8
BODY_CHARACTERS = 2_000
"""The most characters of a body, which is shown in full while the pointer is over it."""


class Row(NamedTuple):
    """The timeline of a message. ``broken`` are the times and texts of the rules that were broken."""

    name: str
    body: str
    steps: Sequence[Transition]
    faults: Sequence[tuple[float, str]] = ()
    broken: Sequence[tuple[float, str]] = ()
    id: str = ""


def draw(report: Report) -> str:
    """Return the picture of a report as SVG."""
    timelines = [each for each in report.history.timelines.values() if each.transitions]
    broken: dict[str, list[tuple[float, str]]] = {}
    for violation in report.violations:
        for timeline in report.concerned(violation):
            broken.setdefault(timeline.id, []).append((violation.at, f"{violation.rule}: {violation.text}"))
    counts = {state: report.count(state) for state in State}
    total, count = sum(counts.values()), len(report.violations)
    states = ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)
    rows = [_row(each, broken.get(each.id, ())) for each in _most_important(timelines, broken)]
    more = len(timelines) - len(rows)
    return Drawing(
        rows,
        title=f"{total:,} message{'s'[: total != 1]}: {states}" if total else "no messages",
        subtitle=f"{coarse(report.seconds) if report.seconds else '0 s'} of virtual time, seed {report.seed}",
        began=report.began,
        ended=report.began + report.seconds,
        alarm=f"{count} violation{'s'[: count != 1]} of rules" if count else "",
        note=f"and {more:,} more message{'s'[: more != 1]}" if more else "",
    ).svg()


def _row(timeline: Timeline, broken: Sequence[tuple[float, str]]) -> Row:
    name, body = timeline.id[:ID_CHARACTERS], timeline.latest_body[:BODY_CHARACTERS]
    return Row(name, body, timeline.transitions, timeline.faults, broken, timeline.id)


def _most_important(timelines: Sequence[Timeline], broken: dict[str, list[tuple[float, str]]]) -> list[Timeline]:
    """Return at most 100 timelines in their order: those of broken rules before uncommitted ones before others."""
    ranked = sorted(timelines, key=lambda each: (each.id not in broken, each.state is State.COMMITTED))
    chosen = {each.id for each in ranked[:MOST_ROWS]}
    return [each for each in timelines if each.id in chosen]


@dataclass
class Drawing:
    """Rows with a title. ``began`` and ``ended`` are the times of the run's begin and end, in epoch seconds.

    ``alarm`` is a part of the subtitle in the colour of faults, ``note`` a line below the rows, for what is left out.
    """

    rows: Sequence[Row]
    title: str
    subtitle: str
    began: float
    ended: float
    alarm: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        times = [step.at for row in self.rows for step in row.steps]
        times += [at for row in self.rows for at, _ in (*row.faults, *row.broken)]
        self._scale = TimeScale([self.began, self.ended, *times], LEFT, RIGHT)
        self._is_flat = len(self.rows) > MOST_TALL_ROWS
        self._height = FLAT if self._is_flat else TALL

    def svg(self) -> str:
        """Return the picture."""
        bottom = TOP + self._height * len(self.rows)
        parts = [*self._frame(bottom)]
        for number, row in enumerate(self.rows):
            y = TOP + self._height * number + self._height // 2
            for part in (self._names, self._spans, self._attempts, self._faults, self._result):
                parts += part(row, y)
        return svg.picture(self.title, [*parts, *self._legend(bottom + 46)], WIDTH, bottom + 66)

    def _frame(self, bottom: int) -> Iterator[str]:
        yield svg.text_at(MARGIN, 34, svg.fit(self.title, WIDTH - 2 * MARGIN, 16), "title")
        alarm = f'<tspan class="alarm">, {escape(printable(self.alarm))}</tspan>' if self.alarm else ""
        yield f'<text x="{MARGIN}" y="56" class="quiet">{escape(printable(self.subtitle))}{alarm}</text>'
        yield from self._scale.grid(self.began, TOP - 8, bottom)
        if self.note:
            note = svg.fit(self.note, WIDTH - MARGIN - RIGHT - 40, 12)
            yield svg.text_at(WIDTH - MARGIN, bottom + 17, note, "quiet end")

    def _legend(self, y: int) -> Iterator[str]:
        """Explain the marks and colours that occur."""
        rows, more = self.rows, []
        if any(row.faults for row in rows):
            more.append((f'<path class="fault" d="M{{1}} {y + 5} l5 -8 h-10 z"/>', 12, "fault"))
        if any(row.broken for row in rows):
            more.append((f'<circle class="broken" cx="{{1}}" cy="{y}" r="6"/>', 14, "rule broken"))
        states = {step.state for row in rows for step, _, _ in self._visible(row)}
        attempts = any(step.state is State.IN_FLIGHT for row in rows for step in row.steps)
        yield from svg.legend(states, y, attempts=attempts, more=more)

    def _visible(self, row: Row) -> Iterator[tuple[Transition, float, float]]:
        return self._scale.visible(row.steps, self.ended, lambda step: step.is_gone)

    def _names(self, row: Row, y: int) -> Iterator[str]:
        name, body, width = row.name, row.body, LEFT - MARGIN - 24
        title = f"{row.id or name}\n{body}"
        if self._is_flat or not body:
            together = svg.fit(f"{name} {body}".rstrip(), width, 12)
            yield svg.group(title, svg.text_at(MARGIN, y + 4, together, "quiet" if self._is_flat else ""))
        else:
            first = svg.text_at(MARGIN, y - 2, svg.fit(name, width, NORMAL))
            yield svg.group(title, first, svg.text_at(MARGIN, y + 14, svg.fit(body, width, 12), "quiet"))

    def _spans(self, row: Row, y: int) -> Iterator[str]:
        for step, begin, end in self._visible(row):
            yield svg.span_at(_words(step, self.began), step.state, begin, end, y, step.delay)

    def _attempts(self, row: Row, y: int) -> Iterator[str]:
        last_x = -float(WIDTH)
        for step in row.steps:
            if step.state is State.IN_FLIGHT:
                x = self._scale.x(step.at)
                yield svg.attempt_at(_words(step, self.began), x, y, step.attempt, last_x)
                last_x = x if x - last_x >= 2 * RADIUS else last_x

    def _faults(self, row: Row, y: int) -> Iterator[str]:
        """Mark the faults, and write next to each what it was, if there is space."""
        marks = [(at, text, True) for at, text in row.faults] + [(at, text, False) for at, text in row.broken]
        marks.sort(key=lambda mark: mark[0])
        places = [self._scale.x(at) for at, _, _ in marks]
        top = y - RADIUS - (2 if self._is_flat else 4)
        for (at, text, is_fault), x, following in zip(marks, places, [*places[1:], WIDTH], strict=False):
            title = f"{_time(at, self.began)}  {'fault' if is_fault else 'rule broken'}: {text}"
            if is_fault:
                label = svg.fit(text, 1_000, SMALL)
                has_space = not self._is_flat and svg.width_of(label, SMALL) < min(following, RIGHT) - x - 12
                texts = [svg.text_at(x + 8, top, label, "alarm small")] if has_space else []
                yield svg.group(title, f'<path class="fault" d="M{x} {top} l5 -8 h-10 z"/>', *texts)
            else:
                yield svg.group(title, f'<circle class="broken" cx="{x}" cy="{y}" r="{RADIUS + 2}"/>')

    def _result(self, row: Row, y: int) -> Iterator[str]:
        last = row.steps[-1]
        if last.state in GONE:
            x = self._scale.x(last.at) + RADIUS + 2
            yield f'<rect class="{last.state}" x="{x:g}" y="{y - 5}" width="10" height="10" rx="2"/>'
        x, width = RIGHT + 40, WIDTH - MARGIN - RIGHT - 40
        why, kind = brief(last.why), "quiet"
        if row.broken:
            why, kind = row.broken[0][1], "alarm"
        colour = last.state if last.state in GONE - {State.RESENT} else ""
        title = "\n".join([_words(last, self.began), *(text for _, text in row.broken)])
        has_space = svg.width_of(why, 12) <= width
        state_y = y - 2 if why and has_space and not self._is_flat else y + 4
        state = svg.text_at(x, state_y, last.state, f"state {'small ' * self._is_flat}{colour}".strip())
        if self._is_flat:
            used = svg.width_of(last.state, SMALL) + 12
            reason = svg.text_at(round(x + used, 1), y + 4, svg.fit(why, width - used, SMALL), f"{kind} small")
        elif has_space:
            reason = svg.text_at(x, y + 14, why, kind)
        else:
            reason = svg.text_at(WIDTH - MARGIN, y + 21, svg.fit(why, WIDTH - MARGIN - LEFT, 12), f"{kind} end")
        yield svg.group(title, state, *([reason] if why else []))


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
