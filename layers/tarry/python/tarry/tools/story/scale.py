"""The time scale of pictures."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from math import log1p
from typing import TYPE_CHECKING

from tarry.failed.text import coarse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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

    def ticks(self, began: float) -> Iterator[tuple[float, str]]:
        """Yield places of events and their labels, the time since ``began``, as many as there is space for."""
        last_x, last_label = -float(TICK_SPACE), ""
        for at in self._times:
            x, label = self.x(at), "0 s" if at == began else coarse(at - began)
            if x - last_x >= TICK_SPACE and label != last_label:
                yield x, label
                last_x, last_label = x, label
