"""Messages that are not due yet: they wait in their queue and use no attempt."""

import json
from typing import Any

import pytest

from tarry import Batch, Fixed, Message, batch_consumer, consumer
from tarry.record.attribute import body_sum
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, TestClock, Wire, client_error

HOUR = 3_600


def delayed(
    due_in: float, message_id: str = "m1", body: str = "{}", queue: str = "orders", **more: Any
) -> dict[str, Any]:
    """Return a message first received at RECEIVED_AT and due ``due_in`` seconds later."""
    envelope = {"v": 1, "sum": body_sum(body), "id": f"stable-{message_id}", "due": RECEIVED_AT + due_in}
    attributes = {"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}}
    return record(body, message_id, queue, attributes=attributes, **more)


def orders(elapsed: float = 0, **more: Any) -> Wire:
    """Return a wire whose clock is ``elapsed`` seconds after RECEIVED_AT."""
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, clock=TestClock(RECEIVED_AT + elapsed), **more)


class RecordingHandler:
    """A handler that keeps the id and attempt of each message."""

    def __init__(self, error: Exception | None = None) -> None:
        self.messages: list[tuple[str, int]] = []
        self._error = error

    def __call__(self, message: Message) -> None:
        self.messages.append((message.id, message.attempt))
        if self._error is not None:
            raise self._error


# before the due time


def test_a_message_that_is_not_due_stays_invisible_until_it_is_and_does_not_run() -> None:  # SPEC J4
    seen = RecordingHandler()
    with orders() as wire:
        assert failed(consumer(seen)(event(delayed(2 * HOUR)), Context())) == ["m1"]
    assert seen.messages == []
    assert wire.operations == [
        "GetQueueAttributes",
        "ChangeMessageVisibilityBatch",
    ]  # the look-up shows whether this is the last delivery
    assert wire.visibilities() == {"handle-m1": 7_200}


@pytest.mark.parametrize(("elapsed", "seconds"), [(0, 100), (0.5, 100), (99.2, 1), (40, 60)])
def test_the_remaining_delay_is_rounded_up_to_seconds(elapsed: float, seconds: int) -> None:  # SPEC B6, J4
    with orders(elapsed) as wire:
        consumer(RecordingHandler())(event(delayed(100)), Context())
    assert wire.visibilities() == {"handle-m1": seconds}


def test_a_delay_of_12_hours_is_kept_exactly() -> None:  # SPEC J4
    """The first 900 s were DelaySeconds. The other 42,300 s are within the limit, which counts from the receive."""
    with orders() as wire:
        consumer(RecordingHandler())(event(delayed(42_300)), Context())
    assert wire.visibilities() == {"handle-m1": 42_300}


def test_a_delay_beyond_the_limit_of_sqs_continues_at_the_next_receive() -> None:  # SPEC J4
    seen = RecordingHandler()
    with orders() as wire:
        consumer(seen)(event(delayed(100_000)), Context())
    assert wire.visibilities() == {"handle-m1": 43_199}
    with orders(43_200) as wire:
        consumer(seen)(event(delayed(100_000, receives=2)), Context())
    assert 42_800 < wire.visibilities()["handle-m1"] <= 43_199
    assert seen.messages == []


def test_the_visibility_of_ten_messages_is_changed_in_one_request_while_the_others_run() -> None:  # SPEC G1, J4
    seen = RecordingHandler()
    records = [delayed(HOUR + index, f"d{index}") for index in range(12)] + [record("{}", "now")]
    with orders() as wire:
        assert failed(consumer(seen)(event(*records), Context())) == [f"d{index}" for index in range(12)]
    assert seen.messages == [("now", 1)]
    requests = wire.sent("ChangeMessageVisibilityBatch")
    assert sorted(len(request.entries) for request in requests) == [2, 10]  # several requests at once
    assert wire.visibilities() == {f"handle-d{index}": HOUR + index for index in range(12)}


def test_a_message_that_is_not_due_is_logged_in_one_line_without_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC L2, J4
    caplog.set_level("DEBUG", logger="tarry")
    with orders():
        consumer(RecordingHandler())(event(delayed(HOUR)), Context())
    [line] = lines(caplog)
    fields = [field(line, name) for name in ("event", "state", "reason", "delay", "message_id", "attempt")]
    assert fields == ["deferred", "DEFERRED", "not_due", HOUR, "stable-m1", 1]
    assert line.levelname == "INFO"


def test_a_batch_handler_does_not_get_messages_that_are_not_due() -> None:  # SPEC J4
    seen: list[list[str]] = []

    @batch_consumer
    def handler(batch: Batch) -> None:
        seen.append([message.delivery_id for message in batch])

    records = [record("{}", "a"), delayed(HOUR, "later"), record("{}", "b")]
    with orders() as wire:
        assert failed(handler(event(*records), Context())) == ["later"]
        assert failed(handler(event(delayed(HOUR, "alone")), Context())) == ["alone"]
    assert seen == [["a", "b"]]
    assert wire.visibilities() == {"handle-later": HOUR, "handle-alone": HOUR}


def test_an_exception_of_a_batch_handler_does_not_affect_messages_that_are_not_due() -> None:  # SPEC B4, J4
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        raise ValueError

    with orders() as wire:
        handler(event(record("{}", "a"), delayed(HOUR, "later")), Context())
    assert wire.visibilities() == {"handle-a": 60, "handle-later": HOUR}


