"""The printed timeline of a run in virtual time."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tarry.failed.text import coarse
from tarry.message.outcomes import State
from tarry.testing import Transition
from tarry.tools.local.runs.printing import lines_of, print_summary, print_timeline
from tarry.tools.local.runs.report import RunReport
from tarry.tools.local.show.timeline import LogLine, MessageTimeline


def message(number: int | None, *steps: tuple[float, State], queue: str = "orders", why: str = "") -> MessageTimeline:
    waits = {State.WAITING_RETRY: 90}
    transitions = [Transition(at, state, f"{number}", queue, 1, waits.get(state), why) for at, state in steps]
    return MessageTimeline(f"{number or 'abcdefgh-1'}", queue, number, transitions)


def printed(*messages: MessageTimeline, output: tuple[LogLine, ...] = ()) -> list[str]:
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
    output = (LogLine(0, "Plain", "hello"), LogLine(0, "Plain", "hello"))
    assert printed(message(1, (0, State.IN_FLIGHT), (0, State.COMMITTED)), output=output) == [
        "+0 s | #1 | IN_FLIGHT 1",
        "+0 s |  | Plain: hello",
        "+0 s |  | Plain: hello",
        "+0 s | #1 | COMMITTED",
    ]


def failing(attempts: int, why: str = "Busy") -> MessageTimeline:
    steps = [
        Transition(at, state, "1", "orders", number, 90 if state is State.WAITING_RETRY else None, why)
        for number in range(1, attempts + 1)
        for at, state in ((90 * number - 90, State.IN_FLIGHT), (90 * number - 90, State.WAITING_RETRY))
    ]
    return MessageTimeline("1", "orders", 1, steps)


def test_more_than_three_attempts_with_the_same_end_are_folded() -> None:
    first = ["+0 s | #1 | IN_FLIGHT 1", "+0 s | #1 | WAITING_RETRY 1 min 30 s"]
    mentioned = [LogLine(90 * number, "Plain", "Busy (traceback above)") for number in range(1, 10)]
    assert printed(failing(10), output=tuple(mentioned)) == [
        *first,
        "+1 min 30 s |  | Plain: Busy (traceback above)",
        "+13 min 30 s |  | Plain: Busy (traceback above), 8 more times",
        "+13 min 30 s | #1 | IN_FLIGHT 2-10, each WAITING_RETRY 1 min 30 s",
    ]
    assert len(printed(failing(3), output=tuple(mentioned[:2]))) == 6 + 2
    changing = failing(10)
    changing.steps = [replace(step, text=f"{number // 2}") for number, step in enumerate(changing.steps)]
    assert len(printed(changing)) == 20


def test_the_summary_folds_attempts_and_refusals_with_the_same_end() -> None:
    refused = [Transition(30 * number, State.WAITING_RETRY, "2", "orders", None, 30, "no") for number in range(10)]
    console = Console(file=io.StringIO(), width=80)
    done = Transition(1_000, State.COMMITTED, "1", "orders")
    one = failing(10)
    one.steps = [*one.steps, done]
    lost = replace(failing(4), lost="it expired")
    print_summary(console, RunReport([one, MessageTimeline("2", "orders", 2, refused), lost]))
    assert isinstance(console.file, io.StringIO)
    shown = [line.partition(" orders  ")[2] for line in console.file.getvalue().splitlines() if " orders  " in line]
    start = "IN_FLIGHT 1 -> WAITING_RETRY 1 min 30 s -> IN_FLIGHT"
    assert shown == [
        f"{start} 2-10, each WAITING_RETRY 1 min 30 s -> COMMITTED",
        "WAITING_RETRY 30 s -> WAITING_RETRY 30 s, 9 more times  (no)",
        f"{start} 2-4, each WAITING_RETRY 1 min 30 s -> LOST  (it expired)",
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
