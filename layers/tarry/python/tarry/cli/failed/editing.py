"""A body in somebody's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path


class NoEditor(Exception):
    """There is none, or it failed."""


STDERR = 2


def in_editor(body: str) -> str:
    """The body as it is when the editor is closed; the newline that an editor puts at the end is not its.

    Raises:
        NoEditor: neither VISUAL nor EDITOR is set, or the editor failed.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise NoEditor("set EDITOR to the editor that is to open the body, such as EDITOR=nano")
    suffix = ".json" if body.lstrip()[:1] in ("{", "[") else ".txt"
    with tempfile.TemporaryDirectory(prefix="tarry-") as folder:
        path = Path(folder) / f"body{suffix}"
        path.write_bytes(body.encode("utf-8", "surrogatepass"))
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False, stdout=_screen())
        except (OSError, ValueError) as error:
            raise NoEditor(f"the editor {editor!r} cannot be started: {error}") from error
        if done.returncode != 0:
            raise NoEditor(f"the editor {editor!r} failed (exit code {done.returncode}): the body is as it was")
        try:
            edited = path.read_bytes().decode("utf-8", "surrogatepass")
        except (OSError, UnicodeDecodeError) as error:
            raise NoEditor(f"what the editor {editor!r} left cannot be read: {error}") from error
    for newline in ("\r\n", "\n"):
        if edited.endswith(newline) and not body.endswith(newline):
            return edited.removesuffix(newline)
    return edited


def _screen() -> int | None:
    """Where an editor shows itself: results that are piped on must not be mixed with it."""
    return None if sys.stdout.isatty() else STDERR
