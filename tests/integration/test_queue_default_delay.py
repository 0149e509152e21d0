"""``Queue(name, delay=...)``: the producer's default delay."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tarry import ConfigurationError, DelayNotSupported, Queue
from tests.wire import Wire, url

ORDERS = url("orders")


def delays(send: Any) -> list[Any]:
    """Return the DelaySeconds of the messages that ``send`` sends."""
    with Wire() as wire:
        send()
    return [entry.get("DelaySeconds") for _, entry in wire.accepted]


@pytest.mark.parametrize(
    ("default", "explicit", "seconds"),
    [(60, None, 60), (60, 0, 0), (60, 5, 5), (0, None, 0), (0, 5, 5), (None, None, None), (1.2, None, 2)],
)
def test_the_delay_of_a_send_overrides_the_default_even_if_it_is_0(
    default: Any, explicit: Any, seconds: Any
) -> None:  # SPEC J3
    queue = Queue(ORDERS, delay=default)
    assert delays(lambda: queue.send("a", delay=explicit)) == [seconds]
    assert delays(lambda: queue.send_batch(["a"], delay=explicit)) == [seconds]


def test_the_delay_of_an_entry_overrides_that_of_the_batch_and_of_the_queue() -> None:  # SPEC J3
    queue = Queue(ORDERS, delay=timedelta(minutes=1))
    entries = [Queue.entry("a", delay=0), Queue.entry("b"), "c"]
    assert delays(lambda: queue.send_batch(entries)) == [0, 60, 60]
    assert delays(lambda: queue.send_batch(entries, delay=5)) == [0, 5, 5]


def test_a_default_above_900_seconds_is_sent_in_the_tarry_attribute() -> None:  # SPEC J3, J4
    with Wire() as wire:
        sent = Queue(ORDERS, delay=7_200).send("a")
    [(_, entry)] = wire.accepted
    assert entry["DelaySeconds"] == 900
    assert sent in entry["MessageAttributes"]["Tarry"]["StringValue"]


def test_a_queue_shows_its_default_delay() -> None:  # SPEC J3
    assert Queue("orders", delay=timedelta(minutes=1)).delay == 60
    assert Queue("orders").delay is None
    assert repr(Queue("orders", delay=60)) == "Queue('orders', delay=60)"


@pytest.mark.parametrize(("queue", "delay"), [("orders", 43_201), ("orders.fifo", 5), ("orders.fifo", 0)])
def test_a_default_that_sqs_cannot_keep_is_refused_when_the_queue_is_made(queue: str, delay: int) -> None:  # SPEC J3
    with pytest.raises(DelayNotSupported):
        Queue(queue, delay=delay)


@pytest.mark.parametrize("delay", [-1, float("nan"), "60", True, [60]])
def test_an_invalid_default_is_refused_with_its_value(delay: Any) -> None:  # SPEC J3, C5
    with pytest.raises(ConfigurationError, match="the delay of a Queue: a delay ") as caught:
        Queue("orders", delay=delay)
    assert repr(delay) in str(caught.value)


def test_a_datetime_is_refused_as_a_default() -> None:  # SPEC J3
    with pytest.raises(ConfigurationError, match="the delay of a Queue is a number of seconds or a timedelta"):
        Queue("orders", delay=datetime.now(UTC))  # type: ignore[arg-type]
