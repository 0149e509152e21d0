"""What functions say, as lines for a developer."""

from typing import Any

import pytest

from tarry.local.show.log import LogLine, LogReader
from tarry.simulator.history import HistoryEvent


def said(log: LogReader, what: str = "logged", **fields: Any) -> list[LogLine]:
    return list(log.lines(HistoryEvent(1.0, what, {"function": "Orders", **fields})))


def logged(log: LogReader, **fields: Any) -> list[LogLine]:
    return said(log, line="{}", fields={"level": "WARNING", **fields})


@pytest.fixture
def log() -> LogReader:
    return LogReader(verbose=False)


def test_what_is_printed_is_shown_as_it_is_with_control_characters_escaped(log: LogReader) -> None:
    assert said(log, line="hello \x1b[31m", fields=None) == [LogLine(1.0, "Orders", "hello \\x1b[31m")]


def test_a_line_of_json_is_read_for_its_reader(log: LogReader) -> None:
    assert logged(log, message="slow", customer=7, timestamp="2027") == [
        LogLine(1.0, "Orders", "WARNING slow  customer=7", "yellow")
    ]


def test_a_traceback_is_one_again(log: LogReader) -> None:
    frames = ['  File "app.py", line 3, in handler\n    raise ValueError("x")\n']
    [line] = logged(log, message="it failed", stackTrace=frames, errorType="ValueError", errorMessage="x")
    assert line.text.splitlines() == [
        "WARNING it failed",
        "Traceback (most recent call last):",
        '  File "app.py", line 3, in handler',
        '    raise ValueError("x")',
        "ValueError: x",
    ]


def test_what_tarry_says_of_a_message_is_seen_in_its_state_and_not_said_again(log: LogReader) -> None:
    assert logged(log, message="waiting_retry", state="WAITING_RETRY", delivery_id="d") == []


def test_an_errors_traceback_is_shown_when_it_comes_first(log: LogReader) -> None:
    fields = {"state": "WAITING_RETRY", "delivery_id": "d", "stackTrace": ["  File\n"], "message": "waiting_retry"}
    assert [len(logged(log, **fields, fingerprint=each)) for each in ("a", "a", "b")] == [1, 0, 1]
    verbose = LogReader(verbose=True)
    assert [len(logged(verbose, **fields, fingerprint=each)) for each in ("a", "a")] == [1, 1]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "returned", "seconds": 0.0032, "init_seconds": None, "batch": 10}, "10 messages in 3.2 ms"),
        (
            {"kind": "returned", "seconds": 0.0332, "init_seconds": 0.4, "batch": 1},
            "1 message in 33 ms, cold start 400 ms",
        ),
        ({"kind": "timeout", "seconds": 2, "init_seconds": None, "batch": 1}, "1 message in 2000 ms (timeout)"),
    ],
)
def test_each_invocation_is_reported_with_its_batch_its_duration_and_its_cold_start(
    log: LogReader, fields: dict[str, Any], text: str
) -> None:
    assert [line.text for line in said(log, "report", **fields)] == [text]


def test_why_a_whole_batch_failed_is_said(log: LogReader) -> None:
    assert said(log, "answered", why="Task timed out after 2.00 seconds") == [
        LogLine(1.0, "Orders", "Task timed out after 2.00 seconds", "red")
    ]
    assert said(log, "answered", why="") == []
