"""What happened in a run in virtual time, in the order in which it did: a line for each step, alike ones together."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarry.local.runs.transcript import Said
from tarry.local.show.story import Story, text_of
from tarry.local.show.view import STYLES, because
from tarry.outcome import State
from tarry.testing import Transition
from tarry.tooling.text import brief, coarse, printable

MOST_NAMES_WIDTH = 24
ORDER = [State.READY, State.IN_FLIGHT, None, *(state for state in State if state not in (State.READY, State.IN_FLIGHT))]
"""Of what happens at the same time; None is what a function says."""


@dataclass(frozen=True)
class Line:
    """One line. ``names`` is whom it is about; ``style`` is None for what a function said."""

    stamp: str
    names: str
    text: str
    why: str = ""
    style: str | None = None


def print_timeline(console: Console, stories: Sequence[Story], said: Iterable[Said], began: float) -> None:
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


def _heading(stories: Sequence[Story]) -> str:
    sent = [story for story in stories if story.number is not None]
    queues = dict.fromkeys(printable(story.queue) for story in sent)
    return f"{len(sent)} message{'s'[: len(sent) != 1]} to {', '.join(queues)}; no wait takes real time."


def lines_of(stories: Sequence[Story], said: Iterable[Said], began: float) -> Iterator[Line]:
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
    story: Story | None
    line: Line


def _line_of(step: Transition, began: float, *, named: bool) -> Line:
    queue = f" {step.queue}" if named and step.state is not State.DEAD_LETTERED else ""
    return Line(_stamp(step.at, began), queue, text_of(step), brief(step.why), STYLES[step.state])


def _line_said(said: Said, began: float) -> Line:
    return Line(_stamp(said.at, began), "", f"{said.function}: {said.text}" if said.function else said.text)


def _stamp(at: float, began: float) -> str:
    return f"+{coarse(at - began)}"


def _one_line(moments: Sequence[_Moment]) -> Line:
    line = moments[0].line
    return replace(line, names=_names([each.story for each in moments if each.story is not None]) + line.names)


def _names(stories: Iterable[Story]) -> str:
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
