"""The helpers `message`, `sqs_event` and `lambda_context`, and the messages that `sandbox.messages` returns."""

from dataclasses import dataclass
from decimal import Decimal

import pytest
from pydantic import BaseModel

from tarry import Batch, Message, Outcome, batch_consumer, consumer
from tarry.errors import ConfigurationError, Undecodable
from tarry.testing import Sandbox, lambda_context, message, sqs_event
from tests.sandboxes import work


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
    assert (order.max_attempts, order.is_last_attempt, order.outcome) == (5, False, None)
    order.ack()
    assert order.outcome is not None
    assert order.context.get_remaining_time_in_millis() > 29_000
    with pytest.raises(ConfigurationError, match="needs a model"):
        _ = order.payload


def test_a_message_made_for_a_consumer_has_its_payload_and_limits() -> None:
    order = message({"id": 1}, attempt=3, consumer=handler)
    handler.function(order)
    assert (order.payload, order.outcome) == (Order(id=1), Outcome.dead_letter("order 1"))
    with pytest.raises(Undecodable):
        _ = message({"id": "x"}, consumer=handler).payload


def test_an_event_can_be_made_for_the_consumer() -> None:  # SPEC N4
    seen: list[tuple[str, str | None]] = []

    @batch_consumer
    def handler(batch: Batch) -> None:
        seen.extend((each.body, each.group_id) for each in batch)

    event = sqs_event({"id": 1}, "text", queue="ledger.fifo", attempt=2, group_id="ada")
    assert handler(event, lambda_context(remaining=3)) == {"batchItemFailures": []}
    assert seen == [('{"id":1}', "ada"), ("text", "ada")]


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


# queued messages


def test_a_queued_message_has_its_body_attributes_and_delay_and_reading_it_costs_no_receive(sandbox: Sandbox) -> None:
    sandbox.queue("orders")
    attributes = {"kind": "order", "total": Decimal("9.50"), "lines": 2, "seal": b"\x00", "Tarry": "a note of mine"}
    order = sandbox.send("orders", {"id": 1}, delay=90, attributes=attributes, group_id="ada")
    for _ in range(3):
        [message] = sandbox.messages("orders")
        assert (message.id, message.delivery_id, message.queue) == (order, order, "orders")
        assert (message.body, message.json()) == ('{"id":1}', {"id": 1})
        assert (message.attributes, message.group_id) == (attributes, "ada")
        assert (message.receive_count, message.invisible_seconds, message.failure) == (0, 90, None)


def test_a_dead_letter_has_its_failure_record(sandbox: Sandbox) -> None:  # SPEC F2
    rejects = consumer(lambda message: message.reject("nothing to pay"))
    [order] = work(sandbox, rejects, {"id": 1}, send={"attributes": {"kind": "order"}})
    sandbox.run()
    [dead_letter] = sandbox.messages("orders-dlq")
    assert dead_letter.id == order != dead_letter.delivery_id
    assert dead_letter.attributes == {"kind": "order"}
    assert dead_letter.failure is not None
    assert (dead_letter.failure.reason, dead_letter.failure.message) == ("rejected", "nothing to pay")
    assert repr(dead_letter) == f'<QueuedMessage {order!r} in orders-dlq: {{"id":1}}, rejected: nothing to pay>'
