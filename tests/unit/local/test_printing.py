"""The printed timeline of a run in virtual time."""

import io

import pytest
from rich.console import Console

from tarry.local.runs.printing import lines_of, print_timeline
from tarry.local.runs.virtual import OutputLine
from tarry.local.show.timeline import MessageTimeline
from tarry.outcome import State
from tarry.testing import Transition
from tarry.tooling.text import coarse


def message(number: int | None, *steps: tuple[float, State], queue: str = "orders", why: str = "") -> MessageTimeline:
    waits = {State.WAITING_RETRY: 90}
    transitions = [Transition(at, state, f"{number}", queue, 1, waits.get(state), why) for at, state in steps]
    return MessageTimeline(f"{number or 'abcdefgh-1'}", queue, number, transitions)


def printed(*messages: MessageTimeline, output: tuple[OutputLine, ...] = ()) -> list[str]:
    return [f"{each.stamp} | {each.names} | {each.text}" for each in lines_of(messages, output, began=0)]


def test_simultaneous_steps_of_several_messages_are_one_line() -> None:
    messages = [message(number, (0, State.IN_FLIGHT)) for number in (1, 2, 3, 5, 6, 8)]
    assert printed(*messages) == ["+0 s | #1-3 #5 #6 #8 | IN_FLIGHT 1"]


def test_lines_are_in_the_order_of_time_and_then_of_states() -> None:
    one = message(1, (0, State.IN_FLIGHT), (2, State.COMMITTED))
    other = message(2, (0, State.IN_FLIGHT), (1, State.WAITING_RETRY), (2, State.IN_FLIGHT))
    assert printed(one, other) == [
        "+0 s | #1 #2 | IN_FLIGHT 1",
        "+1 s | #2 | WAITING_RETRY 1 min 30 s",
        "+2 s | #2 | IN_FLIGHT 1",
        "+2 s | #1 | COMMITTED",
    ]


def test_output_of_a_function_is_printed_between_the_steps() -> None:
    output = (OutputLine(0, "Plain", "hello"), OutputLine(0, "Plain", "hello"))
    assert printed(message(1, (0, State.IN_FLIGHT), (0, State.COMMITTED)), output=output) == [
        "+0 s | #1 | IN_FLIGHT 1",
        "+0 s |  | Plain: hello",
        "+0 s |  | Plain: hello",
        "+0 s | #1 | COMMITTED",
    ]


def test_several_queues_are_named_and_unnumbered_messages_have_their_id() -> None:
    assert printed(message(1, (0, State.COMMITTED)), message(None, (5, State.READY), queue="mails")) == [
        "+0 s | #1 orders | COMMITTED",
        "+5 s | abcdefgh mails | READY",
    ]


def drawn(width: int, *, terminal: bool) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    messages = [message(number, (7_300, State.WAITING_RETRY), why=f"app.Busy: {'no ' * 40}") for number in (1, 2)]
    print_timeline(console, messages, [], began=0)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_terminal_folds_long_lines_in_a_column() -> None:
    lines = drawn(80, terminal=True)
    assert lines[0] == "2 messages to orders; no wait takes real time."
    assert lines[1].startswith("+2 h 1 min  #1 #2  WAITING_RETRY 1 min 30 s  (Busy: no no")
    assert all(line.startswith(" " * 19) for line in lines[2:])
    assert max(map(len, lines)) <= 80


def test_without_a_terminal_a_long_line_is_not_folded() -> None:
    assert len(drawn(80, terminal=False)) == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (29.7, "30 s"),
        (60, "1 min"),
        (3_599, "59 min 59 s"),
        (5_430, "1 h 30 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_time_is_shown_in_whole_seconds_or_minutes(seconds: float, text: str) -> None:
    assert coarse(seconds) == text
