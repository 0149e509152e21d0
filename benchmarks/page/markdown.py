"""Paragraphs, tables and figures in Markdown."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence


def prose(text: str, indent: str = "") -> list[str]:
    """Return a paragraph in lines, all but the first indented. Code is not broken."""
    unbroken = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(unbroken, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def table_head(heads: Sequence[str], left: int) -> Iterator[str]:
    """Yield the two first lines of a table, with the first columns to the left."""
    yield cells_of(heads)
    yield "|" + "".join("---|" if index < left else "---:|" for index in range(len(heads)))


def cells_of(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """Return three figures: 0.78, 13.5, 1,490."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value >= 20 else f"{value:.2f}"


def shown_ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
