"""The changes of an edited body, for the preview of an edit."""

from __future__ import annotations

import json
from difflib import SequenceMatcher, unified_diff
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_COMPARED_CHARACTERS = 64 * 1024
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
    if max(len(before), len(after)) > MAX_COMPARED_CHARACTERS:
        return Changes(True, is_same, (), True)
    old, new = before.splitlines(), after.splitlines()
    lines = (
        [*_of_one_line(old[0], new[0])] if len(old) == len(new) == 1 else [*unified_diff(old, new, n=1, lineterm="")]
    )
    lines = [each for each in lines if not each.startswith(("---", "+++", "@@"))]
    return Changes(True, is_same, tuple(lines[:MAX_LINES]), len(lines) > MAX_LINES)


def _of_one_line(before: str, after: str) -> Iterator[str]:
    """Yield the parts of a line that differ, with some text around them."""
    for what, start, end, other_start, other_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what != "equal":
            yield "-" + _around(before, start, end)
            yield "+" + _around(after, other_start, other_end)


def _around(text: str, start: int, end: int) -> str:
    first, last = max(0, start - AROUND_CHARACTERS), end + AROUND_CHARACTERS
    return ("\u2026" if first else "") + text[first:last] + ("\u2026" if last < len(text) else "")


def _is_same_value(before: str, after: str) -> bool:
    try:
        return bool(json.loads(before) == json.loads(after))
    except (ValueError, RecursionError):
        return False
