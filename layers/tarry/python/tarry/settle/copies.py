"""Copies of messages: their target, their delay, and as much of the `Tarry` attribute as fits."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tarry.message.failure_record import copy_record, dead_letter_record, edited, fit, smallest, waiting_record
from tarry.observe.logs import MAX_RECORD_BYTES
from tarry.record.attribute import ATTRIBUTE, ESSENTIAL, Envelope, UnreadableRecord, dump
from tarry.sqs.refusals import MAX_ATTRIBUTES, is_late, is_reserved, message_size
from tarry.support.guards import is_a, type_name
from tarry.support.hooks import call
from tarry.support.values import MAX_DELAY_SECONDS, MOMENT_SECONDS, WARNING, Notice, QueueArn, Value, named_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.decide.decision import Decision
    from tarry.decide.steps import DeadLetter, FailureSteps
    from tarry.message.delivery import Delivery, Failure, QueueFacts
    from tarry.message.outcomes import Outcome
    from tarry.settle.planner import Situation

Attributes = dict[str, dict[str, Any]]
Record = Mapping[str, Any]


class NoDeadLetterQueue(Exception):
    """There is no usable dead-letter queue: the message stays in its queue and waits."""

    def __init__(self, text: str, *, is_late: bool = False) -> None:
        super().__init__(text)
        self.is_late = is_late  # whether only the time to look it up was lacking


def dead_letter_queue(delivery: Delivery, named: str | None, facts: QueueFacts) -> QueueArn:
    """Return the dead-letter queue that the failure step names, else the environment, else the redrive policy."""
    source = delivery.source
    if named := named or os.environ.get("TARRY_DEAD_LETTER_QUEUE_URL"):
        target = named_queue(named, source)
        if not target.name:
            raise NoDeadLetterQueue(f"{named!r} is not an SQS queue: give the dead-letter queue as name, URL or ARN")
    else:
        if facts.error is not None:
            name = source.name or "a queue without a name"
            if is_late(facts.error):
                text = f"there was no time to read the redrive policy of {name} ({facts.error}): give the function a "
                raise NoDeadLetterQueue(f"{text}longer Timeout or more memory", is_late=True)
            raise NoDeadLetterQueue(
                f"the redrive policy of {name} cannot be read ({facts.error}): grant sqs:GetQueueAttributes, or set "
                "TARRY_DEAD_LETTER_QUEUE_URL"
            )
        target = facts.dead_letter or QueueArn("")
    if not target.name:
        raise NoDeadLetterQueue(
            f"{source.name or 'its queue'} has no dead-letter queue: add a RedrivePolicy to it in the template"
        )
    envelope = delivery.envelope
    came_from = envelope.origin if envelope is not None and envelope.is_dead_letter else None
    # In its own queue, or the one that it was redriven from, it would only fail again.
    if target.text in (source.text, came_from):
        whose = "the queue it is in" if target == source else "the queue it was dead-lettered from before"
        raise NoDeadLetterQueue(f"its dead-letter queue {target.name} is {whose}: name another one")
    return target


class CannotCopy(Exception):
    """No copy can be sent: the `Tarry` attribute has no room, or SQS does not accept the delay or the contents."""


class Copy(Value):
    """A copy of a message, to be sent to another queue or to its own.

    ``body`` is the message's, unless a failure step asked for another. ``variants`` are alternative attributes: the
    first is sent; if SQS refuses it as too large, the next one is tried.
    """

    delivery: Delivery
    body: str
    target: QueueArn
    variants: Sequence[Attributes]
    delay: int | None  # ``DelaySeconds``; None is the queue's own delay, the only one on FIFO
    until: float | None = None
    """When the delay ends, in epoch seconds, so that a copy that is sent later has a shorter ``DelaySeconds``."""
    record: Record | None = None
    """The uncut `Tarry` attribute, for the log if SQS refuses the first variant as too large; None if it is logged."""
    room: int = 0  # how many more bytes the target surely accepts
    transfer: str | None = None  # the source of the deduplication id on FIFO; None: this delivery and this target

    def delay_seconds(self, now: float) -> int | None:
        if self.delay is None or self.until is None:
            return self.delay
        left = math.ceil(self.until - now - MOMENT_SECONDS)
        return min(MAX_DELAY_SECONDS, max(0, left))

    @property
    def size(self) -> int:
        return message_size(self.body, self.variants[0])


def record_cut(record: Record) -> Notice:
    text = "The failure record was cut to fit beside the message. The field record has all of it."
    return shown_in_log("record_cut", text, record)


def shown_in_log(event: str, text: str, record: Record) -> Notice:
    """Return a log line with a record that does not fit beside its message."""
    fitted = fit(record, MAX_RECORD_BYTES)
    shown = smallest(record) if fitted is None else json.loads(fitted)
    return Notice(event, text, level=WARNING, more={"record": shown})


def sendable_attributes(delivery: Delivery) -> Attributes:
    """Return a message's user attributes as a send takes them; SQS refuses reserved names, which are left out."""
    attributes = delivery.user_attributes.items()
    return {name: as_sent(attribute) for name, attribute in attributes if not is_reserved(name)}


