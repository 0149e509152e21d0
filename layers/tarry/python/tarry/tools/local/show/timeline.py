"""Messages and log lines as they are shown to a developer: steps, states and tracebacks, in words and colours."""

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, TypeVar

from rich.text import Text

from tarry.failed.queue_names import redrive_of
from tarry.failed.text import coarse, one_line, printable
from tarry.message.outcomes import State
from tarry.tools.simulator.batch_errors import SeenKeys, batch_error, new_errors
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.simulator.recursion import LONG_LOOP, MAX_INVOCATIONS
from tarry.tools.story.events import ENDS, WORDS
from tarry.tools.story.lines import is_transition
from tarry.tools.story.text import STYLES as STATE_STYLES
from tarry.tools.testing.log_recorder import ignored_failures
from tarry.tools.testing.timeline import Timeline, Transition

LOST = "LOST"
"""The state of a lost message, which is not a state of tarry: no message must be lost."""
EXPIRED = "it expired: it was not settled within the retention of its queue"
LEFT = "no function here consumes it"
ODD = "deleted, though it was "

ORDINARY = frozenset({State.READY, State.IN_FLIGHT, State.COMMITTED})
"""The states of a message without trouble."""


@dataclass
class MessageTimeline:
    """One message's timeline so far. ``number`` is its place in the event file; None if it was not sent from there."""

    id: str
    queue: str
    """The queue that it is in, or was in last before it was dead-lettered."""
    number: int | None = None
    steps: Sequence[Transition] = field(default_factory=list)
    """Its steps; for a message with a number, without the first, its sending."""
    lost: str = ""
    """Why the message is lost; empty if it is not."""
    is_left: bool = False
    """Whether it stays in its queue, which feeds no function here."""

    @property
    def state(self) -> str:
        """Its state now, or ``LOST``."""
        return LOST if self.lost else self.steps[-1].state if self.steps else State.READY

    @property
    def why(self) -> str:
        """Why it is in that state, as far as known."""
        if self.is_left and self.state == State.READY:
            return LEFT
        return self.lost or (self.steps[-1].why if self.steps else "")

    @property
    def attempt(self) -> int | None:
        return next((step.attempt for step in reversed(self.steps) if step.attempt), None)

    @property
    def delivery_id(self) -> str:
        """The delivery id of its latest copy; empty if it has no steps yet."""
        return self.steps[-1].delivery_id if self.steps else ""

    @property
    def due(self) -> float | None:
        """When it comes back, in epoch seconds, while it waits."""
        last = self.steps[-1] if self.steps and not self.is_settled else None
        return None if last is None or last.delay is None else last.at + last.delay

    @property
    def is_settled(self) -> bool:
        return self.state in ENDS or (self.is_left and self.state == State.READY)

    def __str__(self) -> str:
        states = [*map(text_of, self.steps), *([LOST] if self.lost else [])]
        return " -> ".join(states or [State.READY])


def timeline_of(
    message_id: str, steps: Sequence[Transition], number: int | None, consumed: Collection[str]
) -> MessageTimeline:
    """Return the timeline of these steps. ``consumed`` are the queues that feed a function."""
    last = steps[-1]
    alive = [step.queue for step in steps if step.state is not State.DEAD_LETTERED]
    has_expired = last.why == "expired" and not any(step.state is State.DEAD_LETTERED for step in steps)
    lost = EXPIRED if has_expired else f"it was {last.why}" if last.why.startswith(ODD) else ""
    shown = steps if number is None else steps[1:]  # without its sending, which `tarry local` did itself
    return MessageTimeline(
        message_id,
        alive[-1] if alive else last.queue,
        number,
        shown[:-1] if lost else shown,
        lost=lost,
        is_left=last.queue not in consumed,
    )


Shown = TypeVar("Shown", Timeline, MessageTimeline)


