"""The requests that send, receive and settle messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs import md5
from tarry.simulator.sqs.batches import check_batch, check_batch_size, each_by_itself
from tarry.simulator.sqs.errors import SqsError, check_range, invalid, missing
from tarry.simulator.sqs.fifo import FifoQueue
from tarry.simulator.sqs.selection import RequestedAttributes
from tarry.sqs.limits import MAX_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tarry.simulator.sqs.queue import SimulatedQueue
    from tarry.simulator.sqs.registry import Registry

MAX_WAIT_SECONDS = 20

Request = dict[str, Any]
Answer = dict[str, Any]


class MessageRequests:
    """One method a request. Each raises `SqsError`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.operations: dict[str, Callable[[Request], Answer]] = {
            "SendMessage": self._send,
            "SendMessageBatch": self._send_batch,
            "ReceiveMessage": self._receive,
            "DeleteMessage": self._delete,
            "DeleteMessageBatch": self._delete_batch,
            "ChangeMessageVisibility": self._change_visibility,
            "ChangeMessageVisibilityBatch": self._change_visibility_batch,
        }

    def wait_seconds(self, request: Mapping[str, Any]) -> int:
        """For how long a ReceiveMessage waits if there is nothing: what it says, else what its queue says."""
        asked: int | None = request.get("WaitTimeSeconds")
        return self._queue(request).settings.wait if asked is None else asked

    def _queue(self, request: Mapping[str, Any]) -> SimulatedQueue:
        return self._registry.at(request["QueueUrl"])

    def _send(self, request: Request) -> Answer:
        return _send_one(self._queue(request), request)

    def _send_batch(self, request: Request) -> Answer:
        queue, entries = self._queue(request), request["Entries"]
        check_batch(entries, "SendMessageBatchRequestEntry")
        if isinstance(queue, FifoQueue):
            for entry in entries:
                if not entry.get("MessageGroupId"):  # another code than a single send has for it
                    raise SqsError("InvalidParameterValue", missing("MessageGroupId").message)
                queue.check_deduplication(entry)
        check_batch_size(entries)
        return each_by_itself(entries, lambda entry: _send_one(queue, entry))

    def _receive(self, request: Request) -> Answer:
        queue = self._queue(request)
        most = request.get("MaxNumberOfMessages", 1)
        if not 1 <= most <= MAX_ENTRIES:
            raise invalid(most, "MaxNumberOfMessages", f"Must be between 1 and {MAX_ENTRIES}, if provided.")
        wait = self.wait_seconds(request)
        check_range(wait, "WaitTimeSeconds", 0, MAX_WAIT_SECONDS)
        visibility = request.get("VisibilityTimeout")
        if visibility is not None:
            check_range(visibility, "VisibilityTimeout", 0, 43_200)
        asked = RequestedAttributes(request)
        received = queue.receive(most, visibility, waits=wait > 0)
        return {"Messages": [message.as_received(handle, asked) for handle, message in received]} if received else {}

    def _delete(self, request: Request) -> Answer:
        self._queue(request).delete(request["ReceiptHandle"])
        return {}

    def _delete_batch(self, request: Request) -> Answer:
        queue = self._queue(request)

        def delete(entry: Request) -> Answer:
            queue.delete(entry["ReceiptHandle"])
            return {}

        check_batch(request["Entries"], "DeleteMessageBatchRequestEntry")
        return each_by_itself(request["Entries"], delete)

    def _change_visibility(self, request: Request) -> Answer:
        self._queue(request).change_visibility(request["ReceiptHandle"], request["VisibilityTimeout"])
        return {}

    def _change_visibility_batch(self, request: Request) -> Answer:
        queue = self._queue(request)

        def change(entry: Request) -> Answer:
            if "VisibilityTimeout" not in entry:
                raise missing("VisibilityTimeout")
            queue.change_visibility(entry["ReceiptHandle"], entry["VisibilityTimeout"])
            return {}

        check_batch(request["Entries"], "ChangeMessageVisibilityBatchRequestEntry")
        return each_by_itself(request["Entries"], change)


def _send_one(queue: SimulatedQueue, entry: Request) -> Answer:
    sent = queue.send(entry)
    answer = {"MessageId": sent.delivery_id, "MD5OfMessageBody": md5.of_body(entry["MessageBody"])}
    if attributes := entry.get("MessageAttributes"):
        answer["MD5OfMessageAttributes"] = md5.of_attributes(attributes)
    if system := entry.get("MessageSystemAttributes"):
        answer["MD5OfMessageSystemAttributes"] = md5.of_attributes(system)
    if sent.sequence_number is not None:
        answer["SequenceNumber"] = sent.sequence_number
    return answer