def as_sent(attribute: dict[str, Any]) -> dict[str, Any]:
    data_type = str(attribute.get("dataType") or "String")
    if data_type.startswith("Binary"):
        from base64 import b64decode

        return {"DataType": data_type, "BinaryValue": b64decode(attribute.get("binaryValue") or "")}
    return {"DataType": data_type, "StringValue": str(attribute.get("stringValue") or "")}


class CopyWriter:
    """The writer of one message's copies. It does not log: it collects log lines in ``notices``."""

    def __init__(self, steps: FailureSteps, situation: Situation) -> None:
        self._steps = steps
        self._situation = situation
        self.notices: list[Notice] = []

    def dead_letter(
        self, failure: Failure, outcome: Outcome, at: float, *, origin: str | None = None, text: str | None = None
    ) -> Copy:
        """Return the copy for the dead-letter queue, without a failure record if there is no room for one."""
        # Raises `NoDeadLetterQueue` if there is none or the message is too large for it, and `FactsNeeded`.
        delivery, options = failure.delivery, self._steps.of(failure.queue).dead_letter
        _refuse_missing_body(delivery)
        target = dead_letter_queue(delivery, outcome.queue, self._situation.source)
        self._situation.limit_of(target)  # before any hook of the user's is called
        with_traceback, reason = options.include_traceback, outcome.reason or failure.reason
        whole = dead_letter_record(failure, reason, at, include_traceback=with_traceback, origin=origin, text=text)
        record = redacted(self._enriched(whole, failure, options), delivery, options, self.notices)
        return self._fitted(
            Copy(delivery, delivery.body, target, [self._attributes_of(delivery)], 0), record, may_go_without=True
        )

    def resend(self, failure: Failure, decision: Decision) -> Copy:
        """Return the copy for a resend, always with its `Tarry` attribute. Raises `CannotCopy`, `FactsNeeded`."""
        delivery, outcome, options = failure.delivery, decision.outcome, self._steps.of(failure.queue).dead_letter
        now = self._situation.now
        if outcome.body is None:
            _refuse_missing_body(delivery)
        body, attributes = _contents(delivery, outcome)
        target = named_queue(outcome.queue, delivery.source) if outcome.queue else delivery.source
        until = None if outcome.delay is None else decision.decided_at + outcome.delay
        delay, due = _delay_and_due(until, target, now)
        self._situation.limit_of(target)  # before any hook of the user's is called
        at, full, note = decision.decided_at, options.include_traceback, outcome.note or {}
        seconds = None if outcome.delay is None else int(outcome.delay)
        record = copy_record(
            failure, at, carried=failure.attempt, note=note, due=due, delay=seconds, include_traceback=full
        )
        if body != delivery.body or attributes != sendable_attributes(delivery):
            record = edited(record, body, now)
        draft = Copy(delivery, body, target, [attributes], delay, until)
        return self._fitted(draft, redacted(record, delivery, options, self.notices), may_go_without=False)

    def waiting(self, decision: Decision, until: float) -> Copy:
        """Return the copy that waits in the message's own queue ``until`` then (epoch seconds). Raises as `resend`."""
        delivery, failure, now = decision.delivery, decision.failure, self._situation.now
        options = self._steps.of(delivery.queue).dead_letter
        _refuse_missing_body(delivery)
        self._situation.limit_of(delivery.source)  # before any hook of the user's is called
        delay, due = _delay_and_due(until, delivery.source, now)
        if decision.outcome.reason == "not_due" and due is not None:
            due = delivery.due  # as the producer set it, also if this copy waits for only a part
        carried = delivery.attempt
        if decision.outcome.kind in ("defer", "wait"):  # the attempts before this delivery
            carried = max(delivery.envelope.carried if delivery.envelope else 0, carried - 1)
        if failure is None:
            record = waiting_record(delivery, carried, due=due, note=decision.outcome.note or {})
        else:
            at, full = decision.decided_at, options.include_traceback
            seconds = math.ceil(max(0, until - at))
            record = copy_record(failure, at, carried=carried, note={}, due=due, delay=seconds, include_traceback=full)
        draft = Copy(delivery, delivery.body, delivery.source, [self._attributes_of(delivery)], delay, until)
        return self._fitted(draft, redacted(record, delivery, options, self.notices), may_go_without=False)

    def _fitted(self, draft: Copy, record: Record, *, may_go_without: bool) -> Copy:
        """Return the copy with as much of its `Tarry` attribute as fits beside its body and other attributes."""
        target, body, [attributes] = draft.target, draft.body, draft.variants
        limit, is_known = self._situation.limit_of(target)
        room = limit - message_size(body, attributes)
        if room < 0:
            why = f"it has {limit - room} bytes, and {target.name} accepts {limit}: raise its MaximumMessageSize"
            raise NoDeadLetterQueue(why) if may_go_without else CannotCopy(why)
        has_place = len(attributes) < MAX_ATTRIBUTES and ATTRIBUTE not in attributes
        space = room - message_size("", _with_record({}, ""))
        whole = dump(record)
        text = None if not has_place else whole if len(whole) <= space else fit(record, space)
        if text is None:
            if not may_go_without:
                raise CannotCopy("there is no space for its Tarry attribute")
            why = "The message is dead-lettered without a failure record: there is no space. The field record has it."
            self.notices.append(shown_in_log("record_in_log", why, record))
            return draft
        if is_cut := text is not whole:
            self.notices.append(record_cut(record))
        variants = [_with_record(attributes, text)]
        if not is_known:  # smaller ones to try if SQS refuses the copy as too large
            lighter = dump(smallest(record))
            variants += [_with_record(attributes, lighter)] if len(lighter) < len(text) else []
            variants += [attributes] if may_go_without else []
        room = space - len(text) if is_known else 0
        return draft._changed(variants=variants, record=None if is_cut else record, room=room)

    def _attributes_of(self, delivery: Delivery) -> Attributes:
        """Return the message's attributes; log the names of those that a copy cannot have."""
        if reserved := [name for name in delivery.user_attributes if is_reserved(name)]:
            names = ", ".join(reserved)
            text = f"Copied without the attributes {names}: SQS refuses names that begin with AWS. or Amazon."
            self.notices.append(Notice("attributes_left_out", text, level=WARNING))
        return sendable_attributes(delivery)

    def _enriched(self, record: dict[str, Any], failure: Failure, options: DeadLetter) -> dict[str, Any]:
        if options.enrich is None:
            return record
        try:
            extra = call("DeadLetter's enrich", _plain, options.enrich, failure)
        except BaseException as error:  # noqa: BLE001 a user's hook
            text = (
                f"DeadLetter's enrich raised, or returned no JSON ({type_name(error)}). The dead letter has no extra."
            )
            self.notices.append(Notice("enrich_failed", text))
            return record
        return {**record, "extra": extra}


