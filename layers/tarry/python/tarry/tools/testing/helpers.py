"""Helpers for unit tests of a handler: a message, an event, a context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import NAMESPACE_OID, uuid5

from tarry.decide.retry_policy import DEFAULT_MAX_ATTEMPTS
from tarry.failed.received import event_record
from tarry.message.event import message_of
from tarry.message.invocation import Invocation
from tarry.observe.logs import Log, LogOptions
from tarry.sqs.outgoing import body_text, sendable
from tarry.tools.simulator.context import LambdaContext
from tarry.tools.simulator.sqs.message import digest_of_attributes, digest_of_body
from tarry.world import current

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.consumer import Consumer
    from tarry.message.message import Message

P = TypeVar("P")

ACCOUNT, REGION = "123456789012", "us-east-1"
REQUEST_ID = "00000000-0000-4000-8000-000000000000"


def lambda_context(remaining: float = 30) -> LambdaContext:
    """Return a Lambda context with ``remaining`` seconds left, from now on."""
    clock = current().clock
    deadline = clock.monotonic() + remaining
    return LambdaContext(
        function_name="function",
        invoked_function_arn=f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:function",
        memory_limit_in_mb="128",
        aws_request_id=REQUEST_ID,
        time_left=lambda: deadline - clock.monotonic(),
        log_stream_name="test",
    )


def sqs_event(
    *bodies: Any,
    queue: str = "orders",
    attempt: int = 1,
    attributes: Mapping[str, Any] | None = None,
    group_id: str | None = None,
) -> dict[str, Any]:
    """Return the event of a batch: a record for each body, all received for the ``attempt``-th time.

        answer = handler(sqs_event({"id": 1}, {"id": 2}), lambda_context())

    Bodies and ``attributes`` (which all of the messages have) are as for `tarry.Queue.send`.

    Raises the errors of that method.
    """
    now = str(int(current().clock.time() * 1000))
    system = {
        "SenderId": "AIDAIENQZJOLO23YVJ4VO",
        "SentTimestamp": now,
        "ApproximateReceiveCount": str(attempt),
        "ApproximateFirstReceiveTimestamp": now,
    }
    if queue.endswith(".fifo") and group_id is None:
        raise ValueError(f"a message of the FIFO queue {queue!r} has a group: give a group_id")
    if group_id is not None:
        system["MessageGroupId"] = group_id
    sent = sendable(attributes or {})
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"
    records = []
    for index, body in enumerate(bodies):
        text = body_text(body)
        received = {
            "MessageId": str(uuid5(NAMESPACE_OID, f"{queue} {index} {text}")),
            "ReceiptHandle": f"handle-{index}",
            "Body": text,
            "MD5OfBody": digest_of_body(text),
            "Attributes": system,
            "MessageAttributes": sent,
        }
        if sent:
            received["MD5OfMessageAttributes"] = digest_of_attributes(sent)
        records.append(event_record(received, arn, REGION))
    return {"Records": records}


@overload
def message(body: Any = ..., attempt: int = ..., *, consumer: Consumer[P], **more: Any) -> Message[P]: ...
@overload
def message(body: Any = ..., attempt: int = ..., *, consumer: None = ..., **more: Any) -> Message[Any]: ...
def message(body: Any = "{}", attempt: int = 1, *, consumer: Consumer[Any] | None = None, **more: Any) -> Message[Any]:
    """Return a message as a handler gets it, for a call of the plain function; ``more`` as for `sqs_event`.

        order = message({"id": 1}, attempt=3, consumer=handler)
        handler.function(order)
        assert order.outcome is None  # no verdict: it is acknowledged

    ``consumer`` determines how the payload is read, and how many attempts there are. Without one there is no payload,
    and the default number of attempts.
    """
    [record] = sqs_event(body, attempt=attempt, **more)["Records"]
    log = Log("test", LogOptions()) if consumer is None else consumer.log
    reader = None if consumer is None else consumer._payload_reader
    limit = (lambda queue: DEFAULT_MAX_ATTEMPTS) if consumer is None else consumer._max_attempts_of
    invocation = Invocation(current(), lambda_context(), limit, log, reader)
    return message_of(record, record["messageId"], invocation, log)
