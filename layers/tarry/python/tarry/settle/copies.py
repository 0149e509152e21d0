"""Copies of messages: their target, their delay, and as much of the `Tarry` attribute as fits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tarry.message.failure_record import copy_record, dead_letter_record, edited, fit, hops_of, smallest, waiting_record
from tarry.message.notices import WARNING, Notice
from tarry.observe.logs import MAX_RECORD_BYTES
from tarry.record.attribute import ATTRIBUTE, ESSENTIAL, Envelope, UnreadableRecord, dump
from tarry.settle.plans import NoDeadLetterQueue, dead_letter_queue, may_hop
from tarry.sqs.limits import MAX_ATTRIBUTES, is_reserved, message_size
from tarry.sqs.outgoing import body_text, sendable
from tarry.support.causes import is_a, type_name
from tarry.support.delays import MAX_DELAY_SECONDS, MOMENT_SECONDS
from tarry.support.hooks import call
from tarry.support.values import Value, named_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.decide.decision import Decision
    from tarry.decide.steps import DeadLetter, FailureSteps
    from tarry.message.delivery import Delivery
    from tarry.message.failure import Failure
    from tarry.message.outcomes import Outcome
    from tarry.settle.plans import Situation
    from tarry.support.values import QueueArn

Attributes = dict[str, dict[str, Any]]
Record = Mapping[str, Any]


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
    delay: int | None
    """``DelaySeconds``; None is the queue's own delay, the only one on FIFO."""
    until: float | None
    """When the delay ends, in epoch seconds, so that a copy that is sent later has a shorter ``DelaySeconds``."""
    record: Record | None
    """The uncut `Tarry` attribute, for the log if SQS refuses the first variant as too large; None if it is logged."""
    room: int
    """How many more bytes the target surely accepts."""
    transfer: str
    """The source of the deduplication id on FIFO: by default, this delivery and this target."""

    def __init__(
        self,
        delivery: Delivery,
        target: QueueArn,
        variants: Sequence[Attributes],
        delay: int | None,
        record: Record | None = None,
        transfer: str = "",
        *,
        body: str | None = None,
        until: float | None = None,
    ) -> None:
        self._freeze(
            delivery=delivery,
            body=delivery.body if body is None else body,
            target=target,
            variants=variants,
            delay=delay,
            until=until,
            record=record,
            room=0,
            transfer=transfer or f"{delivery.delivery_id} {target}",
        )

    def with_record(self, variants: Sequence[Attributes], record: Record | None, room: int) -> Copy:
        """Return the copy with the `Tarry` attribute added."""
        return self._changed(variants=variants, record=record, room=room)

    def delay_seconds(self, now: float) -> int | None:
        """Return ``DelaySeconds`` for a send ``now`` (epoch seconds)."""
        if self.delay is None or self.until is None:
            return self.delay
        left = math.ceil(self.until - now - MOMENT_SECONDS)
        return min(MAX_DELAY_SECONDS, max(0, left))

    @property
    def size(self) -> int:
        return message_size(self.body, self.variants[0])


def record_cut(record: Record) -> Notice:
    """Return the log line that shows a record of which only a part is sent."""
    return shown_in_log(
        "record_cut", "The failure record was cut to fit beside the message. The field record has all of it.", record
    )


def shown_in_log(event: str, text: str, record: Record) -> Notice:
    """Return a log line with a record that does not fit beside its message."""
    fitted = fit(record, MAX_RECORD_BYTES)
    shown = smallest(record) if fitted is None else json.loads(fitted)
    return Notice(event, text, level=WARNING, more={"record": shown})