def _plain(hook: Callable[[Any], Record], argument: object) -> dict[str, Any]:
    """Return the answer of a hook as plain values, not instances of a user's classes."""
    plain: dict[str, Any] = json.loads(dump(dict(hook(argument))))
    return plain


def redacted(record: dict[str, Any], delivery: Delivery, options: DeadLetter, notices: list[Notice]) -> dict[str, Any]:
    """Return a `Tarry` attribute after `DeadLetter`'s ``redact``; add a log line to ``notices`` if the hook fails."""
    if options.redact is None or "failure" not in record:  # without a failure, there is nothing to redact
        return record
    identity = {name: record[name] for name in ESSENTIAL if name in record}
    try:
        changed = {**call("DeadLetter's redact", _plain, options.redact, json.loads(dump(record))), **identity}
        Envelope(changed, delivery.invocation.started_at)  # raises if a consumer could not read it
    except BaseException as error:  # noqa: BLE001 a user's hook
        what = "returned an invalid record" if is_a(error, UnreadableRecord) else "raised"
        text = f"DeadLetter's redact {what} ({type_name(error)}). Only the ids, the reason and the type are kept."
        kept = smallest(record)
        kept["failure"] |= {"type": record["failure"]["type"]} if "type" in record["failure"] else {}
        notices.append(Notice("redact_failed", text))
        return kept
    return changed


def _refuse_missing_body(delivery: Delivery) -> None:
    if not isinstance(delivery.record.get("body"), str):
        raise NoDeadLetterQueue("its record has no body to send")


def _contents(delivery: Delivery, outcome: Outcome) -> tuple[str, Attributes]:
    """Return the body and attributes that a failure step asks for. Raises `CannotCopy` if SQS would refuse them."""
    from tarry.sqs.outgoing import body_text, sendable

    try:
        body = delivery.body if outcome.body is None else body_text(outcome.body)
        if outcome.attributes is None:
            return body, sendable_attributes(delivery)
        if ATTRIBUTE in outcome.attributes:
            raise ValueError(f"the attribute name {ATTRIBUTE} is reserved for tarry")
        return body, sendable(outcome.attributes)
    except Exception as error:
        why = "its body or an attribute has a type that SQS does not accept"  # a TypeError's text may show the body
        why = str(error) if isinstance(error, ValueError) else why
        raise CannotCopy(f"SQS would refuse the copy ({why})") from error


def _delay_and_due(until: float | None, target: QueueArn, now: float) -> tuple[int | None, float | None]:
    """Return the ``DelaySeconds`` of a copy that waits ``until`` then, and its due time if they do not cover it."""
    if until is None or target.is_fifo:
        return None, None
    seconds = max(0, math.ceil(until - now))
    return (seconds, None) if seconds <= MAX_DELAY_SECONDS else (MAX_DELAY_SECONDS, until)


def _with_record(attributes: Attributes, text: str) -> Attributes:
    return {**attributes, ATTRIBUTE: {"DataType": "String", "StringValue": text}}
