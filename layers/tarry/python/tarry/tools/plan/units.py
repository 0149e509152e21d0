"""Rates, shares and durations as the command line has them, and times as text."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from tarry.failed.text import duration, shortened
from tarry.failed.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
PER = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(rf"{NUMBER} ?({'|'.join(SECONDS)})")
_RATE = re.compile(rf"{NUMBER} ?/ ?({'|'.join(PER)})")
_SHARE = re.compile(rf"{NUMBER} ?%")


def duration_of(option: str, text: str, example: str) -> float:
    """Parse a duration above 0, such as ``15m``, in seconds. Raises `UsageError` for other texts."""
    found = _DURATION.fullmatch(text.strip())
    return _positive(option, text, found, SECONDS, f"a duration above 0, such as {example}")


def rate_of(option: str, text: str) -> float:
    """Parse a rate above 0, such as ``50/s``, as a number a second. Raises `UsageError` for other texts."""
    found = _RATE.fullmatch(text.strip())
    per = {unit: 1 / seconds for unit, seconds in PER.items()}
    return _positive(option, text, found, per, "messages in a time, above 0, such as 50/s or 3000/h")


def share_of(option: str, text: str) -> float:
    """Parse a share above 0 %, such as ``20%``, as a fraction. Raises `UsageError` for other texts."""
    found = _SHARE.fullmatch(text.strip())
    share = float(found[1]) / 100 if found else 0
    if not 0 < share <= 1:
        raise UsageError(f"{option} must be above 0% and at most 100%, such as 20%, got {shortened(text, 40)!r}")
    return share


def _positive(option: str, text: str, found: re.Match[str] | None, units: dict[str, float], needed: str) -> float:
    value = float(found[1]) * units[found[2]] if found else 0
    if not 0 < value < math.inf:
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
