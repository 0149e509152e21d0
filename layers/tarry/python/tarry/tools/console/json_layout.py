"""The layout of JSON: one value a line to read and to edit it, and back. Numbers, escapes and keys stay as given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

GROWTH = 8
"""How many times longer than the body the formatted text may be: each line of nested JSON is indented."""
LEAST_ROOM = 100_000
MAX_EDITED_CHARACTERS = 256 * 1024
"""A longer body is edited as it is: a browser is slow with so many lines in a field."""
INDENT = "  "
TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)
OPENING, CLOSING = frozenset("{["), frozenset("}]")
LAYOUTS = ((", ", ": "), (",", ":"))
"""The separators of values, and of keys and values, on one line: as Python writes JSON, and as JavaScript does."""


class Formatted(NamedTuple):
    """A text as JSON with one value a line."""

    is_json: bool
    text: str | None
    """None if it is not JSON, or cannot be formatted."""
    why_not: str = ""


def formatted(body: str, most: int | None = None) -> Formatted:
    """Return JSON with one value a line. ``most``: return only a little more than this number of characters."""
    try:
        if body.lstrip()[:1] not in OPENING or not _is_json(body):
            return Formatted(False, None)
    except RecursionError:
        return Formatted(False, None, "The brackets are nested too deeply to format the body.")
    parts: list[str] = []
    length, room = 0, max(LEAST_ROOM, GROWTH * len(body))
    for part in _lines(body):
        parts.append(part)
        length += len(part)
        if length > room:
            return Formatted(True, None, "The JSON is nested too deeply to format it.")
        if most is not None and length > most:
            break
    return Formatted(True, "".join(parts))


def editable(body: str) -> str:
    """Return a body as it is edited: formatted, if `restored` can undo that exactly, else as it is."""
    text = formatted(body).text if _layout(body) else None
    return body if text is None else text


def restored(before: str, typed: str) -> str:
    """Return an edited body in the layout of the body before, whose `editable` text was edited in a form.

    A form has CR LF at each end of a line.
    """
    typed = typed.replace("\r\n", "\n").replace("\r", "\n")
    if (layout := _layout(before)) is not None:
        with suppress(RecursionError):
            return _on_one_line(typed, *layout) if _is_json(typed) else typed
    elif typed == before.replace("\r\n", "\n").replace("\r", "\n"):
        return before
    elif "\r\n" in before:
        return typed.replace("\n", "\r\n")
    return typed


def _is_json(text: str) -> bool:
    """Whether a text is JSON. Raises `RecursionError`."""
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except ValueError:
        return False
    return True


def _layout(body: str) -> tuple[str, str] | None:
    """Return the layout of JSON on one line; None if it has another one, is a single value, or is long."""
    if body[:1] in OPENING and "\n" not in body and len(body) <= MAX_EDITED_CHARACTERS:
        with suppress(RecursionError):
            if _is_json(body):
                return next((each for each in LAYOUTS if _on_one_line(body, *each) == body), None)
    return None


def _on_one_line(text: str, comma: str, colon: str) -> str:
    between = {",": comma, ":": colon}
    return "".join(between.get(found[0], found[0]) for found in TOKEN.finditer(text))


def _lines(body: str) -> Iterator[str]:
    """Yield the tokens of valid JSON, with the line breaks and indents between them."""
    depth, before = 0, ""
    for found in TOKEN.finditer(body):
        token = found[0]
        if token in CLOSING:
            depth -= 1
            if before not in OPENING:
                yield f"\n{INDENT * depth}"
        elif before in OPENING or before == ",":
            yield f"\n{INDENT * depth}"
        yield ": " if token == ":" else token
        if token in OPENING:
            depth += 1
        before = token
