"""Dead letters: which queue a message goes to, and the record that says why it died."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.arn import QueueArn
from tarry.diagnosis import diagnose, one_line
from tarry.envelope import (
    ATTRIBUTE,
    MAX_TOTAL,
    VERSION,
    Envelope,
    UnreadableRecord,
    body_sum,
    dump,
    fit,
    next_history,
    smallest,
    timestamp,
)
from tarry.sqs.limits import MAX_ATTRIBUTES, message_size, utf8_length
from tarry.sqs.sending import Attributes, Copy, sendable_attributes
from tarry.sqs.topology import dead_letter_override, named_queue
from tarry.telemetry.logs import WARNING, Log
from tarry.value import Value

if TYPE_CHECKING:
    from tarry.failure import DeadLetter, Failure
    from tarry.message import Message
    from tarry.sqs.lookups import Lookups

Record = Mapping[str, Any]


class NoDeadLetterQueue(Exception):
    """A message has nowhere to go: it stays in its queue and waits."""


class Death(Value):
    """A failed message, when that was, the reason, and the queue named for it, if one was."""

    __slots__ = ("died_at", "failure", "queue", "reason")
    failure: Failure
    reason: str
    queue: str | None
    died_at: float

    def __init__(self, failure: Failure, reason: str, queue: str | None, died_at: float) -> None:
        self._freeze(failure=failure, reason=reason, queue=queue, died_at=died_at)


def dead_letter_queue(death: Death, lookups: Lookups) -> QueueArn:
    """Where a dead letter goes: what the step names, else the environment, else the source's redrive policy.

    Raises `NoDeadLetterQueue`, saying what to do, if there is none or it is one the message must not go to.
    """
    message = death.failure.message
    source = message._source
    named = death.queue or dead_letter_override()
    if named:
        target = named_queue(named, source)
        if not target.name:
            raise NoDeadLetterQueue(f"{named!r} is no SQS queue: name the dead-letter queue by name, URL or ARN")
    else:
        known, error = lookups.source(source)
        if error is not None:
            raise NoDeadLetterQueue(
                f"the redrive policy of {source.name or 'a queue without a name'} cannot be read ({error}); allow "
                "sqs:GetQueueAttributes, or set TARRY_DEAD_LETTER_QUEUE_URL"
            )
        target = known.dead_letter or QueueArn("")
    if not target.name:
        raise NoDeadLetterQueue(
            f"{source.name or 'its queue'} has no dead-letter queue; add a RedrivePolicy to it in the template"
        )
    came_from = message._envelope.origin if message._envelope and message._envelope.failure else None
    if target.text in (source.text, came_from):
        whose = "the queue it is in" if target == source else "the queue it was dead-lettered from"
        raise NoDeadLetterQueue(f"its dead-letter queue {target.name} is {whose}: it would go round in circles")
    return target


def record_of(death: Death, options: DeadLetter) -> dict[str, Any]:
    """The record of a death, whole, before it is redacted and fitted."""
    failure, message = death.failure, death.failure.message
    earlier = message.failure
    carried = message._envelope.carried if message._envelope else 0
    lives_before = max(0, ((earlier.attempts if earlier else 0) or 0) - carried)
    died_at = timestamp(death.died_at)
    told: dict[str, Any] = {"reason": death.reason[:200], "attempts": min(MAX_TOTAL, lives_before + failure.attempt)}
    if failure.error is not None:
        diagnosis = diagnose(failure.error)
        told |= {"type": diagnosis.type, "message": diagnosis.message, "fingerprint": diagnosis.fingerprint}
        if options.include_traceback:
            told["traceback"] = diagnosis.traceback
    told |= {
        "first_failed_at": (earlier.first_failed_at if earlier else None) or _first_failed_at(message, death),
        "failed_at": died_at,
        "function": message._invocation.function_name,
        "request_id": message._invocation.request_id,
    }
    sent = message.sent_at
    error = one_line(failure.error) if failure.error is not None else None
    return {
        "v": VERSION,
        "sum": body_sum(message.body),
        "id": message.id,
        "origin": message._source.text,
        **({"sent": timestamp(sent.timestamp())} if sent else {}),
        "failure": {name: value for name, value in told.items() if value not in (None, "")},
        "history": next_history(earlier.history if earlier else (), failure.attempt, died_at, error),
    }


def _first_failed_at(message: Message[Any], death: Death) -> str:
    """The moment itself on a first attempt; later the first delivery, the nearest to it that SQS remembers."""
    received_at = message._first_received_at
    if message.receive_count == 1 or received_at is None or received_at > death.died_at:
        return timestamp(death.died_at)
    return timestamp(received_at)


class LetterWriter:
    """Makes the copies that go to dead-letter queues."""

    def __init__(self, options: DeadLetter, lookups: Lookups, log: Log) -> None:
        self._options = options
        self._lookups = lookups
        self._log = log

    def write(self, death: Death) -> Copy:
        """The copy with its record, as much of it as has room.

        Raises `NoDeadLetterQueue`, and for a body that the target cannot hold.
        """
        message = death.failure.message
        if not isinstance(message._record.get("body"), str):
            raise NoDeadLetterQueue("its record has no text as body, so there is nothing to send on")
        target = dead_letter_queue(death, self._lookups)
        limit, is_known = self._lookups.maximum_message_size(target)
        attributes = sendable_attributes(message)
        room = limit - message_size(message.body, attributes)
        if room < 0:
            raise NoDeadLetterQueue(
                f"it is {limit - room} bytes, and its dead-letter queue {target.name} takes at most {limit}: "
                "raise its MaximumMessageSize"
            )
        record = self._redacted(record_of(death, self._options), message)
        has_place = len(attributes) < MAX_ATTRIBUTES and ATTRIBUTE not in attributes
        text = fit(record, room - utf8_length(ATTRIBUTE) - utf8_length("String")) if has_place else None
        if text is None:
            self._say_in_log("record_in_log", "the message is dead-lettered without a record: no room", message, record)
            return Copy(message, target, [attributes])
        say_cut = partial(
            self._say_in_log, "record_cut", "the record was cut to fit; here it is whole", message, record
        )
        if is_cut := text != dump(record):
            say_cut()
        variants = [text] if is_known else _lighter(text, dump(smallest(record)))
        with_record = [_with_record(attributes, variant) for variant in variants]
        return Copy(message, target, with_record, on_too_large=_nothing if is_cut else say_cut)

    def _redacted(self, record: dict[str, Any], message: Message[Any]) -> Record:
        if self._options.redact is None:
            return record
        identity = {name: record[name] for name in ("v", "sum", "id", "origin")}
        try:
            redacted = {**self._options.redact(json.loads(dump(record))), **identity}
            Envelope(json.loads(dump(redacted)), message._invocation.started_at)  # must be readable when it comes back
        except Exception as error:  # noqa: BLE001 a user's hook
            what = "returned what is no record" if isinstance(error, UnreadableRecord) else "raised"
            text = f"DeadLetter's redact {what} ({type(error).__name__}): only the bare reason is kept"
            self._log.problem("redact_failed", text, message)
            return smallest(record)
        return redacted

    def _say_in_log(self, event: str, text: str, message: Message[Any], record: Record) -> None:
        self._log.problem(event, text, message, level=WARNING, record=record)


def _nothing() -> None:
    """For a record that is in the log already."""


def _lighter(text: str, smallest_text: str) -> list[str | None]:
    """What to try in turn where the target's limit is not known: the record, the smallest one, none."""
    return [text, smallest_text, None] if len(smallest_text) < len(text) else [text, None]


def _with_record(attributes: Attributes, text: str | None) -> Attributes:
    if text is None:
        return attributes
    return {**attributes, ATTRIBUTE: {"DataType": "String", "StringValue": text}}
