"""What functions print and log while virtual time runs, line by line, with the time at which they did."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass

from tarry.simulator.functions import current_call
from tarry.simulator.stack import in_debugger


@dataclass(frozen=True)
class Said:
    """A line of a function; ``function`` is its name, empty for what is nobody's."""

    at: float
    function: str
    text: str


class Transcript(io.TextIOBase):
    """A stream that keeps what is written to it, but for what a debugger has to say at once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.lines: list[Said] = []
        self._now = now
        self._begun = ""
        self._terminal = sys.stdout

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if in_debugger(sys._getframe()):
            self._terminal.write(text)
            self._terminal.flush()
            return len(text)
        *whole, self._begun = (self._begun + text).split("\n")
        call = current_call()
        function = call.environment.function.settings.name if call else ""
        self.lines += [Said(self._now(), function, line) for line in whole]
        return len(text)

    def note(self, text: str) -> None:
        """A line, or some."""
        self.write(text + "\n")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Stdout and stderr go here, for as long as the context lasts."""
        with redirect_stdout(self), redirect_stderr(self):
            yield
        if self._begun:
            self.note("")
