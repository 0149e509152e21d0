"""Drawing timelines as SVG: a row for each message, its states as coloured spans, attempts and faults as marks."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import log1p
from typing import TYPE_CHECKING
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from tarry.outcome import State
from tarry.testing.timeline import GONE
from tarry.tooling.text import brief, coarse, duration, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tarry.testing.timeline import Transition

WIDTH, MARGIN = 960, 24
LEFT, RIGHT = 200, 648
"""The ends of the time axis."""
TOP = 82
TALL, FLAT = 48, 24
"""The height of a row: with two lines of text, and with one where there are many rows."""
MOST_TALL_ROWS = 25
TICK_SPACE = 88
"""The smallest distance of two labels of the time axis."""
GAP_UNIT_SECONDS = 0.5
"""The width of a gap between events grows with its logarithm; far shorter gaps get almost no width."""
NARROW, ORDINARY, CAPITAL, WIDE = 0.4, 0.57, 0.74, 1.0
"""The widths of characters in font sizes, on the safe side: the font of the viewer is unknown."""
NARROW_CHARACTERS = frozenset(".,:;|!'()[]ijlt /")
WIDE_CHARACTERS = frozenset("mw%@_&=<>+{}")

LIGHT = {
    "text": "#1f2328", "quiet": "#59636e", "paper": "#ffffff", "line": "#d1d9e0", "fault": "#cf222e",
    "number": "#ffffff", "attempt": "#0969da", "READY": "#d0d7de", "IN_FLIGHT": "#80ccff", "WAITING_RETRY": "#eac54f",
    "DEFERRED": "#d8b9ff", "RESENT": "#7ddfd0", "COMMITTED": "#1a7f37", "DEAD_LETTERED": "#cf222e",
    "DISCARDED": "#a03b7f",
}  # fmt: skip
DARK = {
    "text": "#f0f6fc", "quiet": "#9198a1", "paper": "#0d1117", "line": "#3d444d", "fault": "#ff7b72",
    "number": "#ffffff", "attempt": "#1f6feb", "READY": "#3d444d", "IN_FLIGHT": "#0d419d", "WAITING_RETRY": "#845306",
    "DEFERRED": "#6e40c9", "RESENT": "#1b6a5e", "COMMITTED": "#3fb950", "DEAD_LETTERED": "#f85149",
    "DISCARDED": "#db61a2",
}  # fmt: skip
THINNEST_SPAN = 1.5
FONT = 'ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif'
SMALL, NORMAL = 11, 13
SHAPES = f"""
  text {{ font: {NORMAL}px {FONT} }}
  .title {{ font-size: 16px; font-weight: 600 }}
  .quiet, .alarm {{ font-size: 12px }}
  .number {{ font-size: {SMALL}px; font-weight: 600; text-anchor: middle }}
  .small {{ font-size: {SMALL}px }}
  .state {{ font-weight: 600 }}
  .middle {{ text-anchor: middle }}
  .end {{ text-anchor: end }}
  .grid {{ stroke-dasharray: 2 4 }}"""


LEGEND = {
    State.READY: "ready",
    State.IN_FLIGHT: "in flight",
    State.WAITING_RETRY: "waiting for a retry",
    State.DEFERRED: "deferred",
    State.RESENT: "sent again",
    State.DEAD_LETTERED: "in the dead-letter queue",
}
"""The states whose colour is explained. The colours of the others are beside their names, at the end of each row."""


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
        scale = TimeScale([self.began, self.ended, *_times(self.rows)])
        bottom = TOP + height_of_row * len(self.rows)
        parts = [*self._frame(scale, bottom)]
        for number, row in enumerate(self.rows):
            y = TOP + height_of_row * number + height_of_row // 2
            parts += _RowDrawing(row, scale, y, self.began, self.ended, is_flat=height_of_row == FLAT).parts()
        parts += self._legend(scale, bottom + 46)
        height = bottom + 66
        body = "\n".join(f"  {part}" for part in parts)
        paper = f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            f' role="img">\n<title>{escape(printable(self.title))}</title>\n<style>{style()}\n</style>\n  {paper}\n'
            f"{body}\n</svg>\n"
        )

    def _frame(self, scale: TimeScale, bottom: int) -> Iterator[str]:
        yield _text(MARGIN, 34, fit(self.title, WIDTH - 2 * MARGIN, 16), "title")
        alarm = f'<tspan class="alarm">, {escape(printable(self.alarm))}</tspan>' if self.alarm else ""
        yield f'<text x="{MARGIN}" y="56" class="quiet">{escape(printable(self.subtitle))}{alarm}</text>'
        for x, label in scale.ticks(self.began):
            yield f'<line class="grid" x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{bottom}"/>'
            yield _text(x, bottom + 17, label, "quiet middle")
        if self.note:
            yield _text(WIDTH - MARGIN, bottom + 17, fit(self.note, WIDTH - MARGIN - RIGHT - 40, 12), "quiet end")

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
            yield _text(round(x + width + 6, 1), y + 4, text, "quiet")
            x += width + 6 + _width(text, 12) + 16


def spans(row: Row, scale: TimeScale, ended: float) -> Iterator[tuple[Transition, float, float]]:
    """Yield the steps of a row that are long enough to be seen, and the places of their begin and end."""
    for step, following in zip(row.steps, [*row.steps[1:], None], strict=True):
        if following is None and step.is_gone:
            return
        begin, end = scale.x(step.at), scale.x(ended if following is None else following.at)
        if end - begin >= THINNEST_SPAN:
            yield step, begin, end


def style() -> str:
    """Return the style sheet, for light and dark mode."""
    dark = "\n".join(f"  {line}" for line in _colours(DARK).splitlines())
    return f"{SHAPES}\n{_colours(LIGHT)}\n  @media (prefers-color-scheme: dark) {{\n{dark}\n  }}"


def _colours(colours: dict[str, str]) -> str:
    rules = [
        f"text {{ fill: {colours['text']} }}",
        f".quiet {{ fill: {colours['quiet']} }}",
        f".alarm {{ fill: {colours['fault']} }}",
        f".number {{ fill: {colours['number']} }}",
        f".paper {{ fill: {colours['paper']}; stroke: {colours['line']} }}",
        f".grid {{ stroke: {colours['line']} }}",
        f".attempt {{ fill: {colours['attempt']}; stroke: {colours['paper']} }}",
        f".fault {{ fill: {colours['fault']} }}",
        f".broken {{ fill: none; stroke: {colours['fault']}; stroke-width: 2 }}",
        *(f".{state} {{ fill: {colours[state]} }}" for state in State),
        ".span.DEAD_LETTERED, .span.COMMITTED, .span.DISCARDED { fill-opacity: 0.3 }",
    ]
    return "\n".join(f"  {rule}" for rule in rules)


class TimeScale:
    """A scale on which both the milliseconds of an invocation and the hours of a delay can be read.

    The width of each gap between two events grows with the logarithm of its length.
    """

    def __init__(self, times: Iterable[float]) -> None:
        self._times = sorted(set(times))
        gaps = ((later - earlier) / GAP_UNIT_SECONDS for earlier, later in pairwise(self._times))
        self._places = list(accumulate((log1p(gap * gap / (gap + 1)) for gap in gaps), initial=0.0))
        self._pixels = (RIGHT - LEFT) / (self._places[-1] or 1)

    def x(self, at: float) -> float:
        """Return the place of a time."""
        before = max(0, bisect_right(self._times, at) - 1)
        place = self._places[before]
        if before + 1 < len(self._times):
            begin, end = self._times[before : before + 2]
            place += (self._places[before + 1] - place) * (at - begin) / (end - begin)
        return round(LEFT + self._pixels * place, 1)

    def ticks(self, began: float) -> Iterator[tuple[float, str]]:
        """Yield places of events and their labels, the time since ``began``, as many as there is space for."""
        last_x, last_label = -float(TICK_SPACE), ""
        for at in self._times:
            x, label = self.x(at), "0 s" if at == began else coarse(at - began)
            if x - last_x >= TICK_SPACE and label != last_label:
                yield x, label
                last_x, last_label = x, label


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
            yield _group(title, _text(MARGIN, y + 4, fit(together, width, 12), "quiet" if self._is_flat else ""))
        else:
            name, body = fit(row.name, width, NORMAL), fit(row.body, width, 12)
            yield _group(title, _text(MARGIN, y - 2, name), _text(MARGIN, y + 14, body, "quiet"))

    def _spans(self) -> Iterator[str]:
        for step, begin, end in spans(self._row, self._scale, self._ended):
            shape = (
                f'<rect class="span {step.state}" x="{begin}" y="{self._y - self._bar / 2:g}"'
                f' width="{round(end - begin, 1)}" height="{self._bar}"/>'
            )
            yield _group(_words(step, self._began), shape, *self._delay(step, begin, end))

    def _delay(self, step: Transition, begin: float, end: float) -> Iterator[str]:
        if not step.delay or self._is_flat:
            return
        text, space = coarse(step.delay), end - begin - 4 * self._radius
        if step.delay >= 1 and _width(text, SMALL) <= space:
            yield _text(round((begin + end) / 2, 1), self._y + 4, text, "small middle")

    def _attempts(self) -> Iterator[str]:
        last_x = -float(WIDTH)
        steps = [step for step in self._row.steps if step.state is State.IN_FLIGHT]
        for step in steps:
            x = self._scale.x(step.at)
            is_dot = x - last_x < 2 * self._radius
            last_x = x if not is_dot else last_x
            shape = f'<circle class="attempt" cx="{x}" cy="{self._y}" r="{3 if is_dot else self._radius}"/>'
            number = "" if is_dot or step.attempt is None or self._is_flat or step.attempt > 99 else str(step.attempt)
            texts = [_text(x, self._y + 4, number, "number")] if number else []
            yield _group(_words(step, self._began), shape, *texts)

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
                has_space = not self._is_flat and _width(label, SMALL) < min(following, RIGHT) - x - 12
                texts = [_text(x + 8, top, label, "alarm small")] if has_space else []
                yield _group(title, f'<path class="fault" d="M{x} {top} l5 -8 h-10 z"/>', *texts)
            else:
                yield _group(title, f'<circle class="broken" cx="{x}" cy="{self._y}" r="{self._radius + 2}"/>')

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
            state = _text(x, y + 4, last.state, f"state small {colour}".strip())
            used = _width(last.state, SMALL) + 12
            reason = fit(why, width - used, SMALL)
            yield _group(title, state, _text(round(x + used, 1), y + 4, reason, f"{kind} small") if reason else "")
        elif _width(why, 12) > width:
            state = _text(x, y + 4, last.state, f"state {colour}".strip())
            yield _group(
                title, state, _text(WIDTH - MARGIN, y + 21, fit(why, WIDTH - MARGIN - LEFT, 12), f"{kind} end")
            )
        elif why:
            state = _text(x, y - 2, last.state, f"state {colour}".strip())
            yield _group(title, state, _text(x, y + 14, why, kind))
        else:
            yield _group(title, _text(x, y + 4, last.state, f"state {colour}".strip()))


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


def fit(text: str, space: float, size: float) -> str:
    """Return the beginning of a text that fits into ``space`` pixels, as far as that can be estimated."""
    text = printable(text)
    if _width(text, size) <= space:
        return text
    widths = accumulate(_width(each, size) for each in text)
    return text[: sum(width <= space - size for width in widths)].rstrip() + "…"


def _width(text: str, size: float) -> float:
    return size * sum(map(_width_of, text))


def _width_of(character: str) -> float:
    if character in NARROW_CHARACTERS:
        return NARROW
    if east_asian_width(character) in "WF":
        return WIDE
    return CAPITAL if character.isupper() or character in WIDE_CHARACTERS else ORDINARY


def _group(title: str, *parts: str) -> str:
    lines = "\n".join(printable(line) for line in title.split("\n"))
    return f"<g><title>{escape(lines)}</title>{''.join(parts)}</g>"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    classes = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{classes}>{escape(printable(text))}</text>'
