"""What a test sees of a message in a queue."""

from decimal import Decimal

from tarry import Message, consumer
from tarry.testing import Sandbox


def test_a_message_in_a_queue_is_seen_as_it_is(sandbox: Sandbox) -> None:
    sandbox.queue("orders")
    attributes = {"kind": "order", "total": Decimal("9.50"), "lines": 2, "seal": b"\x00"}
    order = sandbox.send("orders", {"id": 1}, delay=90, attributes=attributes, group_id="ada")

    [letter] = sandbox.messages("orders")
    assert (letter.id, letter.delivery_id, letter.queue) == (order, order, "orders")
    assert (letter.body, letter.json()) == ('{"id":1}', {"id": 1})
    assert (letter.attributes, letter.group_id) == (attributes, "ada")
    assert (letter.receive_count, letter.invisible_seconds, letter.failure) == (0, 90, None)


def test_looking_costs_no_receive(sandbox: Sandbox) -> None:
    sandbox.queue("orders")
    sandbox.send("orders", "1")
    assert [letter.receive_count for _ in range(3) for letter in sandbox.messages("orders")] == [0, 0, 0]


def test_a_dead_letter_says_why(sandbox: Sandbox) -> None:  # SPEC F2
    @consumer
    def handler(message: Message) -> None:
        message.reject("nothing to pay")

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    order = sandbox.send("orders", {"id": 1}, attributes={"kind": "order"})
    sandbox.run()

    [letter] = sandbox.messages("orders-dlq")
    assert letter.id == order != letter.delivery_id
    assert letter.attributes == {"kind": "order"}
    assert letter.failure is not None
    assert (letter.failure.reason, letter.failure.message) == ("rejected", "nothing to pay")
    assert repr(letter) == f'<Letter {order!r} in orders-dlq: {{"id":1}}, rejected: nothing to pay>'


def test_a_record_that_is_not_tarrys_is_an_attribute_like_any_other(sandbox: Sandbox) -> None:
    sandbox.queue("orders")
    sandbox.send("orders", "1", attributes={"Tarry": "a note of mine"})
    [letter] = sandbox.messages("orders")
    assert letter.attributes == {"Tarry": "a note of mine"}
    assert letter.failure is None
