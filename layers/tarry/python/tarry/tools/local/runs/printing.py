"""Printing a run: its timeline in virtual time, and the summary at its end."""

import io
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarry.failed.text import brief, coarse, one_line, printable
from tarry.message.outcomes import State
from tarry.tools.local.project import Note
from tarry.tools.local.runs.report import RunReport
from tarry.tools.local.show.timeline import (
    CHATTY,
    MOST_REPEATS,
    STYLES,
    LogLine,
    MessageTimeline,
    because,
    counted,
    folded,
    name_of,
    new_traceback,
    state_counts,
)
from tarry.tools.simulator.actors import in_debugger
from tarry.tools.simulator.batch_errors import SeenKeys, new_errors
from tarry.tools.simulator.functions import current_call
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.story.lines import is_transition
from tarry.tools.testing.log_recorder import ignored_failures


def running_function() -> str:
    """Return the name of the function whose code calls this; empty outside of functions."""
    call = current_call()
    return call.environment.function.settings.name if call else ""


class Transcript(io.TextIOBase):
    """A stream that keeps its lines while it records; before, and from a debugger, they are shown at once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.lines: list[LogLine] = []
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
        self.lines += [LogLine(self._now(), running_function(), line) for line in whole]
        return len(text)

    def warn(self, event: HistoryEvent) -> None:
        """Write the errors of messages that failed alone, and a warning if the mapping ignores failures."""
        if event.what == "answered" and (text := new_errors(event.fields, self._shown)):
            function = event.fields["function"]
            self.lines += [LogLine(event.at, function, line) for line in f"WARNING {text}".splitlines()]
        if event.what == "answered" and (text := ignored_failures(event.fields, self._shown)):
            self.lines.append(LogLine(event.at, "", f"WARNING {text}"))

    def hint(self, text: str) -> None:
        """Write a line of tarry, even while a function runs."""
        self.lines.append(LogLine(self._now(), "", text))

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


@contextmanager
def logging_to(transcript: Transcript, *, verbose: bool) -> Iterator[None]:
    """Write the logs to the transcript until the context ends. The root logger has a handler, as in Lambda."""
    shown = SeenKeys()

    def passes(record: logging.LogRecord) -> bool:
        """Leave out INFO lines of AWS's SDK, and the warnings that a function repeats."""
        if record.levelno < logging.WARNING:
            return record.name.partition(".")[0] not in CHATTY
        if verbose or record.levelno != logging.WARNING or is_transition(vars(record)):
            return True
        return shown.is_new((running_function(), f"{record.name}: {record.getMessage()}"))

    problems = _Lines(transcript.note, verbose=verbose)
    lines = logging.StreamHandler(transcript)
    for handler in (problems, lines):
        handler.addFilter(passes)
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
    console: Console, messages: Sequence[MessageTimeline], output: Iterable[LogLine], began: float
) -> None:
    """Print all steps since ``began``; the lines of functions go to stderr, as in Lambda's log."""
    lines = list(lines_of(messages, output, began))
    if messages:
        sent = [message for message in messages if message.number is not None]
        queues = ", ".join(dict.fromkeys(printable(message.queue) for message in sent))
        heading = f"{len(sent)} message{'s'[: len(sent) != 1]} to {queues}; no wait takes real time."
        console.print(Text(heading, "dim"), soft_wrap=not console.is_terminal)
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


def lines_of(messages: Sequence[MessageTimeline], output: Iterable[LogLine], began: float) -> Iterator[TimelineRow]:
    """Return the lines, in the order of time. Lines and steps that repeat are folded."""
    queues = {step.queue for message in messages for step in message.steps if step.state is not State.DEAD_LETTERED}
    moments: list[tuple[float, int, MessageTimeline | None, TimelineRow]] = []
    for each in _folded_output(output):
        row = TimelineRow(f"+{coarse(each.at - began)}", "", str(each))
        moments.append((each.at, ORDER.index(None), None, row))
    for message in messages:
        for step, text in folded(message.steps):
            queue = f" {step.queue}" if len(queues) > 1 and step.state is not State.DEAD_LETTERED else ""
            row = TimelineRow(f"+{coarse(step.at - began)}", queue, text, brief(step.why), STYLES[step.state])
            moments.append((step.at, ORDER.index(step.state), message, row))
    moments.sort(key=lambda moment: moment[:2])
    for _, together in groupby(moments, key=lambda moment: object() if moment[2] is None else moment[3]):
        same = list(together)
        row = same[0][3]
        yield replace(row, names=_names([moment[2] for moment in same if moment[2] is not None]) + row.names)


def _folded_output(output: Iterable[LogLine]) -> Iterator[LogLine]:
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


def _names(messages: Sequence[MessageTimeline]) -> str:
    """The names of messages: their places in the event (``#1-3 #5``), or the ids of messages that functions sent."""
    runs: list[list[int]] = []
    for number in sorted(message.number for message in messages if message.number is not None):
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
    known = {message.id: message for message in report.messages}
    if report.messages:
        _print_lines(console, "Messages", [_message(message, report) for message in report.messages])
    if report.dead_letters:
        found = [
            (replace(known[message_id], queue=queue), one_line(why))
            for message_id, (queue, why) in report.dead_letters.items()
        ]
        _print_lines(console, "Dead letters", [(Text(name_of(message)), Text(why)) for message, why in found])
    if report.violations:
        broken = [(known.get(each.id, MessageTimeline(each.id, "")), each) for each in report.violations]
        texts = [(Text(name_of(message)), Text(printable(f"{each.rule}: {each.text}"))) for message, each in broken]
        _print_lines(console, "Violations", texts)
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
    steps = [Text(text, STYLES.get(step.state, "")) for step, text in folded(message.steps)]
    ends = [Text(message.state, STYLES[message.state])] if message.lost or not steps else []
    text = Text(" -> ").join([*steps, *ends])
    return Text(name_of(message)), text if message.id in report.dead_letters else text.append(because(message.why))


def _result(report: RunReport) -> Text:
    total = f"{len(report.messages)} message{'s'[: len(report.messages) != 1]}"
    if not report.messages:
        return Text("The event has no records: nothing to do.")
    took = f"{report.seconds:.1f} s"
    if report.virtual_seconds is not None:
        took = f"{coarse(report.virtual_seconds)} of virtual time ({took})"
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
        return Text(f"{'; '.join(problems)}. The run took {took}.", "bold red")
    states = state_counts(report.messages)
    surprising = report.missed if report.expected else State.DEAD_LETTERED in states
    style = "bold yellow" if surprising else "bold green"
    return Text(f"{total} settled in {took}: {counted(states)}; none lost.", style)
