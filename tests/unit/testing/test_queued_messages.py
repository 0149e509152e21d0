"""Messages in a queue, as `sandbox.messages` returns them."""

from decimal import Decimal

from tarry import Message, consumer
from tarry.testing import Sandbox


def test_a_queued_message_has_its_body_attributes_and_delay(sandbox: Sandbox) -> None:
    sandbox.queue("orders")
    attributes = {"kind": "order", "total": Decimal("9.50"), "lines": 2, "seal": b"\x00"}
    order = sandbox.send("orders", {"id": 1}, delay=90, attributes=attributes, group_id="ada")

    [message] = sandbox.messages("orders")
    assert (message.id, message.delivery_id, message.queue) == (order, order, "orders")
    assert (message.body, message.json()) == ('{"id":1}', {"id": 1})
    assert (message.attributes, message.group_id) == (attributes, "ada")
    assert (message.receive_count, message.invisible_seconds, message.failure) == (0, 90, None)


def test_reading_the_messages_costs_no_receive(sandbox: Sandbox) -> None:
    sandbox.queue("orders")
    sandbox.send("orders", "1")
    assert [message.receive_count for _ in range(3) for message in sandbox.messages("orders")] == [0, 0, 0]


def test_a_dead_letter_has_its_failure_record(sandbox: Sandbox) -> None:  # SPEC F2
    @consumer
    def handler(message: Message) -> None:
        message.reject("nothing to pay")

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    order = sandbox.send("orders", {"id": 1}, attributes={"kind": "order"})
    sandbox.run()

    [dead_letter] = sandbox.messages("orders-dlq")
    assert dead_letter.id == order != dead_letter.delivery_id
    assert dead_letter.attributes == {"kind": "order"}
    assert dead_letter.failure is not None
    assert (dead_letter.failure.reason, dead_letter.failure.message) == ("rejected", "nothing to pay")
    assert repr(dead_letter) == f'<QueuedMessage {order!r} in orders-dlq: {{"id":1}}, rejected: nothing to pay>'


def test_a_tarry_attribute_without_a_record_is_an_ordinary_attribute(sandbox: Sandbox) -> None:
    sandbox.queue("orders")
    sandbox.send("orders", "1", attributes={"Tarry": "a note of mine"})
    [message] = sandbox.messages("orders")
    assert message.attributes == {"Tarry": "a note of mine"}
    assert message.failure is None
