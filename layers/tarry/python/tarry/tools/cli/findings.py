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


def warn(findings: Iterable[Finding]) -> None:
    """Write each finding as a warning, what to add to the template on a line of its own."""
    for finding in findings:
        columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
        note(text_of(finding, columns))


def text_of(finding: Finding, columns: int | None) -> str:
    """Return the text of a warning, wrapped if ``columns`` is given, with the snippet on a line of its own."""
    text = f"Warning: {finding.text}"
    lines = [text]
    if columns is not None:
        width = max(columns, 40)
        lines = textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, *([f"  {finding.snippet}"] if finding.snippet else [])])
