"""Reading tarry's log lines in tests."""

import logging
from typing import Any

import pytest

Caplog = pytest.LogCaptureFixture


def lines(caplog: pytest.LogCaptureFixture, event: str | None = None, level: int = 0) -> list[logging.LogRecord]:
    """Return the lines of the logger ``tarry``: of one event, or of all; of this level or above."""
    return [
        line
        for line in caplog.records
        if line.name == "tarry" and line.levelno >= level and (event is None or field(line, "event") == event)
    ]


def field(line: logging.LogRecord, name: str) -> Any:
    """Return a structured field of a line; None if the line lacks it."""
    return getattr(line, name, None)


def everything(caplog: pytest.LogCaptureFixture) -> str:
    """Return everything logged, by any logger: texts, fields and tracebacks."""
    formatter = logging.Formatter("%(message)s")
    return "\n".join(f"{formatter.format(line)} {line.__dict__!r}" for line in caplog.records)
