"""Drawing bars as SVG, for light and dark pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from xml.sax.saxutils import escape

WIDTH, MARGIN = 960, 24
LEFT, RIGHT = 270, 640
"""The ends of the bars."""
TOP, ROW, BAR = 78, 26, 14

LIGHT = {
    "paper": "#ffffff", "line": "#d1d9e0", "text": "#1f2328", "quiet": "#59636e", "good": "#0969da", "bad": "#bc4c00",
    "part": "#80ccff",
}  # fmt: skip
DARK = {
    "paper": "#0d1117", "line": "#3d444d", "text": "#f0f6fc", "quiet": "#9198a1", "good": "#1f6feb", "bad": "#db6d28",
    "part": "#0d419d",
}  # fmt: skip
SHAPES = """
  text { font: 13px ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
  .title { font-size: 16px; font-weight: 600 }
  .quiet { font-size: 12px }
  .end { text-anchor: end }
  .middle { text-anchor: middle }"""


@dataclass(frozen=True)
class Bar:
    """A bar: its name, the lengths of its parts in units, their classes, and the text beside it.

    ``head`` begins a group, with a line above it.
    """

    name: str
    lengths: Sequence[float]
    classes: Sequence[str]
    text: str
    head: str = ""


@dataclass(frozen=True)
class Picture:
    """Bars with a title; ``longest`` is the number of units that the width shows, ``mark`` a line across all bars."""

    title: str
    subtitle: str
    bars: Sequence[Bar]
    longest: float
    mark: tuple[float, str] | None = None

    def svg(self) -> str:
        """Return the picture."""
        parts, y = [], TOP
        for bar in self.bars:
            if bar.head:
                y += 8
                parts.append(f'<line class="line" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y - 4}" y2="{y - 4}"/>')
                parts.append(_text(MARGIN, y + 14, bar.head))
            parts += self._bar(bar, y)
            y += ROW
        if self.mark is not None:
            x = self._x(self.mark[0])
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{y}"/>')
            parts.append(_text(x, TOP - 6, self.mark[1], "quiet middle"))
        height = y + MARGIN
        title = [_text(MARGIN, 32, self.title, "title"), _text(MARGIN, 52, self.subtitle, "quiet")]
        body = "\n".join(f"  {part}" for part in [*title, *parts])
        paper = f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            f' role="img">\n<title>{escape(self.title)}</title>\n<style>{style()}\n</style>\n  {paper}\n'
            f"{body}\n</svg>\n"
        )

    def _bar(self, bar: Bar, y: float) -> list[str]:
        parts = [_text(LEFT - 12, y + 15, bar.name, "end")]
        ends = [0.0, *accumulate(bar.lengths)]
        for begin, end, kind in zip(ends, ends[1:], bar.classes, strict=False):
            x, width = self._x(begin), max(self._x(end) - self._x(begin), 0)
            parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{BAR}" rx="2"/>')
        parts.append(_text(RIGHT + 16, y + 15, bar.text, "quiet"))
        return parts

    def _x(self, units: float) -> float:
        return LEFT + min(units / self.longest, 1) * (RIGHT - LEFT)


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def style() -> str:
    """Return the style sheet: the colours of light pages, and those of dark ones."""
    dark = "\n".join(f"  {line}" for line in _colours(DARK).splitlines())
    return f"{SHAPES}\n{_colours(LIGHT)}\n  @media (prefers-color-scheme: dark) {{\n{dark}\n  }}"


def _colours(colours: dict[str, str]) -> str:
    return "\n".join(
        [
            f"  text {{ fill: {colours['text']} }}",
            f"  .quiet {{ fill: {colours['quiet']} }}",
            f"  .paper {{ fill: {colours['paper']}; stroke: {colours['line']} }}",
            f"  .line {{ stroke: {colours['line']} }}",
            f"  .mark {{ stroke: {colours['text']}; stroke-dasharray: 3 3 }}",
            *(f"  .{name} {{ fill: {colours[name]} }}" for name in ("good", "bad", "part")),
        ]
    )
