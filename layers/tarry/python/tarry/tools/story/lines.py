"""Reading tarry's log lines in JSON and in plain text, and the story that they tell of a message."""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tarry.failed.usage import UsageError
from tarry.message.outcomes import _STATES, State
from tarry.observe.logs import _TRANSITIONS
from tarry.tools.story.events import ENDS, WORDS, Story, StoryEvent

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


BEGINS = frozenset({"isolated_start", "suspect_started"})
"""The event of a redelivered message whose handler starts (INFO), and its name until November 2026, for older logs."""
LONGEST_RUN_SECONDS = 900.0
COSTS_AN_ATTEMPT = frozenset({State.WAITING_RETRY, State.RESENT, State.READY})
"""States after which the next delivery has the next attempt."""
PATIENCE_SECONDS = 60.0
"""The time for a delivery, a run and its line, after a message is visible again."""
NO_LINE = (
    "no line since: it succeeded (a plain success writes no line), or it was not delivered yet, or its function "
    "crashed, ran out of time, or logs elsewhere"
)
MOST_IDS_SHOWN = 5


def ids_in(entries: Iterable[LogEntry], wanted: str) -> list[str]:
    """Return the stable ids of the messages whose stable id or delivery id begins with ``wanted``."""
    lines = [line for entry in entries if (line := read_line(entry)) is not None]
    if any(line.message_id == wanted for line in lines):
        return [wanted]
    exact = dict.fromkeys(line.message_id for line in lines if line.delivery_id == wanted)
    begins = dict.fromkeys(
        line.message_id for line in lines if line.message_id.startswith(wanted) or line.delivery_id.startswith(wanted)
    )
    return list(exact or begins)


def only_one(ids: Sequence[str], wanted: str) -> str | None:
    """Return the only id; None if there is none. Raises `UsageError` if there are several."""
    if len(ids) > 1:
        more = f" and {len(ids) - MOST_IDS_SHOWN} more" if len(ids) > MOST_IDS_SHOWN else ""
        shown = ", ".join(ids[:MOST_IDS_SHOWN])
        raise UsageError(f"{len(ids)} messages have an id that begins with {wanted!r}: {shown}{more}; name one of them")
    return ids[0] if ids else None


def story_of_log(
    entries: Iterable[LogEntry],
    message_id: str,
    now: float,
    source: str = "log",
    functions: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Story | None:
    """Return the story that the log lines of one message tell, by its stable id; None if no line does.

    ``entries`` are lines in any order, from ``source``: others than tarry's about this message are left out. There are
    lines until ``now``, in epoch seconds. ``functions`` are the names of functions, by log group; ``notes`` are
    sentences about what may be missing.
    """
    lines = [line for entry in entries if (line := read_line(entry)) is not None and line.message_id == message_id]
    lines.sort(key=lambda line: line.entry.at)
    if not lines:
        return None
    seen = [event_of(line, functions) for line in lines]
    events = tuple(_with_gaps(seen, now))
    return Story(message_id, events, source, now, is_whole=False, notes=tuple(notes))


UNCLEAR = ("not_sent", "not_settled", "said")
"""The fields that say what else a person should know."""


def texts_of(event: str, fields: Mapping[str, Any]) -> str:
    """Return the texts of a line that say what else a person should know; ``event`` is its log event.

    The text of a dead letter's line is about its attempts, unless the message could not wait any longer.
    """
    could_not_wait = fields.get("reason") == "expiring" and not fields.get("error")
    is_known = event in BEGINS or (event == "dead_lettered" and not could_not_wait)
    names = UNCLEAR if is_known else ("text", *UNCLEAR)
    return "; ".join(str(fields[name]) for name in names if fields.get(name))


def event_of(line: TarryLine, functions: Mapping[str, str] | None = None) -> StoryEvent:
    """Return the event that a line tells. ``functions`` are their names, by log group."""
    group = line.entry.group
    function = (functions or {}).get(group) or group.rpartition("/")[2]
    state = State.IN_FLIGHT if line.event in BEGINS else line.state
    return StoryEvent(line.entry.at, state, function=function, **event_fields(line))


def event_fields(line: TarryLine) -> dict[str, Any]:
    """Return what a line tells of its event."""
    return {
        "delivery_id": line.delivery_id,
        "origin": line.text("queue"),
        "attempt": line.count("attempt"),
        "delay": line.number("delay"),
        "text": texts_of(line.event, line.fields),
        "reason": line.text("reason"),
        "error": line.text("error"),
        "sent_to": line.text("dead_letter_queue") or line.text("sent_to"),
        "max_attempts": line.count("max_attempts"),
        "event": line.event,
        "consumer": line.text("consumer"),
        "request_id": line.request_id,
        "line": line.fields,
    }


def _with_gaps(seen: Sequence[StoryEvent], now: float) -> Iterator[StoryEvent]:
    """Yield the events, with those between them and after them that can be inferred."""
    last: StoryEvent | None = None
    for event in seen:
        if event.state is not None:
            yield from _between(last, event)
            last = event
        yield event
    if last is None or last.state in ENDS:
        return
    expected = last.due if last.due is not None else last.at + LONGEST_RUN_SECONDS
    if expected + PATIENCE_SECONDS < now:
        yield StoryEvent(expected, None, origin=last.place, text=NO_LINE, delivery_id=last.delivery_id, is_seen=False)


def _between(last: StoryEvent | None, event: StoryEvent) -> Iterator[StoryEvent]:
    """Yield the events that must have been before one, but have no line."""
    if last is not None and last.state in ENDS:
        is_same = event.delivery_id == last.delivery_id and (event.attempt or 0) > (last.attempt or 0)
        if is_same:
            text = f"delivered again, though it was {WORDS.get(last.state, last.state.lower())}"
        elif last.state is State.DEAD_LETTERED:
            text = f"delivered again: sent back from {last.place or 'the dead-letter queue'}, or another copy of it"
        else:
            text = f"delivered again, though it was {last.state.lower()}: another copy of it"
        yield StoryEvent(event.at, State.READY, origin=event.origin, text=text, is_seen=False)
        last = replace(last, state=State.WAITING_RETRY) if is_same else None  # the attempts of one delivery id go on
    if event.attempt is None:
        return
    before = last.attempt if last is not None and last.attempt is not None else 0
    first = before + 1 if last is None or last.state in COSTS_AN_ATTEMPT else max(1, before)
    missing = event.attempt - first
    if missing > 0:
        which = f"attempt {first}" if missing == 1 else f"attempts {first} to {event.attempt - 1}"
        text = f"{which} left no line: a crash, a timeout or a throttled invocation, or its log was not searched"
        yield StoryEvent(event.at, None, origin=event.origin, text=text, is_seen=False)