def sendable_attributes(delivery: Delivery) -> Attributes:
    """Return a message's user attributes in the form that a send takes, with binary values decoded.

    Attributes with reserved names are left out: SQS refuses them in a send (`is_reserved`).
    """
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
        """Return the copy for the dead-letter queue, without a failure record if there is no room for one.

        ``origin`` and ``text``: as for `dead_letter_record`.

        Raises:
            NoDeadLetterQueue: There is none, or the message is too large for it.
            FactsNeeded: The size limit of the target was not looked up.
        """
        delivery, options = failure.delivery, self._steps.of(failure.queue).dead_letter
        _refuse_missing_body(delivery)
        target = dead_letter_queue(delivery, outcome.queue, self._situation.source)
        self._situation.limit_of(target)  # before any hook of the user's is called
        with_traceback = options.include_traceback
        reason = outcome.reason or failure.reason
        whole = dead_letter_record(failure, reason, at, include_traceback=with_traceback, origin=origin, text=text)
        record = self._redacted(self._enriched(whole, failure, options), delivery, options)
        return self._fitted(Copy(delivery, target, [self._attributes_of(delivery)], 0), record, may_go_without=True)

    def resend(self, failure: Failure, decision: Decision) -> Copy:
        """Return the copy for a resend, always with its `Tarry` attribute.

        Raises:
            CannotCopy: There is no room for the attribute, or SQS does not accept the body or attributes.
            FactsNeeded: The size limit of the target was not looked up.
        """
        delivery, outcome, options = failure.delivery, decision.outcome, self._steps.of(failure.queue).dead_letter
        now = self._situation.now
        if outcome.body is None:
            _refuse_missing_body(delivery)
        body, attributes = _contents(delivery, outcome)
        target = named_queue(outcome.queue, delivery.source) if outcome.queue else delivery.source
        until = None if outcome.delay is None else decision.decided_at + outcome.delay
        delay, due = _delay_and_due(until, target, now)
        self._situation.limit_of(target)  # before any hook of the user's is called
        record = copy_record(
            failure,
            decision.decided_at,
            carried=failure.attempt,
            note=outcome.note or {},
            due=due,
            delay=None if outcome.delay is None else int(outcome.delay),
            include_traceback=options.include_traceback,
        )
        if body != delivery.body or attributes != sendable_attributes(delivery):
            record = edited(record, body, now)
        draft = Copy(delivery, target, [attributes], delay, body=body, until=until)
        return self._complete(draft, self._redacted(record, delivery, options))

    def waiting(self, decision: Decision, until: float) -> Copy:
        """Return the copy that waits in the message's own queue ``until`` then (epoch seconds).

        Raises:
            CannotCopy: There is no room for the `Tarry` attribute.
            FactsNeeded: The size limit of the queue was not looked up.
        """
        delivery, failure, now = decision.delivery, decision.failure, self._situation.now
        options = self._steps.of(delivery.queue).dead_letter
        _refuse_missing_body(delivery)
        self._situation.limit_of(delivery.source)  # before any hook of the user's is called
        delay, due = _delay_and_due(until, delivery.source, now)
        if decision.outcome.reason == "not_due" and due is not None:
            due = delivery.due  # as the producer set it, also if this copy waits for only a part
        counts = decision.outcome.kind not in ("defer", "wait")
        carried = delivery.attempt if counts else _attempts_before(delivery)
        if failure is None:
            record = waiting_record(delivery, carried, due=due, note=decision.outcome.note or {})
        else:
            with_traceback = options.include_traceback
            record = copy_record(
                failure,
                decision.decided_at,
                carried=carried,
                note={},
                due=due,
                delay=math.ceil(max(0, until - decision.decided_at)),
                include_traceback=with_traceback,
            )
        draft = Copy(delivery, delivery.source, [self._attributes_of(delivery)], delay, until=until)
        return self._complete(draft, self._redacted(record, delivery, options))

    def _complete(self, draft: Copy, record: Record) -> Copy:
        """Return a copy that must have its `Tarry` attribute; warn if it was sent to its own queue many times."""
        copy = self._fitted(draft, record, may_go_without=False)
        if not may_hop(draft.delivery):
            hops = hops_of(draft.delivery) + 1
            text = f"The message was sent again {hops} times. Lambda stops at about 16, unless RecursiveLoop is Allow."
            self.notices.append(Notice("many_hops", text))
        return copy

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
            notice = shown_in_log(
                "record_in_log",
                "The message is dead-lettered without a failure record: there is no space. The field record has it.",
                record,
            )
            self.notices.append(notice)
            return draft
        if is_cut := text is not whole:
            self.notices.append(record_cut(record))
        lighter = [] if is_known else _lighter(text, dump(smallest(record)))
        variants = [_with_record(attributes, variant) for variant in [text, *lighter]]
        if not is_known and may_go_without:
            variants.append(attributes)
        return draft.with_record(variants, None if is_cut else record, space - len(text) if is_known else 0)

    def _attributes_of(self, delivery: Delivery) -> Attributes:
        """Return the message's attributes; log the names of those that a copy cannot have."""
        names = [name for name in delivery.user_attributes if is_reserved(name)]
        if names:
            text = (
                f"Copied without the attributes {', '.join(names)}: SQS refuses names that begin with AWS. or Amazon."
            )
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

    def _redacted(self, record: dict[str, Any], delivery: Delivery, options: DeadLetter) -> Record:
        record, notice = redacted(record, delivery, options)
        if notice is not None:
            self.notices.append(notice)
        return record


