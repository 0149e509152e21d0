"""Prompts at a terminal: choices by one key, and the editor for a body."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from tarry.failed.text import printable

SIGNALS = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP")
"""SIGHUP: the terminal or the connection was closed."""


class StoppedBySignal(KeyboardInterrupt):
    """A signal came while there was nothing to finish, or a second one."""


class Stopping:
    """Whether a signal came. It raises `StoppedBySignal` within `at_prompt`; within `at_work`, the second one does."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._raises_at: int | None = None
        self._came = 0

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The exit code of a shell for a process that a signal ended: 128 plus its number."""
        return 128 + (self.signal or 0)

    @property
    def name(self) -> str:
        return signal.Signals(self.signal).name if self.signal else ""

    @contextmanager
    def listening(self) -> Iterator[Stopping]:
        numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        numbers = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]  # for nohup
        before = {number: signal.signal(number, self._take) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def at_prompt(self) -> AbstractContextManager[None]:
        """Stop at once at a signal, within the context: the user is being asked."""
        return self._raising_at(1)

    def at_work(self) -> AbstractContextManager[None]:
        """Stop at a second signal, within the context: a handler runs, and may not end."""
        return self._raising_at(2)

    @contextmanager
    def _raising_at(self, count: int) -> Iterator[None]:
        if self._came >= count:
            raise StoppedBySignal
        before, self._raises_at = self._raises_at, count
        try:
            yield
        finally:
            self._raises_at = before

    def _take(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        self._came += 1
        if self._raises_at is not None and self._came >= self._raises_at:
            raise StoppedBySignal


KEYS = {"r": "retry", "e": "edit", "d": "delete", "s": "skip", "a": "all alike", "b": "back", "q": "quit"}
END_OF_INPUT = ("", "\x04")
SIGNAL_SECONDS = 0.5
"""A read does not end at a signal that comes just before it begins; so each wait for a key is at most this long."""


def has_terminal() -> bool:
    """Whether stdin and stderr are a terminal that supports prompts by one key."""
    try:
        import termios  # noqa: F401 does not exist on Windows
    except ModuleNotFoundError:
        return False
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirms(console: Console, stopping: Stopping, question: str) -> bool:
    return ask(console, stopping, f"{question} [y/N] ", "yn") == "y"


def ask_for_text(console: Console, stopping: Stopping, question: str) -> str:
    """Ask for a line of text; return it without spaces around it, empty at the end of the input."""
    with _asking(console, stopping, question):
        return sys.stdin.readline().strip()


def ask(console: Console, stopping: Stopping, question: str, keys: str) -> str:
    """Ask a question and return the pressed key; at the end of the input, return the last of ``keys``."""
    with _by_key(), _asking(console, stopping, question):  # by key before it is printed: a key may come at once
        while True:
            key = _read_key().lower()
            if key in END_OF_INPUT:
                key = keys[-1]
            if key in keys:
                console.print(Text(KEYS.get(key, key), "bold"))
                return key


@contextmanager
def _asking(console: Console, stopping: Stopping, question: str) -> Iterator[None]:
    """Print a question; a signal ends its line, and stops the command."""
    try:
        with stopping.at_prompt():
            console.print(Text(printable(question)), end="", soft_wrap=True)
            console.file.flush()
            yield
    except StoppedBySignal:
        console.print()
        raise


@contextmanager
def _by_key() -> Iterator[None]:
    """Read single keys without echo; signals still work."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file, termios.TCSADRAIN)  # keep keys that were typed ahead
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _read_key() -> str:
    """Read one key; return an escape sequence, such as that of an arrow key, as a single ESC."""
    import select

    file = sys.stdin.fileno()
    while not select.select([file], [], [], SIGNAL_SECONDS)[0]:
        pass
    key = os.read(file, 1)
    if key == b"\x1b":
        while select.select([file], [], [], 0.02)[0] and os.read(file, 1):
            pass
        return "\x1b"
    return key.decode(errors="replace")


class NoEditor(Exception):
    """No editor is set, or it failed."""


STDERR = 2


def in_editor(body: str) -> str:
    """Open the body in the editor and return the edited body, without the newline that editors add at the end.

    Raises `NoEditor`.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise NoEditor("no editor is set: set EDITOR, for example EDITOR=nano")
    suffix = ".json" if body.lstrip()[:1] in ("{", "[") else ".txt"
    with tempfile.TemporaryDirectory(prefix="tarry-") as folder:
        path = Path(folder) / f"body{suffix}"
        path.write_bytes(body.encode("utf-8", "surrogatepass"))
        try:
            screen = None if sys.stdout.isatty() else STDERR  # so that results in a pipe stay clean
            done = subprocess.run([*shlex.split(editor), str(path)], check=False, stdout=screen)
        except (OSError, ValueError) as error:
            raise NoEditor(f"the editor {editor!r} cannot be started: {error}") from error
        if done.returncode != 0:
            raise NoEditor(f"the editor {editor!r} failed (exit code {done.returncode}): the body is unchanged")
        try:
            edited = path.read_bytes().decode("utf-8", "surrogatepass")
        except (OSError, UnicodeDecodeError) as error:
            raise NoEditor(f"the file that the editor {editor!r} saved cannot be read: {error}") from error
    for newline in ("\r\n", "\n"):
        if edited.endswith(newline) and not body.endswith(newline):
            return edited.removesuffix(newline)
    return edited
