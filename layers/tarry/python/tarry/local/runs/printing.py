"""How a run is printed: its timeline in virtual time, and the summary at its end."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarry.local.runs.report import DeadLetterSummary, RunReport
from tarry.local.runs.virtual import OutputLine
from tarry.local.show.timeline import STYLES, MessageTimeline, because, name_of, state_counts, state_of, text_of, words
from tarry.outcome import State
from tarry.testing import Transition
from tarry.testing.checkers import Violation
from tarry.tooling.text import brief, coarse, printable

MOST_NAMES_WIDTH = 24
ORDER = [State.READY, State.IN_FLIGHT, None, *(state for state in State if state not in (State.READY, State.IN_FLIGHT))]
"""Of what happens at the same time; None is what a function says."""


@dataclass(frozen=True)
class TimelineRow:
    """One line. ``names`` is whom it is about; ``style`` is None for what a function said."""

    stamp: str
    names: str
    text: str
    why: str = ""
    style: str | None = None


def print_timeline(
    console: Console, stories: Sequence[MessageTimeline], said: Iterable[OutputLine], began: float
) -> None:
    """Print all that happened since ``began``; what functions said goes to stderr, as it does in Lambda's log."""
    lines = list(lines_of(stories, said, began))
    if stories:
        console.print(Text(_heading(stories), "dim"), soft_wrap=not console.is_terminal)
    stamps = max((len(line.stamp) for line in lines), default=0)
    names = min(MOST_NAMES_WIDTH, max((len(line.names) for line in lines), default=0))
    for line in lines:
        if line.style is None:
            console.file.flush()
            sys.stderr.write(f"{line.stamp:>{stamps}}  {line.names}{printable(line.text)}\n")
            sys.stderr.flush()
            continue
        told = Text.assemble((line.text, line.style), because(line.why))
        if console.is_terminal:
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(width=stamps, justify="right")
            grid.add_column(width=names)
            grid.add_column()
            grid.add_row(line.stamp, line.names, told)
            console.print(grid)
        else:
            console.print(Text.assemble(f"{line.stamp:>{stamps}}  {line.names:<{names}}  ", told), soft_wrap=True)


def _heading(stories: Sequence[MessageTimeline]) -> str:
    sent = [story for story in stories if story.number is not None]
    queues = dict.fromkeys(printable(story.queue) for story in sent)
    return f"{len(sent)} message{'s'[: len(sent) != 1]} to {', '.join(queues)}; no wait takes real time."


def lines_of(stories: Sequence[MessageTimeline], said: Iterable[OutputLine], began: float) -> Iterator[TimelineRow]:
    """The lines, in the order of time."""
    queues = {step.queue for story in stories for step in story.steps if step.state is not State.DEAD_LETTERED}
    moments = [_Moment(each.at, None, None, _line_said(each, began)) for each in said]
    for story in stories:
        for step in story.steps:
            line = _line_of(step, began, named=len(queues) > 1)
            moments.append(_Moment(step.at, step.state, story, line))
    moments.sort(key=lambda moment: (moment.at, ORDER.index(moment.state)))
    together: list[_Moment] = []
    for moment in moments:
        if together and (moment.story is None or moment.line != together[-1].line):
            yield _one_line(together)
            together = []
        together.append(moment)
    if together:
        yield _one_line(together)


class _Moment(NamedTuple):
    at: float
    state: State | None
    story: MessageTimeline | None
    line: TimelineRow


def _line_of(step: Transition, began: float, *, named: bool) -> TimelineRow:
    queue = f" {step.queue}" if named and step.state is not State.DEAD_LETTERED else ""
    return TimelineRow(_stamp(step.at, began), queue, text_of(step), brief(step.why), STYLES[step.state])


def _line_said(said: OutputLine, began: float) -> TimelineRow:
    return TimelineRow(_stamp(said.at, began), "", f"{said.function}: {said.text}" if said.function else said.text)


def _stamp(at: float, began: float) -> str:
    return f"+{coarse(at - began)}"


