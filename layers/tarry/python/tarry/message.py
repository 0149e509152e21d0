"""What a handler sees of a message and a batch, and what it can say of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic

from tarry.delay import MAX_VISIBILITY_SECONDS, Delay, epoch_seconds, longest_wait
from tarry.errors import ConfigurationError, DelayNotSupported, Undecodable
from tarry.policy.attempts import attempt_number, receive_count, seconds_until_due
from tarry.signals import Defer, Discard, Reject, Retry, delay_of, find_signal
from tarry.support.arn import QueueArn, queue_arn
from tarry.support.causes import is_a
from tarry.verdict import ACK, Verdict, name_of_verdict, outcome_of

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
    from typing_extensions import TypeVar

    from tarry.batch import Batch
    from tarry.envelope.attribute import Envelope, FailureRecord
    from tarry.invocation import Invocation
    from tarry.outcome import Outcome

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


_UNREAD: Any = object()


class Message(Generic[T]):
    """One SQS message, as it was delivered.

    Say what becomes of it with `ack`, `retry`, `reject`, `discard`, `defer` or `fail`; the first word wins. Returning
    from the handler without a word acknowledges it.
    """

    # Defaults of the class, and no __slots__: most messages of a batch of thousands never need one of their own.
    _batch: Batch[T] | None = None
    _word: Verdict | None = None
    _decided: Outcome | None = None
    _envelope: Envelope | None = None
    _behind = False
    _payload: Any = _UNREAD
    _is_closed = False
    """Whether its handler has ended: a verdict that comes later is ignored."""
    _verdict_at: float | None = None
    """When its own verdict fell in a batch handler, in epoch seconds (SPEC C11)."""

    def __init__(self, record: dict[str, Any], message_id: str, invocation: Invocation) -> None:
        self._record = record
        self._delivery_id = message_id  # kept apart: a handler may change the record
        self._invocation = invocation

    def __repr__(self) -> str:
        return f"<Message {self.id!r} of {self.queue}, attempt {self.attempt}>"

    # what it is

    @property
    def id(self) -> str:
        """The message's stable id: the same for all copies that tarry made of it."""
        return self._envelope.id if self._envelope else self.delivery_id

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
        """The body decoded from JSON, anew at each call.

        Raises `Undecodable` if it is no JSON; left uncaught, that dead-letters the message and never retries it.
        """
        import json

        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"the body of message {self.id} is not JSON: {error}") from error

    @property
    def payload(self) -> T:
        """The body as the consumer's ``model``: the same object each time.

        It was made before the handler got the message. Elsewhere (a failure step, a hook) it is made at the first use,
        and raises `Undecodable` for a body that does not fit. Raises `ConfigurationError` if there is no model.
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
        """The user's message attributes: String as str, Number as int or Decimal, Binary as bytes.

        tarry's own record is not among them, so that copying them does not copy it.
        """
        return {
            name: attribute_value(attribute)
            for name, attribute in self._user_attributes().items()
            if isinstance(attribute, Mapping)
        }

    @property
    def record(self) -> SQSRecord:
        """The record as Powertools' ``SQSRecord``; ``record.raw_event`` is a copy of what Lambda handed over.

        Raises `ModuleNotFoundError` if Powertools is not installed.
        """
        from copy import deepcopy

        try:
            from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
        except ModuleNotFoundError as error:
            text = "message.record needs Powertools: add aws-lambda-powertools to the function, or its layer"
            raise ModuleNotFoundError(text, name=error.name) from error

        return SQSRecord(deepcopy(self._record))  # a copy: what becomes of the message must not depend on its use

    @property
    def queue(self) -> str:
        """The name of the queue it came from."""
        return self._source.name

    @property
    def group_id(self) -> str | None:
        """Its ``MessageGroupId``. Only on a FIFO queue does it stand for an order."""
        group = self._system("MessageGroupId")
        return group if isinstance(group, str) else None

    @property
    def sent_at(self) -> datetime | None:
        """When it was first sent, in UTC; None if its record does not say it."""
        from datetime import UTC, datetime

        if self._envelope and self._envelope.sent:
            return datetime.fromisoformat(self._envelope.sent)
        sent = self._sent_to_queue_at
        return None if sent is None else datetime.fromtimestamp(sent, UTC)

    @property
    def context(self) -> Any:
        """The Lambda context of this invocation."""
        return self._invocation.context

    # how often it was tried

    @property
    def receive_count(self) -> int:
        """SQS's own ``ApproximateReceiveCount``, 1 if it cannot be read."""
        return receive_count(self._system("ApproximateReceiveCount"))

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1: an upper bound of the handler's runs, since SQS counts receives.

        A crash, a throttled invocation and a message given back count as well.
        """
        first_received_at, due, behind = self._first_received_at, self._due, self._behind
        return attempt_number(self.receive_count, self._envelope, first_received_at, due=due, behind=behind)

    @property
    def max_attempts(self) -> int | None:
        """The policy's limit; None if nothing is retried in place."""
        return self._invocation.max_attempts_of(self.queue)

    @property
    def is_last_attempt(self) -> bool | None:
        """Whether the policy retries no more if this attempt fails; None if nothing is retried in place."""
        return None if self.max_attempts is None else self.attempt >= self.max_attempts

    @property
    def failure(self) -> FailureRecord | None:
        """The record of earlier failures, if it was dead-lettered or sent again before."""
        return self._envelope.failure if self._envelope else None

    # what can be said of it

    def ack(self) -> None:
        """Done with: it is deleted. Ignored if something was said before."""
        if self._batch is not None and isinstance(self._batch._word, Retry):
            return self._ignore(ACK, self._batch._word)
        self._say(ACK)

    def retry(self, delay: Delay | None = None) -> None:
        """This attempt failed; again in ``delay``, or when the policy's backoff says if it is None.

        In an ``except`` block the exception at hand is kept as the reason.

        ``delay`` is in seconds, a ``timedelta`` or an aware ``datetime``; rounded up to whole seconds; 0 is at once.
        Raises `ValueError` if it is no delay, `DelayNotSupported` if it is longer than 43,200 seconds; on FIFO, where
        a message can only wait in place, that counts from its receive.
        """
        word = Retry(delay)
        self._check_delay(word)
        word.__cause__ = sys.exception()  # said in an `except` block: that is why
        if self._batch is not None and self._batch._word is ACK:
            return self._ignore(word, ACK)
        self._say(word)

    def reject(self, reason: str | None = None) -> None:
        """Dead-letter it now: no further attempt. In an ``except`` block the record shows that exception too."""
        word = Reject(reason)
        word.__context__ = sys.exception()
        self._say(word)

    def discard(self, reason: str | None = None) -> None:
        """Done with, keep nothing of it: deleted, with a log line."""
        self._say(Discard(reason))

    def defer(self, delay: Delay) -> None:
        """Not now: again in ``delay``, at least a second. Not a failure, and no attempt.

        The message is sent to its queue again, since SQS counts every receive of one that stays; that takes
        ``sqs:SendMessage`` on its own queue, and is a hop (`SendAgain`). On FIFO, and where it cannot be sent again, it
        waits in place, and that delivery counts as an attempt.

        Raises `ValueError` and `DelayNotSupported` like `retry`.
        """
        word = Defer(delay)
        self._check_delay(word)
        self._say(word)

    def fail(self, error: BaseException) -> None:
        """This message failed with ``error``; the policy decides. How a bulk handler reports item by item.

        An error that carries a verdict (`tarry.signals`) is that verdict; its delay is checked as by `retry`.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes the exception with which the message failed, got {error!r}")
        signal = find_signal(error)
        if is_a(signal, Retry) or is_a(signal, Defer):
            self._check_delay(signal)
        self._say(error)

    def extend(self, seconds: float | timedelta) -> None:
        """Keep the message invisible to others for ``seconds`` from now, never for less than it is known to be.

        For a handler that finds out that it needs more time than the queue's visibility timeout. It makes one request
        (``sqs:ChangeMessageVisibility``); on FIFO the messages of its group that wait behind it in the batch are
        extended too. SQS allows 12 hours in all since the receive: what is asked beyond that is cut.

        In an async handler await `extend_async`: this method blocks the event loop.

        Raises `LeaseLost` if another consumer may have the message by now, or its handler has ended: stop working on
        it. Raises `ValueError` if ``seconds`` is not above 0 and at most 43,200, and otherwise what boto3 raises.
        """
        self._invocation.extending.extend(self, seconds)

    async def extend_async(self, seconds: float | timedelta) -> None:
        """Do what `extend` does, without blocking the event loop."""
        await self._invocation.extending.extend_async(self, seconds)

    @property
    def outcome(self) -> Outcome | None:
        """What becomes of it; None until something was said (after `fail`: until the policy decided)."""
        return self._decided or (None if self._word is None else outcome_of(self._word))

    # inside

    def _say(self, word: Verdict) -> None:
        if self._is_closed:
            self._ignore(word, None)
        elif self._word is None:
            self._word = word
            if word is ACK:
                self._ack_eagerly()
            elif self._batch is not None:
                self._verdict_at = self._invocation.now()
                if self._invocation.on_verdict is not None:
                    self._invocation.on_verdict(self)
        else:
            self._ignore(word, self._word)

    def _ack_eagerly(self) -> None:
        """Has it deleted while its handler still runs, where acknowledgements go out at once: what is said then holds.

        On FIFO that waits for the handler's return: the next of its group may not come while it runs.
        """
        if self._can_be_deleted_now and (acks := self._invocation.acks) is not None:
            self._word = ACK
            acks.add(self)

    @property
    def _can_be_deleted_now(self) -> bool:
        """Whether an acknowledgement may delete the message while its handler still runs."""
        is_free = not self._is_closed and (self._word is None or self._word is ACK)
        return is_free and not self._source.is_fifo and self._invocation.acks is not None

    def _ignore(self, word: Verdict, earlier: Verdict | None) -> None:
        why = "its handler had ended" if earlier is None else f"{name_of_verdict(earlier)} was said before"
        self._invocation.log.ignored(self, name_of_verdict(word), why)

    def _check_delay(self, word: Retry | Defer) -> None:
        """On FIFO it must be kept in place; elsewhere what is too long for that goes by a copy (SPEC J4)."""
        seconds = delay_of(word) or 0
        is_fifo = self._source.is_fifo
        if seconds > (longest := self._longest_wait() if is_fifo else MAX_VISIBILITY_SECONDS):
            why = "SQS hides a message for at most 43200 seconds from its receive"
            raise DelayNotSupported(
                f"delay must be between 0 and {longest} seconds{' here' if is_fifo else ''}, got {seconds}: {why}; "
                "docs/sending.md has a recipe with EventBridge Scheduler"
            )

    def _longest_wait(self) -> int:
        received_at = self._first_received_at if self.receive_count == 1 else None
        invocation = self._invocation
        return longest_wait(received_at=received_at, invoked_at=invocation.started_at, now=invocation.now())

    @property
    def _due(self) -> float | None:
        """When it is to run at the earliest. On FIFO nothing is: hiding a message would hold up its group."""
        return None if self._envelope is None or self._source.is_fifo else self._envelope.due

    def _seconds_until_due(self) -> int | None:
        """For how long it is to be hidden instead of run; None if it may run."""
        now = self._invocation.world.clock.time()
        receives = self._system("ApproximateReceiveCount")
        return seconds_until_due(self._due, self._first_received_at, receives, now)

    @property
    def _source(self) -> QueueArn:
        return queue_arn(self._record.get("eventSourceARN"))

    def _system(self, name: str) -> Any:
        attributes = self._record.get("attributes")
        return attributes.get(name) if isinstance(attributes, Mapping) else None

    @property
    def _receipt_handle(self) -> str | None:
        handle = self._record.get("receiptHandle")
        return handle if handle and isinstance(handle, str) else None

    @property
    def _first_received_at(self) -> float | None:
        return epoch_seconds(self._system("ApproximateFirstReceiveTimestamp"))

    @property
    def _sent_to_queue_at(self) -> float | None:
        """When SQS got this delivery's message: what its retention counts from."""
        return epoch_seconds(self._system("SentTimestamp"))

    def _user_attributes(self) -> dict[str, Any]:
        """As the event has them, without our record."""
        attributes = self._record.get("messageAttributes")
        if not isinstance(attributes, Mapping):
            return {}
        from tarry.envelope.attribute import ATTRIBUTE, is_ours

        ours = ATTRIBUTE in attributes and is_ours(attributes[ATTRIBUTE])
        return {name: value for name, value in attributes.items() if not (ours and name == ATTRIBUTE)}


def attribute_value(attribute: Mapping[str, Any]) -> Any:
    """The value of an attribute as an event has it."""
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
