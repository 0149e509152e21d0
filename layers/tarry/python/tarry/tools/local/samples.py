"""The records of an event file, as the messages to send."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarry.failed.usage import UsageError
from tarry.support.values import queue_arn
from tarry.tools.local.events import json_of, not_sqs
from tarry.tools.template import TemplateQueue


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
