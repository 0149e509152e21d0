"""A frame of the screen: its parts, within the columns and lines of the terminal."""

import io

import pytest
from rich.console import Console

from tarry.message.outcomes import State
from tarry.testing import Transition
from tarry.tools.local.show.board import FunctionRow, QueueRow, Scene
from tarry.tools.local.show.screen import frame, shares
from tarry.tools.local.show.timeline import LogLine, MessageTimeline

NOW = 1_000.0


def message(state: State, **more: object) -> MessageTimeline:
    steps = [Transition(NOW - 5, State.IN_FLIGHT, "d", "orders", attempt=2)]
    steps.append(Transition(NOW - 5, state, "d", "orders", **more))  # type: ignore[arg-type]
    return MessageTimeline("1f6c0a2b-ffff", "orders", None, steps)


FULL = Scene(
    "tarry local  template.yaml  SQS http://127.0.0.1:4576",
    NOW,
    [QueueRow(f"queue-{number}-with-a-long-name", 12_345, 3, 0, 77, f"dlq-{number}", 2) for number in range(9)],
    [
        FunctionRow(f"Function{number}", 2, 1, 120, 3, 1, "10 messages in 33 ms, cold start 402 ms")
        for number in range(9)
    ],
    [message(State.WAITING_RETRY, delay=95, text=f"app.Busy: {'no ' * 50}")] * 100,
    [LogLine(NOW, "Function1", f"ERROR {'word ' * 60}\n  File", "red")] * 100,
    {"COMMITTED": 1_234, "DEAD_LETTERED": 2},
)


def drawn(scene: Scene, width: int = 100, height: int = 30) -> list[str]:
    """Draw one frame; return its lines without colours."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    console.print(frame(scene, console))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("height", [16, 24, 60])
def test_a_frame_fits_the_terminal_and_every_part_has_a_line(width: int, height: int) -> None:
    lines = drawn(FULL, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    share = shares(FULL, height)
    assert min(share) >= 1
    assert share.log >= share.functions


def test_a_message_is_shown_with_its_state_attempt_and_remaining_delay() -> None:
    scene = Scene("", NOW, messages=[message(State.WAITING_RETRY, delay=95, text="app.Busy: no")])
    assert drawn(scene)[4].split() == "1f6c0a2b orders WAITING_RETRY 2 1 min 30 s Busy: no".split()


def test_a_queue_is_shown_with_its_dead_letters() -> None:
    lines = drawn(Scene("", NOW, [QueueRow("orders", 1_200, 3, 0, 12, "orders-dlq", 2)]))
    assert lines[4].split() == ["orders", "1,200", "3", "0", "12", "s", "2", "in", "orders-dlq"]


def test_queues_with_messages_are_shown_before_empty_ones() -> None:
    rows = [QueueRow(f"empty-{number}") for number in range(20)]
    assert any("busy" in line for line in drawn(Scene("", NOW, [*rows, QueueRow("busy", 1)]), height=16))


def test_half_of_the_message_lines_are_for_failed_messages() -> None:
    well, failed = message(State.COMMITTED), message(State.WAITING_RETRY, delay=5)
    lines = drawn(Scene("", NOW, messages=[*[well] * 50, failed], lines=[LogLine(NOW, "", "x")]), height=16)
    assert sum("WAITING_RETRY" in line for line in lines) == 1


def test_control_characters_of_messages_and_functions_are_escaped() -> None:
    hostile = "\x1b[2J[bold]x[/bold]"
    scene = Scene(
        "",
        NOW,
        [QueueRow(hostile)],
        [FunctionRow(hostile)],
        [MessageTimeline(hostile, hostile, None, [Transition(NOW, State.DEAD_LETTERED, "d", "q", text=hostile)])],
        [LogLine(NOW, hostile, "x")],
    )
    seen = "\n".join(drawn(scene))
    assert "\x1b" not in seen
    assert "\\x1b[2J[bold]x[/bold]" in seen
