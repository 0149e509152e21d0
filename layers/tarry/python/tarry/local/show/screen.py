"""Where a running cloud shows itself: a screen that is drawn again and again, or plain lines where there is none."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live

from tarry.local.background import in_background
from tarry.local.show.frame import frame
from tarry.local.show.frame import text_of as text_of_line
from tarry.local.show.log import Line, stamp
from tarry.local.show.scene import Scene
from tarry.local.show.story import Story, text_of
from tarry.local.show.view import plain_name_of
from tarry.tooling.text import printable

FRAME_SECONDS = 0.25
MOST_LINES = 500


class View(Protocol):
    """What a cloud shows itself on."""

    @property
    def lines(self) -> Collection[Line]:
        """What was said last, where it is not shown at once."""

    def step(self, story: Story) -> None:
        """A message has moved to another state."""

    def say(self, line: Line) -> None:
        """A function, or the cloud, has something to say."""

    def showing(self, scene: Callable[[], Scene]) -> AbstractAsyncContextManager[None]:
        """Show what ``scene`` says for as long as the context lasts."""


class Lines:
    """A line for each step and each thing said: steps on stdout, what is said on stderr, as a log is."""

    def __init__(self, stream: TextIO) -> None:
        self.lines: Collection[Line] = ()
        self._stream = stream

    @asynccontextmanager
    async def showing(self, scene: Callable[[], Scene]) -> AsyncIterator[None]:
        """Write what there is, a few times a second: line by line it would be slow."""
        async with in_background(self._flush()):
            yield
        self._stream.flush()

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            self._stream.flush()

    def step(self, story: Story) -> None:
        # Not by Rich, which would take longer over a line than all else takes over its message.
        last = story.steps[-1].at if story.steps else 0.0
        why = f"  ({printable(story.why)})" if story.why else ""
        state = story.state if story.lost or not story.steps else text_of(story.steps[-1])
        self._stream.write(f"{stamp(last)} {plain_name_of(story)}  {state}{why}\n")

    def say(self, line: Line) -> None:
        self._stream.flush()
        sys.stderr.write(f"{stamp(line.at)} {line}\n")
        sys.stderr.flush()


class Screen:
    """The whole terminal, for as long as the cloud runs; what was there before is there again afterwards."""

    def __init__(self, console: Console) -> None:
        self.lines: deque[Line] = deque(maxlen=MOST_LINES)
        self._console = console

    def step(self, story: Story) -> None:
        """The next frame shows it."""

    def say(self, line: Line) -> None:
        self.lines.append(line)

    @asynccontextmanager
    async def showing(self, scene: Callable[[], Scene]) -> AsyncIterator[None]:
        """Draw what ``scene`` says, until the context ends; then leave what was said last on the terminal."""
        live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
        with live:
            async with in_background(self._draw(live, scene)):
                yield
        for line in self.lines:
            self._console.print(text_of_line(line), soft_wrap=True)

    async def _draw(self, live: Live, scene: Callable[[], Scene]) -> None:
        while True:
            live.update(frame(scene(), self._console), refresh=True)
            await asyncio.sleep(FRAME_SECONDS)
