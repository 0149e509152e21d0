"""What happened in a run in virtual time, as lines."""

import io

import pytest
from rich.console import Console

from tarry.local.runs.printing import lines_of, print_timeline
from tarry.local.runs.virtual import OutputLine
from tarry.local.show.timeline import MessageTimeline
from tarry.outcome import State
from tarry.testing import Transition
from tarry.tooling.text import coarse


def story(number: int | None, *steps: tuple[float, State], queue: str = "orders", why: str = "") -> MessageTimeline:
    waits = {State.WAITING_RETRY: 90}
    told = [Transition(at, state, f"{number}", queue, 1, waits.get(state), why) for at, state in steps]
    return MessageTimeline(f"{number or 'abcdefgh-1'}", queue, number, told)


def told(*stories: MessageTimeline, said: tuple[OutputLine, ...] = ()) -> list[str]:
    return [f"{each.stamp} | {each.names} | {each.text}" for each in lines_of(stories, said, began=0)]


def test_what_happens_to_several_at_once_is_one_line() -> None:
    flying = [story(number, (0, State.IN_FLIGHT)) for number in (1, 2, 3, 5, 6, 8)]
    assert told(*flying) == ["+0 s | #1-3 #5 #6 #8 | IN_FLIGHT 1"]


def test_lines_are_in_the_order_of_time_and_at_one_time_in_that_of_a_life() -> None:
    one = story(1, (0, State.IN_FLIGHT), (2, State.COMMITTED))
    other = story(2, (0, State.IN_FLIGHT), (1, State.WAITING_RETRY), (2, State.IN_FLIGHT))
    assert told(one, other) == [
        "+0 s | #1 #2 | IN_FLIGHT 1",
        "+1 s | #2 | WAITING_RETRY 1 min 30 s",
        "+2 s | #2 | IN_FLIGHT 1",
        "+2 s | #1 | COMMITTED",
    ]


def test_what_a_function_says_stands_where_it_said_it() -> None:
    said = (OutputLine(0, "Plain", "hello"), OutputLine(0, "Plain", "hello"))
    assert told(story(1, (0, State.IN_FLIGHT), (0, State.COMMITTED)), said=said) == [
        "+0 s | #1 | IN_FLIGHT 1",
        "+0 s |  | Plain: hello",
        "+0 s |  | Plain: hello",
        "+0 s | #1 | COMMITTED",
    ]


def test_queues_are_named_where_there_is_more_than_one_and_messages_without_a_number_by_their_id() -> None:
    assert told(story(1, (0, State.COMMITTED)), story(None, (5, State.READY), queue="mails")) == [
        "+0 s | #1 orders | COMMITTED",
        "+5 s | abcdefgh mails | READY",
    ]


def drawn(width: int, *, terminal: bool) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    stories = [story(number, (7_300, State.WAITING_RETRY), why=f"app.Busy: {'no ' * 40}") for number in (1, 2)]
    print_timeline(console, stories, [], began=0)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_terminal_folds_a_long_line_beside_its_time() -> None:
    lines = drawn(80, terminal=True)
    assert lines[0] == "2 messages to orders; no wait takes real time."
    assert lines[1].startswith("+2 h 1 min  #1 #2  WAITING_RETRY 1 min 30 s  (Busy: no no")
    assert all(line.startswith(" " * 19) for line in lines[2:])
    assert max(map(len, lines)) <= 80


def test_elsewhere_each_is_one_line_however_long() -> None:
    assert len(drawn(80, terminal=False)) == 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (29.7, "30 s"),
        (60, "1 min"),
        (3_599, "59 min 59 s"),
        (5_430, "1 h 30 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_time_is_as_exact_as_one_wants_it(seconds: float, words: str) -> None:
    assert coarse(seconds) == words
