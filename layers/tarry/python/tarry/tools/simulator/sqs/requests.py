"""The SQS operations, on messages and on queues."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import TYPE_CHECKING, Any

from tarry.sqs.refusals import MAX_ENTRIES, MAX_REQUEST_BYTES, message_size
from tarry.tools.simulator.sqs.errors import (
    PREFIX,
    SqsError,
    check_range,
    invalid,
    missing,
    names_of,
    no_such_queue,
    service_model,
)
from tarry.tools.simulator.sqs.message import RequestedAttributes, check_id, digest_of_attributes
from tarry.tools.simulator.sqs.queue import FifoQueue, SimulatedQueue
from tarry.tools.simulator.sqs.settings import QueueSettings, unknown_attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tarry.tools.simulator.sqs.model import Sqs

MAX_WAIT_SECONDS = 20
NAME_REUSE_SECONDS = 60
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")

Request = dict[str, Any]
Answer = dict[str, Any]


class SqsRequests:
    """The operations, by boto3's names. Each raises `SqsError` for a request that SQS would refuse."""

    def __init__(self, sqs: Sqs) -> None:
        self._sqs = sqs
        self._deleted_at: dict[str, float] = {}
        self._created = 0

    def _queue(self, request: Mapping[str, Any]) -> SimulatedQueue:
        return self._sqs.at(request["QueueUrl"])

    def wait_seconds(self, request: Mapping[str, Any]) -> int:
        """Return how long a ReceiveMessage request waits for a message: its own wait time, else that of the queue."""
        asked: int | None = request.get("WaitTimeSeconds")
        return self._queue(request).settings.wait if asked is None else asked

    def send_message(self, request: Request) -> Answer:
        return _send_one(self._queue(request), request)

    def send_message_batch(self, request: Request) -> Answer:
        queue, entries = self._queue(request), request["Entries"]
        check_batch(entries, "SendMessageBatchRequestEntry")
        if isinstance(queue, FifoQueue):
            for entry in entries:
                if not entry.get("MessageGroupId"):  # the error code differs from that of SendMessage
                    raise SqsError("InvalidParameterValue", missing("MessageGroupId").message)
                queue.check_deduplication(entry)
        check_batch_bytes(entries)
        return answer_each(entries, lambda entry: _send_one(queue, entry))

    def receive_message(self, request: Request) -> Answer:
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

    def delete_message(self, request: Request) -> None:
        self._queue(request).delete(_handle(request))

    def delete_message_batch(self, request: Request) -> Answer:
        queue = self._queue(request)
        check_batch(request["Entries"], "DeleteMessageBatchRequestEntry")
        return answer_each(request["Entries"], lambda entry: queue.delete(entry["ReceiptHandle"]))

    def change_message_visibility(self, request: Request) -> None:
        self._queue(request).change_visibility(_handle(request), request["VisibilityTimeout"])

    def change_message_visibility_batch(self, request: Request) -> Answer:
        queue = self._queue(request)

        def change(entry: Request) -> None:
            if "VisibilityTimeout" not in entry:
                raise missing("VisibilityTimeout")
            queue.change_visibility(entry["ReceiptHandle"], entry["VisibilityTimeout"])

        check_batch(request["Entries"], "ChangeMessageVisibilityBatchRequestEntry")
        return answer_each(request["Entries"], change)

    # queues

    def create_queue(self, request: Request) -> Answer:
        """Create a queue; do nothing if it exists with the same attributes."""
        sqs, name, attributes = self._sqs, request["QueueName"], request.get("Attributes") or {}
        if not _NAME.fullmatch(name):
            text = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
            raise SqsError("InvalidParameterValue", text)
        fifo = name.endswith(".fifo")
        if fifo != (attributes.get("FifoQueue", "").lower() == "true"):
            text = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must "
            raise SqsError("InvalidParameterValue", f"{text}end with .fifo suffix and be 1 to 80 in length.")
        settings = QueueSettings(attributes, fifo=fifo)
        queue = sqs.by_name.get(name)
        if queue is None:
            self._check_name_is_free(name)
            self._check_dead_letter_queue(sqs.arn_prefix + name, settings)
            self._created += 1
            queue = (FifoQueue if fifo else SimulatedQueue)(name, self._created, settings, sqs)
            sqs.by_name[name] = queue
        elif different := queue.settings.difference(attributes):
            text = "A queue already exists with the same name and a different value for attribute"
            raise SqsError("QueueAlreadyExists", f"{text} {different}")
        queue.tags.update(request.get("tags") or {})
        self._record_settings(queue)
        return {"QueueUrl": sqs.url(name)}

    def _check_name_is_free(self, name: str) -> None:
        if self._sqs.now() - self._deleted_at.get(name, -NAME_REUSE_SECONDS) < NAME_REUSE_SECONDS:
            text = (
                f"You must wait {NAME_REUSE_SECONDS} seconds after deleting a queue before you can create another "
                "with the same name."
            )
            raise SqsError("AWS.SimpleQueueService.QueueDeletedRecently", text)

    def _check_dead_letter_queue(self, source: str, settings: QueueSettings) -> None:
        policy = settings.redrive
        if policy is None:
            return
        target = self._sqs.with_arn(policy.target)
        if target is None:
            reason = "Dead letter target does not exist."
        elif target.settings.fifo != settings.fifo:
            reason = "Dead-letter queue must be same type of queue as the source."
        elif target.settings.allowed_sources is not None and source not in target.settings.allowed_sources:
            reason = "The dead-letter queue's RedriveAllowPolicy does not permit this source queue."
        else:
            return
        raise invalid(policy.text, "RedrivePolicy", reason)

    def delete_queue(self, request: Request) -> None:
        queue = self._queue(request)
        queue.empty()
        del self._sqs.by_name[queue.name]
        self._deleted_at[queue.name] = self._sqs.now()

    def get_queue_url(self, request: Request) -> Answer:
        if request.get("QueueOwnerAWSAccountId") not in (None, self._sqs.account):
            raise no_such_queue("The specified queue does not exist or you do not have access to it.")
        return {"QueueUrl": self._sqs.url(self._sqs.named(request["QueueName"]).name)}

    def get_queue_attributes(self, request: Request) -> Answer:
        queue = self._queue(request)
        asked = request.get("AttributeNames") or []
        for name in asked:
            if name not in names_of("QueueAttributeName"):
                raise unknown_attribute(name)
        if not asked:
            return {}
        depth = queue.depth()
        attributes = {
            **queue.settings.texts,
            "QueueArn": queue.arn,
            "ApproximateNumberOfMessages": str(depth.ready),
            "ApproximateNumberOfMessagesNotVisible": str(depth.in_flight),
            "ApproximateNumberOfMessagesDelayed": str(depth.delayed),
            "CreatedTimestamp": str(int(queue.created_at)),
            "LastModifiedTimestamp": str(int(queue.modified_at)),
        }
        found = {name: value for name, value in attributes.items() if "All" in asked or name in asked}
        return {"Attributes": found} if found else {}

    def set_queue_attributes(self, request: Request) -> None:
        self._change(self._queue(request), request["Attributes"])

    def add_permission(self, request: Request) -> None:
        queue = self._queue(request)
        self._change(queue, {"Policy": with_permission(queue.settings.texts.get("Policy"), queue.arn, request)})

    def remove_permission(self, request: Request) -> None:
        queue = self._queue(request)
        self._change(queue, {"Policy": without_permission(queue.settings.texts.get("Policy"), request["Label"])})

    def _change(self, queue: SimulatedQueue, attributes: Mapping[str, str]) -> None:
        queue.catch_up()  # up to now the old settings applied
        settings = queue.settings.changed(attributes)
        self._check_dead_letter_queue(queue.arn, settings)
        queue.settings = settings
        queue.modified_at = self._sqs.now()
        self._record_settings(queue)

    def _record_settings(self, queue: SimulatedQueue) -> None:
        self._sqs.history.record("queue_configured", queue=queue.name, attributes=dict(queue.settings.texts))

    def list_queues(self, request: Request) -> Answer:
        prefix = request.get("QueueNamePrefix") or ""
        urls, token = page([self._sqs.url(name) for name in self._sqs.queues() if name.startswith(prefix)], request)
        return {**({"QueueUrls": urls} if urls else {}), **token}

    def list_dead_letter_source_queues(self, request: Request) -> Answer:
        sources = self._sqs.sources_of(self._queue(request).arn)
        urls, token = page([self._sqs.url(queue.name) for queue in sources], request)
        return {"queueUrls": urls, **token}

    def purge_queue(self, request: Request) -> None:
        self._queue(request).purge()

    def tag_queue(self, request: Request) -> None:
        if not request["Tags"]:
            raise missing("Tags")
        self._queue(request).tags.update(request["Tags"])

    def untag_queue(self, request: Request) -> None:
        tags = self._queue(request).tags
        for key in request["TagKeys"]:
            tags.pop(key, None)

    def list_queue_tags(self, request: Request) -> Answer:
        tags = self._queue(request).tags
        return {"Tags": dict(tags)} if tags else {}


