"""What a run looks like: the live table at 80 columns, and text of messages that must not play with the terminal."""

import io
import re

from rich.console import Console

from tarry.local.story import Board
from tarry.local.view import LineView, TableView
from tarry.outcome import State
from tarry.simulator.printable import printable
from tarry.testing import Transition


def drawn(board: Board, height: int = 24) -> list[str]:
    """The lines of one frame, without colours."""
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=height, color_system=None)
    console.print(TableView(console).frame(board))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def board_of(count: int) -> Board:
    board = Board()
    for number in range(1, count + 1):
        board.sent(f"{number:08}-id", "orders", number)
    return board


def test_every_message_has_its_row_within_80_columns() -> None:
    board = board_of(3)
    for number in (1, 2):
        board.delivered(f"{number:08}-id", f"{number:08}-id", "orders", 2, now=0)
    why = f"app.Busy: {'no ' * 40}"
    board.told(Transition(10**10, State.WAITING_RETRY, "00000001-id", "orders", attempt=2, delay=60, why=why))
    lines = drawn(board)
    assert max(map(len, lines)) <= 80
    assert re.match(r" ?1  00000001  orders  WAITING_RETRY    2 +\d+s  Busy: no no", lines[2])
    assert re.match(r" ?2  00000002  orders  IN_FLIGHT        2$", lines[3])
    assert re.match(r" ?3  00000003  orders  READY$", lines[4])
    assert lines[-1].startswith(" 0 of 3 settled, next try in ")


def test_settled_messages_give_way_where_there_are_more_than_lines() -> None:
    board = board_of(50)
    for number in range(1, 49):
        board.delivered(f"{number:08}-id", f"{number:08}-id", "orders", 1, now=0)
        board.answered(f"{number:08}-id", None, visible_at=0, now=0)
    lines = drawn(board, height=20)
    assert len(lines) <= 20
    assert sum("READY" in line for line in lines) == 2
    assert lines[-1] == " 48 of 50 settled, 36 not shown"


def test_elsewhere_each_step_is_one_line_however_long() -> None:
    console = Console(file=io.StringIO(), width=80)
    board = Board(LineView(console).step)
    board.sent("00000001-id", "orders", 1)
    board.delivered("00000001-id", "00000001-id", "orders", 1, now=0)
    board.answered("00000001-id", "because " * 20, visible_at=30, now=0)
    assert isinstance(console.file, io.StringIO)
    first, second = console.file.getvalue().splitlines()
    assert first == "   0.0s  #1 00000001 orders  IN_FLIGHT 1"
    assert second == f"   0.0s  #1 00000001 orders  WAITING_RETRY 30 s  ({'because ' * 20})"


def test_control_characters_are_escaped_and_markup_is_text() -> None:
    assert printable("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb\\nc\\u202ed"
    console = Console(file=io.StringIO(), width=80)
    board = Board(LineView(console).step)
    board.lost(board.sent("id", "q", 1), "[red]why[/red] \x07")
    assert isinstance(console.file, io.StringIO)
    assert "[red]why[/red] \\x07" in console.file.getvalue()
