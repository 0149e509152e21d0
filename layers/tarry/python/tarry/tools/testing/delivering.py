"""`deliver`: one batch of a queue in moto, or in another SQS, through a Lambda handler, as with Lambda's poller."""

import json
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload
from uuid import NAMESPACE_OID, uuid5

from botocore.exceptions import ClientError

from tarry.consumer import Consumer
from tarry.decide.retry_policy import DEFAULT_MAX_ATTEMPTS
from tarry.failed.dead_letters import event_record
from tarry.failed.queue_names import counts_of, queue_name, region_of
from tarry.failed.text import brief, coarse, shortened
from tarry.message.delivery import Delivery
from tarry.message.invocation import Invocation, message_of
from tarry.message.message import Message
from tarry.message.outcomes import State
from tarry.observe.logs import Log, LogOptions
from tarry.record.attribute import is_dead_letter
from tarry.sqs.client import client_of
from tarry.sqs.outgoing import body_text, sendable
from tarry.sqs.refusals import error_code, failed_entries, is_no_queue, is_stale_handle, tens
from tarry.tools.simulator.functions import LambdaContext
from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import WholeBatchFailed, failed_ids, through_json
from tarry.tools.simulator.mapping import EVENT_OVERHEAD_BYTES, MAX_EVENT_BYTES, MAX_PER_REQUEST, record_bytes
from tarry.tools.simulator.mapping_settings import MAX_BATCH, MAX_FIFO_BATCH
from tarry.tools.simulator.sqs.message import RequestedAttributes, StoredMessage
from tarry.tools.story.lines import LogEntry, TarryLine, event_of
from tarry.tools.testing.deliveries import record_of
from tarry.tools.testing.log_recorder import recording_log
from tarry.tools.testing.messages import QueuedMessage, envelope_of
from tarry.tools.testing.misuse import check_handler, listed
from tarry.tools.testing.timeline import GONE, REPORTED
from tarry.world import World, current, use

Record = dict[str, Any]
"""A record of an SQS event."""


class Poller:
    """A queue, accessed as the poller of Lambda does."""

    def __init__(self, client: Any, url: str, name: str) -> None:
        self.client = client
        self._url = url
        try:
            attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        except ClientError as error:
            if not is_no_queue(error_code(error)):
                raise
            where = f"{client.meta.endpoint_url}, {client.meta.region_name}"
            raise ValueError(
                f"SQS ({where}) has no queue {name!r}: make it with the same client, and with moto in the same "
                "mock_aws() as the call of deliver"
            ) from error
        self._arn: str = attributes["QueueArn"]
        counts = counts_of(attributes)
        self.invisible = counts.in_flight + counts.delayed

    def receive(self, most: int) -> list[Record]:
        """Receive up to ``most`` messages, ten per request, until there are no more visible ones."""
        records: dict[str, Record] = {}
        while len(records) < most:
            messages = self.client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=min(MAX_PER_REQUEST, most - len(records)),
                WaitTimeSeconds=0,
                AttributeNames=["All"],  # the old name, which all emulators support
                MessageAttributeNames=["All"],
            ).get("Messages", [])
            fresh = [each for each in messages if each["MessageId"] not in records]
            if not fresh:
                break  # the queue is empty, or its visibility timeout is 0
            records |= {each["MessageId"]: event_record(each, self._arn, region_of(self._arn)) for each in fresh}
        size = EVENT_OVERHEAD_BYTES + sum(map(record_bytes, records.values()))
        if size > MAX_EVENT_BYTES:
            for record in records.values():
                self.client.change_message_visibility(
                    QueueUrl=self._url, ReceiptHandle=record["receiptHandle"], VisibilityTimeout=0
                )
            raise ValueError(
                f"the batch of {len(records)} messages has {size:,} bytes, and Lambda's events at most "
                f"{MAX_EVENT_BYTES:,}: give a smaller batch_size"
            )
        return list(records.values())

    def delete(self, deliveries: Sequence[Delivery]) -> dict[str, str]:
        """Delete messages; return why, by delivery id, for those that SQS refuses to delete."""
        refused: dict[str, str] = {}
        for ten in tens(deliveries):
            entries = [{"Id": str(index), "ReceiptHandle": each.receipt_handle} for index, each in enumerate(ten)]
            errors = failed_entries(self.client.delete_message_batch(QueueUrl=self._url, Entries=entries))
            refused |= {
                ten[int(index)].delivery_id: f"not deleted: {error}"
                for index, error in errors.items()
                if not is_stale_handle(error)  # the handler has deleted it
            }
        return refused


