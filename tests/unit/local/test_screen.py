"""The two displays of a running cloud: plain lines, and the terminal screen."""

import asyncio
import io
import re

import pytest
from rich.console import Console

from tarry.message.outcomes import State
from tarry.testing import Transition
from tarry.tools.local.cloud import in_background
from tarry.tools.local.show.board import QueueRow, Scene
from tarry.tools.local.show.screen import FRAME_SECONDS, PlainView, Screen
from tarry.tools.local.show.timeline import LogLine, MessageTimeline


def waiting(why: str) -> MessageTimeline:
    step = Transition(0.0, State.WAITING_RETRY, "d", "orders", delay=30, text=why)
    return MessageTimeline("1f6c0a2b-ffff", "orders", 1, [step])


def test_without_a_terminal_each_step_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    lines = PlainView(stream)
    lines.step(waiting("because\x1b " * 20))
    lines.say(LogLine(0.0, "Orders", "hello"))
    [line] = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  #1 1f6c0a2b orders  WAITING_RETRY 30 s  \((because\\x1b ?)+\)", line)
    assert re.fullmatch(r"\d\d:\d\d:\d\d Orders: hello\n", capsys.readouterr().err)


def test_a_terminal_shows_frames_and_the_log_lines_at_the_end() -> None:
    stream = io.StringIO()
    screen = Screen(Console(file=stream, force_terminal=True, width=80, height=24))

    async def show() -> None:
        lines: list[LogLine] = []
        async with screen.showing(lambda: Scene("the title", 0.0, [QueueRow("orders", ready=len(lines))], lines=lines)):
            await asyncio.sleep(FRAME_SECONDS / 2)
            lines.append(LogLine(0.0, "Orders", "logged once"))
            await asyncio.sleep(FRAME_SECONDS)

    asyncio.run(show())
    frames, _, after = stream.getvalue().partition("\x1b[?1049l")
    assert frames.startswith("\x1b[?1049h")
    assert frames.count("the title") >= 2
    assert "logged once" in after
    assert "\x1b[?25h" in after + frames[-20:]  # the cursor is there again


def test_an_exception_of_a_background_task_ends_its_context() -> None:
    async def fails() -> None:
        raise ValueError("no frame")

    async def run() -> None:
        async with in_background(fails()):
            await asyncio.sleep(60)

    with pytest.raises(ValueError, match="no frame"):
        asyncio.run(run())
