"""Printing a run: its timeline in virtual time, and the summary at its end."""

from __future__ import annotations

import io
import logging
import sys
from collections import Counter
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tarry.failed.text import brief, coarse, one_line, printable
from tarry.message.outcomes import State
from tarry.tools.local.show.log import CHATTY, MOST_REPEATS, ShownStep, folded, new_traceback
from tarry.tools.local.show.timeline import STYLES, MessageTimeline, because, counted, name_of, state_counts, state_of
from tarry.tools.simulator.actors import in_debugger
from tarry.tools.simulator.batch_errors import SeenKeys, new_errors
from tarry.tools.simulator.functions import current_call
from tarry.tools.story.lines import is_transition
from tarry.tools.testing.log_recorder import ignored_failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from tarry.tools.local.project import Note
    from tarry.tools.local.runs.report import DeadLetterSummary, RunReport
    from tarry.tools.simulator.history import HistoryEvent
    from tarry.tools.testing.checkers import Violation


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
        self._shown = SeenKeys()

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
        if event.what == "answered" and (text := new_errors(event.fields, self._shown)):
            function = event.fields["function"]
            self.lines += [OutputLine(event.at, function, line) for line in f"WARNING {text}".splitlines()]
        if event.what == "answered" and (text := ignored_failures(event.fields, self._shown)):
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
        self._shown = SeenKeys()
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        is_of_state = is_transition(fields)
        if self._verbose or (not is_of_state and record.levelno >= logging.WARNING):
            self._note(self.format(record))
        elif is_of_state and (text := new_traceback(fields, self._shown)):
            self._note(text)


def _is_no_noise(record: logging.LogRecord) -> bool:
    """Return whether a line is not an INFO line of AWS's SDK, such as where it found credentials."""
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] not in CHATTY


def _is_new_warning() -> Callable[[logging.LogRecord], bool]:
    """Return a filter that passes a warning of a function only once, and all other lines."""
    shown = SeenKeys()

    def passes(record: logging.LogRecord) -> bool:
        fields = vars(record)
        if record.levelno != logging.WARNING or is_transition(fields):
            return True
        call = current_call()
        function = call.environment.function.settings.name if call else ""
        return shown.is_new((function, f"{record.name}: {record.getMessage()}"))

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


MOST_NAMES_WIDTH = 24
MENTIONED = (" (traceback above)", " (errors above)")
"""The ends of lines about errors that have been shown in full."""
ORDER = [State.READY, State.IN_FLIGHT, None, *(state for state in State if state not in (State.READY, State.IN_FLIGHT))]
"""The order of simultaneous events; None is a line of a function."""


@dataclass(frozen=True)
class TimelineRow:
    """One line. ``names`` are its messages; ``style`` is None for a line of a function."""

    stamp: str
    names: str
    text: str
    why: str = ""
    style: str | None = None


def print_timeline(
    console: Console, messages: Sequence[MessageTimeline], output: Iterable[OutputLine], began: float
) -> None:
    """Print all steps since ``began``; the lines of functions go to stderr, as in Lambda's log."""
    lines = list(lines_of(messages, output, began))
    if messages:
        console.print(Text(_heading(messages), "dim"), soft_wrap=not console.is_terminal)
    stamps = max((len(line.stamp) for line in lines), default=0)
    names = min(MOST_NAMES_WIDTH, max((len(line.names) for line in lines), default=0))
    for line in lines:
        if line.style is None:
            console.file.flush()
            sys.stderr.write(f"{line.stamp:>{stamps}}  {line.names}{printable(line.text)}\n")
            sys.stderr.flush()
            continue
        text = Text.assemble((line.text, line.style), because(line.why))
        if console.is_terminal:
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(width=stamps, justify="right")
            grid.add_column(width=names)
            grid.add_column()
            grid.add_row(line.stamp, line.names, text)
            console.print(grid)
        else:
            console.print(Text.assemble(f"{line.stamp:>{stamps}}  {line.names:<{names}}  ", text), soft_wrap=True)


def _heading(messages: Sequence[MessageTimeline]) -> str:
    sent = [message for message in messages if message.number is not None]
    queues = dict.fromkeys(printable(message.queue) for message in sent)
    return f"{len(sent)} message{'s'[: len(sent) != 1]} to {', '.join(queues)}; no wait takes real time."


def lines_of(messages: Sequence[MessageTimeline], output: Iterable[OutputLine], began: float) -> Iterator[TimelineRow]:
    """Return the lines, in the order of time. Lines and steps that repeat are folded."""
    queues = {step.queue for message in messages for step in message.steps if step.state is not State.DEAD_LETTERED}
    moments = [_Moment(each.at, None, None, _line_of_output(each, began)) for each in _folded_output(output)]
    for message in messages:
        for shown in folded(message.steps):
            line = _line_of(shown, began, named=len(queues) > 1)
            moments.append(_Moment(shown.last.at, shown.last.state, message, line))
    moments.sort(key=lambda moment: (moment.at, ORDER.index(moment.state)))
    together: list[_Moment] = []
    for moment in moments:
        if together and (moment.message is None or moment.line != together[-1].line):
            yield _one_line(together)
            together = []
        together.append(moment)
    if together:
        yield _one_line(together)


class _Moment(NamedTuple):
    at: float
    state: State | None
    message: MessageTimeline | None
    line: TimelineRow