def _handle(request: Request) -> str:
    handle: str = request["ReceiptHandle"]
    if not handle:
        raise missing("ReceiptHandle")
    return handle


def _send_one(queue: SimulatedQueue, entry: Request) -> Answer:
    answer = queue.send(entry)
    if attributes := entry.get("MessageAttributes"):
        answer["MD5OfMessageAttributes"] = digest_of_attributes(attributes)
    if system := entry.get("MessageSystemAttributes"):
        answer["MD5OfMessageSystemAttributes"] = digest_of_attributes(system)
    return answer


_ENTRY_ID = re.compile("[A-Za-z0-9_-]{1,80}")


def check_batch(entries: Sequence[Mapping[str, Any]], entry_type: str) -> None:
    """Check the number of entries and their ids. Raises `SqsError` if the whole batch is refused."""
    if not entries:
        text = f"There should be at least one {entry_type} in the request."
        raise SqsError(PREFIX + "EmptyBatchRequest", text)
    if len(entries) > MAX_ENTRIES:
        text = f"Maximum number of entries per request are {MAX_ENTRIES}. You have sent {len(entries)}."
        raise SqsError(PREFIX + "TooManyEntriesInBatchRequest", text)
    seen: set[str] = set()
    for entry in entries:
        if not _ENTRY_ID.fullmatch(entry["Id"]):
            text = (
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long."
            )
            raise SqsError(PREFIX + "InvalidBatchEntryId", text)
        if entry["Id"] in seen:
            raise SqsError(PREFIX + "BatchEntryIdsNotDistinct", f"Id {entry['Id']} repeated.")
        seen.add(entry["Id"])


