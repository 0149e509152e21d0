"""Reading tarry's log lines: Lambda's JSON format, Powertools' and other JSON formats, and plain text."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tarry.message.outcomes import _STATES, State
from tarry.observe.logs import _TRANSITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

STATES: Mapping[str, State] = {
    event: state for kind, state in _STATES.items() for event, _ in [_TRANSITIONS.get(kind, ("", 0))] if event
}
"""The state of each event: a text line leaves the state out."""
REQUEST_IDS = ("requestId", "function_request_id", "aws_request_id", "request_id")
"""The fields of a request id: of Lambda's format, of Powertools, of other formats."""
OF_EVERY_LINE = ("message_id", "queue")
"""The fields of all of tarry's lines about a message, `LogOptions(redact=)` or not."""
_TEXT = re.compile(r"(?:^|[\s:])(?P<event>[a-z]+(?:_[a-z]+)*) (?P<fields>message_id=.*)")
_FIELD = re.compile(r"""(\w+)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S*)(?: |$)""")
_PREFIX = re.compile(r"^\[[A-Z]+\]\s+\S+\s+(?P<request_id>[0-9a-f]{8}-[0-9a-f-]{27})\s")
"""The beginning of a line in Lambda's text format: level, time, request id."""
_NUMBERS = frozenset({"attempt", "max_attempts", "delay", "asked_for", "receive_count"})


@dataclass(frozen=True)
class LogEntry:
    """One line of a log. ``at`` is its time in epoch seconds, ``group`` its log group."""

    at: float
    text: str
    group: str = ""
    request_id: str = ""


@dataclass(frozen=True)
class TarryLine:
    """A line of tarry about a message."""

    entry: LogEntry
    event: str
    fields: Mapping[str, Any]

    @property
    def message_id(self) -> str:
        return self.text("message_id")

    @property
    def delivery_id(self) -> str:
        return self.text("delivery_id") or self.message_id  # the text leaves it out where it is the same

    @property
    def state(self) -> State | None:
        """The state that the message moved to; None if the line is about something else."""
        named = self.text("state")
        return State(named) if named in State.__members__ else STATES.get(self.event)

    @property
    def request_id(self) -> str:
        return next(filter(None, map(self.text, REQUEST_IDS)), "") or self.entry.request_id

    def text(self, name: str) -> str:
        """Return a field as text; empty if the line lacks it."""
        value = self.fields.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> float | None:
        """Return a field as a number; None if it is not one."""
        value = self.fields.get(name)
        try:
            return None if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            return None

    def count(self, name: str) -> int | None:
        """Return a field as a whole number; None if it is not one."""
        value = self.number(name)
        return int(value) if value is not None and value.is_integer() else None


def is_transition(fields: Mapping[str, Any]) -> bool:
    """Return whether a line with these fields is tarry's, about a message that moved to a state.

    A line of the user's may have ``state`` and the ids too: its logger has the keys of the message.
    """
    state = STATES.get(str(fields.get("event")))
    return state is not None and fields.get("state") == state and bool(fields.get("delivery_id"))


def read_line(entry: LogEntry) -> TarryLine | None:
    """Return a line of tarry about a message; None for any other line."""
    try:
        found = json.loads(entry.text)
    except (ValueError, RecursionError):
        return _read_text(entry, entry.text)
    if not isinstance(found, dict):
        return None
    if all(isinstance(found.get(name), str) for name in ("event", *OF_EVERY_LINE)):
        return TarryLine(entry, found["event"], found)
    text = found.get("message")
    line = _read_text(entry, text) if isinstance(text, str) else None
    return line and TarryLine(entry, line.event, {**found, **line.fields})  # a format that drops the fields


def _read_text(entry: LogEntry, text: str) -> TarryLine | None:
    """Read ``waiting_retry message_id=... attempt=2 delay=90``, after whatever a format puts before it."""
    first = text.partition("\n")[0]
    found = _TEXT.search(first)
    if found is None:
        return None
    fields = {name: _value(name, value) for name, value in _FIELD.findall(found["fields"])}
    prefix = _PREFIX.match(first)
    if prefix is not None:
        fields.setdefault("requestId", prefix["request_id"])
    return TarryLine(entry, found["event"], fields) if all(fields.get(name) for name in OF_EVERY_LINE) else None


def _value(name: str, text: str) -> object:
    if text[:1] in ("'", '"'):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    return int(text) if name in _NUMBERS and text.isdecimal() else text
