"""Two versions of a consumer on one queue: this version handles messages that another version sent."""

import json
from pathlib import Path

import pytest

from tarry import Fixed, Message, consumer
from tarry.testing import Sandbox
from tests.unit.test_released_attributes import RELEASED


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_a_consumer_continues_messages_that_a_released_version_sent(sandbox: Sandbox, path: Path) -> None:  # DESIGN 3
    released = json.loads(path.read_text())
    envelope = json.loads(released["attribute"])
    seen: list[tuple[str, int]] = []

    @consumer(max_attempts=4, backoff=Fixed(10))
    def handler(message: Message) -> None:
        seen.append((message.id, message.attempt))
        raise ValueError("out of order")

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    text = json.dumps({**envelope, "due": sandbox.now + 3_600} if "due" in envelope else envelope)
    attributes = {"Tarry": {"DataType": "String", "StringValue": text}}
    request = {"QueueUrl": sandbox.sqs.url("orders"), "MessageBody": released["body"], "MessageAttributes": attributes}
    sandbox.sqs.call("SendMessage", request)
    sandbox.run(check=False)  # the checkers do not know the earlier attempts
    first = envelope.get("carried", 0) + 1
    assert seen == [(envelope["id"], attempt) for attempt in range(first, 5)]
    [dead_letter] = sandbox.messages("orders-dlq")
    assert dead_letter.failure is not None
    earlier = envelope.get("failure", {}).get("attempts", 0) - envelope.get("carried", 0)
    assert (dead_letter.id, dead_letter.failure.attempts) == (envelope["id"], 4 + max(0, earlier))
    assert dead_letter.failure.history[-1]["error"] == "ValueError: out of order"
