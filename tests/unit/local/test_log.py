"""Log lines of functions, as `tarry local` shows them."""

from typing import Any

import pytest

from tarry.tools.local.show.timeline import LogLine, LogReader
from tarry.tools.simulator.history import HistoryEvent


def shown(log: LogReader, what: str = "logged", **fields: Any) -> list[LogLine]:
    return list(log.lines(HistoryEvent(1.0, what, {"function": "Orders", **fields})))


def shown_fields(log: LogReader, **fields: Any) -> list[LogLine]:
    return shown(log, line="{}", fields={"level": "WARNING", **fields})


@pytest.fixture
def log() -> LogReader:
    return LogReader(verbose=False)


def test_printed_text_is_shown_with_control_characters_escaped(log: LogReader) -> None:
    assert shown(log, line="hello \x1b[31m", fields=None) == [LogLine(1.0, "Orders", "hello \\x1b[31m")]


def test_a_json_log_line_is_shown_as_text(log: LogReader) -> None:
    assert shown_fields(log, message="slow", customer=7, timestamp="2027") == [
        LogLine(1.0, "Orders", "WARNING slow  customer=7", "yellow")
    ]


def test_a_traceback_in_json_is_shown_as_python_prints_it(log: LogReader) -> None:
    frames = ['  File "app.py", line 3, in handler\n    raise ValueError("x")\n']
    [line] = shown_fields(log, message="it failed", stackTrace=frames, errorType="ValueError", errorMessage="x")
    assert line.text.splitlines() == [
        "WARNING it failed",
        "Traceback (most recent call last):",
        '  File "app.py", line 3, in handler',
        '    raise ValueError("x")',
        "ValueError: x",
    ]


def test_an_error_with_a_traceback_in_its_text_is_shown_once(log: LogReader) -> None:
    error = "3 errors.\n\nTraceback (most recent call last):\n  File 'app.py'\nValueError: no\n"
    [line] = shown_fields(log, level="ERROR", errorMessage=error, errorType="BatchError", stackTrace=["  File 'x'\n"])
    assert line.text.splitlines()[:4] == [
        "ERROR 3 errors. ValueError: no",
        "Traceback (most recent call last):",
        "  File 'x'",
        "BatchError: 3 errors.",
    ]
    assert line.text.count("ValueError: no") == 2
    assert shown(log, "answered", kind="error", why="BatchError") == []
    [line] = shown(log, "answered", kind="timeout", why=f"BatchError: {error}")
    assert line.text == "BatchError: 3 errors. ValueError: no"


def test_a_log_line_about_a_message_is_not_shown(log: LogReader) -> None:
    assert shown_fields(log, message="retry", event="waiting_retry", state="WAITING_RETRY", delivery_id="d") == []


def test_a_line_of_the_users_with_a_state_and_the_ids_of_a_message_is_shown(log: LogReader) -> None:
    """``on_outcome`` may log the state, and a logger of Powertools has the ids of the message."""
    [line] = shown_fields(log, message="outcome", state="DEAD_LETTERED", delivery_id="d", message_id="d")
    assert line.text == "WARNING outcome  state=DEAD_LETTERED delivery_id=d message_id=d"


def test_a_traceback_is_shown_at_the_first_error_of_its_kind(log: LogReader) -> None:
    fields = {"event": "waiting_retry", "state": "WAITING_RETRY", "delivery_id": "d", "stackTrace": ["  File\n"]}
    assert [len(shown_fields(log, **fields, fingerprint=each)) for each in ("a", "a", "b")] == [1, 0, 1]
    verbose = LogReader(verbose=True)
    assert [len(shown_fields(verbose, **fields, fingerprint=each)) for each in ("a", "a")] == [1, 1]


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
def test_an_invocation_is_shown_with_its_batch_duration_and_cold_start(
    log: LogReader, fields: dict[str, Any], text: str
) -> None:
    assert [line.text for line in shown(log, "report", **fields)] == [text]


def test_the_reason_for_a_failed_batch_is_shown(log: LogReader) -> None:
    assert shown(log, "answered", why="Task timed out after 2.00 seconds") == [
        LogLine(1.0, "Orders", "Task timed out after 2.00 seconds", "red")
    ]
    assert shown(log, "answered", why="") == []


def test_failures_that_a_mapping_ignores_are_warned_about_once(log: LogReader) -> None:
    answer = {"queue": "orders", "kind": "returned", "why": "", "ignored": ["a", "b"]}
    [line] = shown(log, "answered", **answer)
    assert line.text.startswith("WARNING Orders returned batchItemFailures with 2 messages of orders, but the mapping")
    assert shown(log, "answered", **answer) == []
    assert len(shown(log, "answered", **answer | {"queue": "others"})) == 1


def test_a_response_that_lambda_rejects_is_shown_with_its_effect(log: LogReader) -> None:
    assert [
        line.text for line in shown(log, "answered", kind="returned", why="the response is not an object: 'ok'")
    ] == ["Lambda rejects the response, so the whole batch comes back: the response is not an object: 'ok'"]