def check_batch_bytes(entries: Sequence[Mapping[str, Any]]) -> None:
    """Check the total size of a batch of messages. Raises `SqsError` if the messages are too large together."""
    size_bytes = sum(message_size(entry["MessageBody"], _sized_attributes(entry)) for entry in entries)
    if size_bytes > MAX_REQUEST_BYTES:
        text = f"Batch requests cannot be longer than {MAX_REQUEST_BYTES} bytes. You have sent {size_bytes} bytes."
        raise SqsError(PREFIX + "BatchRequestTooLong", text)


def _sized_attributes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that have a value; the others fail later, with their entry."""
    attributes: dict[str, Any] = entry.get("MessageAttributes") or {}
    return {name: each for name, each in attributes.items() if "StringValue" in each or "BinaryValue" in each}


def answer_each(entries: Sequence[Request], act: Callable[[Request], Answer | None]) -> dict[str, list[Answer]]:
    """Answer a batch request: call ``act`` for each entry; entries for which it raises `SqsError` are ``Failed``.

    Like SQS, leave out the key of an empty list.
    """
    successful: list[Answer] = []
    failed: list[Answer] = []
    for entry in entries:
        try:
            successful.append({"Id": entry["Id"], **(act(entry) or {})})
        except SqsError as error:
            fault = {"SenderFault": error.sender_fault, "Code": error.code, "Message": error.message}
            failed.append({"Id": entry["Id"], **fault})
    return {key: entries for key, entries in (("Successful", successful), ("Failed", failed)) if entries}


MAX_ACTIONS = 7
_LABEL = re.compile("[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile("[0-9]{12}")


def with_permission(policy: str | None, queue_arn: str, request: Mapping[str, Any]) -> str:
    """Return a queue's policy with the statement of an AddPermission. Raises `SqsError`."""
    label, accounts, actions = request["Label"], request["AWSAccountIds"], request["Actions"]
    if not _LABEL.fullmatch(label):
        reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."
        raise invalid(label, "Label", reason)
    wrong = [account for account in accounts if not _ACCOUNT.fullmatch(account)]
    if wrong or not accounts:
        raise invalid(wrong[0] if wrong else accounts, "PrincipalId", "Unable to verify.")
    _check_actions(actions)
    new = {"Version": "2008-10-17", "Id": f"{queue_arn}/SQSDefaultPolicy"}
    document = json.loads(policy) if policy else new
    statements = _statements(document)
    if any(each.get("Sid") == label for each in statements):
        raise invalid(label, "Label", "Already exists.")
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{account}:root" for account in accounts])},
        "Action": _one_or_all([f"SQS:{action}" for action in actions]),
        "Resource": queue_arn,
    }
    return json.dumps({**document, "Statement": [*statements, statement]})


