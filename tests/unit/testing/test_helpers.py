"""The helpers `message`, `sqs_event` and `lambda_context`."""

from dataclasses import dataclass
from decimal import Decimal

import pytest
from pydantic import BaseModel

from tarry import Batch, Message, Outcome, batch_consumer, consumer
from tarry.errors import ConfigurationError, Undecodable
from tarry.testing import lambda_context, message, sqs_event


class Order(BaseModel):
    id: int


@consumer(max_attempts=3)
def handler(message: Message[Order]) -> None:
    if message.is_last_attempt:
        message.reject(f"order {message.payload.id}")


def test_a_message_can_be_made_for_the_plain_function() -> None:  # SPEC N4
    order = message({"id": 1}, attempt=2, queue="orders", attributes={"total": Decimal("9.5")})
    assert (order.json(), order.attempt, order.queue) == ({"id": 1}, 2, "orders")
    assert order.attributes == {"total": Decimal("9.5")}
    assert (order.max_attempts, order.is_last_attempt) == (5, False)
    assert order.outcome is None
    order.ack()
    assert order.outcome is not None
    assert order.context.get_remaining_time_in_millis() > 29_000


def test_a_message_made_for_a_consumer_has_its_payload_and_limits() -> None:
    order = message({"id": 1}, attempt=3, consumer=handler)
    handler.function(order)
    assert order.payload == Order(id=1)
    assert order.outcome == Outcome.dead_letter("order 1")


def test_a_message_without_a_consumer_has_no_payload() -> None:
    with pytest.raises(ConfigurationError, match="needs a model"):
        _ = message({"id": 1}).payload


def test_a_body_that_does_not_fit_the_model_is_undecodable() -> None:
    with pytest.raises(Undecodable):
        _ = message({"id": "x"}, consumer=handler).payload


def test_an_event_can_be_made_for_the_consumer() -> None:  # SPEC N4
    seen: list[tuple[str, int, str | None]] = []

    @batch_consumer
    def handler(batch: Batch) -> None:
        seen.extend((each.body, each.attempt, each.group_id) for each in batch)

    event = sqs_event({"id": 1}, "text", queue="ledger.fifo", attempt=2, group_id="ada")
    assert handler(event, lambda_context(remaining=3)) == {"batchItemFailures": []}
    assert [body for body, _, _ in seen] == ['{"id":1}', "text"]
    assert {group for _, _, group in seen} == {"ada"}


def test_sqs_event_accepts_the_bodies_that_queue_sends() -> None:
    @dataclass
    class Payment:
        total: Decimal

    event = sqs_event(Order(id=1), Payment(Decimal("9.5")), [1], "1")
    assert [record["body"] for record in event["Records"]] == ['{"id":1}', '{"total":"9.5"}', "[1]", "1"]
    with pytest.raises(TypeError, match="a body is a str, dict, list, dataclass or pydantic model, got int"):
        sqs_event(1)


def test_equal_bodies_get_different_ids_that_are_the_same_in_every_run() -> None:
    first, second = (record["messageId"] for record in sqs_event("1", "1")["Records"])
    assert first != second
    assert first == sqs_event("1")["Records"][0]["messageId"]


def test_a_fifo_message_needs_a_group_id() -> None:
    with pytest.raises(ValueError, match=r"a message of the FIFO queue 'ledger\.fifo' has a group: give a group_id"):
        message("1", queue="ledger.fifo")


def test_a_context_counts_down() -> None:
    context = lambda_context(remaining=2)
    assert 1000 < context.get_remaining_time_in_millis() <= 2000
    assert lambda_context(remaining=0).get_remaining_time_in_millis() == 0
    assert context.function_name == "function"
    assert context.aws_request_id
    assert context.invoked_function_arn == "arn:aws:lambda:us-east-1:123456789012:function:function"
