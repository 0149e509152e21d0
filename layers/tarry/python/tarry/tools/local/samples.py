"""The records of an event file, as the messages to send."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarry.failed.usage import UsageError
from tarry.support.values import queue_arn
from tarry.tools.template import TemplateQueue


def json_of(content: bytes, name: str) -> Any:
    """Return the value of a JSON text, which is UTF-8. Raises `UsageError`."""
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not JSON: byte {error.start} is not text; give a JSON file") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}; give a JSON file") from error


SERVICES = {"s3": "an S3 event", "sns": "an SNS event", "dynamodb": "a DynamoDB stream event"}
KINDS = {
    "detail-type": "an EventBridge event",
    "requestContext": "an API Gateway event",
    "httpMethod": "an API Gateway event",
}
"""Kinds of events without Records, by one of their keys."""
TYPES = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
SQS_EVENT = "give an object with Records, each with the eventSourceARN of a queue and a body"


def not_sqs(event: Any) -> str:
    """Return what an event is instead of an SQS event, and what to give; empty for an SQS event."""
    kind = _other_kind(event)
    return f"{kind}, not an SQS event: {SQS_EVENT}" if kind else ""


def _other_kind(event: Any) -> str:
    if not isinstance(event, dict):
        return TYPES.get(type(event), "not an object")
    records = event.get("Records")
    if not isinstance(records, list):
        return next((kind for key, kind in KINDS.items() if key in event), "an object without a list of Records")
    source = next((source for record in records if (source := _source(record)) not in ("", "sqs")), "")
    return source and SERVICES.get(source, f"an event of {source}")


def _source(record: Any) -> str:
    """Return the service of a record, such as ``s3``; empty if it names none."""
    source = record.get("eventSource") or record.get("EventSource") if isinstance(record, dict) else None
    return source.removeprefix("aws:") if isinstance(source, str) else ""


@dataclass(frozen=True)
class Sample:
    """A record of the event, to be sent as a message.

    ``number`` is its position in the file, from 1; ``queue`` is empty if the record names none.
    """

    number: int
    queue: str
    body: str
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group_id: str | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None
    receive_count: int = 1

    def request(self, queue: TemplateQueue, url: str) -> dict[str, Any]:
        """Return the parameters of SendMessage."""
        request: dict[str, Any] = {
            "QueueUrl": url,
            "MessageBody": self.body,
            "MessageAttributes": dict(self.attributes),
        }
        if self.group_id:
            request["MessageGroupId"] = self.group_id
        if queue.is_fifo and (self.deduplication_id or not queue.deduplicates_by_content):
            request["MessageDeduplicationId"] = self.deduplication_id or f"record-{self.number}"
        if self.trace_header:
            header = {"StringValue": self.trace_header, "DataType": "String"}
            request["MessageSystemAttributes"] = {"AWSTraceHeader": header}
        return request


def read_samples(path: Path) -> list[Sample]:
    """Read the records of an SQS event file.

    Raises:
        UsageError: the file cannot be read, or is not an SQS event; with the number of the record and the problem.
    """
    try:
        event = json_of(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; give a file with an SQS event") from error
    if problem := not_sqs(event):
        raise UsageError(f"{path} is {problem}")
    return [_sample(number, record, path) for number, record in enumerate(event["Records"], start=1)]


def _sample(number: int, record: Any, path: Path) -> Sample:
    where = f"{path}: record {number}"
    if not isinstance(record, dict):
        raise UsageError(f"{where} is {record!r:.40}, not a message")
    source = record.get("eventSourceARN")
    arn = queue_arn(source if isinstance(source, str) else "")
    if source is not None and not arn.name:
        raise UsageError(f"{where}: eventSourceARN must be the ARN of a queue, got {source!r}")
    if not isinstance(record.get("body"), str):
        raise UsageError(f"{where}: body must be a string")
    system = record.get("attributes") or {}
    attributes = record.get("messageAttributes") or {}
    if not isinstance(system, dict) or not isinstance(attributes, dict):
        raise UsageError(f"{where}: attributes and messageAttributes must be objects")
    if arn.is_fifo and not system.get("MessageGroupId"):
        raise UsageError(f"{where} needs attributes.MessageGroupId: {arn.name} is a FIFO queue")
    count = str(system.get("ApproximateReceiveCount", ""))
    return Sample(
        number=number,
        queue=arn.name,
        body=record["body"],
        attributes={name: _attribute(value, f"{where}: attribute {name}") for name, value in attributes.items()},
        group_id=system.get("MessageGroupId"),
        deduplication_id=system.get("MessageDeduplicationId"),
        trace_header=system.get("AWSTraceHeader"),
        receive_count=int(count) if count.isdecimal() else 1,
    )


def _attribute(value: Any, where: str) -> dict[str, Any]:
    """Convert a message attribute of an event to one of SendMessage."""
    kind = value.get("dataType") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise UsageError(f"{where} needs a dataType")
    if not kind.startswith("Binary"):
        return {"DataType": kind, "StringValue": str(value.get("stringValue", ""))}
    try:
        return {"DataType": kind, "BinaryValue": base64.b64decode(value.get("binaryValue", ""), validate=True)}
    except (binascii.Error, TypeError, ValueError) as error:
        raise UsageError(f"{where}: its binaryValue is not base64") from error