def _line_of(shown: ShownStep, began: float, *, named: bool) -> TimelineRow:
    step = shown.last
    queue = f" {step.queue}" if named and step.state is not State.DEAD_LETTERED else ""
    return TimelineRow(_stamp(step.at, began), queue, shown.text, brief(step.why), STYLES[step.state])


def _folded_output(output: Iterable[OutputLine]) -> Iterator[OutputLine]:
    """Yield the lines; an error that is mentioned many times is shown the first time, and the last with its number."""
    lines = list(output)
    counts = Counter((line.function, line.text) for line in lines if line.text.endswith(MENTIONED))
    seen: Counter[tuple[str, str]] = Counter()
    for line in lines:
        key = line.function, line.text
        seen[key] += 1
        if counts[key] <= MOST_REPEATS or seen[key] == 1:
            yield line
        elif seen[key] == counts[key]:
            yield replace(line, text=f"{line.text}, {counts[key] - 1} more times")


def _line_of_output(line: OutputLine, began: float) -> TimelineRow:
    return TimelineRow(_stamp(line.at, began), "", f"{line.function}: {line.text}" if line.function else line.text)


def _stamp(at: float, began: float) -> str:
    return f"+{coarse(at - began)}"


def _one_line(moments: Sequence[_Moment]) -> TimelineRow:
    line = moments[0].line
    return replace(line, names=_names([each.message for each in moments if each.message is not None]) + line.names)


def _names(messages: Iterable[MessageTimeline]) -> str:
    """The names of messages: their places in the event (``#1-3 #5``), or the ids of messages that functions sent."""
    numbers = [message.number for message in messages if message.number is not None]
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ranges = [f"#{run[0]}-{run[-1]}" if len(run) > 2 else " ".join(f"#{number}" for number in run) for run in runs]
    return " ".join([*ranges, *(printable(message.id[:8]) for message in messages if message.number is None)])


SummaryLine = tuple[Text, Text]
"""A name, and a text about it."""


def print_summary(console: Console, report: RunReport) -> None:
    """Print the final state of every message."""
    if not console.is_terminal or report.virtual_seconds is not None:  # a live table leaves no lines
        console.print()
    if report.messages:
        _print_lines(console, "Messages", [_message(message, report) for message in report.messages])
    if report.dead_letters:
        _print_lines(
            console, "Dead letters", [_dead_letter(dead_letter, report) for dead_letter in report.dead_letters.values()]
        )
    if report.violations:
        _print_lines(console, "Violations", [_violation(each, report) for each in report.violations])
    if report.messages:
        table = Table("State", box=SIMPLE_HEAD, show_edge=False)
        table.add_column("Messages", justify="right")
        for state, count in state_counts(report.messages).items():
            table.add_row(Text(state, STYLES.get(state, "")), str(count))
        console.print(table)
        console.print()
    for text in report.causes:
        console.print(Text(printable(text), "yellow"), soft_wrap=not console.is_terminal)
    console.print(_result(report), soft_wrap=not console.is_terminal)


def _print_lines(console: Console, title: str, lines: Iterable[SummaryLine]) -> None:
    """Print a line for each. A terminal folds long lines in a column after the names; a log or a pipe does not."""
    console.print(Text(title, "bold"))
    if console.is_terminal:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for line in lines:
            grid.add_row(*line)
        console.print(grid)
    else:
        for name, text in lines:
            console.print(Text.assemble(name, "  ", text), soft_wrap=True)
    console.print()


def _message(message: MessageTimeline, report: RunReport) -> SummaryLine:
    steps = [Text(shown.text, STYLES.get(shown.last.state, "")) for shown in folded(message.steps)]
    ends = [state_of(message)] if message.lost or not steps else []
    text = Text(" -> ").join([*steps, *ends])
    return Text(name_of(message)), text if message.id in report.dead_letters else text.append(because(message.why))


def _dead_letter(dead_letter: DeadLetterSummary, report: RunReport) -> SummaryLine:
    numbers = {message.id: message.number for message in report.messages}
    return Text(name_of(MessageTimeline(dead_letter.id, dead_letter.queue, numbers.get(dead_letter.id)))), Text(
        one_line(dead_letter.why)
    )


def _violation(violation: Violation, report: RunReport) -> SummaryLine:
    message = next((each for each in report.messages if each.id == violation.id), MessageTimeline(violation.id, ""))
    return Text(name_of(message)), Text(printable(f"{violation.rule}: {violation.text}"))


def _result(report: RunReport) -> Text:
    total = f"{len(report.messages)} message{'s'[: len(report.messages) != 1]}"
    if not report.messages:
        return Text("The event has no records: nothing to do.")
    problems = []
    if report.lost:
        problems.append(f"{len(report.lost)} of {total} LOST")
    if report.waiting:
        problems.append(f"{len(report.waiting)} of {total} did not settle{report.waits}")
    if report.violations:
        problems.append(f"{len(report.violations)} violation{'s'[: len(report.violations) != 1]}")
    if report.interrupted:
        problems.append("interrupted")
    if problems:
        return Text(f"{'; '.join(problems)}. The run took {_took(report)}.", "bold red")
    states = state_counts(report.messages)
    surprising = report.missed if report.expected else State.DEAD_LETTERED in states
    style = "bold yellow" if surprising else "bold green"
    return Text(f"{total} settled in {_took(report)}: {counted(states)}; none lost.", style)


def _took(report: RunReport) -> str:
    real = f"{report.seconds:.1f} s"
    return real if report.virtual_seconds is None else f"{coarse(report.virtual_seconds)} of virtual time ({real})"
