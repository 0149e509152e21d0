"""The time axis of a timeline: the logarithm of the time, so that seconds and hours can both be read."""

from __future__ import annotations

from math import log1p

from tarry.tools.plan.units import rough, time_text

TICKS = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 4 * 86_400, 14 * 86_400)


class LogScale:
    """A scale from 0 to ``longest`` seconds. ``shortest`` is the shortest time above 0 that can be told apart."""

    def __init__(self, shortest: float, longest: float, left: float, right: float) -> None:
        self._unit = max(shortest, longest / 1e6, 1e-9) / 2
        self._longest = longest
        self._left = left
        self._pixels = (right - left) / (log1p(longest / self._unit) or 1)

    def x(self, seconds: float) -> float:
        """Return the place of a time."""
        return self._left + self._pixels * log1p(seconds / self._unit)

    def ticks(self, space: float, before_end: float | None = None) -> list[tuple[float, str]]:
        """Return places and labels of times: ``space`` apart, the last ``before_end`` from the end, or more."""
        before_end = space if before_end is None else before_end
        found = [(self.x(0), "0 s")]
        if not self._longest:
            return found
        end = self.x(self._longest)
        for seconds in TICKS:
            x = self.x(seconds)
            if seconds < self._longest and x - found[-1][0] >= space and end - x >= before_end:
                found.append((x, time_text(seconds)))
        return [*found, (end, rough(self._longest))]
