"""What is seen of a run while it goes on: a live table in a terminal, elsewhere a line for each step."""

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tarry.local.story import LOST, Board, Story, text_of
from tarry.outcome import State
from tarry.simulator.printable import printable
from tarry.testing import Transition
from tarry.testing.timeline import brief

STYLES = {
    State.READY: "dim",
    State.IN_FLIGHT: "cyan",
    State.WAITING_RETRY: "yellow",
    State.COMMITTED: "green",
    State.DEAD_LETTERED: "red",
    State.DISCARDED: "magenta",
    State.DEFERRED: "blue",
    State.RESENT: "blue",
    LOST: "bold white on red",
}
FRAMES_PER_SECOND = 8
ROOM_AROUND_THE_ROWS = 6


class View(Protocol):
    """What a run shows itself on."""

    def showing(self, board: Board) -> AbstractContextManager[object]:
        """Show the board for as long as the context lasts."""

    def step(self, story: Story) -> None:
        """A message has moved to another state."""


def note(text: str) -> None:
    """Guidance, on stderr: wherever that is now, since a live table puts itself in front of it."""
    if text:
        sys.stderr.write(printable(text, keep="\n\t") + "\n")


class LineView:
    """A line for each step, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began: float | None = None

    def showing(self, board: Board) -> AbstractContextManager[object]:
        return nullcontext()

    def step(self, story: Story) -> None:
        self._began = self._began or time.monotonic()
        seconds = time.monotonic() - self._began
        line = Text.assemble(f"{seconds:6.1f}s ", name_of(story), "  ", state_of(story), because(story.why))
        self._console.print(line, soft_wrap=True)


class TableView:
    """A table of the messages that is drawn again and again, and vanishes at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def showing(self, board: Board) -> AbstractContextManager[object]:
        return Live(
            console=self._console,
            get_renderable=lambda: self.frame(board),
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        )

    def step(self, story: Story) -> None:
        """The next frame shows it."""

    def frame(self, board: Board) -> RenderableType:
        """The table as it is now."""
        stories, now = board.stories, time.time()
        table = Table(box=SIMPLE_HEAD, expand=True, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("#", justify="right", no_wrap=True)
        table.add_column("Message", no_wrap=True)
        table.add_column("Queue", no_wrap=True, max_width=20)
        table.add_column("State", no_wrap=True, min_width=13)
        table.add_column("Try", justify="right", no_wrap=True)
        table.add_column("Next", justify="right", no_wrap=True, min_width=4)
        table.add_column("Why", no_wrap=True, ratio=1)
        # The unsettled are what one looks at; they stay in sight when there are more messages than lines.
        most = max(3, self._console.size.height - ROOM_AROUND_THE_ROWS)
        shown = sorted(stories, key=lambda story: story.is_settled)[:most] if len(stories) > most else stories
        for story in shown:
            table.add_row(*_cells(story, now))
        return Group(table, _status(stories, len(shown), now))


def _cells(story: Story, now: float) -> list[Text | str]:
    waits = story.due is not None and not story.is_settled and story.state != State.IN_FLIGHT
    return [
        "" if story.number is None else str(story.number),
        story.id[:8],
        Text(printable(story.queue)),
        Text(story.state, STYLES.get(story.state, "")),
        str(story.attempt or ""),
        f"{max(0, (story.due or 0) - now):.0f}s" if waits else "",
        Text(printable(brief(story.why)), "dim"),
    ]


def _status(stories: list[Story], shown: int, now: float) -> Text:
    settled = sum(story.is_settled for story in stories)
    line = Text(f"\n {settled} of {len(stories)} settled", "bold")
    if shown < len(stories):
        line.append(f", {len(stories) - shown} not shown", "not bold")
    dues = [story.due for story in stories if story.due is not None and not story.is_settled]
    if dues and settled < len(stories):
        line.append(f", next try in {max(0, min(dues) - now):.0f}s", "not bold")
    return line


def name_of(story: Story) -> Text:
    """How a message is called in a line: its place in the event, the beginning of its id, its queue."""
    number = "" if story.number is None else f"#{story.number}"
    return Text(f"{number:>3} {printable(story.id[:8])} {printable(story.queue)}")


def words(step: Transition) -> Text:
    """A step in words, in its colour."""
    return Text(text_of(step), STYLES.get(step.state, ""))


def state_of(story: Story) -> Text:
    """The state of a message in words, in its colour."""
    if story.lost or not story.steps:
        return Text(story.state, STYLES[story.state])
    return words(story.steps[-1])


def because(why: str) -> Text:
    """Why a message is in its state, if something is known."""
    return Text(f"  ({printable(why)})" if why else "", "dim")
