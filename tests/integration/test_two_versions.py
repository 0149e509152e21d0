"""Two versions of a consumer on one queue: this one gets the messages that the released one sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from tarry import Fixed, Message, consumer
from tarry.testing import Sandbox
from tests.unit.test_released_attributes import RELEASED, later


def put(sandbox: Sandbox, body: str, attribute: str) -> None:
    """Sends a message with a `Tarry` attribute, as another version would."""
    told = {"Tarry": {"DataType": "String", "StringValue": attribute}}
    request = {"QueueUrl": sandbox.sqs.url("orders"), "MessageBody": body, "MessageAttributes": told}
    sandbox.sqs.call("SendMessage", request)


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_a_consumer_goes_on_with_what_the_released_one_sent(sandbox: Sandbox, path: Path) -> None:  # DESIGN 3
    """The id, the attempts and the failures go on, up to the dead letter, which the command reads."""
    kept = json.loads(path.read_text())
    told = json.loads(kept["attribute"])
    seen: list[tuple[str, int]] = []

    @consumer(max_attempts=4, backoff=Fixed(10))
    def handler(message: Message) -> None:
        seen.append((message.id, message.attempt))
        raise ValueError("out of order")

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    put(sandbox, kept["body"], json.dumps({**told, "due": sandbox.now + 3_600} if "due" in told else told))
    sandbox.run(check=False)  # the checkers did not see the attempts before
    first = told.get("carried", 0) + 1
    assert seen == [(told["id"], attempt) for attempt in range(first, 5)]
    [letter] = sandbox.messages("orders-dlq")
    assert letter.failure is not None
    earlier = told.get("failure", {}).get("attempts", 0) - told.get("carried", 0)
    assert (letter.id, letter.failure.attempts) == (told["id"], 4 + max(0, earlier))
    assert letter.failure.history[-1]["error"] == "ValueError: out of order"


def test_a_message_of_a_later_version_is_handled_and_forgets_nothing_while_it_waits(
    sandbox: Sandbox,
) -> None:  # SPEC E3, J5
    seen: list[Any] = []

    @consumer
    def handler(message: Message) -> None:
        assert message.failure is not None
        seen.append((message.id, message.attempt, message.failure.said, message.failure.extra))
        if len(seen) == 1:
            message.defer(60)

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    put(sandbox, '{"id": 1}', json.dumps(later()))
    sandbox.run(check=False)  # the checkers did not see the attempts before
    assert seen == [("m1", 2, "the customer is gone", {"tenant": "acme"})] * 2
