"""Prompts at a terminal: choices by one key, and the editor for a body."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.text import Text

from tarry import world
from tarry.failed import CannotEdit, edit
from tarry.failed.text import printable
from tarry.tools.cli.failed.rendering import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from rich.console import Console

    from tarry.failed import DeadLetterMessage, Result

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
        """The name of the signal that came."""
        return signal.Signals(self.signal).name if self.signal else ""

    @contextmanager
    def listening(self) -> Iterator[Stopping]:
        """Handle the signals within the context."""
        numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        numbers = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]  # for nohup
        before = {number: signal.signal(number, self._take) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def at_prompt(self) -> Iterator[None]:
        """Stop at once at a signal, within the context: the user is being asked."""
        with self._raising_at(1):
            yield

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Stop at a second signal, within the context: a handler runs, and may not end."""
        with self._raising_at(2):
            yield

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


class AsksOfAll(Protocol):
    """Asks about all dead letters that failed like one (`tarry.tools.cli.failed.retrying`)."""

    def ask(self, dead_letter: DeadLetterMessage) -> str | None: ...

    def carry_out(self, key: str, dead_letter: DeadLetterMessage) -> Iterator[Result]: ...


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


class DeadLetterPrompt:
    """The prompt for one dead letter: retry, edit, delete, skip or quit."""

    def __init__(
        self,
        console: Console,
        stopping: Stopping,
        retry: Callable[[DeadLetterMessage], Result],
        delete: Callable[[DeadLetterMessage], Result],
        skip: Callable[[DeadLetterMessage], Result],
        alike: AsksOfAll | None = None,
    ) -> None:
        self._console = console
        self._stopping = stopping
        self._actions = {"r": retry, "d": delete, "s": skip}
        self._alike = alike

    def decide(self, dead_letter: DeadLetterMessage, *, edit_first: bool = False) -> Iterable[Result] | None:
        """Show a dead letter and carry out the user's choice; return the results, or None to quit.

        ``edit_first``: open the body in the editor before.
        """
        shown: DeadLetterMessage | None = None
        if edit_first:
            dead_letter = self._edited(dead_letter)
        while True:
            if shown != dead_letter:
                self._console.print()
                self._console.print(summary(dead_letter))
                self._console.print()
                shown = dead_letter
            keys = ("" if dead_letter.is_undecodable else "r") + ("eds" if self._alike is None else "edsa") + "q"
            match ask(self._console, self._stopping, "  ".join(f"[{key}]{KEYS[key][1:]}" for key in keys) + " ", keys):
                case "q":
                    return None
                case "e":
                    dead_letter = self._edited(dead_letter)
                case "d" if not confirms(self._console, self._stopping, "Permanently delete this dead letter?"):
                    continue
                case "a" if self._alike is not None:
                    if (of_all := self._alike.ask(dead_letter)) is not None:
                        return self._alike.carry_out(of_all, dead_letter)
                case key:
                    return [self._actions[key](dead_letter)]

    def _edited(self, dead_letter: DeadLetterMessage) -> DeadLetterMessage:
        try:
            return edit(dead_letter, in_editor(dead_letter.body), world.current().clock.time())
        except (NoEditor, CannotEdit) as error:
            self._console.print(Text(printable(str(error)), "yellow"), soft_wrap=True)
            return dead_letter


def confirms(console: Console, stopping: Stopping, question: str) -> bool:
    """Ask a yes-or-no question; return whether the answer is yes."""
    return ask(console, stopping, f"{question} [y/N] ", "yn") == "y"


def ask_for_text(console: Console, stopping: Stopping, question: str) -> str:
    """Ask for a line of text; return it without spaces around it, empty at the end of the input."""
    try:
        with stopping.at_prompt():
            console.print(Text(printable(question)), end="", soft_wrap=True)
            console.file.flush()
            return sys.stdin.readline().strip()
    except StoppedBySignal:
        console.print()
        raise


def ask(console: Console, stopping: Stopping, question: str, keys: str) -> str:
    """Ask a question and return the pressed key; at the end of the input, return the last of ``keys``."""
    try:
        with stopping.at_prompt(), _by_key():  # before the question is printed: the key may come at once
            console.print(Text(printable(question)), end="", soft_wrap=True)
            console.file.flush()
            while True:
                key = _read_key().lower()
                if key in END_OF_INPUT:
                    key = keys[-1]
                if key in keys:
                    console.print(Text(KEYS.get(key, key), "bold"))
                    return key
    except StoppedBySignal:
        console.print()  # end the line of the question
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

    Raises:
        NoEditor: neither VISUAL nor EDITOR is set, or the editor failed.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise NoEditor("no editor is set: set EDITOR, for example EDITOR=nano")
    suffix = ".json" if body.lstrip()[:1] in ("{", "[") else ".txt"
    with tempfile.TemporaryDirectory(prefix="tarry-") as folder:
        path = Path(folder) / f"body{suffix}"
        path.write_bytes(body.encode("utf-8", "surrogatepass"))
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False, stdout=_screen())
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


def _screen() -> int | None:
    """Return the output for the editor: stderr if stdout is piped, so that the results stay clean."""
    return None if sys.stdout.isatty() else STDERR
