"""The SQS operations on messages: send, receive, delete, change the visibility timeout."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tarry.sqs.limits import MAX_ENTRIES, MAX_REQUEST_BYTES, message_size
from tarry.tools.simulator.sqs.contents import check_id
from tarry.tools.simulator.sqs.errors import SqsError, check_range, invalid, missing
from tarry.tools.simulator.sqs.fifo import FifoQueue
from tarry.tools.simulator.sqs.message import RequestedAttributes, digest_of_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tarry.tools.simulator.sqs.queue import SimulatedQueue
    from tarry.tools.simulator.sqs.registry import Registry

MAX_WAIT_SECONDS = 20

Request = dict[str, Any]
Answer = dict[str, Any]


class MessageRequests:
    """The operations on messages, by name. Each raises `SqsError` for a request that SQS would refuse."""

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
        """Return how long a ReceiveMessage request waits for a message: its own wait time, else that of the queue."""
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
                if not entry.get("MessageGroupId"):  # the error code differs from that of SendMessage
                    raise SqsError("InvalidParameterValue", missing("MessageGroupId").message)
                queue.check_deduplication(entry)
        check_batch_bytes(entries)
        return answer_each(entries, lambda entry: _send_one(queue, entry))

    def _receive(self, request: Request) -> Answer:
        queue = self._queue(request)
        max_messages = request.get("MaxNumberOfMessages", 1)
        if not 1 <= max_messages <= MAX_ENTRIES:
            raise invalid(max_messages, "MaxNumberOfMessages", f"Must be between 1 and {MAX_ENTRIES}, if provided.")
        wait = self.wait_seconds(request)
        check_range(wait, "WaitTimeSeconds", 0, MAX_WAIT_SECONDS)
        visibility = request.get("VisibilityTimeout")
        if visibility is not None:
            check_range(visibility, "VisibilityTimeout", 0, 43_200)
        asked = RequestedAttributes(request)
        attempt_id = request.get("ReceiveRequestAttemptId")
        check_id("ReceiveRequestAttemptId", attempt_id)
        if attempt_id is not None and isinstance(queue, FifoQueue):
            received = queue.receive_attempt(attempt_id, max_messages, visibility, waits=wait > 0)
        else:
            received = queue.receive(max_messages, visibility, waits=wait > 0)
        return {"Messages": [message.as_received(handle, asked) for handle, message in received]} if received else {}

    def _delete(self, request: Request) -> Answer:
        self._queue(request).delete(_handle(request))
        return {}

    def _delete_batch(self, request: Request) -> Answer:
        queue = self._queue(request)

        def delete(entry: Request) -> Answer:
            queue.delete(entry["ReceiptHandle"])
            return {}

        check_batch(request["Entries"], "DeleteMessageBatchRequestEntry")
        return answer_each(request["Entries"], delete)

    def _change_visibility(self, request: Request) -> Answer:
        self._queue(request).change_visibility(_handle(request), request["VisibilityTimeout"])
        return {}

    def _change_visibility_batch(self, request: Request) -> Answer:
        queue = self._queue(request)

        def change(entry: Request) -> Answer:
            if "VisibilityTimeout" not in entry:
                raise missing("VisibilityTimeout")
            queue.change_visibility(entry["ReceiptHandle"], entry["VisibilityTimeout"])
            return {}

        check_batch(request["Entries"], "ChangeMessageVisibilityBatchRequestEntry")
        return answer_each(request["Entries"], change)


def _handle(request: Request) -> str:
    handle: str = request["ReceiptHandle"]
    if not handle:
        raise missing("ReceiptHandle")
    return handle


def _send_one(queue: SimulatedQueue, entry: Request) -> Answer:
    sent = queue.send(entry)
    answer = {"MessageId": sent.delivery_id, "MD5OfMessageBody": sent.md5_of_body}
    if attributes := entry.get("MessageAttributes"):
        answer["MD5OfMessageAttributes"] = digest_of_attributes(attributes)
    if system := entry.get("MessageSystemAttributes"):
        answer["MD5OfMessageSystemAttributes"] = digest_of_attributes(system)
    if sent.sequence_number is not None:
        answer["SequenceNumber"] = sent.sequence_number
    return answer


_PREFIX = "AWS.SimpleQueueService."
_ENTRY_ID = re.compile("[A-Za-z0-9_-]{1,80}")


def check_batch(entries: Sequence[Mapping[str, Any]], entry_type: str) -> None:
    """Check the number of entries and their ids.

    Raises:
        SqsError: The whole batch is refused.
    """
    if not entries:
        text = f"There should be at least one {entry_type} in the request."
        raise SqsError(_PREFIX + "EmptyBatchRequest", text)
    if len(entries) > MAX_ENTRIES:
        text = f"Maximum number of entries per request are {MAX_ENTRIES}. You have sent {len(entries)}."
        raise SqsError(_PREFIX + "TooManyEntriesInBatchRequest", text)
    seen: set[str] = set()
    for entry in entries:
        if not _ENTRY_ID.fullmatch(entry["Id"]):
            text = (
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long."
            )
            raise SqsError(_PREFIX + "InvalidBatchEntryId", text)
        if entry["Id"] in seen:
            raise SqsError(_PREFIX + "BatchEntryIdsNotDistinct", f"Id {entry['Id']} repeated.")
        seen.add(entry["Id"])


def check_batch_bytes(entries: Sequence[Mapping[str, Any]]) -> None:
    """Check the total size of a batch of messages.

    Raises:
        SqsError: The messages are too large together.
    """
    size_bytes = sum(message_size(entry["MessageBody"], _sized_attributes(entry)) for entry in entries)
    if size_bytes > MAX_REQUEST_BYTES:
        text = f"Batch requests cannot be longer than {MAX_REQUEST_BYTES} bytes. You have sent {size_bytes} bytes."
        raise SqsError(_PREFIX + "BatchRequestTooLong", text)


def _sized_attributes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that have a value; the others fail later, with their entry."""
    attributes: dict[str, Any] = entry.get("MessageAttributes") or {}
    return {name: each for name, each in attributes.items() if "StringValue" in each or "BinaryValue" in each}


def answer_each(entries: Sequence[Request], act: Callable[[Request], Answer]) -> dict[str, list[Answer]]:
    """Answer a batch request: call ``act`` for each entry; entries for which it raises `SqsError` are ``Failed``.

    Like SQS, leave out the key of an empty list.
    """
    successful: list[Answer] = []
    failed: list[Answer] = []
    for entry in entries:
        try:
            successful.append({"Id": entry["Id"], **act(entry)})
        except SqsError as error:
            fault = {"SenderFault": error.sender_fault, "Code": error.code, "Message": error.message}
            failed.append({"Id": entry["Id"], **fault})
    return {key: entries for key, entries in (("Successful", successful), ("Failed", failed)) if entries}
