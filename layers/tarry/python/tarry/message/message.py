"""The message that a handler gets, and the verdicts it can give on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tarry.errors import ConfigurationError, Undecodable
from tarry.message.outcomes import ACK, Defer, Discard, Reject, Retry, find_signal, outcome_of
from tarry.support.guards import Forked, is_a
from tarry.support.values import queue_arn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import Any, Generic

    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
    from typing_extensions import TypeVar

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation
    from tarry.message.outcomes import Outcome, Verdict
    from tarry.record.attribute import FailureRecord
    from tarry.support.values import Delay

    T = TypeVar("T", default=Any)
else:
    from tarry.support.values import Generic

    T = None


_UNREAD: Any = object()


class Message(Generic[T]):
    """One SQS message, as it was delivered.

    A handler gives its verdict with `ack`, `retry`, `reject`, `discard`, `defer` or `fail`; the first one counts.
    Returning without a verdict acknowledges the message.
    """

    # Defaults of the class: most messages never set any of these.
    _payload: Any = _UNREAD
    _made: Delivery | None = None

    def __init__(self, record: dict[str, Any], delivery_id: str, invocation: Invocation) -> None:
        self._record = record
        self._delivery_id = delivery_id  # stored separately: a handler may change the record
        self._invocation = invocation

    def __repr__(self) -> str:
        return f"<Message {self.id!r} of {self.queue}, attempt {self.attempt}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _OF_POWERTOOLS]

    @property
    def id(self) -> str:
        """The message's stable id: the same for all copies that tarry made of it."""
        made = self._made or self._invocation.deliveries.get(self._delivery_id)
        return self._delivery_id if made is None else made.id

    @property
    def delivery_id(self) -> str:
        """SQS's own ``messageId``."""
        return self._delivery_id

    @property
    def body(self) -> str:
        """The body as it was sent."""
        body = self._record.get("body")
        return body if isinstance(body, str) else ""

    def json(self) -> Any:
        """Return the body decoded from JSON, anew at each call.

        Raises:
            Undecodable: The body is not JSON. If the handler does not catch it, the message is dead-lettered and not
                retried.
        """
        import json

        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"the body of message {self.id} is not JSON: {error}") from error

    @property
    def payload(self) -> T:
        """The body as the consumer's ``model``: the same object each time.

        The handler only gets messages whose body matches the model. In a failure step or hook, the first use may raise.

        Raises:
            ConfigurationError: The consumer has no model.
            Undecodable: The body does not match the model.
        """
        if self._payload is _UNREAD:
            reader = self._invocation.payload_reader
            if reader is None:
                raise ConfigurationError(
                    "message.payload needs a model: set model=Order in the consumer's decorator, "
                    "or annotate the handler's parameter Message[Order] or Batch[Order]"
                )
            self._payload = reader.read(self)
        payload: T = self._payload
        return payload

    @property
    def attributes(self) -> dict[str, Any]:
        """The message attributes: String as str, Number as int or Decimal, Binary as bytes.

        The `Tarry` attribute is not among them, so that copying them does not copy it.
        """
        return {
            name: attribute_value(attribute)
            for name, attribute in self._delivery.user_attributes.items()
            if isinstance(attribute, Mapping)
        }

    @property
    def record(self) -> SQSRecord:
        """A copy of the event's record as Powertools' ``SQSRecord``.

        Raises:
            ModuleNotFoundError: Powertools is not installed.
        """
        from copy import deepcopy

        try:
            from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
        except ModuleNotFoundError as error:
            text = "message.record needs Powertools: add aws-lambda-powertools to the function, or its layer"
            raise ModuleNotFoundError(text, name=error.name) from error

        return SQSRecord(deepcopy(self._record))  # a copy, so that changes to it do not affect the message

    @property
    def queue(self) -> str:
        """The name of the queue that the message came from."""
        return self._delivery.queue

    @property
    def group_id(self) -> str | None:
        """The ``MessageGroupId``. It stands for an order on FIFO queues only."""
        return self._delivery.group_id

    @property
    def sent_at(self) -> datetime | None:
        """When the message was first sent, in UTC; None if the record does not say."""
        return self._delivery.sent_at

    @property
    def logger_keys(self) -> dict[str, Any]:
        """The ids of the message as keys for a structured logger, with the names of the fields in tarry's own lines.

        ``message_id``, ``delivery_id``, ``queue``, ``attempt``, and ``group_id`` if there is one. Powertools' `Logger`
        shows them without a call on all lines of a handler of one message.
        """
        attributes = self._record.get("attributes")
        if (
            self._made is None
            and self._delivery_id not in self._invocation.deliveries
            and type(attributes) is dict
            and attributes.get("ApproximateReceiveCount") == "1"
            and "MessageGroupId" not in attributes
        ):  # most messages: their keys need no object
            queue = queue_arn(self._record.get("eventSourceARN")).name
            return {"message_id": self._delivery_id, "delivery_id": self._delivery_id, "queue": queue, "attempt": 1}
        delivery = self._made or self._invocation.delivery(self._delivery_id, self._record, keep=False)
        keys: dict[str, Any] = {
            "message_id": delivery.id,
            "delivery_id": self._delivery_id,
            "queue": delivery.queue,
            "attempt": delivery.attempt,
        }
        return keys if (group := delivery.group_id) is None else {**keys, "group_id": group}

    @property
    def context(self) -> Any:
        """The Lambda context of this invocation."""
        return self._invocation.context

    @property
    def receive_count(self) -> int:
        """The ``ApproximateReceiveCount`` of SQS; 1 if it cannot be read."""
        return self._delivery.receive_count

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1: an upper bound of the handler's runs, because SQS counts receives.

        A crash, a throttled invocation, and a released message count as well. With ``attempts=`` it is exact.
        """
        return self._delivery.attempt

    @property
    def max_attempts(self) -> int | None:
        """The limit of the policy; None if it is not set and ``on_failure`` has no `RetryInPlace`."""
        return self._delivery.max_attempts

    @property
    def is_last_attempt(self) -> bool | None:
        """Whether the policy does not retry the message if this attempt fails; None as for `max_attempts`."""
        return None if self.max_attempts is None else self.attempt >= self.max_attempts

    @property
    def failure(self) -> FailureRecord | None:
        """The record of earlier failures, if the message was dead-lettered or sent again before.

        In ``on_outcome``, if the message has failed in this delivery: the record of this failure.
        """
        return self._delivery.failed_now or self._delivery.failure

    def ack(self) -> None:
        """Acknowledge the message: it is deleted. Ignored if it has a verdict already."""
        of_batch = self._verdict_on_batch
        if is_a(of_batch, Retry):
            return self._delivery.ignore(ACK, of_batch)
        self._delivery.take_verdict(ACK)

    def retry(self, delay: Delay | None = None) -> None:
        """Retry the message. The attempt has failed.

        In an ``except`` block, the exception that is being handled is recorded as the reason.

        Args:
            delay: Seconds, a ``timedelta`` or an aware ``datetime``, rounded up to whole seconds; 0 is at once. None is
                the delay of the backoff.

        Raises:
            ValueError: ``delay`` is not a delay.
            DelayNotSupported: ``delay`` is longer than 43,200 seconds; on FIFO that counts from the receive.
        """
        verdict = Retry(delay)
        self._delivery.check_delay(verdict)
        verdict.__cause__ = sys.exception()  # in an `except` block, the exception is the cause
        if self._verdict_on_batch is ACK:
            return self._delivery.ignore(verdict, ACK)
        self._delivery.take_verdict(verdict)

    def reject(self, reason: str | None = None) -> None:
        """Dead-letter the message now. In an ``except`` block, the failure record shows that exception too."""
        verdict = Reject(reason)
        verdict.__context__ = sys.exception()
        self._delivery.take_verdict(verdict)

    def discard(self, reason: str | None = None) -> None:
        """Delete the message; only a log line remains."""
        self._delivery.take_verdict(Discard(reason))

    def defer(self, delay: Delay) -> None:
        """Deliver the message again after ``delay``, at least a second. This is neither a failure nor an attempt.

        A copy of the message is sent to its queue, which needs ``sqs:SendMessage`` on that queue and is a hop
        (`SendAgain`). On FIFO, and if no copy can be sent, the message waits in place, and the delivery counts as an
        attempt. With ``attempts=`` it waits in place everywhere, and the delivery does not count.

        Raises:
            ValueError: ``delay`` is not a delay.
            DelayNotSupported: As for `retry`.
        """
        verdict = Defer(delay)
        self._delivery.check_delay(verdict)
        self._delivery.take_verdict(verdict)

    def fail(self, error: BaseException) -> None:
        """Report that the message failed with ``error``; the policy decides. For batch handlers.

        An error that carries a signal (`tarry.message.outcomes`) is that verdict.

        Raises:
            TypeError: ``error`` is not an exception.
            DelayNotSupported: SQS cannot keep the delay of the signal.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes the exception with which the message failed, got {error!r}")
        signal = find_signal(error)
        if is_a(signal, Retry) or is_a(signal, Defer):
            self._delivery.check_delay(signal)
        self._delivery.take_verdict(error)

    def extend(self, seconds: float | timedelta) -> None:
        """Keep the message invisible for ``seconds`` from now, and never shorter than before.

        One request (``sqs:ChangeMessageVisibility``), and a look-up of the queue's visibility timeout, which is kept
        for 15 minutes (``sqs:GetQueueAttributes``); where that fails, the message stays invisible at least for the time
        that the function has left. On FIFO it extends the messages of the same group behind this one as well. SQS
        allows 12 hours since the receive; more is cut. In an async handler, await `extend_async`.

        Raises:
            LeaseLost: Another consumer may have the message by now, or its handler has ended. Stop working on it.
            ValueError: ``seconds`` is not above 0 and at most 43,200.
        """
        self._invocation.extending().extend(self._delivery, seconds)

    async def extend_async(self, seconds: float | timedelta) -> None:
        """Extend the visibility as `extend` does, without blocking the event loop."""
        await self._invocation.extending().extend_async(self._delivery, seconds)

    @property
    def outcome(self) -> Outcome | None:
        """The outcome; None until there is a verdict (after `fail`: until the policy has decided)."""
        delivery = self._delivery
        return delivery.outcome or (None if delivery.verdict is None else outcome_of(delivery.verdict))

    @property
    def _delivery(self) -> Delivery:
        if self._made is None:
            self._made = self._invocation.delivery(self._delivery_id, self._record, self)
        return self._made

    @property
    def _verdict_on_batch(self) -> Verdict | None:
        return None if self._invocation.batch is None else self._invocation.batch.verdict


