"""Sending, as a user writes it. Checked by mypy --strict and pyright strict, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import assert_type

from tarry import Message, Queue, SendError

orders = Queue("orders")

assert_type(orders.send({"id": 1}), str)
assert_type(orders.send_batch({"id": number} for number in range(3)), list[str])
assert_type(orders.name, str)
assert_type(orders.is_fifo, bool)

by_default = Queue("orders", delay=timedelta(minutes=1))
assert_type(by_default.delay, int | None)
Queue("orders", delay=1.5)
Queue("orders", delay="60")  # type: ignore[arg-type]

orders.send("a", delay=60)
orders.send("a", delay=timedelta(hours=1), group_id="g", deduplication_id="d")
orders.send("a", delay=datetime.now(UTC), attributes={"a": "x", "b": 1, "c": Decimal(1), "d": b"x"})
orders.send_batch([Queue.entry("a", delay=60), "b"], delay=0, attributes={"a": 1}, group_id="g")

orders.send("a", delay="60")  # type: ignore[arg-type]
orders.send("a", group_id=1)  # type: ignore[arg-type]


def copy(message: Message) -> None:
    orders.send(message.body, attributes=message.attributes, group_id=message.group_id)


def resend(error: SendError) -> None:
    for unsent in error.failed:
        assert_type(unsent.index, int)
        assert_type(unsent.reason, Exception)
    assert_type(error.message_ids, list[str | None])
    orders.send_batch(unsent.entry for unsent in error.failed)
