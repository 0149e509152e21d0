"""The display of a running cloud: a screen drawn several times a second, or plain lines without a terminal."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple, TextIO, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tarry.failed.text import brief, coarse, one_line, printable
from tarry.tools.local.cloud import in_background
from tarry.tools.local.show.board import FunctionRow, QueueRow, Scene, View
from tarry.tools.local.show.timeline import STYLES, LogLine, MessageTimeline, chosen, name_of, stamp, text_of
from tarry.tools.story.events import ENDS

Row = TypeVar("Row", QueueRow, FunctionRow)

LINES_AROUND = 9
"""The title, the totals, three headings, and the empty lines between the parts."""
FEWEST_LINES = 16
WIDTHS = {"Queue": 22, "Function": 30}
NUMBERS = frozenset(
    ("Ready", "In flight", "Delayed", "Oldest", "Processes", "Busy", "Invoked", "Failed", "Throttled", "Try", "Back in")
)
"""The columns that are aligned on the right."""


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
    ended = [Text(f"{count:,} {state}", STYLES.get(state, "")) for state, count in scene.ended.items() if count]
    none = Text("no message has finished yet" if scene.messages else "no messages yet", "dim")
    totals = Text(", ").join(ended) if ended else none
    parts: list[RenderableType] = [Text(scene.title, "bold", no_wrap=True, overflow="ellipsis"), totals]
    if scene.queues:
        parts += [Text(), _queues(scene.queues, share.queues)]
    if scene.functions:
        parts += [Text(), _functions(scene.functions, share.functions)]
    if scene.messages:
        parts += [Text(), _messages(chosen(scene.messages, share.messages), scene.now)]
    return Group(*parts, Text(), *_log(scene.lines, console, share.log))


def _table(*columns: str) -> Table:
    """Make a table; the last column is as wide as there is room."""
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        justify: Literal["right", "left"] = "right" if name in NUMBERS else "left"
        ratio, width = 1 if name == columns[-1] else None, WIDTHS.get(name)
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify=justify, ratio=ratio, max_width=width)
    return table


def _fitting(rows: Sequence[Row], most: int) -> Sequence[Row]:
    """The rows for which there is room; empty ones are left out first."""
    return rows if len(rows) <= most else sorted(rows, key=lambda row: row.is_empty)[:most]


def _queues(rows: Sequence[QueueRow], most: int) -> Table:
    table = _table("Queue", "Ready", "In flight", "Delayed", "Oldest", "Dead letters")
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
    table = _table("Function", "Processes", "Busy", "Invoked", "Failed", "Throttled", "Last")
    for row in _fitting(rows, most):
        numbers = (row.environments, row.busy, row.invoked, row.failed, row.throttled)
        styles = ("", "cyan", "", "red", "yellow")
        counts = [Text(f"{n:,}", style if n else "dim") for n, style in zip(numbers, styles, strict=True)]
        last = Text.assemble((f"{row.problem}  " if row.problem else "", "red"), (row.last, "dim"))
        table.add_row(Text(printable(row.name)), *counts, last)
    return table


def _messages(messages: Sequence[MessageTimeline], now: float) -> Table:
    table = _table("Message", "Queue", "State", "Try", "Back in", "Why")
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


class PlainView(View):
    """A display without a terminal: a line for each step on stdout, log lines on stderr."""

    def __init__(self, stream: TextIO) -> None:
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


class Screen(View):
    """A display on the whole terminal while the cloud runs; afterwards the terminal is as before."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @asynccontextmanager
    async def showing(self, scene: Callable[[], Scene]) -> AsyncIterator[None]:
        """Draw the current ``scene`` until the context ends; then leave the last log lines on the terminal."""
        live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
        with live:
            async with in_background(self._draw(live, scene)):
                yield
        for line in scene().lines:
            self._console.print(line_text(line), soft_wrap=True)

    async def _draw(self, live: Live, scene: Callable[[], Scene]) -> None:
        while True:
            live.update(frame(scene(), self._console), refresh=True)
            await asyncio.sleep(FRAME_SECONDS)
