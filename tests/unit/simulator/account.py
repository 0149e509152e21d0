"""The SQS model under a clock that a test advances, with short helpers for requests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from tarry.tools.simulator.history import History
from tarry.tools.simulator.sqs import Realism, Sqs, SqsError
from tests.wire import TestClock


class Account:
    """An account whose queues are addressed by name."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        self.clock = TestClock()
        self.history = History(self.clock.time)
        self.sqs = Sqs(self.clock.time, Random(seed), self.history, **settings)

    def call(self, operation: str, queue: str, **parameters: Any) -> dict[str, Any]:
        return self.sqs.call(operation, {"QueueUrl": self.sqs.url(queue), **parameters})

    def queue(self, name: str, dead_letter: str | None = None, max_receives: int = 3, **attributes: Any) -> str:
        if name.endswith(".fifo"):
            attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", **attributes}
        if dead_letter is not None:
            policy = {"deadLetterTargetArn": self.sqs.arn(dead_letter), "maxReceiveCount": max_receives}
            attributes["RedrivePolicy"] = json.dumps(policy)
        texts = {name: str(value) for name, value in attributes.items()}
        self.sqs.call("CreateQueue", {"QueueName": name, "Attributes": texts})
        return name

    def send(self, queue: str, body: str = "body", group: str | None = None, **parameters: Any) -> str:
        more = {"MessageGroupId": group} if group is not None else {}
        message_id: str = self.call("SendMessage", queue, MessageBody=body, **more, **parameters)["MessageId"]
        return message_id

    def receive(self, queue: str, most: int = 10, **parameters: Any) -> list[dict[str, Any]]:
        asked = {"MaxNumberOfMessages": most, "AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        messages: list[dict[str, Any]] = self.call("ReceiveMessage", queue, **{**asked, **parameters}).get(
            "Messages", []
        )
        return messages

    def bodies(self, queue: str, most: int = 10, **parameters: Any) -> list[str]:
        """Receive messages; return their bodies."""
        return [message["Body"] for message in self.receive(queue, most, **parameters)]

    def handle(self, queue: str) -> str:
        """Receive the only visible message; return its receipt handle."""
        [message] = self.receive(queue)
        handle: str = message["ReceiptHandle"]
        return handle

    def delete(self, queue: str, handle: str) -> None:
        self.call("DeleteMessage", queue, ReceiptHandle=handle)

    def change_visibility(self, queue: str, handle: str, seconds: int) -> None:
        self.call("ChangeMessageVisibility", queue, ReceiptHandle=handle, VisibilityTimeout=seconds)

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def attributes(self, queue: str) -> dict[str, str]:
        attributes: dict[str, str] = self.call("GetQueueAttributes", queue, AttributeNames=["All"])["Attributes"]
        return attributes

    def recorded(self, *names: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the events of the history with these names, or all of them."""
        return [(event.what, dict(event.fields)) for event in self.history.events if not names or event.what in names]


@contextmanager
def refused(code: str, text: str = "") -> Iterator[None]:
    """Check that SQS refuses the request within, with this code and a text that contains ``text``."""
    with pytest.raises(SqsError) as caught:
        yield
    assert caught.value.code == code
    assert text in caught.value.message


def text(value: str, data_type: str = "String") -> dict[str, Any]:
    return {"DataType": data_type, "StringValue": value}


__all__ = ["Account", "Realism", "refused", "text"]