def without_permission(policy: str | None, label: str) -> str:
    """Return a queue's policy without the statement of this label, empty if none is left. Raises `SqsError`."""
    document = json.loads(policy) if policy else {}
    statements = _statements(document)
    left = [each for each in statements if each.get("Sid") != label]
    if len(left) == len(statements):
        raise invalid(label, "Label", "can't find label.")
    return json.dumps({**document, "Statement": left}) if left else ""


def _check_actions(actions: Sequence[str]) -> None:
    if len(actions) > MAX_ACTIONS:
        raise SqsError("OverLimit", f"{len(actions)} Actions were found, maximum allowed is {MAX_ACTIONS}.")
    known = {"*", *service_model().operation_names}
    for action in actions:
        if action not in known:
            reason = "Please refer to the appropriate WSDL for a list of valid actions. "
            raise invalid(f"SQS:{action}", "ActionName", reason)
    if not actions:
        raise missing("Actions")


def _statements(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the statements of a policy; a policy may have one that is not in a list."""
    statements = document.get("Statement", [])
    return statements if isinstance(statements, list) else [statements]


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


MAX_QUEUES_PER_PAGE = 1000


def page(urls: list[str], request: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the requested page, and the token for the next page; SQS makes a token only if MaxResults was given."""
    start = _read_token(request["NextToken"]) if request.get("NextToken") else 0
    max_results = request.get("MaxResults")
    if max_results is not None:
        check_range(max_results, "MaxResults", 1, MAX_QUEUES_PER_PAGE)
    end = start + (MAX_QUEUES_PER_PAGE if max_results is None else max_results)
    is_more = max_results is not None and end < len(urls)
    return urls[start:end], ({"NextToken": b64encode(b"%d" % end).decode()} if is_more else {})


def _read_token(token: str) -> int:
    try:
        return int(b64decode(token, validate=True))
    except (NotBase64, ValueError):
        raise SqsError("InvalidParameterValue", "Invalid or expired next token.") from None
