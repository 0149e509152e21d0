"""The lines of all commands on stderr: guidance, warnings, and errors.

An error is one line with the remedy, and exit code 2, or 1 if work was done before.

Control characters are escaped, so no text of a message or an error can move the cursor.
"""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

from tarry.failed.text import printable
from tarry.tools.common.explaining import aws_line, usage_line
from tarry.tools.common.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tarry.tools.check.finding import Finding

T = TypeVar("T")
NARROWEST = 40


def note(text: str) -> None:
    """Write guidance to stderr; nothing for an empty text."""
    if text:
        with suppress(OSError):  # closed, or its disk is full: guidance ends no command in the middle of a change
            sys.stderr.write(printable(text, keep="\n\t") + "\n")
            sys.stderr.flush()


class StatusLine:
    """A line on stderr that is written over at a terminal; elsewhere it is a line of its own every few seconds."""

    def __init__(self, every_seconds: float = math.inf) -> None:
        self._every_seconds = every_seconds
        self._is_terminal = sys.stderr.isatty()
        self._written_at = time.monotonic()

    def show(self, text: str) -> None:
        """Show a text; nothing instead of the last one if it is empty."""
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        elif time.monotonic() - self._written_at >= self._every_seconds:
            self._written_at = time.monotonic()
            note(text)


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


def refuse(text: str, code: int = 2) -> NoReturn:
    """Write the error to stderr and end the command."""
    note(f"tarry: {text}")
    raise typer.Exit(code)


@contextmanager
def refusals(something_was_done: Callable[[], bool] = lambda: False, *, aws: bool = False) -> Iterator[None]:
    """Turn errors in the input into a line on stderr and exit code 2, or 1 if something was done before.

    ``aws``: also errors of AWS and of `tarry.failed`, and missing libraries.
    """
    try:
        yield
    except Exception as error:
        line = usage_line(error) or (aws_line(error, of_tarry_local) if aws else None)
        if line is None:
            raise  # a bug in tarry
        note(getattr(error, "details", ""))
        refuse(" ".join(line.split()) if aws else line, 1 if something_was_done() else 2)


def renamed(old: str, new: str, value: T) -> T:
    """Return the value of an option that has another name now, with a notice if it was given."""
    if value:
        note(f"{old} is now {new}; the old name still works here.")
    return value


@contextmanager
def libraries(command: str, extras: str) -> Iterator[None]:
    """Turn a missing library into a line on stderr that names the extras to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "tarry":
            raise
        refuse(f"{command} needs {library}; install it with: {install_command(extras)}")


def of_tarry_local() -> str:
    """Return the option for the queues of the `tarry local` that runs the template here; empty if there is none."""
    try:
        from tarry.tools.local.instances import instance_here

        found = instance_here()
    except ModuleNotFoundError:  # of the extra that reads templates
        return ""
    return "for the queues of the tarry local that runs here: --local" if found else ""
