"""Event files: reading them, and telling an SQS event from others."""

import json
from typing import Any

from tarry.failed.usage import UsageError


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