def chosen(messages: Sequence[Shown], most: int) -> list[Shown]:
    """Return the first messages; half of the room is for messages in trouble, which a developer looks for."""
    troubled: list[int] = [place for place, each in enumerate(messages) if each.state not in ORDINARY][: most // 2]
    others: list[int] = [place for place in range(min(most, len(messages))) if place not in troubled][
        : most - len(troubled)
    ]
    return [messages[place] for place in sorted([*troubled, *others])]


def text_of(step: Transition) -> str:
    """Return a step in words: ``IN_FLIGHT 2``, ``WAITING_RETRY 1 min 30 s``, ``COMMITTED``."""
    if step.state is State.IN_FLIGHT and step.attempt:
        return f"{step.state} {step.attempt}"
    if step.delay and (step.sent_on or not step.is_gone):
        return f"{step.state} {coarse(step.delay)}"
    return step.state


def state_counts(messages: Iterable[MessageTimeline]) -> dict[str, int]:
    """Return the number of messages in each state, in the order in which a message passes through the states."""
    states = [message.state for message in messages]
    return {state: states.count(state) for state in [*State, LOST] if state in states}


def counted(states: Mapping[str, int]) -> str:
    """Return numbers of messages by state in words: ``8 committed, 2 dead-lettered``."""
    return ", ".join(f"{count:,} {WORDS.get(state, state.lower())}" for state, count in states.items() if count)


STYLES: Mapping[str, str] = {**STATE_STYLES, LOST: "bold white on red"}


def name_of(message: MessageTimeline) -> str:
    """Return the name of a message in a line: its place in the event, the beginning of its id, its queue."""
    number = "" if message.number is None else f"#{message.number}"
    return f"{number:>3} {printable(message.id[:8])} {printable(message.queue)}"


def because(why: str) -> Text:
    """Return the reason for a message's state, in brackets; empty if unknown."""
    return Text(f"  ({one_line(why)})" if why else "", "dim")


def stopped_text(function: str, queue: str) -> str:
    """Return a sentence about a loop that Lambda stops, with the remedy."""
    return (
        f"Lambda stops a recursive loop: {function} has been invoked {MAX_INVOCATIONS} times in one chain of messages, "
        f"which return to it through {queue}. If the loop ends by itself, set RecursiveLoop: Allow in the properties "
        f"of {function}."
    )


class RecursiveLoops:
    """A listener to a history that knows the recursive loops in it."""

    def __init__(self) -> None:
        self.attributes: dict[str, Mapping[str, str]] = {}
        """The attributes of each queue."""
        self._stopped: dict[tuple[str, str], None] = {}
        """The function and the queue of each loop that Lambda has stopped."""
        self._endless: tuple[str, str] | None = None
        """The function and the queue of a loop that is allowed and does not end."""
        self._refused: dict[str, str] = {}
        """The queues of the messages that Lambda refuses to hand to their function, by delivery id."""

    def take(self, event: HistoryEvent) -> None:
        """Note the next event."""
        fields = event.fields
        match event.what:
            case "recursion_stopped":
                self._stopped[fields["function"], fields["queue"]] = None
                self._refused.update(dict.fromkeys(fields["delivery_ids"], fields["queue"]))
            case "recursion_allowed":
                self._endless = fields["function"], fields["queue"]
            case "queue_configured":
                self.attributes[fields["queue"]] = fields["attributes"]
            case "deleted" | "expired" | "purged" | "moved":
                self._refused.pop(fields["delivery_id"], None)

    @property
    def is_endless(self) -> bool:
        """Whether a loop that is allowed seems to go on for ever."""
        return self._endless is not None

    @property
    def stuck(self) -> Collection[str]:
        """The delivery ids of messages that no redrive policy moves, and that Lambda refuses on every receive."""
        return [each for each, queue in self._refused.items() if not self.has_redrive(queue)]

    def has_redrive(self, queue: str) -> bool:
        """Whether a queue has a redrive policy, which moves its messages in the end."""
        return redrive_of(self.attributes.get(queue, {})) is not None

    def texts(self, *, is_cut: bool) -> list[str]:
        """Return a sentence for each loop; ``is_cut``: the run ended because a loop seems to go on for ever."""
        found = [stopped_text(*loop) for loop in self._stopped]
        queues = dict.fromkeys(self._refused[each] for each in self.stuck)
        found += [f"{queue} has no redrive policy, so the message that Lambda refuses stays in it." for queue in queues]
        if is_cut and self._endless is not None:
            function, queue = self._endless
            found.append(
                f"Stopped: {function} has been invoked {LONG_LOOP:,} times in one chain of messages, which return to "
                f"it through {queue}, and its RecursiveLoop: Allow sets no limit. To let the loop go on for a virtual "
                "time: --give-up SECONDS."
            )
        return found


MOST_REPEATS = 3
"""The number of equal attempts in a row that are shown one by one."""


def folded(steps: Sequence[Transition]) -> Iterator[tuple[Transition, str]]:
    """Yield the steps with their texts; attempts in a row with the same end, error and wait are two.

    The second is all of them but the first, with the last step of the last one.
    """
    for _, group in groupby(_attempts(steps), key=_kind):
        attempts = list(group)
        whole = attempts if len(attempts) <= MOST_REPEATS else attempts[:1]
        for step in chain.from_iterable(whole):
            yield step, text_of(step)
        if len(whole) < len(attempts):
            yield attempts[-1][-1], _repeated(attempts[1:])


def _attempts(steps: Sequence[Transition]) -> Iterator[list[Transition]]:
    """Yield each attempt with the step that ended it, and every other step by itself."""
    attempt: list[Transition] = []
    for step in steps:
        if attempt and step.state is State.IN_FLIGHT:  # without an end
            yield attempt
            attempt = []
        attempt.append(step)
        if step.state is not State.IN_FLIGHT:
            yield attempt
            attempt = []
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
"""Fields that every JSON log line has; all others are ``extra=`` of logging, or keys of Powertools' logger."""


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
            case "throttled" | "dropped" as what:
                count = len(fields["delivery_ids"])
                until = " until the visibility timeout ended: received, but never run"
                why = until if what == "dropped" else ": no process is free"
                yield LogLine(event.at, function, f"{count} message{'s'[: count != 1]} throttled{why}", "yellow")
            case "noted":
                yield LogLine(event.at, "", printable(fields["text"], keep="\n"), fields.get("style", "yellow"))

    def _answered(self, at: float, function: str, fields: Mapping[str, Any]) -> Iterator[LogLine]:
        if fields["why"] and fields.get("kind") not in LOGGED:
            rejected = "Lambda rejects the response, so the whole batch comes back: "
            text = f"{rejected * (fields.get('kind') == 'returned')}{fields['why']}"
            yield LogLine(at, function, one_line(text), "red")
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
        root = str(line.get("logger", "")).partition(".")[0]
        if line.get("level") in ("DEBUG", "INFO") and (root in CHATTY or (root == "tarry" and not self._verbose)):
            return
        batch = batch_error(line, self._batches.get(str(fields.get("request_id")), ()))
        if batch is not None and not self._whole_batches:
            yield LogLine(at, function, printable(f"{line.get('level', 'ERROR')} {batch.text}", keep="\n"), style)
            return
        traceback, message = _traceback(line), _message(line)
        text = f"{line.get('level', '')} {one_line(message) if message in traceback else message}".strip()
        more = {name: value for name, value in line.items() if name not in _OF_THE_CLIENT and value is not None}
        if more and not is_of_state and not more.get("event"):  # tarry's own lines have their fields in their text
            text += f"  {' '.join(f'{name}={value}' for name, value in more.items()):.{MOST_EXTRAS_CHARACTERS}}"
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


def _message(line: Mapping[str, Any]) -> str:
    if "message" not in line and _is_of_node(line):
        return f"{line.get('errorType')}: {line.get('errorMessage')}"
    message = line.get("message", line.get("errorMessage", ""))
    return message if isinstance(message, str) else json.dumps(message, default=str)


def _is_of_node(line: Mapping[str, Any]) -> bool:
    """Whether a line has a stack of Node.js, which begins with the error; the other lines are its frames."""
    frames = line.get("stackTrace")
    return isinstance(frames, list) and any(isinstance(each, str) and FRAME_OF_NODE.match(each) for each in frames)


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
