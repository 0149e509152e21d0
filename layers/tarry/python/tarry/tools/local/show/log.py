"""Log lines of the functions and the cloud, for a developer to read."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tarry.failed.text import one_line, printable
from tarry.message.outcomes import State
from tarry.tools.local.loops import stopped_text
from tarry.tools.local.show.timeline import text_of
from tarry.tools.simulator.batch_errors import SeenKeys, batch_error, new_errors
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.story.lines import is_transition
from tarry.tools.testing.log_recorder import ignored_failures
from tarry.tools.testing.timeline import Transition

MOST_REPEATS = 3
"""The number of equal attempts in a row that are shown one by one."""


@dataclass(frozen=True)
class ShownStep:
    """One or more steps as they are shown; ``last`` is the last of them."""

    last: Transition
    text: str


def folded(steps: Sequence[Transition]) -> Iterator[ShownStep]:
    """Yield the steps; attempts in a row with the same end, error and wait are two: the first, and all others."""
    for _, group in groupby(_attempts(steps), key=_kind):
        attempts = list(group)
        whole = attempts if len(attempts) <= MOST_REPEATS else attempts[:1]
        for attempt in whole:
            for step in attempt:
                yield ShownStep(step, text_of(step))
        if len(whole) < len(attempts):
            yield ShownStep(attempts[-1][-1], _repeated(attempts[1:]))


def _attempts(steps: Sequence[Transition]) -> Iterator[list[Transition]]:
    """Yield each attempt with the step that ended it, and every other step by itself."""
    attempt: list[Transition] = []
    for step in steps:
        if attempt and step.state is not State.IN_FLIGHT:
            yield [*attempt, step]
            attempt = []
            continue
        if attempt:
            yield attempt
        attempt = [step] if step.state is State.IN_FLIGHT else []
        if not attempt:
            yield [step]
    if attempt:
        yield attempt


def _kind(attempt: Sequence[Transition]) -> tuple[object, ...]:
    """Return what attempts have in common that are shown as one."""
    last = attempt[-1]
    return len(attempt), last.state, last.delivery_id, last.queue, text_of(last), last.why


def _repeated(attempts: Sequence[Sequence[Transition]]) -> str:
    first, last = attempts[0][0], attempts[-1][0]
    if len(attempts[0]) == 1:
        return f"{text_of(last)}, {len(attempts)} more times"
    numbers = f"{first.attempt}-{last.attempt}" if first.attempt and last.attempt else f"{len(attempts)} more times"
    return f"{State.IN_FLIGHT} {numbers}, each {text_of(attempts[-1][-1])}"


LEVELS = {"DEBUG": "dim", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}
LEVELS |= {"TRACE": "dim", "WARN": "yellow", "FATAL": "bold red"}  # of Node.js
CHATTY = frozenset({"boto3", "botocore", "s3transfer", "urllib3"})
"""Loggers whose INFO lines are noise for a developer, such as where each process found its credentials."""
LOGGED = frozenset({"error", "recursive"})
"""The kinds of results that need no line of their own: the function has logged its error, or the loop has a line."""
FRAME_OF_NODE = re.compile(r" +at ")
WARNINGS = frozenset({"WARNING", "WARN"})
MOST_EXTRAS_CHARACTERS = 500
_OF_THE_CLIENT = frozenset(
    "timestamp level message logger requestId stackTrace errorType errorMessage location log_level tenantId "
    "taskName exception exception_name stack_trace service sampling_rate xray_trace_id "
    "function_name function_arn function_memory_size function_request_id cold_start".split()
)
"""Fields that every JSON log line has; all others come from the code that logged it."""


@dataclass(frozen=True)
class LogLine:
    """One log entry. ``function`` is empty for the cloud itself; ``text`` may have several lines."""

    at: float
    function: str
    text: str
    style: str = ""

    def __str__(self) -> str:
        return f"{self.function}: {self.text}" if self.function else self.text


class LogReader:
    """A reader of the log lines in a history.

    Tarry's lines about a message are not shown, because its states show the same; a traceback is shown when its error
    comes for the first time, and a warning only once. ``verbose`` shows all lines of tarry and of the functions.
    An error about a whole batch is shown as the errors of its messages, one line each, unless ``whole_batches``, which
    is ``verbose`` by default.
    """

    def __init__(self, *, verbose: bool, whole_batches: bool | None = None) -> None:
        self._verbose = verbose
        self._whole_batches = verbose if whole_batches is None else whole_batches
        self._shown = SeenKeys()
        self._batches: dict[str, Sequence[str]] = {}
        """The messages of the invocations under way, by request id."""

    def lines(self, event: HistoryEvent) -> Iterator[LogLine]:
        """Return the lines of an event."""
        fields = event.fields
        function = str(fields.get("function", ""))
        match event.what:
            case "invoked":
                self._batches[fields["request_id"]] = fields["delivery_ids"]
            case "logged":
                yield from self._logged(event.at, function, fields)
            case "report":
                self._batches.pop(fields.get("request_id", ""), None)
                yield LogLine(event.at, function, report_text(fields), "dim")
            case "answered":
                yield from self._answered(event.at, function, fields)
            case "recursion_stopped":
                yield from self._warned(event.at, function, stopped_text(function, fields["queue"]))
            case "throttled":
                text = f"{_messages(fields)} throttled: no process is free"
                yield LogLine(event.at, function, text, "yellow")
            case "dropped":
                text = f"{_messages(fields)} throttled until the visibility timeout ended: received, but never run"
                yield LogLine(event.at, function, text, "yellow")
            case "noted":
                yield LogLine(event.at, "", printable(fields["text"], keep="\n"), fields.get("style", "yellow"))

    def _answered(self, at: float, function: str, fields: Mapping[str, Any]) -> Iterator[LogLine]:
        if fields["why"] and fields.get("kind") not in LOGGED:
            yield LogLine(at, function, one_line(rejection_text(fields)), "red")
        if text := new_errors(fields, self._shown):
            yield LogLine(at, function, printable(f"WARNING {text}", keep="\n"), "yellow")
        yield from self._warned(at, function, ignored_failures(fields, self._shown))

    def _warned(self, at: float, function: str, text: str) -> Iterator[LogLine]:
        if text and self._shown.is_new((function, text)):
            yield LogLine(at, "", printable(f"WARNING {text}"), "yellow")

    def _logged(self, at: float, function: str, fields: Mapping[str, Any]) -> Iterator[LogLine]:
        line: Mapping[str, Any] | None = fields.get("fields")
        if not line:
            text = printable(str(fields["line"]), keep="\t")
            if text.strip():
                yield LogLine(at, function, text)
            return
        style = LEVELS.get(str(line.get("level")), "")
        is_of_state = is_transition(line)
        if is_of_state and not self._verbose:
            if text := new_traceback(line, self._shown):
                yield LogLine(at, function, text, style)
            return
        root = _root(line)
        if line.get("level") in ("DEBUG", "INFO") and (root in CHATTY or (root == "tarry" and not self._verbose)):
            return
        batch = batch_error(line, self._batches.get(str(fields.get("request_id")), ()))
        if batch is not None and not self._whole_batches:
            yield LogLine(at, function, printable(f"{line.get('level', 'ERROR')} {batch.text}", keep="\n"), style)
            return
        traceback, message = _traceback(line), _message(line)
        text = f"{line.get('level', '')} {one_line(message) if message in traceback else message}".strip()
        if not is_of_state:
            text += _extras(line)
        text = "\n".join(filter(None, [text, traceback]))
        if line.get("level") in WARNINGS and not self._verbose and not self._shown.is_new((function, text)):
            return
        yield LogLine(at, function, printable(text, keep="\n\t"), style)


def new_traceback(line: Mapping[str, Any], shown: SeenKeys) -> str:
    """Return a text about the failed message of a line of tarry, with its traceback; empty if that is not a new one."""
    traceback = _traceback(line)
    if not traceback or not shown.is_new(str(line.get("fingerprint") or line.get("error"))):
        return ""
    text = f"{line['state']} {line.get('message_id')!s:.8}, attempt {line.get('attempt')}:\n{traceback}"
    return printable(text, keep="\n\t")


def rejection_text(fields: Mapping[str, Any]) -> str:
    """Return why a whole batch failed, from the answer of its function."""
    is_rejected = fields.get("kind") == "returned"
    return f"{'Lambda rejects the response, so the whole batch comes back: ' * is_rejected}{fields['why']}"


def stamp(at: float) -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def report_text(fields: Mapping[str, Any]) -> str:
    """Return a short text for an invocation, as in Lambda's REPORT line: ``10 messages in 3.2 ms``."""
    batch, milliseconds = int(fields["batch"]), fields["seconds"] * 1000
    count = f"{batch} message{'s'[: batch != 1]}" if batch else "1 event"
    cold = "" if fields["init_seconds"] is None else f", cold start {fields['init_seconds'] * 1000:.0f} ms"
    kind = "" if fields["kind"] == "returned" else f" ({fields['kind']})"
    return f"{count} in {milliseconds:.{0 if milliseconds >= 10 else 1}f} ms{cold}{kind}"


