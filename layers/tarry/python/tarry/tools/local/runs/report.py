"""How a run ended: the timeline of each message, its dead letters, and the exit code."""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

from tarry.failed.dead_letters import as_event, as_json, event_record, read_dead_letter
from tarry.failed.queue_names import region_of
from tarry.failed.text import coarse
from tarry.failed.usage import UsageError
from tarry.message.outcomes import State
from tarry.support.values import queue_arn
from tarry.tools.local.show.timeline import MessageTimeline, state_counts, timeline_of
from tarry.tools.simulator.lambda_invoke import PendingCall
from tarry.tools.simulator.sqs import Sqs
from tarry.tools.simulator.sqs.message import RequestedAttributes
from tarry.tools.template import Template
from tarry.tools.testing.checkers import Violation
from tarry.tools.testing.messages import QueuedMessage
from tarry.tools.testing.report import Report
from tarry.tools.testing.timeline import REPORTED, Transition

EVERYTHING = RequestedAttributes({"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]})


def check_keep(path: Path) -> None:
    """Raise `UsageError` if the file cannot be written."""
    if path.is_dir():
        raise UsageError(f"--keep {path} is a directory: name a file")
    if not path.parent.is_dir():
        raise UsageError(f"--keep {path}: the directory {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--keep {path}: permission denied")


def messages_left(sqs: Sqs) -> str:
    """Return how many messages are left in which queues, as a text; empty for none."""
    counts = {queue: len(messages) for queue in sqs.queues() if (messages := sqs.peek(queue))}
    if not counts:
        return ""
    total = sum(counts.values())
    return f"{total:,} message{'s'[: total != 1]} ({', '.join(f'{n:,} in {queue}' for queue, n in counts.items())})"


def keep(path: Path, sqs: Sqs, template: Template, now: float) -> str:
    """Write all messages to a file, as an SQS event; return a text about it.

    A dead letter is a record for the queue it came from, as `tarry failed show --event` prints it. Beside the fields of
    an SQS record, each record has ``leftIn``, the name of the queue that the message was in, and a dead letter has
    ``failure``, its failure record. Raises `UsageError` if the file cannot be written.
    """
    event = {"Records": list(_records(sqs, template, now))}
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_text(json.dumps(event, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"--keep {path}: {error.strerror or error}") from error
    if left := messages_left(sqs):
        return f"Wrote {left} to {path}. To send them again: tarry local --event {path}"
    return f"Wrote {path}: no message was left."


def _records(sqs: Sqs, template: Template, now: float) -> Iterator[dict[str, Any]]:
    dead_letter_queues = {queue_arn(each.dead_letter_arn).name for each in template.queues.values()}
    for queue in sqs.queues():
        arn = sqs.arn(queue)
        for message in sqs.peek(queue):
            received = message.as_received("", EVERYTHING)
            if queue in dead_letter_queues:
                dead_letter = read_dead_letter(received, queue_arn(arn), now)
                [record] = as_event([dead_letter])["Records"]
                record = {**record, "failure": as_json(dead_letter)["failure"]}
            else:
                record = event_record(received, arn, region_of(arn))
            yield {**record, "leftIn": queue}


SPARE_SECONDS = 10
"""The time for the attempt that a longer ``--give-up`` waits for."""
NOT_IN_A_DLQ = "reported as dead-lettered, but in no dead-letter queue"


@dataclass(frozen=True)
class RunReport:
    """The result of a run: its messages and dead letters."""

    messages: list[MessageTimeline] = field(default_factory=list)
    dead_letters: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The queue of each dead letter, and why it is there, by stable id."""
    seconds: float = 0.0
    interrupted: bool = False
    virtual_seconds: float | None = None
    """The virtual time that the run took; None in real time."""
    violations: Sequence[Violation] = ()
    causes: Sequence[str] = ()
    """Sentences about why messages are left, each with the remedy: recursive loops, or no redrive policy."""
    waits: str = ""
    """When the messages that did not settle are due, and the options that wait for them or skip the wait."""
    expected: Mapping[str, int] = field(default_factory=dict)
    """The expected number of messages in each state; states without one may have any number."""
    left: str = ""
    """A text about the messages that are left in their queues, if they were written to a file."""

    @property
    def lost(self) -> list[MessageTimeline]:
        return [message for message in self.messages if message.lost]

    @property
    def waiting(self) -> list[MessageTimeline]:
        """The messages that did not settle in time."""
        return [message for message in self.messages if not (message.is_settled or message.lost)]

    @property
    def missed(self) -> str:
        """The difference between the expected and the actual numbers of messages by state; empty if there is none."""
        found = state_counts(self.messages)
        if all(found.get(state, 0) == number for state, number in self.expected.items()):
            return ""
        both = [
            ", ".join(f"{each.get(state, 0)} {state}" for state in self.expected) for each in (self.expected, found)
        ]
        return f"expected {both[0]}, got {both[1]}"

    @property
    def exit_code(self) -> int:
        """0 for success; 1 if a message was lost, did not settle, or is not as expected; 130 after Ctrl-C."""
        if self.interrupted:
            return 130
        return 1 if self.lost or self.waiting or self.violations or self.missed else 0


@dataclass(frozen=True)
class Waits:
    """The time of a run that gave up. ``began`` is in epoch seconds; ``is_real`` is False in virtual time."""

    began: float
    is_real: bool

    def for_messages(self, messages: Iterable[MessageTimeline], stuck: Collection[str]) -> str:
        """Return when the last message is due, except the ``stuck`` ones, by delivery id: no wait helps them."""
        left = [message for message in messages if not (message.is_settled or message.lost)]
        return self._text([message.due for message in left if message.delivery_id not in stuck])

    def for_calls(self, calls: Iterable[PendingCall]) -> Iterator[str]:
        """Yield a sentence about the asynchronous invocations of each function that did not end."""
        dues: dict[str, list[float]] = {}
        for call in calls:
            dues.setdefault(call.function, []).append(call.last)
        for function, each in dues.items():
            text = f"{len(each)} asynchronous invocation{'s'[: len(each) != 1]} of {function} did not end"
            yield f"{text}{self._text(each, 'the last attempt')}."

    def _text(self, dues: Sequence[float | None], name: str = "the last") -> str:
        """Return when the last one is due, and ``--give-up`` with the seconds to wait for it, as far as known."""
        if not dues:
            return ""
        skip = ", --skip-time skips the wait" if self.is_real else ""
        known = [due for due in dues if due is not None]
        if len(known) < len(dues):
            return f" (--give-up SECONDS waits longer{skip})"
        last = max(known)
        after = last - self.began
        when = f"at {datetime.fromtimestamp(last):%H:%M:%S}" if self.is_real else f"after {coarse(after)}"  # noqa: DTZ006
        return f", {name} is due {when} (--give-up {10 * ceil(after / 10) + SPARE_SECONDS} waits for it{skip})"


def messages_of(report: Report, numbers: Mapping[str, int], consumed: Collection[str]) -> list[MessageTimeline]:
    """Return the messages of a sandbox; ``numbers`` are the places in the event file, by delivery id."""
    messages = [
        timeline_of(message_id, _counted(steps), numbers.get(steps[0].delivery_id), consumed)
        for message_id, steps in report.timelines.items()
    ]
    return sorted(messages, key=lambda message: message.number or len(numbers) + 1)


def _counted(steps: Sequence[Transition]) -> Sequence[Transition]:
    """The steps, with attempts counted from the deliveries if no consumer of tarry counted them."""
    if any(step.attempt for step in steps):
        return steps
    deliveries = count(1)
    return [replace(step, attempt=next(deliveries)) if step.state is State.IN_FLIGHT else step for step in steps]


def dead_letters_of(messages: Iterable[MessageTimeline], sqs: Sqs, now: float) -> dict[str, tuple[str, str]]:
    """Return the queues and reasons of the dead letters; mark a message as lost if its dead letter is in no queue."""
    found = [QueuedMessage(stored, queue, now) for queue in sqs.queues() for stored in sqs.peek(queue)]
    by_id = {each.id: each for each in found} | {each.delivery_id: each for each in found}
    dead_letters = {}
    for message in messages:
        if message.state != State.DEAD_LETTERED:
            continue
        ids = [message.id, *(step.delivery_id for step in message.steps)]
        dead_letter = next((by_id[each] for each in ids if each in by_id), None)
        if dead_letter is not None:
            dead_letters[message.id] = dead_letter.queue, _why(dead_letter, message)
        else:
            message.lost = NOT_IN_A_DLQ
    return dead_letters


def _why(dead_letter: QueuedMessage, message: MessageTimeline) -> str:
    """Return why a message is a dead letter, from its failure record, if it has one."""
    failure, count = dead_letter.failure, dead_letter.receive_count
    if failure is None:
        last = next((step.why for step in reversed(message.steps) if step.state is State.WAITING_RETRY), "")
        why = f" ({last})" if last and last != REPORTED else ""
        return f"moved by SQS itself after {count} deliver{'y' if count == 1 else 'ies'}, without a failure record{why}"
    error = ": ".join(filter(None, [failure.type, failure.message]))
    at_most = "≤" if failure.attempts_at_most else ""
    attempts = f" after {at_most}{failure.attempts} attempt{'s'[: failure.attempts != 1]}" if failure.attempts else ""
    return f"{failure.reason or 'failed'}{attempts}" + (f": {error}" if error else "")
