"""What the functions and the cloud have to say, as lines for a developer to read."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tarry.outcome import State
from tarry.simulator.history import HistoryEvent
from tarry.tooling.text import printable

LEVELS = {"DEBUG": "dim", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}
CHATTY = frozenset({"boto3", "botocore", "s3transfer", "tarry", "urllib3"})
"""Loggers that tell at INFO more than a developer asks for: where each process found its credentials."""
MOST_FINGERPRINTS = 1_000
MOST_EXTRAS_CHARACTERS = 500
_OF_THE_CLIENT = frozenset(
    "timestamp level message logger requestId stackTrace errorType errorMessage location log_level tenantId "
    "taskName exception exception_name stack_trace service sampling_rate xray_trace_id "
    "function_name function_arn function_memory_size function_request_id cold_start".split()
)
"""Fields that a JSON log has of itself; what else there is was given by whoever logged."""


@dataclass(frozen=True)
class LogLine:
    """Something that was said. ``function`` is empty for the cloud itself; ``text`` may be several lines."""

    at: float
    function: str
    text: str
    style: str = ""

    def __str__(self) -> str:
        return f"{self.function}: {self.text}" if self.function else self.text


class LogReader:
    """Picks out of a history what is said, and puts it into words.

    What tarry's own log says of a message is seen in the message's states; of it a traceback is left, which is shown
    when its error comes for the first time. ``verbose``: all of it, each time.
    """

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._seen: dict[str, None] = {}

    def lines(self, event: HistoryEvent) -> Iterator[LogLine]:
        """What there is to say of an event."""
        fields = event.fields
        function = str(fields.get("function", ""))
        match event.what:
            case "logged":
                yield from self._logged(event.at, function, fields)
            case "report":
                yield LogLine(event.at, function, report_text(fields), "dim")
            case "answered" if fields["why"]:
                yield LogLine(event.at, function, printable(fields["why"]), "red")
            case "throttled":
                text = f"throttled: {len(fields['delivery_ids'])} messages wait, as many invocations run as may"
                yield LogLine(event.at, function, text, "yellow")
            case "dropped":
                count = len(fields["delivery_ids"])
                text = f"{count} messages were throttled until they were visible again, and never ran: a receive lost"
                yield LogLine(event.at, function, text, "yellow")
            case "noted":
                yield LogLine(event.at, "", printable(fields["text"], keep="\n"), fields.get("style", "yellow"))

    def _logged(self, at: float, function: str, fields: Mapping[str, Any]) -> Iterator[LogLine]:
        said: Mapping[str, Any] | None = fields.get("fields")
        if not said:
            text = printable(str(fields["line"]), keep="\t")
            if text.strip():
                yield LogLine(at, function, text)
            return
        is_transition = said.get("state") in State.__members__ and bool(said.get("delivery_id"))
        traceback = _traceback(said)
        if is_transition and not self._verbose and not (traceback and self._is_new(said)):
            return
        if not self._verbose and said.get("level") in ("DEBUG", "INFO") and _root(said) in CHATTY:
            return
        text = f"{said.get('level', '')} {_message(said)}".strip()
        if is_transition and not self._verbose:
            text = f"{said['state']} {said.get('message_id')!s:.8}, attempt {said.get('attempt')}:"
        elif not is_transition:
            text += _extras(said)
        text = "\n".join(filter(None, [text, traceback]))
        yield LogLine(at, function, printable(text, keep="\n\t"), LEVELS.get(str(said.get("level")), ""))

    def _is_new(self, said: Mapping[str, Any]) -> bool:
        fingerprint = str(said.get("fingerprint") or said.get("error"))
        if fingerprint in self._seen:
            return False
        self._seen[fingerprint] = None
        if len(self._seen) > MOST_FINGERPRINTS:
            del self._seen[next(iter(self._seen))]
        return True


def stamp(at: float) -> str:
    """The local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def report_text(fields: Mapping[str, Any]) -> str:
    """An invocation, as Lambda's REPORT line tells of it, in a few words: ``10 messages in 3.2 ms``."""
    batch, milliseconds = int(fields["batch"]), fields["seconds"] * 1000
    count = f"{batch} message{'s'[: batch != 1]}"
    cold = "" if fields["init_seconds"] is None else f", cold start {fields['init_seconds'] * 1000:.0f} ms"
    kind = "" if fields["kind"] == "returned" else f" ({fields['kind']})"
    return f"{count} in {milliseconds:.{0 if milliseconds >= 10 else 1}f} ms{cold}{kind}"


def _message(said: Mapping[str, Any]) -> str:
    message = said.get("message", said.get("errorMessage", ""))
    return message if isinstance(message, str) else json.dumps(message, default=str)


def _root(said: Mapping[str, Any]) -> str:
    """The package whose logger it was."""
    return str(said.get("logger", "")).partition(".")[0]


def _extras(said: Mapping[str, Any]) -> str:
    """What was logged beside the message: ``extra=`` of logging, keys of Powertools' logger."""
    more = {name: value for name, value in said.items() if name not in _OF_THE_CLIENT and value is not None}
    if more.get("event"):  # tarry's own lines have their fields in their text
        return ""
    text = " ".join(f"{name}={value}" for name, value in more.items())
    return f"  {text:.{MOST_EXTRAS_CHARACTERS}}" if text else ""


def _traceback(said: Mapping[str, Any]) -> str:
    """A traceback as Python prints it, from the forms in which runtime client, Powertools and tarry have it."""
    for name in ("traceback", "exception"):
        if isinstance(told := said.get(name), str):
            return told.rstrip()
    frames = said.get("stackTrace")
    if not frames or not isinstance(frames, list):
        return ""
    error = ": ".join(str(said[name]) for name in ("errorType", "errorMessage") if said.get(name))
    return "Traceback (most recent call last):\n" + "".join(map(str, frames)).rstrip() + f"\n{error}"