def _messages(fields: Mapping[str, Any]) -> str:
    count = len(fields["delivery_ids"])
    return f"{count} message{'s'[: count != 1]}"


def _message(line: Mapping[str, Any]) -> str:
    if "message" not in line and _is_of_node(line):
        return f"{line.get('errorType')}: {line.get('errorMessage')}"
    message = line.get("message", line.get("errorMessage", ""))
    return message if isinstance(message, str) else json.dumps(message, default=str)


def _is_of_node(line: Mapping[str, Any]) -> bool:
    """Whether a line has a stack of Node.js, which begins with the error; the other lines are its frames."""
    frames = line.get("stackTrace")
    return isinstance(frames, list) and any(isinstance(each, str) and FRAME_OF_NODE.match(each) for each in frames)


def _root(line: Mapping[str, Any]) -> str:
    """The package of the logger."""
    return str(line.get("logger", "")).partition(".")[0]


def _extras(line: Mapping[str, Any]) -> str:
    """The fields beside the message: ``extra=`` of logging, keys of Powertools' logger."""
    more = {name: value for name, value in line.items() if name not in _OF_THE_CLIENT and value is not None}
    if more.get("event"):  # tarry's own lines have their fields in their text
        return ""
    text = " ".join(f"{name}={value}" for name, value in more.items())
    return f"  {text:.{MOST_EXTRAS_CHARACTERS}}" if text else ""


def _traceback(line: Mapping[str, Any]) -> str:
    """A traceback as Python prints it, from the formats of the runtime client, Powertools, and tarry."""
    for name in ("traceback", "exception"):
        if isinstance(text := line.get(name), str):
            return text.rstrip()
    frames = line.get("stackTrace")
    if not frames or not isinstance(frames, list):
        return ""
    if _is_of_node(line):
        return "\n".join(each for each in frames if FRAME_OF_NODE.match(each))
    error = ": ".join(str(line[name]) for name in ("errorType", "errorMessage") if line.get(name))
    return "Traceback (most recent call last):\n" + "".join(map(str, frames)).rstrip() + f"\n{error}"
