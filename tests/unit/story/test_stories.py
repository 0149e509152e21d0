"""A message's story from log lines: what is seen, what is inferred, what is not claimed; its text, JSON, picture."""

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tarry.failed.usage import UsageError
from tarry.message.outcomes import State
from tarry.tools.story.events import Story, StoryEvent, story_from
from tarry.tools.story.lines import NO_LINE, LogEntry, ids_in, only_one, read_line, story_of_log
from tarry.tools.story.picture import picture
from tarry.tools.story.text import draw, lines_of

NOON = 1_795_348_800.0  # 2026-11-22T12:00:00Z
ID, COPY = "5f3a2b1c-7d9e-4c1a-9b60-2f8e1d4c7a35", "b0000000-7d9e-4c1a-9b60-2f8e1d4c7a35"
HOSTILE = '\x1b[2J</text><script>alert(1)</script>\u202e"\ud800'


def line(after: float, event: str, attempt: int = 1, **fields: Any) -> LogEntry:
    """Return a line in Lambda's JSON format, so many seconds after noon."""
    found = {"event": event, "message_id": ID, "delivery_id": ID, "queue": "orders", "attempt": attempt, **fields}
    return LogEntry(NOON + after, json.dumps(found), "/aws/lambda/shop-orders", "request-1")


def story(*entries: LogEntry, until: float = 86_400) -> Story:
    found = story_of_log(entries, ID, NOON + until, "CloudWatch Logs")
    assert found is not None
    return found


def states(found: Story) -> list[str]:
    """Return the states of the events; those that are inferred are in brackets."""
    return [str(event.state) if event.is_seen else f"({event.state})" for event in found.events]


def inferred(found: Story) -> list[str]:
    return [event.text for event in found.events if not event.is_seen]


# lines


@pytest.mark.parametrize(
    "text",
    [
        f"waiting_retry message_id={ID} queue=orders attempt=2 max_attempts=5 delay=90 error='KeyError: a b'",
        f"[WARNING]\t2026-11-22T12:00:00.123Z\t{COPY}\twaiting_retry message_id={ID} queue=orders attempt=2 delay=90 "
        "error='KeyError: a b'\nTraceback (most recent call last):\n  message_id=no\n",
        f"WARNING tarry: waiting_retry message_id={ID} queue=orders attempt=2 delay=90 error='KeyError: a b'",
        json.dumps({"message": f"waiting_retry message_id={ID} queue=orders attempt=2 delay=90 error='KeyError: a b'"}),
        json.dumps(
            {"event": "waiting_retry", "message_id": ID, "queue": "orders", "attempt": 2, "delay": 90}
            | {"error": "KeyError: a b", "state": "WAITING_RETRY", "level": "WARNING"}
        ),
    ],
)
def test_a_line_is_read_in_every_format(text: str) -> None:
    found = read_line(LogEntry(NOON, text))
    assert found is not None
    assert (found.event, found.state, found.message_id, found.delivery_id) == ("waiting_retry", "WAITING_RETRY", ID, ID)
    assert (found.count("attempt"), found.number("delay"), found.text("error")) == (2, 90, "KeyError: a b")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "null",
        '"waiting_retry"',
        "START RequestId: 1 Version: $LATEST",
        f"my own line about message_id={ID}",
        json.dumps({"event": {"records": 1}, "message_id": ID, "queue": "orders"}),
        json.dumps({"event": "waiting_retry", "message_id": 7, "queue": "orders"}),
        json.dumps({"event": "order_placed", "message_id": ID}),
    ],
)
def test_a_malformed_line_and_a_line_of_the_user_are_left_out(text: str) -> None:
    assert read_line(LogEntry(NOON, text)) is None
    assert story_of_log([LogEntry(NOON, text)], ID, NOON) is None


def test_a_line_with_values_of_other_types_is_shown_as_far_as_it_can_be_read() -> None:
    found = story(line(0, "waiting_retry", attempt=True, delay="soon", error=["x"], state="LOST", max_attempts=2.5))
    [event, *_] = found.events
    assert (event.state, event.attempt, event.delay, event.error) == ("WAITING_RETRY", None, None, "['x']")
    assert event.max_attempts is None
    quotes = read_line(LogEntry(0, f"dead_lettered message_id={ID} queue=o attempt=x error='unclosed reason=\"y"))
    assert quotes is not None
    assert quotes.count("attempt") is None


