"""tarry.testing as a user's tests use it. Checked by mypy and pyright, never run."""

from dataclasses import dataclass
from typing import Any, assert_type

import pytest

from tarry import Message, State, consumer
from tarry.testing import (
    DeliveredBatch,
    DeliveredMessage,
    QueuedMessage,
    Realism,
    Report,
    Sandbox,
    Transition,
    deliver,
    lambda_context,
    message,
    sqs_event,
)


@dataclass
class Order:
    id: int


@consumer
def handler(message: Message[Order]) -> None: ...


@pytest.mark.sandbox(seed=7, realism=Realism(reorder=True))
def test_a_run(sandbox: Sandbox) -> None:
    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=15, visibility_timeout=60)
    sandbox.connect(handler, "orders", batch_size=10, window=0, timeout=30, max_concurrency=None)
    order = assert_type(sandbox.send("orders", {"id": 1}, delay=None, group_id=None, attributes=None), str)
    sandbox.faults.add("lost_answer", operation="SendMessageBatch")
    report = assert_type(sandbox.run(), Report)
    assert_type(sandbox.run(until=lambda: True, for_=60, check=False), Report)
    assert_type(sandbox.advance(60), Report)
    assert_type(report.story(order), list[Transition])
    assert_type(report.state(order), State)
    assert_type(sandbox.messages("orders-dlq"), list[QueuedMessage])
    assert_type(sandbox.elapsed, float)


def test_a_template() -> None:
    with Sandbox.from_template("template.yaml", environment={"STAGE": "test", "F": {"TABLE": "t"}}) as sandbox:
        assert_type(sandbox, Sandbox)
        sandbox.add_template("other.yaml", resources=True)


def test_the_helpers() -> None:
    assert_type(message({"id": 1}), Message[Any])
    assert_type(message({"id": 1}, attempt=2, consumer=handler), Message[Order])
    assert_type(message({"id": 1}, consumer=handler).payload.id, int)
    handler(sqs_event({"id": 1}), lambda_context(remaining=3))


def test_a_queue_in_moto(sqs: Any) -> None:
    result = assert_type(deliver(handler, "https://sqs.us-east-1.amazonaws.com/1/orders"), DeliveredBatch)
    deliver(lambda event, context: None, "https://sqs.us-east-1.amazonaws.com/1/orders", sqs, batch_size=5)
    assert_type(result.messages, tuple[DeliveredMessage, ...])
    assert_type(result.states, list[str])
    assert_type(result.state("id"), State)
    assert_type(result.count("COMMITTED"), int)
    assert_type(result.dead_letters, tuple[QueuedMessage, ...])
    assert_type(result.error, BaseException | None)
