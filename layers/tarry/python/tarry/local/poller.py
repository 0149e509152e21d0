"""What an event source mapping does: receive, invoke, delete what was not reported as failed."""

import time
from collections.abc import Mapping
from typing import Any

from tarry.envelope import ATTRIBUTE, UnreadableRecord, read_envelope
from tarry.local.function import FunctionError, LocalFunction
from tarry.local.server import Endpoint
from tarry.local.story import Board
from tarry.simulator.records import event_attribute, event_record
from tarry.simulator.response import WholeBatchFailed, failed_ids
from tarry.template import EventSourceMapping, Queue

MOST_PER_RECEIVE = 10
PAUSE_SECONDS = 0.1


class Poller:
    """One mapping, from its queue to its function."""

    def __init__(
        self, endpoint: Endpoint, mapping: EventSourceMapping, queue: Queue, function: LocalFunction, board: Board
    ) -> None:
        self._endpoint = endpoint
        self._sqs = endpoint.client("sqs")
        self._url = self._sqs.get_queue_url(QueueName=queue.name)["QueueUrl"]
        self._mapping = mapping
        self._queue = queue
        self._function = function
        self._board = board

    def poll(self) -> bool:
        """Deliver one batch, if there is one; says whether there was."""
        messages = self._gather()
        if not messages:
            return False
        now = time.time()
        visible_at = now + self._queue.visibility_timeout_seconds
        for message in messages:
            count = int(message["Attributes"]["ApproximateReceiveCount"])
            self._board.delivered(message["MessageId"], stable_id(message), self._queue.name, count, now)
        problems = self._invoke(messages)
        for message in messages:
            problem = problems.get(message["MessageId"])
            if problem is None:
                self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
            self._board.answered(message["MessageId"], problem, visible_at, time.time())
        return True

    def _gather(self) -> list[dict[str, Any]]:
        """A batch: what is there, and within the batching window what still comes."""
        size = self._mapping.batch_size
        messages = self._receive(size)
        until = time.monotonic() + self._mapping.window_seconds
        while messages and len(messages) < size and time.monotonic() < until:
            more = self._receive(size - len(messages))
            messages += more
            if not more:
                time.sleep(PAUSE_SECONDS)
        return messages

    def _receive(self, most: int) -> list[dict[str, Any]]:
        if self._queue.is_fifo and not self._endpoint.end_leases(self._queue.name):
            return []
        answer = self._sqs.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=min(MOST_PER_RECEIVE, most),
            WaitTimeSeconds=0,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def _invoke(self, messages: list[dict[str, Any]]) -> dict[str, str]:
        """Why each message that goes back does so, by its id."""
        ids = [message["MessageId"] for message in messages]
        records = [event_record(message, self._queue.arn, self._endpoint.region) for message in messages]
        try:
            failed = failed_ids(self._function.invoke({"Records": records}), ids)
        except (FunctionError, WholeBatchFailed) as error:
            return dict.fromkeys(ids, f"whole batch failed: {error}")
        return dict.fromkeys(failed, "reported as failed")


def stable_id(message: Mapping[str, Any]) -> str:
    """The id under which tarry knows a message: its record's, else SQS's own."""
    own: str = message["MessageId"]
    attribute = message.get("MessageAttributes", {}).get(ATTRIBUTE)
    try:
        return read_envelope(event_attribute(attribute), message["Body"], time.time()).id if attribute else own
    except UnreadableRecord:
        return own