def _one_line(moments: Sequence[_Moment]) -> TimelineRow:
    line = moments[0].line
    return replace(line, names=_names([each.story for each in moments if each.story is not None]) + line.names)


def _names(stories: Iterable[MessageTimeline]) -> str:
    """By their places in the event, ``#1-3 #5``; those that functions sent by their ids."""
    numbers = [story.number for story in stories if story.number is not None]
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ranges = [f"#{run[0]}-{run[-1]}" if len(run) > 2 else " ".join(f"#{number}" for number in run) for run in runs]
    return " ".join([*ranges, *(printable(story.id[:8]) for story in stories if story.number is None)])


SummaryLine = tuple[Text, Text]
"""What it is about, and what there is to say of it."""


def print_summary(console: Console, report: RunReport) -> None:
    """What became of every message."""
    if not console.is_terminal or report.virtual_seconds is not None:  # where a live table stood nothing is left
        console.print()
    if report.stories:
        _print_lines(console, "Messages", [_story(story, report) for story in report.stories])
    if report.dead_letters:
        _print_lines(
            console, "Dead letters", [_dead_letter(dead_letter, report) for dead_letter in report.dead_letters.values()]
        )
    if report.violations:
        _print_lines(console, "Violations", [_violation(each, report) for each in report.violations])
    if report.stories:
        table = Table("State", box=SIMPLE_HEAD, show_edge=False)
        table.add_column("Messages", justify="right")
        for state, count in state_counts(report.stories).items():
            table.add_row(Text(state, STYLES.get(state, "")), str(count))
        console.print(table)
        console.print()
    console.print(_verdict(report), soft_wrap=not console.is_terminal)


def _print_lines(console: Console, title: str, lines: Iterable[SummaryLine]) -> None:
    """One line each; a terminal folds long ones behind their names, a log or a pipe gets them whole."""
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


def _story(story: MessageTimeline, report: RunReport) -> SummaryLine:
    before = story.steps if story.lost else story.steps[:-1]
    text = Text(" -> ").join([*map(words, before), state_of(story)])
    return name_of(story), text if story.id in report.dead_letters else text.append(because(story.why))


def _dead_letter(dead_letter: DeadLetterSummary, report: RunReport) -> SummaryLine:
    numbers = {story.id: story.number for story in report.stories}
    return name_of(MessageTimeline(dead_letter.id, dead_letter.queue, numbers.get(dead_letter.id))), Text(
        printable(dead_letter.why)
    )


def _violation(violation: Violation, report: RunReport) -> SummaryLine:
    story = next((story for story in report.stories if story.id == violation.id), MessageTimeline(violation.id, ""))
    return name_of(story), Text(printable(f"{violation.rule}: {violation.text}"))


def _verdict(report: RunReport) -> Text:
    total = f"{len(report.stories)} message{'s'[: len(report.stories) != 1]}"
    if not report.stories and not report.missed:
        return Text("The event has no records: nothing to do.")
    problems = []
    if report.lost:
        problems.append(f"{len(report.lost)} of {total} LOST")
    if report.waiting:
        dues = [story.due for story in report.waiting if story.due and report.virtual_seconds is None]
        due = f", the last is due at {datetime.fromtimestamp(max(dues)):%H:%M:%S}" if dues else ""  # noqa: DTZ006
        problems.append(f"{len(report.waiting)} of {total} did not settle{due}")
    if report.violations:
        problems.append(f"{len(report.violations)} violation{'s'[: len(report.violations) != 1]}")
    if report.interrupted:
        problems.append("interrupted")
    if report.missed:
        problems.append(report.missed)
    if problems:
        return Text(f"{'; '.join(problems)}. The run took {_took(report)}.", "bold red")
    return Text(f"{total} settled in {_took(report)}, none lost.", "bold green")


def _took(report: RunReport) -> str:
    real = f"{report.seconds:.1f} s"
    return real if report.virtual_seconds is None else f"{coarse(report.virtual_seconds)} of virtual time ({real})"
