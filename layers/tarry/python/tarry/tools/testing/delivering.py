"""`deliver`: one batch of a queue in moto, or in another SQS, through a Lambda handler, as with Lambda's poller."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tarry.failed.queue_names import queue_name
from tarry.message.delivery import Delivery
from tarry.message.invocation import Invocation
from tarry.message.outcomes import State
from tarry.observe.logs import Log, LogOptions
from tarry.record.attribute import is_dead_letter
from tarry.sqs.client import client_of
from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import WholeBatchFailed, failed_ids
from tarry.tools.simulator.mapping_settings import MAX_BATCH, MAX_FIFO_BATCH
from tarry.tools.simulator.marshalling import through_json
from tarry.tools.simulator.sqs.message import StoredMessage
from tarry.tools.testing.delivered import DeliveredBatch, DeliveredMessage
from tarry.tools.testing.deliveries import record_of
from tarry.tools.testing.helpers import lambda_context
from tarry.tools.testing.log_recorder import recording_log
from tarry.tools.testing.messages import QueuedMessage, envelope_of
from tarry.tools.testing.misuse import check_handler
from tarry.tools.testing.poller import Poller
from tarry.tools.testing.timeline import GONE, REPORTED, because
from tarry.world import current, use

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from tarry.tools.testing.poller import Record
    from tarry.world import World


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
    queue = Poller(client_of(here) if sqs is None else _checked_client(sqs), queue_url, name)
    records = queue.receive(batch_size)
    if not records:
        return DeliveredBatch(name, invisible=queue.invisible)
    deliveries = _deliveries(records, here)
    run = _invoke(handler, {"Records": records}, here, queue.client)
    lines = {each["delivery_id"]: each for each in run.lines}
    left = dict.fromkeys(run.failed, run.why or REPORTED)
    left |= queue.delete([each for each in deliveries if each.delivery_id not in left])
    return DeliveredBatch(
        name,
        tuple(_delivered(each, lines.get(each.delivery_id), left.get(each.delivery_id)) for each in deliveries),
        run.response,
        run.error,
        tuple(_dead_letters(run, {each.delivery_id: each.body for each in deliveries})),
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


def _checked_client(sqs: Any) -> Any:
    if not hasattr(sqs, "receive_message"):
        raise TypeError(f'sqs takes an SQS client, boto3.client("sqs"), got {sqs!r}')
    return sqs


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


class _Run(NamedTuple):
    """One run of the handler with a batch."""

    response: Any
    error: BaseException | None
    failed: Collection[str]
    """The delivery ids of the messages that must not be deleted."""
    lines: Sequence[Mapping[str, Any]]
    """The transitions that tarry logged."""
    sent: Sequence[tuple[str, StoredMessage]]
    """The messages that were sent, each with the name of its queue."""

    @property
    def why(self) -> str:
        """Why the whole batch failed; empty if it did not."""
        return "" if self.error is None else f"{type(self.error).__name__}: {self.error}".removesuffix(": ")


def _invoke(handler: Callable[[Any, Any], Any], event: dict[str, Any], here: World, client: Any) -> _Run:
    """Call the handler, in a world with this client."""
    ids = [record["messageId"] for record in event["Records"]]
    world, history, recording = here.afresh(), History(here.clock.time), _RecordingClient(client, here.clock.time)
    world.client_factory = lambda: recording
    response: Any = None
    failed, error = frozenset(ids), cast("BaseException | None", None)
    with use(world), recording_log(history):
        try:
            response = through_json(handler(json.loads(json.dumps(event)), lambda_context()))
            failed = failed_ids(response, ids)
        except WholeBatchFailed as invalid:
            error = invalid
        except (Exception, SystemExit) as raised:  # noqa: BLE001 it is the result
            error = raised
            own = raised.__traceback__.tb_next if raised.__traceback__ else None
            traceback.print_exception(type(raised), raised, own)
    lines = [event.fields for event in history.events if event.what == "transition_logged"]
    return _Run(response, error, failed, lines, tuple(recording.sent))


def _delivered(delivery: Delivery, line: Mapping[str, Any] | None, left: str | None) -> DeliveredMessage:
    """Return a message with its state, from the last line of tarry's log about it.

    ``left``: why the message was not deleted; None if it was. tarry logs no line about a message that succeeded, and
    other handlers log none at all.
    """
    state, delay, why = (State.COMMITTED, None, "") if left is None else (State.WAITING_RETRY, None, left)
    logged = State.__members__.get(line["state"]) if line is not None else None
    if line is not None and logged is not None and (left is not None or logged in GONE or "sent_to" in line):
        state, delay, why = logged, line.get("delay"), because(line)
    return DeliveredMessage(
        delivery.id, delivery.delivery_id, delivery.body, delivery.receipt_handle or "", delivery.attempt, state, delay,
        why,
    )  # fmt: skip


def _dead_letters(run: _Run, bodies: Mapping[str, str]) -> Iterator[QueuedMessage]:
    """Return the dead letters among the messages that were sent; only the log tells one that has no failure record.

    ``bodies`` are those of the batch, by delivery id.
    """
    logged = {
        (line["dead_letter_queue"], bodies.get(line["delivery_id"]))
        for line in run.lines
        if "dead_letter_queue" in line
    }
    for queue, stored in run.sent:
        record = record_of(stored.attributes, stored.body)
        if is_dead_letter(record) if record is not None else (queue, stored.body) in logged:
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
