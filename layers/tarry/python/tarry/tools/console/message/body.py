"""The body of a message for a page: formatted if it is JSON, never longer than a browser draws at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tarry.failed.text import printable
from tarry.tools.console.json_layout import formatted

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMATTED, RAW = "formatted", "raw"
FIRST_LINES, FIRST_CHARACTERS = 300, 20_000
"""The part of a body that is shown before the reader asks for all of it."""
BLOCK_LINES, BLOCK_CHARACTERS = 300, 20_000
"""The text of one block of a page: a browser draws only the blocks that are visible."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n\t]")


@dataclass(frozen=True)
class BodyView:
    """A body as a page shows it."""

    view: str
    """``formatted`` or ``raw``."""
    blocks: tuple[str, ...]
    """The text to show, with control characters escaped, in parts that end where a line ends if they can."""
    characters: int
    """The length of the body."""
    bytes: int
    """The length of the body in UTF-8."""
    is_cut: bool
    """Whether there is more than the text to show."""
    is_json: bool
    note: str = ""
    """Why JSON is not formatted, or what the escapes stand for; empty if there is nothing to say."""


def body_view(body: str, view: str = FORMATTED, *, all_of_it: bool = False) -> BodyView:
    """Return what a page shows of a body.

    Args:
        body: The body.
        view: ``formatted``, if it is JSON, or ``raw``.
        all_of_it: Without this, return only the first part of a long body.
    """
    found = formatted(body, None if all_of_it else FIRST_CHARACTERS)
    note = found.why_not
    text = found.text if view == FORMATTED and found.text is not None else body
    first = text if all_of_it else _first(text)
    shown = visible_lines(first)
    if not note and len(shown) != len(first):
        note = "Control characters and marks of direction are shown as escapes, such as \\u202e."
    return BodyView(
        FORMATTED if text is found.text else RAW,
        tuple(_blocks(shown)),
        len(body),
        len(body.encode("utf-8", "surrogatepass")),
        is_cut=len(first) < len(text),
        is_json=found.is_json,
        note=note,
    )


def visible_lines(text: str) -> str:
    """Return a text with its lines and tabs; control characters and marks of direction are escaped."""
    return printable(text, keep="\n\t") if _UNPRINTABLE.search(text) else text


def _first(text: str) -> str:
    """Return the first part of a long text, cut at the end of a line if there is one."""
    lines = text[:FIRST_CHARACTERS].split("\n", FIRST_LINES)
    if len(lines) > FIRST_LINES:
        return "\n".join(lines[:FIRST_LINES])
    return text[:FIRST_CHARACTERS]


def _blocks(text: str) -> Iterator[str]:
    """Yield a text in blocks of some lines; a very long line is cut, without a line break in the page."""
    block: list[str] = []
    size = count = 0
    for line in text.splitlines(keepends=True):
        for begin in range(0, len(line), BLOCK_CHARACTERS):
            part = line[begin : begin + BLOCK_CHARACTERS]
            if block and (size + len(part) > BLOCK_CHARACTERS or count == BLOCK_LINES):
                yield "".join(block)
                block, size, count = [], 0, 0
            block.append(part)
            size, count = size + len(part), count + 1
    if block:
        yield "".join(block)
