"""The common parts of pictures: colours for light and dark mode, the style sheet, texts that fit."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import log1p
from typing import TypeVar
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from tarry.failed.text import coarse, printable
from tarry.message.outcomes import State
from tarry.tools.story.events import StoryEvent

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
FONT = 'ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif'
SMALL, NORMAL = 11, 13
WIDTH, MARGIN = 960, 24
THINNEST_SPAN = 1.5
BAR, RADIUS = 14, 9
"""The height of a span and the radius of an attempt."""
Step = TypeVar("Step", bound=StoryEvent)
MOST_SHOWN_ATTEMPTS = 99
Entry = tuple[str, int, str]
"""An entry of a legend: a shape with places for its begin and its middle, its width, and its text."""
SHAPES = f"""
  text {{ font: {NORMAL}px {FONT} }}
  .title {{ font-size: 16px; font-weight: 600 }}
  .quiet, .alarm {{ font-size: 12px }}
  .number {{ font-size: {SMALL}px; font-weight: 600; text-anchor: middle }}
  .small {{ font-size: {SMALL}px }}
  .state {{ font-weight: 600 }}
  .middle {{ text-anchor: middle }}
  .end {{ text-anchor: end }}
  .words {{ font-size: 12px }}
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


def legend(states: Collection[State | None], y: int, *, attempts: bool, more: Iterable[Entry] = ()) -> Iterator[str]:
    """Explain the marks and colours that occur, from the left margin on."""
    entries = [
        (f'<rect class="span {state}" x="{{0}}" y="{y - 6}" width="20" height="12"/>', 20, text)
        for state, text in LEGEND.items()
        if state in states
    ]
    if attempts:
        entries.insert(0, (f'<circle class="attempt" cx="{{1}}" cy="{y}" r="7"/>', 14, "attempt"))
    x = float(MARGIN)
    for shape, width, text in (*entries, *more):
        yield shape.format(round(x, 1), round(x + width / 2, 1))
        yield text_at(round(x + width + 6, 1), y + 4, text, "quiet")
        x += width + 6 + width_of(text, 12) + 16


def span_at(words: str, state: State | None, begin: float, end: float, y: int, delay: float | None) -> str:
    """Return a span of time in a state, with the delay in it if there is space."""
    width = round(end - begin, 1)
    shape = f'<rect class="span {state}" x="{begin}" y="{y - BAR / 2:g}" width="{width}" height="{BAR}"/>'
    label = coarse(delay) if delay is not None and delay >= 1 else ""
    if not label or width_of(label, SMALL) > end - begin - 4 * RADIUS:
        return group(words, shape)
    return group(words, shape, text_at(round((begin + end) / 2, 1), y + 4, label, "small middle"))


def attempt_at(words: str, x: float, y: int, number: int | None, last_x: float) -> str:
    """Return the mark of an attempt with its number, or a dot if that would cover the mark at ``last_x``."""
    is_dot = x - last_x < 2 * RADIUS
    shape = f'<circle class="attempt" cx="{x}" cy="{y}" r="{3 if is_dot else RADIUS}"/>'
    has_number = not is_dot and number is not None and number <= MOST_SHOWN_ATTEMPTS
    return group(words, shape, *([text_at(x, y + 4, str(number), "number")] if has_number else []))


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
        f".move {{ stroke: {colours['quiet']} }}",
        f".attempt {{ fill: {colours['attempt']}; stroke: {colours['paper']} }}",
        f".fault {{ fill: {colours['fault']} }}",
        f".broken {{ fill: none; stroke: {colours['fault']}; stroke-width: 2 }}",
        *(f".{state} {{ fill: {colours[state]} }}" for state in State),
        ".span.DEAD_LETTERED, .span.COMMITTED, .span.DISCARDED { fill-opacity: 0.3 }",
    ]
    return "\n".join(f"  {rule}" for rule in rules)