def test_a_message_is_found_by_its_id_a_delivery_id_or_the_beginning_of_one() -> None:
    entries = [
        line(0, "resent"),
        line(9, "waiting_retry", delivery_id=COPY),
        line(1, "deferred", message_id="b1", delivery_id="b1"),
    ]
    assert ids_in(entries, ID) == ids_in(entries, COPY) == ids_in(entries, ID[:8]) == ids_in(entries, COPY[:8]) == [ID]
    assert ids_in(entries, "zzz") == []
    with pytest.raises(UsageError, match="2 messages have an id that begins with 'b': "):
        only_one(ids_in(entries, "b"), "b")


# what is inferred


def test_after_the_last_line_of_a_waiting_message_the_end_is_open() -> None:
    waiting = line(0, "waiting_retry", delay=90)
    assert states(story(waiting)) == ["WAITING_RETRY", "(None)"]
    assert inferred(story(waiting)) == [NO_LINE]
    assert story(waiting).events[-1].at == NOON + 90
    assert "Last seen waiting for a retry after at least 1 attempt; no line since it was due" in story(waiting).summary
    soon = story(waiting, until=30)
    assert states(soon) == ["WAITING_RETRY"]
    assert "Waiting for a retry after at least 1 attempt, due in 1 min, at 12:01:30 UTC." in soon.summary
    assert states(story(line(0, "dead_lettered", dead_letter_queue="dlq"))) == ["DEAD_LETTERED"]


@pytest.mark.parametrize("begins", ["isolated_start", "suspect_started"])  # the second one in older logs
def test_attempts_without_a_line_and_a_return_from_the_dead_letter_queue_are_inferred(begins: str) -> None:
    found = story(
        line(0, "waiting_retry", 2, delay=30),
        line(60, "waiting_retry", 4, delay=30),
        line(90, begins, 5, text="runs in isolation"),
        line(91, "dead_lettered", 5, dead_letter_queue="orders-dlq", error="ValueError: x"),
        line(4_000, "dead_lettered", 1, dead_letter_queue="orders-dlq", error="ValueError: y"),
    )
    expected = "(None) WAITING_RETRY (None) WAITING_RETRY IN_FLIGHT DEAD_LETTERED (READY) DEAD_LETTERED"
    assert states(found) == expected.split()
    first, second, back = inferred(found)
    assert first.startswith("attempt 1 left no line: a crash")
    assert second.startswith("attempt 3 left no line")
    assert back == "delivered again: sent back from orders-dlq, or another copy of it"
    assert found.summary == (
        "Dead-lettered after 1 attempt in 1 h 6 min. First failure 12:01:31 UTC: ValueError: x. Dead-lettered 2 times."
    )


def test_a_delivery_that_sqs_repeats_after_its_end_has_no_missing_attempt() -> None:
    found = story(
        line(0, "waiting_retry", 1, delay=30),
        line(31, "discarded", 2),
        line(32, "isolated_start", 3, text="runs in isolation"),
    )
    assert states(found) == ["WAITING_RETRY", "DISCARDED", "(READY)", "IN_FLIGHT", "(None)"]
    assert inferred(found) == ["delivered again, though it was discarded", NO_LINE]


def test_a_message_that_did_not_run_has_no_missing_attempt() -> None:
    found = story(
        line(0, "released", 1), line(9, "waiting_retry", 2), line(20, "deferred", 3), line(60, "discarded", 3)
    )
    assert states(found) == ["READY", "WAITING_RETRY", "DEFERRED", "DISCARDED"]
    assert found.summary.startswith("Discarded after 3 attempts and 1 deferral in 1 min.")
    deferred = story(line(0, "waiting_retry", 1, delay=9), line(9, "deferred", 2, delay=60), until=20)
    assert deferred.summary.startswith("Deferred at attempt 2, due in 49 s, at 12:01:09 UTC.")


def test_a_line_about_a_problem_is_part_of_the_story() -> None:
    found = story(line(0, "lease_lost", text="The lease is lost."), line(1, "waiting_retry", not_settled="refused"))
    assert states(found)[:2] == ["None", "WAITING_RETRY"]
    assert "lease_lost" in draw(found)
    assert "The lease is lost." in draw(found)
    assert found.last.state == "WAITING_RETRY"
    assert "refused" in found.last.explanation


