"""The display of a running cloud: a screen drawn several times a second, or plain lines without a terminal."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, TextIO, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tarry.failed.text import brief, coarse, one_line, printable
from tarry.tools.local.background import in_background
from tarry.tools.local.show.board import FunctionRow, QueueRow, Scene, View
from tarry.tools.local.show.log import LogLine, stamp
from tarry.tools.local.show.timeline import ORDINARY, STYLES, MessageTimeline, name_of, text_of
from tarry.tools.story.events import ENDS

Row = TypeVar("Row", QueueRow, FunctionRow)

LINES_AROUND = 9
"""The title, the totals, three headings, and the empty lines between the parts."""
FEWEST_LINES = 16
MOST_NAME, MOST_QUEUE = 30, 22


class Shares(NamedTuple):
    """The number of lines of each part."""

    queues: int
    functions: int
    messages: int
    log: int


def shares(scene: Scene, height: int) -> Shares:
    """Divide the screen: queues and functions come first, but leave at least half of it to messages and log."""
    room = max(height, FEWEST_LINES) - LINES_AROUND
    queues = min(len(scene.queues), max(1, room // 4))
    functions = min(len(scene.functions), max(1, room // 4))
    left = room - queues - functions
    messages = min(len(scene.messages), max(1, left // 2))
    return Shares(queues, functions, messages, left - messages)


def frame(scene: Scene, console: Console) -> RenderableType:
    """Draw the scene in the current size of the console."""
    share = shares(scene, console.size.height)
    parts: list[RenderableType] = [Text(scene.title, "bold", no_wrap=True, overflow="ellipsis"), _totals(scene)]
    if scene.queues:
        parts += [Text(), _queues(scene.queues, share.queues)]
    if scene.functions:
        parts += [Text(), _functions(scene.functions, share.functions)]
    if scene.messages:
        parts += [Text(), _messages(_chosen(scene.messages, share.messages), scene.now)]
    return Group(*parts, Text(), *_log(scene.lines, console, share.log))


def _totals(scene: Scene) -> Text:
    """The numbers of messages that have ended, by state."""
    totals = [Text(f"{count:,} {state}", STYLES.get(state, "")) for state, count in scene.ended.items() if count]
    if totals:
        return Text(", ").join(totals)
    return Text("no message has finished yet" if scene.messages else "no messages yet", "dim")


def _table(*columns: str, numbers: Iterable[str] = (), widest: str = "") -> Table:
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        limits = {"Queue": MOST_QUEUE, "Function": MOST_NAME}
        table.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if name in numbers else "left",
            ratio=1 if name == widest else None,
            max_width=limits.get(name),
        )
    return table


def _fitting(rows: Sequence[Row], most: int) -> Sequence[Row]:
    """The rows for which there is room; empty ones are left out first."""
    return rows if len(rows) <= most else sorted(rows, key=lambda row: row.is_empty)[:most]


def _queues(rows: Sequence[QueueRow], most: int) -> Table:
    numbers = ("Ready", "In flight", "Delayed", "Oldest")
    table = _table("Queue", *numbers, "Dead letters", numbers=numbers, widest="Dead letters")
    for row in _fitting(rows, most):
        counts = (Text(f"{count:,}", "" if count else "dim") for count in (row.ready, row.in_flight, row.delayed))
        oldest = "" if row.oldest_seconds is None else coarse(row.oldest_seconds)
        dead_letters = Text("")
        if row.dead_letter_queue is not None:
            style = "bold red" if row.dead else "dim"
            dead_letters = Text(f"{row.dead:,} in {printable(row.dead_letter_queue)}", style)
        table.add_row(Text(printable(row.name)), *counts, oldest, dead_letters)
    return table


def _functions(rows: Sequence[FunctionRow], most: int) -> Table:
    numbers = ("Processes", "Busy", "Invoked", "Failed", "Throttled")
    table = _table("Function", *numbers, "Last", numbers=numbers, widest="Last")
    for row in _fitting(rows, most):
        counts = [
            Text(f"{count:,}", style if count else "dim")
            for count, style in (
                (row.environments, ""),
                (row.busy, "cyan"),
                (row.invoked, ""),
                (row.failed, "red"),
                (row.throttled, "yellow"),
            )
        ]
        last = Text.assemble((f"{row.problem}  " if row.problem else "", "red"), (row.last, "dim"))
        table.add_row(Text(printable(row.name)), *counts, last)
    return table


def _chosen(messages: Sequence[MessageTimeline], most: int) -> list[MessageTimeline]:
    """The messages for which there is room; half of it is for messages in trouble, which a developer looks for."""
    places = range(len(messages))
    troubled = [place for place in places if messages[place].state not in ORDINARY][: most // 2]
    others = [place for place in places if place not in troubled][: most - len(troubled)]
    return [messages[place] for place in sorted([*troubled, *others])]


def _messages(messages: Sequence[MessageTimeline], now: float) -> Table:
    table = _table("Message", "Queue", "State", "Try", "Back in", "Why", numbers=("Try", "Back in"), widest="Why")
    for message in messages:
        number = "" if message.number is None else f"#{message.number} "
        waits = message.due is not None and message.state not in ENDS
        table.add_row(
            Text(number + printable(message.id[:8])),
            Text(printable(message.queue)),
            Text(message.state, STYLES.get(message.state, "")),
            str(message.attempt or ""),
            coarse(max(0.0, (message.due or 0) - now)) if waits else "",
            Text(brief(message.why), "dim"),
        )
    return table


def _log(lines: Sequence[LogLine], console: Console, most: int) -> list[Text]:
    """The last lines that fit; long ones are folded."""
    folded: list[Text] = []
    for line in reversed(lines):
        if len(folded) >= most:
            break
        folded[:0] = line_text(line).wrap(console, max(20, console.size.width))
    shown = folded[-most:] if most else []
    return [Text(), *shown][-most:] if len(shown) < most else shown


def line_text(line: LogLine) -> Text:
    """Return a line of the log, in colours."""
    name = f"{printable(line.function)}  " if line.function else ""
    return Text.assemble((f"{stamp(line.at)}  ", "dim"), (name, "bold"), (line.text, line.style))


FRAME_SECONDS = 0.25
MOST_LINES = 500


class PlainView:
    """A display without a terminal: a line for each step on stdout, log lines on stderr."""

    def __init__(self, stream: TextIO) -> None:
        self.lines: Collection[LogLine] = ()
        self._stream = stream

    @asynccontextmanager
    async def showing(self, scene: Callable[[], Scene]) -> AsyncIterator[None]:
        """Flush the lines a few times a second: one flush a line would be slow."""
        async with in_background(self._flush()):
            yield
        self._stream.flush()

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            self._stream.flush()

    def step(self, message: MessageTimeline) -> None:
        # Without Rich, which takes longer for a line than everything else takes for its message.
        last = message.steps[-1].at if message.steps else 0.0
        why = f"  ({one_line(message.why)})" if message.why else ""
        state = message.state if message.lost or not message.steps else text_of(message.steps[-1])
        self._stream.write(f"{stamp(last)} {name_of(message)}  {state}{why}\n")

    def say(self, line: LogLine) -> None:
        self._stream.flush()
        sys.stderr.write(f"{stamp(line.at)} {line}\n")
        sys.stderr.flush()


class RecordingView:
    """A display that also keeps the latest log lines, for the console of `tarry local`."""

    def __init__(self, view: View) -> None:
        self.lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self._view = view

    def step(self, message: MessageTimeline) -> None:
        self._view.step(message)

    def say(self, line: LogLine) -> None:
        self.lines.append(line)
        self._view.say(line)

    def showing(self, scene: Callable[[], Scene]) -> AbstractAsyncContextManager[None]:
        """Show the current ``scene`` until the context ends."""
        return self._view.showing(scene)


class Screen:
    """A display on the whole terminal while the cloud runs; afterwards the terminal is as before."""

    def __init__(self, console: Console) -> None:
        self.lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self._console = console

    def step(self, message: MessageTimeline) -> None:
        """Do nothing: the next frame shows it."""

    def say(self, line: LogLine) -> None:
        self.lines.append(line)

    @asynccontextmanager
    async def showing(self, scene: Callable[[], Scene]) -> AsyncIterator[None]:
        """Draw the current ``scene`` until the context ends; then leave the last log lines on the terminal."""
        live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
        with live:
            async with in_background(self._draw(live, scene)):
                yield
        for line in self.lines:
            self._console.print(line_text(line), soft_wrap=True)

    async def _draw(self, live: Live, scene: Callable[[], Scene]) -> None:
        while True:
            live.update(frame(scene(), self._console), refresh=True)
            await asyncio.sleep(FRAME_SECONDS)
