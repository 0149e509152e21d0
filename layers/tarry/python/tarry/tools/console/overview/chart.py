"""Small charts of the last hour or less, as the points of an SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tarry.failed.text import minutes

if TYPE_CHECKING:
    from tarry.tools.console.overview.readings import Series

WIDTH, HEIGHT = 120, 28
MAX_POINTS = 60
TOP = 2
"""The space above the highest value, so that its line is not cut."""


@dataclass(frozen=True)
class Chart:
    """One or two lines. ``label`` says the same in words."""

    lines: tuple[str, ...]
    """The points of each line."""
    area: str
    """The points of the area below the first line."""
    highest: float
    label: str
    width: int = WIDTH
    height: int = HEIGHT


class TimeSpan(NamedTuple):
    """The time that charts show, up to ``end`` in epoch seconds."""

    end: float
    seconds: float

    def x(self, at: float) -> float:
        """Return the place of a time."""
        return round(min(1.0, max(0.0, (at - self.end) / self.seconds + 1)) * WIDTH, 1)


def chart(what: str, *named: tuple[str, Series], span: TimeSpan) -> Chart | None:
    """Return the chart of series; None if no series has two values, or all are 0.

    Args:
        what: What the chart shows, for its label.
        named: The series with their names; an only one may have an empty name.
        span: The time that it shows.
    """
    drawn = [(name, series) for name, series in named if len(series) > 1]
    if not drawn:
        return None
    highest = max(value for _, series in drawn for _, value in series)
    if not highest:
        return None
    lines = tuple(_points(_thinned(series, span), highest, span) for _, series in drawn)
    first = drawn[0][1]
    area = f"{span.x(first[0][0]):g},{HEIGHT} {lines[0]} {span.x(first[-1][0]):g},{HEIGHT}"
    words = "; ".join(_words(name, series) for name, series in drawn)
    return Chart(lines, area, highest, f"{what}, the last {minutes(span.seconds)}: {words}")


def _thinned(series: Series, span: TimeSpan) -> Series:
    """Return the highest value of each part of the time; the first and the last value stay."""
    step = span.seconds / MAX_POINTS
    highest: dict[int, tuple[float, float]] = {}
    for at, value in series[1:-1]:
        part = int(at / step)
        if part not in highest or value > highest[part][1]:
            highest[part] = at, value
    return (series[0], *highest.values(), series[-1])


def _points(series: Series, highest: float, span: TimeSpan) -> str:
    scale = (HEIGHT - TOP - 1) / (highest)
    return " ".join(f"{span.x(at):g},{round(HEIGHT - 1 - value * scale, 1):g}" for at, value in series)


def _words(name: str, series: Series) -> str:
    highest = max(value for _, value in series)
    return f"{name} at most {highest:,.0f}, now {series[-1][1]:,.0f}".strip()