WHY_CHARACTERS = 60
"""The length of a reason in a repr: pytest shows 240 characters of it."""


@dataclass(frozen=True, repr=False)
class DeliveredMessage:
    """A message that `deliver` has received, and its state after the handler ran."""

    id: str
    """The stable id."""
    delivery_id: str
    """The id that SQS gave it."""
    body: str
    receipt_handle: str
    """The handle of this receive: `sqs.change_message_visibility` takes it, for example to make a retry visible."""
    attempt: int
    """The attempt that this delivery was, from 1. For a handler without tarry: SQS's receive count."""
    state: State
    """For a handler without tarry COMMITTED (deleted) or WAITING_RETRY (left in the queue)."""
    delay: float | None = None
    """The seconds for which tarry keeps it invisible; None is the visibility timeout of the queue."""
    why: str = ""
    """The reason and the error, if known."""

    def json(self) -> Any:
        """Return the body, decoded."""
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<DeliveredMessage {self.id} {self._what}, attempt {self.attempt}: {shortened(self.body, 60)}>"

    @property
    def _what(self) -> str:
        wait = "" if self.delay is None else f"for {coarse(self.delay)}"
        why = ": ".join(filter(None, (wait, shortened(brief(self.why), WHY_CHARACTERS))))
        return f"{self.state} ({why})" if why else self.state


@dataclass(frozen=True, repr=False)
class DeliveredBatch:
    """The result of `deliver`.

    result = deliver(handler, queue_url)
    assert result.states == ["COMMITTED", "DEAD_LETTERED"]
    assert result.dead_letters[0].failure.reason == "rejected"
    """

    queue: str
    """The queue's name."""
    messages: tuple[DeliveredMessage, ...] = ()
    """The messages, in the order of the batch; empty if the queue had none to receive. The handler was not called
    then."""
    response: Any = None
    """The handler's return value, as Lambda reads it: after JSON."""
    error: BaseException | None = None
    """The exception that the handler raised, or the error of an invalid response. All messages stay in the queue, but
    for those that tarry had settled by then."""
    dead_letters: tuple[QueuedMessage, ...] = ()
    """The dead letters that tarry sent, with their failure records. Messages that SQS itself moves are not among them.
    """
    invisible: int = field(default=0, compare=False)
    """The number of messages that the queue kept invisible before the batch was received: delayed, or delivered before.
    """

    @property
    def states(self) -> list[str]:
        """The names of the states of the messages, in the order of the batch."""
        return [message.state.value for message in self.messages]

    def state(self, message_id: str) -> State:
        """Return the state of a message, by its stable id or by the id that SQS gave it.

        Raises `KeyError` for a message that is not in the batch.
        """
        for message in self.messages:
            if message_id in (message.id, message.delivery_id):
                return message.state
        raise KeyError(f"no message {message_id!r} in the batch; it has {listed(each.id for each in self.messages)}")

    def count(self, state: State | str) -> int:
        """Return the number of messages in a state."""
        return self.states.count(state)

    def __repr__(self) -> str:
        counts = Counter(message._what for message in self.messages)
        what = ", ".join(f"{number} {each}" for each, number in counts.items())
        if not self.messages:
            what = "no messages to receive" + (f", {self.invisible} invisible" if self.invisible else "")
        return f"<DeliveredBatch of {self.queue}: {what}>"


P = TypeVar("P")

