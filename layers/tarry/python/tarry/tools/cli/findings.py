"""Findings of rules as warnings on stderr."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from tarry.tools.cli.errors import note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.tools.check.finding import Finding

NARROWEST = 40


def warn(findings: Iterable[Finding]) -> None:
    """Write each finding as a warning, what to add to the template on a line of its own."""
    for finding in findings:
        columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
        note(text_of(finding, columns))


def text_of(finding: Finding, columns: int | None) -> str:
    """Return the text of a warning, wrapped if ``columns`` is given, with the snippet on a line of its own."""
    snippet = [f"  {finding.snippet}"] if finding.snippet else []
    return "\n".join([*wrapped(f"Warning: {finding.text}", columns), *snippet])


def wrapped(text: str, columns: int | None) -> list[str]:
    """Return the lines of a text; one if ``columns`` is None."""
    if columns is None:
        return [text]
    width = max(columns, NARROWEST)
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