class _Forked:
    verdict = Forked()


def mark_forked(message: Message[Any]) -> None:
    """Mark the running message of a forked child. It imports nothing: an import may fail there, or never end."""
    invocation = message._invocation
    stand_in: Any = _Forked
    delivery: Any = invocation.deliveries.setdefault(message._delivery_id, stand_in)
    if delivery is not _Forked:
        delivery.verdict = _Forked.verdict


class _OfPowertools:
    """An attribute of Powertools' ``SQSRecord`` that a message has not. Its AttributeError names the one it has."""

    # Not a ``__getattr__`` of `Message`, which would slow down all its attributes.
    def __init__(self, name: str, instead: str) -> None:
        self._text = f"'Message' object has no attribute {name!r}; use {instead}"

    def __get__(self, message: object, owner: type) -> Any:
        raise AttributeError(self._text)


_OF_POWERTOOLS = {
    "json_body": "message.json()",
    "message_attributes": 'message.attributes: message.attributes["name"] is the value',
    "message_id": "message.id, which all copies of the message have, or message.delivery_id, SQS's own",
    "event_source_arn": "message.queue, the name of the queue, or message.record.event_source_arn",
    "queue_url": "message.queue, the name of the queue, or message.record.queue_url",
}
for _name in (
    "decoded_nested_s3_event decoded_nested_sns_event aws_region event_source md5_of_body raw_event receipt_handle"
).split():
    _OF_POWERTOOLS[_name] = f"message.record.{_name}"
for _name, _instead in _OF_POWERTOOLS.items():
    setattr(Message, _name, _OfPowertools(_name, _instead))


def delivery_of(message: Message[Any]) -> Delivery:
    return message._delivery


def attribute_value(attribute: Mapping[str, Any]) -> Any:
    """Return the value of an attribute as an event has it."""
    data_type = str(attribute.get("dataType", "String")).partition(".")[0]
    if data_type == "Binary":
        from base64 import b64decode

        return b64decode(attribute.get("binaryValue") or "")
    text = attribute.get("stringValue")
    if data_type != "Number" or not isinstance(text, str):
        return text
    try:
        return int(text)
    except ValueError:
        from decimal import Decimal, InvalidOperation

        try:
            return Decimal(text)
        except InvalidOperation:
            return text
