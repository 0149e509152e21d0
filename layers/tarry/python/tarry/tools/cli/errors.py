"""The errors of all commands: one line on stderr with the remedy, and exit code 2, or 1 if work was done before.

Control characters are escaped, so no text of a message or an error can move the cursor.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

from tarry.failed.text import printable
from tarry.tools.common.explaining import aws_line, usage_line
from tarry.tools.common.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")


def note(text: str) -> None:
    """Write guidance to stderr; nothing for an empty text."""
    if text:
        with suppress(OSError):  # closed, or its disk is full: guidance ends no command in the middle of a change
            sys.stderr.write(printable(text, keep="\n\t") + "\n")
            sys.stderr.flush()


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