def picture(title: str, parts: Iterable[str], width: int, height: int) -> str:
    """Return a whole picture: its parts on paper, with the style sheet."""
    body = "\n".join(f"  {part}" for part in parts)
    paper = f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img">\n<title>{escape(printable(title))}</title>\n<style>{style()}\n</style>\n  {paper}\n'
        f"{body}\n</svg>\n"
    )


def fit(text: str, space: float, size: float) -> str:
    """Return the beginning of a text that fits into ``space`` pixels, as far as that can be estimated."""
    text = printable(text)
    if width_of(text, size) <= space:
        return text
    widths = accumulate(width_of(each, size) for each in text)
    return text[: sum(width <= space - size for width in widths)].rstrip() + "…"


def width_of(text: str, size: float) -> float:
    return size * sum(map(_width_of_character, text))


def _width_of_character(character: str) -> float:
    if character in NARROW_CHARACTERS:
        return NARROW
    if east_asian_width(character) in "WF":
        return WIDE
    return CAPITAL if character.isupper() or character in WIDE_CHARACTERS else ORDINARY


def group(title: str, *parts: str) -> str:
    lines = "\n".join(printable(line) for line in title.split("\n"))
    return f"<g><title>{escape(lines)}</title>{''.join(parts)}</g>"


def text_at(x: float, y: float, text: str, kind: str = "") -> str:
    classes = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{classes}>{escape(printable(text))}</text>'


TICK_SPACE = 88
"""The smallest distance of two labels of the time axis."""
GAP_UNIT_SECONDS = 0.5
"""The width of a gap between events grows with its logarithm; far shorter gaps get almost no width."""


class TimeScale:
    """A scale on which both the milliseconds of an invocation and the hours of a delay can be read.

    The width of each gap between two events grows with the logarithm of its length. ``left`` and ``right`` are the ends
    of the axis.
    """

    def __init__(self, times: Iterable[float], left: float, right: float) -> None:
        self._times = sorted(set(times))
        # The square below 1 and the logarithm above: the milliseconds of one invocation share a few pixels.
        gaps = ((later - earlier) / GAP_UNIT_SECONDS for earlier, later in pairwise(self._times))
        self._places = list(accumulate((log1p(gap * gap / (gap + 1)) for gap in gaps), initial=0.0))
        self._left = left
        self._pixels = (right - left) / (self._places[-1] or 1)

    def x(self, at: float) -> float:
        """Return the place of a time."""
        before = max(0, bisect_right(self._times, at) - 1)
        place = self._places[before]
        if before + 1 < len(self._times):
            begin, end = self._times[before : before + 2]
            place += (self._places[before + 1] - place) * (at - begin) / (end - begin)
        return round(self._left + self._pixels * place, 1)

    def visible(
        self, steps: Sequence[Step], ended: float, is_final: Callable[[Step], bool]
    ) -> Iterator[tuple[Step, float, float]]:
        """Yield the steps that are long enough to be seen, and the places of their begin and end."""
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            if following is None and is_final(step):
                return
            begin, end = self.x(step.at), self.x(ended if following is None else following.at)
            if end - begin >= THINNEST_SPAN:
                yield step, begin, end

    def grid(self, began: float, top: int, bottom: int) -> Iterator[str]:
        """Draw the ticks."""
        for x, label in self.ticks(began):
            yield f'<line class="grid" x1="{x}" y1="{top}" x2="{x}" y2="{bottom}"/>'
            yield text_at(x, bottom + 17, label, "quiet middle")

    def ticks(self, began: float) -> Iterator[tuple[float, str]]:
        """Yield places of events and their labels, the time since ``began``, as many as there is space for."""
        last_x, last_label = -float(TICK_SPACE), ""
        for at in self._times:
            x, label = self.x(at), "0 s" if at == began else coarse(at - began)
            if x - last_x >= TICK_SPACE and label != last_label:
                yield x, label
                last_x, last_label = x, label
