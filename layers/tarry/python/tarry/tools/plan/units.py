"""Rates, shares and durations as the command line has them, and times as text."""

import math
import re
from collections.abc import Callable
from math import log1p

from tarry.failed.text import duration, shortened
from tarry.failed.usage import UsageError

NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
PER = {unit: 1 / seconds for unit, seconds in SECONDS.items() if unit != "ms"}


def duration_of(option: str, text: str, example: str) -> float:
    """Parse a duration above 0, such as ``15m``, in seconds. Raises `UsageError` for other texts."""
    return _number(option, text, " ?", SECONDS, math.inf, f"a duration above 0, such as {example}")


def rate_of(option: str, text: str) -> float:
    """Parse a rate above 0, such as ``50/s``, as a number a second. Raises `UsageError` for other texts."""
    return _number(option, text, " ?/ ?", PER, math.inf, "messages in a time, above 0, such as 50/s or 3000/h")


def share_of(option: str, text: str) -> float:
    """Parse a share above 0 %, such as ``20%``, as a fraction. Raises `UsageError` for other texts."""
    return _number(option, text, " ?", {"%": 1}, 100, "above 0% and at most 100%, such as 20%") / 100


def _number(option: str, text: str, between: str, units: dict[str, float], most: float, needed: str) -> float:
    found = re.fullmatch(f"{NUMBER}{between}({'|'.join(units)})", text.strip())
    value = float(found[1]) * units[found[2]] if found else 0
    if not 0 < value <= most or value == math.inf:
        raise UsageError(f"{option} must be {needed}, got {shortened(text, 40)!r}")
    return value


def time_text(seconds: float) -> str:
    """Return a time with units; below a minute with its fraction."""
    if seconds < 60 and seconds != round(seconds):
        return f"{seconds:.3g} s"
    return duration(seconds)


def rough(seconds: float) -> str:
    """Return a time with two units at most: above an hour without seconds, above a day without minutes."""
    whole = round(seconds)
    return time_text(seconds if whole < 3600 else whole - whole % (60 if whole < 86_400 else 3600))


def range_text(earliest: float, latest: float, shown: Callable[[float], str] = time_text) -> str:
    """Return two limits, or one if they are the same."""
    first, last = shown(earliest), shown(latest)
    if first == last:
        return first
    unit = last.rpartition(" ")[2]
    if first.count(" ") == last.count(" ") == 1 and first.endswith(f" {unit}"):
        first = first.removesuffix(f" {unit}")
    return f"{first} to {last}"


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
