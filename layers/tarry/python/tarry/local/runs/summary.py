"""The end of a run, as it is printed: a line for each message, the dead letters, the counts."""

from collections.abc import Iterable
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarry.local.runs.letters import Letter
from tarry.local.runs.report import Report
from tarry.local.show.story import Story, counts
from tarry.local.show.view import STYLES, because, name_of, state_of, words
from tarry.testing.checkers import Violation
from tarry.tooling.text import coarse, printable

Line = tuple[Text, Text]
"""What it is about, and what there is to say of it."""


def print_summary(console: Console, report: Report) -> None:
    """What became of every message."""
    if not console.is_terminal or report.virtual_seconds is not None:  # where a live table stood nothing is left
        console.print()
    if report.stories:
        _print_lines(console, "Messages", [_story(story, report) for story in report.stories])
    if report.letters:
        _print_lines(console, "Dead letters", [_letter(letter, report) for letter in report.letters.values()])
    if report.violations:
        _print_lines(console, "Violations", [_violation(each, report) for each in report.violations])
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
    before = story.steps if story.lost else story.steps[:-1]
    text = Text(" -> ").join([*map(words, before), state_of(story)])
    return name_of(story), text if story.id in report.letters else text.append(because(story.why))


def _letter(letter: Letter, report: Report) -> Line:
    numbers = {story.id: story.number for story in report.stories}
    return name_of(Story(letter.id, letter.queue, numbers.get(letter.id))), Text(printable(letter.why))


def _violation(violation: Violation, report: Report) -> Line:
    story = next((story for story in report.stories if story.id == violation.id), Story(violation.id, ""))
    return name_of(story), Text(printable(f"{violation.rule}: {violation.text}"))


def _verdict(report: Report) -> Text:
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


def _took(report: Report) -> str:
    real = f"{report.seconds:.1f} s"
    return real if report.virtual_seconds is None else f"{coarse(report.virtual_seconds)} of virtual time ({real})"