def test_only_a_retry_without_an_error_was_asked_for_by_the_handler() -> None:
    """Of the states, a copy that a failure step sends, or a dead letter, is the step's."""
    whys = {state: StoryEvent(NOON, state, reason="error").why for state in (None, *State)}
    assert {state for state, why in whys.items() if why} == {State.WAITING_RETRY}
    assert whys[State.WAITING_RETRY] == "the handler asked for it"
    assert StoryEvent(NOON, State.WAITING_RETRY, reason="error", error="KeyError: x").why == "KeyError: x"


# text, JSON, picture


@pytest.fixture
def hostile() -> Story:
    """A story of many events with long and hostile texts."""
    entries = [
        line(60 * number, "waiting_retry", number + 1, delay=60, error=f"ValueError: {HOSTILE} {'W' * 500}")
        for number in range(100)
    ]
    names = {"queue": f"orders-{HOSTILE}", "dead_letter_queue": "d" * 80}
    return replace(story(*entries, line(9_999, "dead_lettered", 101, **names)), notes=(f"a note {HOSTILE}",))


def test_the_text_fits_the_terminal_and_no_text_of_a_message_moves_the_cursor(hostile: Story) -> None:
    for width in (80, 100):
        lines = draw(hostile, width).splitlines()
        assert max(map(len, lines)) <= width
    assert all(each.isprintable() for each in lines)
    assert any("events left out; --json has all" in each for each in lines)
    assert len(list(lines_of(hostile))) < 900


def test_the_text_has_the_day_the_time_the_state_the_attempt_and_the_reason() -> None:
    found = story(
        line(0, "waiting_retry", max_attempts=2, delay=43_200, error="app.GatewayTimeout: no answer"),
        line(43_201, "dead_lettered", 2, max_attempts=2, reason="exhausted", dead_letter_queue="orders-dlq"),
    )
    assert draw(found) == (
        f"message {ID}\n"
        "orders -> orders-dlq, from CloudWatch Logs\n"
        "\n"
        "2026-11-22 (UTC)\n"
        "12:00:00    0 s  WAITING_RETRY   in orders, attempt 1 of 2, for 12 h\n"
        "                                 GatewayTimeout: no answer\n"
        "\n"
        "2026-11-23 (UTC)\n"
        "00:00:01  +12 h  DEAD_LETTERED   in orders-dlq, attempt 2 of 2\n"
        "                                 exhausted\n"
        "\n"
        "Dead-lettered after 2 attempts in 12 h. First failure 12:00:00 UTC:\n"
        "GatewayTimeout: no answer.\n"
        "Last failure: request id request-1 of shop-orders\n"
    )


def test_the_json_of_a_story_is_the_story(hostile: Story) -> None:
    assert story_from(json.loads(json.dumps(hostile.as_json()))) == hostile
    for broken in ({}, {**hostile.as_json(), "events": []}, {**hostile.as_json(), "events": [{"state": "LOST"}]}, []):
        with pytest.raises(UsageError, match="not the story of a message"):
            story_from(broken)  # type: ignore[arg-type] # read from a file or a server
    waiting = StoryEvent(NOON, State.DEFERRED, delay=45.999945402145386, event="deferred")
    [event] = Story(ID, (waiting,), "tarry local", NOON).as_json()["events"]
    assert {name: event[name] for name in ("delay", "event")} == {"delay": 46, "event": "deferred"}


def test_the_picture_parses_and_shows_queues_attempts_and_events(hostile: Story) -> None:
    found = story(
        line(0, "waiting_retry", 1, delay=3_600, error="ValueError: x"),
        line(3_600, "resent", 2, sent_to="slow"),
        line(4_000, "dead_lettered", 3, queue="slow", dead_letter_queue="slow-dlq", reason="exhausted"),
    )
    later = Story(found.id, found.events, found.source, found.now + 7_200)
    assert picture(later) == picture(found)  # it has ended
    for each in (found, hostile, Story(ID, (StoryEvent(NOON, State.READY),), "the sandbox", NOON)):
        root = ET.fromstring(picture(each))
        texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert all(text.isprintable() for text in texts)
        assert "times in UTC, from 2026-11-22" in texts
        assert not [*root.iter("{http://www.w3.org/2000/svg}script")]
        if each is found:
            labels = {"orders", "slow", "slow-dlq", "1", "2", "3", "1 h", "12:00:00", "DEAD_LETTERED", f"message {ID}"}
            assert labels <= set(texts)
            assert any("attempt 2, as a copy in slow" in text for text in texts)
            classes = {each.get("class", "").split()[-1] for each in root.iter() if each.get("class")}
            assert {"WAITING_RETRY", "RESENT", "DEAD_LETTERED", "move", "attempt"} <= classes