def _plain(hook: Callable[[Any], Record], argument: object) -> dict[str, Any]:
    """Return the answer of a hook as plain values, not instances of a user's classes."""
    plain: dict[str, Any] = json.loads(dump(dict(hook(argument))))
    return plain


def redacted(record: dict[str, Any], delivery: Delivery, options: DeadLetter) -> tuple[dict[str, Any], Notice | None]:
    """Return a `Tarry` attribute after `DeadLetter`'s ``redact``, and a log line if the hook failed."""
    if options.redact is None or "failure" not in record:  # without a failure, there is nothing to redact
        return record, None
    identity = {name: record[name] for name in ESSENTIAL if name in record}
    try:
        changed = {**call("DeadLetter's redact", _plain, options.redact, json.loads(dump(record))), **identity}
        Envelope(changed, delivery.invocation.started_at)  # raises if a consumer could not read it
    except BaseException as error:  # noqa: BLE001 a user's hook
        what = "returned an invalid record" if is_a(error, UnreadableRecord) else "raised"
        text = f"DeadLetter's redact {what} ({type_name(error)}). Only the ids, the reason and the type are kept."
        kept = smallest(record)
        kept["failure"] |= {"type": record["failure"]["type"]} if "type" in record["failure"] else {}
        return kept, Notice("redact_failed", text)
    return changed, None


def _attempts_before(delivery: Delivery) -> int:
    """Return the number of attempts before this delivery."""
    carried = delivery.envelope.carried if delivery.envelope else 0
    return max(carried, delivery.attempt - 1)


def _refuse_missing_body(delivery: Delivery) -> None:
    if not isinstance(delivery.record.get("body"), str):
        raise NoDeadLetterQueue("its record has no body to send")


def _contents(delivery: Delivery, outcome: Outcome) -> tuple[str, Attributes]:
    """Return the body and attributes of a copy that a failure step asks for.

    Raises:
        CannotCopy: JSON cannot represent the body, or SQS does not accept the body or the attributes.
    """
    try:
        body = delivery.body if outcome.body is None else body_text(outcome.body)
        if outcome.attributes is None:
            return body, sendable_attributes(delivery)
        if ATTRIBUTE in outcome.attributes:
            raise ValueError(f"the attribute name {ATTRIBUTE} is reserved for tarry")
        return body, sendable(outcome.attributes)
    except Exception as error:
        why = (
            str(error)
            if isinstance(error, ValueError)
            else "its body or an attribute has a type that SQS does not accept"
        )
        raise CannotCopy(f"SQS would refuse the copy ({why})") from error  # a TypeError's text may show the body


def _delay_and_due(until: float | None, target: QueueArn, now: float) -> tuple[int | None, float | None]:
    """Return the ``DelaySeconds`` of a copy, and its due time (epoch seconds) if they cannot cover the whole delay.

    ``until``: when the requested delay ends; a part of it may be over by now. On FIFO it can only be 0.
    """
    if until is None or target.is_fifo:
        return None, None
    seconds = max(0, math.ceil(until - now))
    return (seconds, None) if seconds <= MAX_DELAY_SECONDS else (MAX_DELAY_SECONDS, until)


def _lighter(text: str, smallest_text: str) -> list[str]:
    """Return smaller attributes to try if SQS refuses a copy as too large for a target whose limit is not known."""
    return [smallest_text] if len(smallest_text) < len(text) else []


def _with_record(attributes: Attributes, text: str) -> Attributes:
    return {**attributes, ATTRIBUTE: {"DataType": "String", "StringValue": text}}