ACCOUNT, REGION = "123456789012", "us-east-1"
REQUEST_ID = "00000000-0000-4000-8000-000000000000"
EVERYTHING = RequestedAttributes({"AttributeNames": ["All"], "MessageAttributeNames": ["All"]})


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
    if queue.endswith(".fifo") and group_id is None:
        raise ValueError(f"a message of the FIFO queue {queue!r} has a group: give a group_id")
    now, sent = current().clock.time(), sendable(attributes or {})
    records = []
    for index, body in enumerate(bodies):
        text = body_text(body)
        delivery_id = str(uuid5(NAMESPACE_OID, f"{queue} {index} {text}"))
        stored = StoredMessage(delivery_id, text, sent, now, index, now, group=group_id)
        stored.receive_count, stored.first_received_at = attempt, now
        received = stored.as_received(f"handle-{index}", EVERYTHING)
        records.append(event_record(received, f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}", REGION))
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


def deliver(
    handler: Callable[[Any, Any], Any], queue_url: str, sqs: Any = None, batch_size: int = 10
) -> DeliveredBatch:
    """Receive one batch from a queue, call the handler with it, and delete the messages that succeeded.

        result = deliver(handler, queue_url)
        assert result.states == ["COMMITTED", "DEAD_LETTERED"]
        assert result.dead_letters[0].failure.reason == "rejected"

    For unit tests with moto's ``mock_aws``, and with any other SQS. It does what Lambda does for an event source
    mapping with ``ReportBatchItemFailures``: it receives messages until the batch is full or the queue has no more
    visible ones, sends the handler the same event, and deletes each message that the response does not report as
    failed. If the handler raises or its response is invalid, it deletes none. If there are no messages, the handler is
    not called.

    Each call is a cold start: tarry looks the queue up again.

    Args:
        handler: A Lambda handler: a consumer, or any function of an event and a context.
        queue_url: The URL of the queue.
        sqs: The boto3 SQS client for the requests of `deliver` and of tarry; by default the one that tarry makes.
        batch_size: The most messages to receive: 1 to 10,000, on a FIFO queue 1 to 10.

    Returns:
        The state of each message, the response, and the dead letters. An exception of the handler is not raised: it is
        the ``error`` of the result, and its traceback is written to stderr, as Lambda writes it to the log.

    Raises:
        TypeError: ``handler`` is not a Lambda handler, or ``sqs`` is not an SQS client.
        ValueError: ``queue_url`` is not the URL of a queue of this SQS, ``batch_size`` is out of range, or the messages
            are larger than the 6 MB of an event; these are visible again.
    """
    check_handler(handler, "deliver")
    name = _checked_name(queue_url, batch_size)
    here = current()
    if sqs is not None and not hasattr(sqs, "receive_message"):
        raise TypeError(f'sqs takes an SQS client, boto3.client("sqs"), got {sqs!r}')
    queue = Poller(client_of(here) if sqs is None else sqs, queue_url, name)
    records = queue.receive(batch_size)
    if not records:
        return DeliveredBatch(name, invisible=queue.invisible)
    deliveries = _deliveries(records, here)
    world, history, recording = here.afresh(), History(here.clock.time), _RecordingClient(queue.client, here.clock.time)
    world.client_factory = lambda: recording
    with use(world), recording_log(history):
        response, error, failed = _called(handler, {"Records": records})
    logged = [event.fields for event in history.events if event.what == "transition_logged"]
    lines = {line["delivery_id"]: line for line in logged}
    why = "" if error is None else f"{type(error).__name__}: {error}".removesuffix(": ")
    left = dict.fromkeys(failed, why or REPORTED)
    left |= queue.delete([each for each in deliveries if each.delivery_id not in left])
    return DeliveredBatch(
        name,
        tuple(_delivered(each, lines.get(each.delivery_id), left.get(each.delivery_id)) for each in deliveries),
        response,
        error,
        tuple(_dead_letters(recording.sent, logged, {each.delivery_id: each.body for each in deliveries})),
        queue.invisible,
    )


def _checked_name(queue_url: Any, batch_size: Any) -> str:
    """Return the name of the queue."""
    if not isinstance(queue_url, str) or not queue_url.startswith(("https://", "http://")):
        raise ValueError(
            f"deliver takes the URL of a queue, got {queue_url!r}: create_queue() and get_queue_url() return it as "
            '["QueueUrl"]'
        )
    name = queue_name(queue_url)
    most, where = (MAX_FIFO_BATCH, " on a FIFO queue") if name.endswith(".fifo") else (MAX_BATCH, "")
    if type(batch_size) is not int or not 1 <= batch_size <= most:
        raise ValueError(f"batch_size must be a whole number from 1 to {most:,}{where}, got {batch_size!r}")
    return name


def _deliveries(records: Sequence[Record], here: World) -> list[Delivery]:
    """Return the deliveries of a batch, with their envelopes read."""
    invocation = Invocation(here, None, lambda queue: None, Log("deliver", LogOptions()), None)
    invocation.records = {record["messageId"]: record for record in records}
    deliveries = []
    for record in records:
        delivery = Delivery(record, record["messageId"], invocation)
        delivery.envelope = envelope_of(record["messageAttributes"], record["body"], here.clock.time())
        deliveries.append(delivery)
    return deliveries


def _called(
    handler: Callable[[Any, Any], Any], event: dict[str, Any]
) -> tuple[Any, BaseException | None, Collection[str]]:
    """Call the handler; return its response, its error, and the delivery ids of messages that must not be deleted."""
    ids = [record["messageId"] for record in event["Records"]]
    response: Any = None
    try:
        response = through_json(handler(json.loads(json.dumps(event)), lambda_context()))
        return response, None, failed_ids(response, ids)
    except WholeBatchFailed as invalid:
        return response, invalid, ids
    except (Exception, SystemExit) as raised:  # noqa: BLE001 it is the result
        own = raised.__traceback__.tb_next if raised.__traceback__ else None
        traceback.print_exception(type(raised), raised, own)
        return response, raised, ids


def _delivered(delivery: Delivery, line: Mapping[str, Any] | None, left: str | None) -> DeliveredMessage:
    """Return a message with its state, from the last line of tarry's log about it.

    ``left``: why the message was not deleted; None if it was. tarry logs no line about a message that succeeded, and
    other handlers log none at all.
    """
    state, delay, why = (State.COMMITTED, None, "") if left is None else (State.WAITING_RETRY, None, left)
    logged = State.__members__.get(line["state"]) if line is not None else None
    if line is not None and logged is not None and (left is not None or logged in GONE or "sent_to" in line):
        state, delay, why = logged, line.get("delay"), event_of(TarryLine(LogEntry(0, ""), line["event"], line)).why
    return DeliveredMessage(
        delivery.id, delivery.delivery_id, delivery.body, delivery.receipt_handle or "", delivery.attempt, state, delay,
        why,
    )  # fmt: skip


def _dead_letters(
    sent: Iterable[tuple[str, StoredMessage]], logged: Iterable[Mapping[str, Any]], bodies: Mapping[str, str]
) -> Iterator[QueuedMessage]:
    """Return the dead letters among the messages that were sent; only the log tells one that has no failure record.

    ``bodies`` are those of the batch, by delivery id.
    """
    named = (line for line in logged if "dead_letter_queue" in line)
    targets = {(line["dead_letter_queue"], bodies.get(line["delivery_id"])) for line in named}
    for queue, stored in sent:
        record = record_of(stored.attributes, stored.body)
        if is_dead_letter(record) if record is not None else (queue, stored.body) in targets:
            yield QueuedMessage(stored, queue, stored.sent_at)


class _RecordingClient:
    """An SQS client that records the messages that it sends in batches, as the settlement of tarry does."""

    def __init__(self, client: Any, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self.sent: list[tuple[str, StoredMessage]] = []
        """The messages that SQS has accepted, each with the name of its queue."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send_message_batch(self, **parameters: Any) -> Any:
        answer, now = self._client.send_message_batch(**parameters), self._now()
        entries = {entry["Id"]: entry for entry in parameters["Entries"]}
        for accepted in answer.get("Successful") or []:
            entry = entries[accepted["Id"]]
            stored = StoredMessage(
                accepted["MessageId"],
                entry["MessageBody"],
                entry.get("MessageAttributes", {}),
                sent_at=now,
                position=len(self.sent),
                visible_at=now + entry.get("DelaySeconds", 0),
                group=entry.get("MessageGroupId"),
            )
            self.sent.append((queue_name(parameters["QueueUrl"]), stored))
        return answer
