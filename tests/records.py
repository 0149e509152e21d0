"""SQS events as Lambda passes them to a function."""

import hashlib
import json
from typing import Any

from tests.wire import arn

RECEIVED_AT = 1_800_000_000.0


def record(
    body: Any = "{}",
    message_id: str = "m1",
    queue: str = "orders",
    receives: object = 1,
    group: str | None = None,
    attributes: dict[str, Any] | None = None,
    received_at: float = RECEIVED_AT,
    system: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return a record; its receipt handle is ``handle-`` and the message id. A body that is not a str becomes JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    milliseconds = str(int(received_at * 1000))
    return {
        "messageId": message_id,
        "receiptHandle": f"handle-{message_id}",
        "body": text,
        "attributes": {
            "ApproximateReceiveCount": str(receives),
            "SentTimestamp": milliseconds,
            "SenderId": "AIDAIENQZJOLO23YVJ4VO",
            "ApproximateFirstReceiveTimestamp": milliseconds,
            **({"MessageGroupId": group} if group is not None else {}),
            **(system or {}),
        },
        "messageAttributes": attributes or {},
        "md5OfBody": hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest(),
        "eventSource": "aws:sqs",
        "eventSourceARN": arn(queue),
        "awsRegion": "us-east-1",
    }


def event(*records: dict[str, Any]) -> dict[str, Any]:
    return {"Records": list(records)}


def batch_of(count: int, queue: str = "orders", **more: Any) -> dict[str, Any]:
    """Return an event with messages m0, m1, ... and the bodies 0, 1, ..."""
    return event(*(record(index, f"m{index}", queue, **more) for index in range(count)))


def failed(response: dict[str, list[dict[str, str]]]) -> list[str]:
    """Return the ids that a response reports as failed."""
    return [item["itemIdentifier"] for item in response["batchItemFailures"]]


class Context:
    """A Lambda context in which ``remaining`` seconds are always left."""

    function_name = "orders-function"
    aws_request_id = "request-1"

    def __init__(self, remaining: float = 30) -> None:
        self._remaining = remaining

    def get_remaining_time_in_millis(self) -> int:
        return int(self._remaining * 1000)
