"""The settlement requests of clean, retried, and dead-lettered batches."""

import pytest

from tarry import Fixed, Message, consumer
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire


@consumer
def succeeds(message: Message) -> None: ...


@consumer(backoff=Fixed(60))
def fails(message: Message) -> None:
    raise ValueError("out of order")


def orders(**more: object) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, **more)  # type: ignore[arg-type]


def test_a_clean_batch_makes_no_request() -> None:  # SPEC G2
    with orders() as wire:
        assert succeeds(batch_of(25), Context()) == {"batchItemFailures": []}
    assert wire.requests == []


@pytest.mark.parametrize(("count", "requests"), [(1, 1), (10, 1), (11, 2), (95, 10)])
def test_delayed_retries_are_requested_in_batches_of_ten(count: int, requests: int) -> None:  # SPEC G1
    with orders() as wire:
        response = fails(batch_of(count), Context())
    assert failed(response) == [f"m{index}" for index in range(count)]
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == requests
    assert wire.visibilities() == {f"handle-m{index}": 60 for index in range(count)}


def test_a_dead_letter_is_sent_before_the_original_is_deleted() -> None:  # SPEC E6, F2
    with orders() as wire:
        response = fails(event(record("{}", receives=5)), Context())
    assert failed(response) == []
    assert wire.operations == [
        "GetQueueAttributes", "GetQueueAttributes", "SendMessageBatch", "DeleteMessageBatch"
    ]  # fmt: skip
    [sent] = wire.sent_entries()
    assert sent["MessageBody"] == "{}"
    assert sent["DelaySeconds"] == 0
    assert wire.envelopes()[0]["failure"]["reason"] == "exhausted"
