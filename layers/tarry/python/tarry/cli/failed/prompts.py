"""A person at the terminal: each dead letter shown and asked for by one key, its body opened in an editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from tarry import world
from tarry.cli.failed.rendering import in_short
from tarry.failed import CannotEdit, edit
from tarry.tooling.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from tarry.cli.failed.signals import Stopping
    from tarry.failed import DeadLetterMessage, Inspection, Result

KEYS = {"r": "retry", "e": "edit", "d": "delete", "s": "skip", "q": "quit"}
END_OF_INPUT = ("", "\x04")


def someone_is_there() -> bool:
    """Whether there is a person to ask, at a terminal that can be asked by one key."""
    try:
        import termios  # noqa: F401 there is none on Windows
    except ModuleNotFoundError:
        return False
    return sys.stdin.isatty() and sys.stderr.isatty()


class Asking:
    """What a person decides of each letter. ``retry`` and ``delete`` do it."""

    def __init__(
        self,
        console: Console,
        stopping: Stopping,
        retry: Callable[[DeadLetterMessage], Result],
        delete: Callable[[DeadLetterMessage], Result],
        skip: Callable[[DeadLetterMessage], Result],
    ) -> None:
        self._console = console
        self._stopping = stopping
        self._does = {"r": retry, "d": delete, "s": skip}

    def dead_letters(self, inspection: Inspection) -> Iterator[Result]:
        """Offers each letter once; ends when the person wants to, or nothing more is to be seen."""
        for dead_letter in inspection.dead_letters():
            if dead_letter.id in inspection.done:
                inspection.not_offered += 1
                continue
            result = self._decide(dead_letter)
            if result is None:
                return
            yield result

    def _decide(self, dead_letter: DeadLetterMessage) -> Result | None:
        """What came of it; None to quit."""
        shown: DeadLetterMessage | None = None
        while True:
            if shown != dead_letter:
                self._console.print()
                self._console.print(in_short(dead_letter))
                self._console.print()
                shown = dead_letter
            keys = "edsq" if dead_letter.is_undecodable else "redsq"
            match ask(self._console, self._stopping, "  ".join(f"[{key}]{KEYS[key][1:]}" for key in keys) + " ", keys):
                case "q":
                    return None
                case "e":
                    dead_letter = self._edited(dead_letter)
                case key:
                    return self._does[key](dead_letter)

    def _edited(self, dead_letter: DeadLetterMessage) -> DeadLetterMessage:
        try:
            return edit(dead_letter, in_editor(dead_letter.body), world.current().clock.time())
        except (NoEditor, CannotEdit) as error:
            self._console.print(Text(printable(str(error)), "yellow"), soft_wrap=True)
            return dead_letter


def confirms(console: Console, stopping: Stopping, question: str) -> bool:
    """Whether the answer is yes."""
    return ask(console, stopping, f"{question} [y/N] ", "yn") == "y"


def ask(console: Console, stopping: Stopping, question: str, keys: str) -> str:
    """The key that was pressed; at the end of all input the last one."""
    with stopping.at_prompt(), _by_key():  # before the question: whoever has read it may press a key
        console.print(Text(printable(question)), end="", soft_wrap=True)
        console.file.flush()
        while True:
            key = _read_key().lower()
            if key in END_OF_INPUT:
                key = keys[-1]
            if key in keys:
                console.print(Text(KEYS.get(key, key), "bold"))
                return key


@contextmanager
def _by_key() -> Iterator[None]:
    """Keys come as they are pressed, and are not shown; signals come as ever."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file, termios.TCSADRAIN)  # what was typed ahead is not thrown away
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _read_key() -> str:
    """One key; of what a key sends that is no character (an arrow's escape sequence), nothing is taken for one."""
    import select

    file = sys.stdin.fileno()
    key = os.read(file, 1)
    if key == b"\x1b":
        while select.select([file], [], [], 0.02)[0] and os.read(file, 1):
            pass
        return "\x1b"
    return key.decode(errors="replace")


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
