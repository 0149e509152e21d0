"""The output of a run in virtual time: what functions print and log, each line with its time."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tarry.tools.local.show.log import CHATTY, FirstTracebacks, FirstWarnings
from tarry.tools.simulator.batch_errors import FirstErrors
from tarry.tools.simulator.functions import current_call
from tarry.tools.simulator.stack import in_debugger
from tarry.tools.story.lines import is_transition
from tarry.tools.testing.ignored_failures import IgnoredFailures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.tools.local.project import Note
    from tarry.tools.simulator.history import HistoryEvent


@dataclass(frozen=True)
class OutputLine:
    """A line of output; ``function`` is the name of the function that wrote it, empty if none did."""

    at: float
    function: str
    text: str


class Transcript(io.TextIOBase):
    """A stream that keeps its lines while it records; before, and from a debugger, they are shown at once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.lines: list[OutputLine] = []
        self._now = now
        self._begun = ""
        self._is_recording = False
        self._terminal = sys.stdout
        self._ignored = IgnoredFailures()
        self._errors = FirstErrors()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if in_debugger(sys._getframe()):
            self._terminal.write(text)
            self._terminal.flush()
            return len(text)
        if not self._is_recording:
            return sys.stderr.write(text)
        *whole, self._begun = (self._begun + text).split("\n")
        call = current_call()
        function = call.environment.function.settings.name if call else ""
        self.lines += [OutputLine(self._now(), function, line) for line in whole]
        return len(text)

    def warn(self, event: HistoryEvent) -> None:
        """Write the errors of messages that failed alone, and a warning if the mapping ignores failures."""
        if event.what == "answered" and (text := self._errors.text(event.fields)):
            function = event.fields["function"]
            self.lines += [OutputLine(event.at, function, line) for line in f"WARNING {text}".splitlines()]
        if event.what == "answered" and (text := self._ignored.text(event.fields)):
            self.lines.append(OutputLine(event.at, "", f"WARNING {text}"))

    def hint(self, text: str) -> None:
        """Write a line of tarry, even while a function runs."""
        self.lines.append(OutputLine(self._now(), "", text))

    def note(self, text: str) -> None:
        """Write one or more lines."""
        self.write(text + "\n")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Redirect stdout and stderr to this stream until the context ends."""
        self._is_recording = True
        try:
            with redirect_stdout(self), redirect_stderr(self):
                yield
        finally:
            if self._begun:
                self.note("")
            self._is_recording = False


class _Lines(logging.Handler):
    """A handler that shows the warnings of tarry's log that name no message, and the first traceback of each error.

    Timelines show the messages.
    """

    def __init__(self, note: Note, *, verbose: bool) -> None:
        super().__init__()
        self._note = note
        self._verbose = verbose
        self._tracebacks = FirstTracebacks()
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        is_of_state = is_transition(fields)
        if self._verbose or (not is_of_state and record.levelno >= logging.WARNING):
            self._note(self.format(record))
        elif is_of_state and (text := self._tracebacks.take(fields)):
            self._note(text)


def _is_no_noise(record: logging.LogRecord) -> bool:
    """Return whether a line is not an INFO line of AWS's SDK, such as where it found credentials."""
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] not in CHATTY


def _is_new_warning() -> Callable[[logging.LogRecord], bool]:
    """Return a filter that passes a warning of a function only once, and all other lines."""
    warnings = FirstWarnings()

    def passes(record: logging.LogRecord) -> bool:
        fields = vars(record)
        if record.levelno != logging.WARNING or is_transition(fields):
            return True
        call = current_call()
        function = call.environment.function.settings.name if call else ""
        return warnings.is_new(function, f"{record.name}: {record.getMessage()}")

    return passes


@contextmanager
def logging_to(transcript: Transcript, *, verbose: bool) -> Iterator[None]:
    """Write the logs to the transcript until the context ends. The root logger has a handler, as in Lambda."""
    problems = _Lines(transcript.note, verbose=verbose)
    lines = logging.StreamHandler(transcript)
    for handler in (problems, lines):
        handler.addFilter(_is_no_noise)
        if not verbose:
            handler.addFilter(_is_new_warning())
    lines.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    tarry, root = logging.getLogger("tarry"), logging.getLogger()
    before = tarry.level, tarry.propagate
    tarry.addHandler(problems)
    tarry.setLevel(logging.INFO)
    tarry.propagate = False
    root.addHandler(lines)
    try:
        yield
    finally:
        root.removeHandler(lines)
        tarry.removeHandler(problems)
        tarry.setLevel(before[0])
        tarry.propagate = before[1]
