"""The end of a run, as it is printed: a line for each message, the dead letters, the counts."""

from collections.abc import Iterable
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarry.local.letters import Letter
from tarry.local.report import Report
from tarry.local.story import Story, counts
from tarry.local.view import STYLES, because, name_of, printable, words

Line = tuple[Text, Text]
"""What it is about, and what there is to say of it."""


def print_summary(console: Console, report: Report) -> None:
    """What became of every message."""
    if not console.is_terminal:
        console.print()
    if report.stories:
        _print_lines(console, "Messages", [_story(story, report) for story in report.stories])
    if report.letters:
        _print_lines(console, "Dead letters", [_letter(letter, report) for letter in report.letters.values()])
    if report.stories:
        table = Table("State", box=SIMPLE_HEAD, show_edge=False)
        table.add_column("Messages", justify="right")
        for state, count in counts(report.stories).items():
            table.add_row(Text(state, STYLES.get(state, "")), str(count))
        console.print(table)
        console.print()
    console.print(_verdict(report), soft_wrap=not console.is_terminal)


def _print_lines(console: Console, title: str, lines: Iterable[Line]) -> None:
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


def _story(story: Story, report: Report) -> Line:
    steps = [words(step) for step in story.steps[1:] or story.steps]
    text = Text(" -> ").join(steps)
    return name_of(story), text if story.id in report.letters else text.append(because(story.now))


def _letter(letter: Letter, report: Report) -> Line:
    numbers = {story.id: story.number for story in report.stories}
    return name_of(Story(letter.id, letter.queue, numbers.get(letter.id))), Text(printable(letter.why))


def _verdict(report: Report) -> Text:
    total = f"{len(report.stories)} message{'s'[: len(report.stories) != 1]}"
    if not report.stories:
        return Text("The event has no records: nothing to do.")
    problems = []
    if report.lost:
        problems.append(f"{len(report.lost)} of {total} LOST")
    if report.waiting:
        dues = [story.due for story in report.waiting if story.due]
        due = f", the last is due at {datetime.fromtimestamp(max(dues)):%H:%M:%S}" if dues else ""  # noqa: DTZ006
        problems.append(f"{len(report.waiting)} of {total} did not settle{due}")
    if report.interrupted:
        problems.append("interrupted")
    if problems:
        return Text(f"{'; '.join(problems)}. The run took {report.seconds:.1f} s.", "bold red")
    return Text(f"{total} settled in {report.seconds:.1f} s, none lost.", "bold green")