def test_an_async_handler_does_not_get_messages_that_are_not_due() -> None:  # SPEC J4
    seen: list[str] = []

    @consumer
    async def handler(message: Message) -> None:
        seen.append(message.delivery_id)

    with orders():
        assert failed(handler(event(delayed(HOUR, "later"), record("{}", "now")), Context())) == ["later"]
    assert seen == ["now"]


def test_a_message_that_is_not_due_is_not_released_when_the_batch_ends_early() -> None:  # SPEC A5, J4
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        raise SystemExit

    records = [record("{}", "exits"), delayed(HOUR, "later"), record("{}", "next")]
    with orders() as wire:
        handler(event(*records), Context())
    assert wire.visibilities() == {"handle-exits": 60, "handle-later": HOUR, "handle-next": 0}


@pytest.mark.parametrize(
    "error", [client_error("AccessDenied"), client_error("InternalError", status=500), TimeoutError()], ids=repr
)
def test_a_message_that_is_not_due_is_reported_without_a_run_if_its_visibility_cannot_be_changed(
    error: Exception,
) -> None:  # SPEC A2, J4
    seen = RecordingHandler()
    with orders(fails={"ChangeMessageVisibilityBatch": error}):
        assert failed(consumer(seen)(event(delayed(HOUR)), Context())) == ["m1"]
    assert seen.messages == []


# at the due time


def test_a_message_that_is_due_runs_at_its_first_attempt() -> None:  # SPEC J4, C2
    seen = RecordingHandler()
    with orders(HOUR) as wire:
        assert failed(consumer(seen)(event(delayed(HOUR, receives=2)), Context())) == []
    assert seen.messages == [("stable-m1", 1)]
    assert wire.acts == []


def test_the_due_time_survives_redeliveries() -> None:  # SPEC J4, C2
    """At the first receive it is not due; then it runs three times."""
    seen = RecordingHandler(ValueError("not yet"))
    handler = consumer(max_attempts=3, backoff=Fixed(60))(seen)
    for receives, elapsed in [(1, 0), (2, HOUR), (3, HOUR + 60), (4, HOUR + 120)]:
        with orders(elapsed) as wire:
            handler(event(delayed(HOUR, receives=receives)), Context())
    assert seen.messages == [("stable-m1", attempt) for attempt in (1, 2, 3)]
    assert [dead_letter["MessageBody"] for dead_letter in wire.sent_entries()] == ["{}"]
    assert wire.envelopes()[0]["failure"]["attempts"] == 3
    assert "due" not in wire.envelopes()[0]


def test_a_message_received_twice_before_its_due_time_waits_again() -> None:  # SPEC J4
    """As when the first visibility change failed. The second receive counts, because it could have been an attempt."""
    seen = RecordingHandler()
    with orders(180) as wire:
        consumer(seen)(event(delayed(HOUR, receives=2)), Context())
    assert wire.visibilities() == {"handle-m1": HOUR - 180}
    with orders(HOUR):
        consumer(seen)(event(delayed(HOUR, receives=3)), Context())
    assert seen.messages == [("stable-m1", 2)]


def test_a_message_that_became_due_after_its_receive_is_released() -> None:  # SPEC C2, J4
    """A first receive before the due time does not count as an attempt, so the message must not run."""
    seen = RecordingHandler()
    with orders(20) as wire:
        assert failed(consumer(seen)(event(delayed(10)), Context())) == ["m1"]
        assert failed(consumer(seen)(event(delayed(10, receives=2)), Context())) == []
    assert wire.visibilities() == {"handle-m1": 0}
    assert seen.messages == [("stable-m1", 1)]


@pytest.mark.parametrize("count", [None, "", "many"])
def test_a_message_without_a_receive_count_runs_when_it_is_due(count: Any) -> None:  # SPEC C9, J4
    seen = RecordingHandler()
    message = delayed(10)
    message["attributes"]["ApproximateReceiveCount"] = count
    with orders(20):
        assert failed(consumer(seen)(event(message), Context())) == []
    assert len(seen.messages) == 1


def test_a_message_first_received_after_its_due_time_runs_at_once() -> None:  # SPEC J4
    seen = RecordingHandler()
    with orders(20):
        assert failed(consumer(seen)(event(delayed(-5)), Context())) == []
        assert failed(consumer(seen)(event(delayed(-5, receives=2)), Context())) == []
    assert seen.messages == [("stable-m1", 1), ("stable-m1", 2)]


# messages without a due time


def test_on_fifo_a_due_time_is_ignored() -> None:  # SPEC J4, H1
    seen = RecordingHandler()
    with Wire(queues={"ledger.fifo": Queue()}) as wire:
        assert failed(consumer(seen)(event(delayed(HOUR, queue="ledger.fifo", group="a")), Context())) == []
        assert failed(consumer(seen)(event(delayed(HOUR, queue="ledger.fifo", group="a", receives=2)), Context())) == []
    assert [attempt for _, attempt in seen.messages] == [1, 2]
    assert wire.visibilities() == {"handle-m1": 31}  # only the renewal of the lease


def test_a_due_time_copied_to_a_message_with_another_body_is_ignored() -> None:  # SPEC J4
    seen = RecordingHandler()
    copied = delayed(HOUR)
    copied["body"] = "another"
    with orders() as wire:
        assert failed(consumer(seen)(event(copied), Context())) == []
    assert len(seen.messages) == 1
    assert wire.requests == []
