"""The event file: the messages that a run begins with."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarry.support.arn import queue_arn
from tarry.template import Queue
from tarry.tooling.errors import UsageError


@dataclass(frozen=True)
class Sample:
    """One record of the event, as it is to be sent. ``number`` is its place in the file, from 1."""

    number: int
    queue: str
    body: str
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group_id: str | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None
    receive_count: int = 1

    def request(self, queue: Queue, url: str) -> dict[str, Any]:
        """What `SendMessage` takes to put it in its queue."""
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
    """The records of an SQS event file.

    Raises:
        UsageError: there is no such file, or it is no SQS event; says which record and what of it.
    """
    try:
        event = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list):
        raise UsageError(f"{path} is not an SQS event: it has no list of Records")
    return [_sample(number, record, path) for number, record in enumerate(records, start=1)]


def _sample(number: int, record: Any, path: Path) -> Sample:
    where = f"{path}: record {number}"
    if not isinstance(record, dict):
        raise UsageError(f"{where} is {record!r:.40}, not a message")
    source = record.get("eventSourceARN")
    arn = queue_arn(source if isinstance(source, str) else "")
    if not arn.name:
        raise UsageError(f"{where} has no eventSourceARN of a queue, got {source!r}")
    if not isinstance(record.get("body"), str):
        raise UsageError(f"{where} has no body")
    system = record.get("attributes") or {}
    attributes = record.get("messageAttributes") or {}
    if not isinstance(system, dict) or not isinstance(attributes, dict):
        raise UsageError(f"{where}: attributes and messageAttributes must be objects")
    if arn.is_fifo and not system.get("MessageGroupId"):
        raise UsageError(f"{where} has no attributes.MessageGroupId, which the FIFO queue {arn.name} demands")
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
    """A message attribute as `SendMessage` takes it, from one as an event has it."""
    kind = value.get("dataType") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise UsageError(f"{where} has no dataType")
    if not kind.startswith("Binary"):
        return {"DataType": kind, "StringValue": str(value.get("stringValue", ""))}
    try:
        return {"DataType": kind, "BinaryValue": base64.b64decode(value.get("binaryValue", ""), validate=True)}
    except (binascii.Error, TypeError, ValueError) as error:
        raise UsageError(f"{where}: its binaryValue is not base64") from error
