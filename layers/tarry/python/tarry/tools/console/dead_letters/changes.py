"""The changes of an edited body, for the preview of an edit."""

from __future__ import annotations

import json
from difflib import unified_diff
from typing import NamedTuple

MAX_COMPARED_CHARACTERS = 64 * 1024
MAX_COMPARED_LINES = 2_000
MAX_LINES = 60
AROUND_CHARACTERS = 40


class Changes(NamedTuple):
    """The changes of a body. ``lines`` are those of a unified diff."""

    is_changed: bool
    is_same_value: bool
    """Whether both are JSON of the same value, so that only spaces, line ends or the order of keys differ."""
    lines: tuple[str, ...]
    is_cut: bool
    """Whether there are more lines, or the bodies are too long to be compared."""


def changes(before: str, after: str) -> Changes:
    """Return the changes of a body."""
    if before == after:
        return Changes(False, True, (), False)
    is_same = _is_same_value(before, after)
    old, new = before.splitlines(), after.splitlines()
    if max(len(before), len(after)) > MAX_COMPARED_CHARACTERS or max(len(old), len(new)) > MAX_COMPARED_LINES:
        return Changes(True, is_same, (), True)
    lines = (
        [*_of_one_line(old[0], new[0])] if len(old) == len(new) == 1 else [*unified_diff(old, new, n=1, lineterm="")]
    )
    lines = [each for each in lines if not each.startswith(("---", "+++", "@@"))]
    return Changes(True, is_same, tuple(lines[:MAX_LINES]), len(lines) > MAX_LINES)


def _of_one_line(before: str, after: str) -> tuple[str, str]:
    """Return the part of a line that differs, before and after, with some text around it."""
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    return "-" + _around(before, start, len(before) - end), "+" + _around(after, start, len(after) - end)


def _common(before: str, after: str) -> int:
    """Return the number of characters that both begin with."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(before), len(after)))


def _around(text: str, start: int, end: int) -> str:
    first, last = max(0, start - AROUND_CHARACTERS), end + AROUND_CHARACTERS
    return ("\u2026" if first else "") + text[first:last] + ("\u2026" if last < len(text) else "")


def _is_same_value(before: str, after: str) -> bool:
    try:
        return bool(json.loads(before) == json.loads(after))
    except (ValueError, RecursionError):
        return False
