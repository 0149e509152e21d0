"""Messages that are not due yet: hidden in place, unrun, at no attempt's cost."""

import json
from typing import Any

import pytest

from tarry import Batch, Fixed, Message, batch_consumer, consumer
from tarry.envelope.attribute import body_sum
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, TestClock, Wire, client_error

HOUR = 3_600


def delayed(
    due_in: float, message_id: str = "m1", body: str = "{}", queue: str = "orders", **more: Any
) -> dict[str, Any]:
    """A message as it was first received at RECEIVED_AT, due so many seconds later."""
    sent = {"v": 1, "sum": body_sum(body), "id": f"stable-{message_id}", "due": RECEIVED_AT + due_in}
    attributes = {"Tarry": {"stringValue": json.dumps(sent), "dataType": "String"}}
    return record(body, message_id, queue, attributes=attributes, **more)


def orders(elapsed: float = 0, **more: Any) -> Wire:
    """A world so many seconds after RECEIVED_AT."""
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, clock=TestClock(RECEIVED_AT + elapsed), **more)


class Seen:
    """A handler that remembers what it was given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.messages: list[tuple[str, int]] = []
        self._error = error

    def __call__(self, message: Message) -> None:
        self.messages.append((message.id, message.attempt))
        if self._error is not None:
            raise self._error


# not due


def test_a_message_that_is_not_due_is_hidden_until_it_is_and_does_not_run() -> None:  # SPEC J4
    seen = Seen()
    with orders() as wire:
        assert failed(consumer(seen)(event(delayed(2 * HOUR)), Context())) == ["m1"]
    assert seen.messages == []
    assert wire.operations == ["GetQueueAttributes", "ChangeMessageVisibilityBatch"]  # is it the last delivery?
    assert wire.visibilities() == {"handle-m1": 7_200}


@pytest.mark.parametrize(("elapsed", "seconds"), [(0, 100), (0.5, 100), (99.2, 1), (40, 60)])
def test_the_rest_of_the_wait_is_rounded_up(elapsed: float, seconds: int) -> None:  # SPEC B6, J4
    with orders(elapsed) as wire:
        consumer(Seen())(event(delayed(100)), Context())
    assert wire.visibilities() == {"handle-m1": seconds}


def test_12_hours_are_kept_whole() -> None:  # SPEC J4
    """Parked for 900 s, then received: the other 42,300 s are within what SQS allows from a receive."""
    with orders() as wire:
        consumer(Seen())(event(delayed(42_300)), Context())
    assert wire.visibilities() == {"handle-m1": 42_300}


def test_a_wait_that_sqs_cannot_keep_is_cut_and_goes_on_at_the_next_receive() -> None:  # SPEC J4
    seen = Seen()
    with orders() as wire:
        consumer(seen)(event(delayed(100_000)), Context())
    assert wire.visibilities() == {"handle-m1": 43_199}
    with orders(43_200) as wire:
        consumer(seen)(event(delayed(100_000, receives=2)), Context())
    assert 42_800 < wire.visibilities()["handle-m1"] <= 43_199
    assert seen.messages == []


def test_a_batch_is_hidden_by_one_request_for_ten_and_the_others_run() -> None:  # SPEC G1, J4
    seen = Seen()
    records = [delayed(HOUR + index, f"d{index}") for index in range(12)] + [record("{}", "now")]
    with orders() as wire:
        assert failed(consumer(seen)(event(*records), Context())) == [f"d{index}" for index in range(12)]
    assert seen.messages == [("now", 1)]
    requests = wire.sent("ChangeMessageVisibilityBatch")
    assert sorted(len(request.entries) for request in requests) == [2, 10]  # several requests at once
    assert wire.visibilities() == {f"handle-d{index}": HOUR + index for index in range(12)}


def test_one_line_tells_of_it_and_no_failure_does(caplog: pytest.LogCaptureFixture) -> None:  # SPEC L2, J4
    caplog.set_level("DEBUG", logger="tarry")
    with orders():
        consumer(Seen())(event(delayed(HOUR)), Context())
    [line] = lines(caplog)
    told = [field(line, name) for name in ("event", "state", "reason", "delay", "message_id", "attempt")]
    assert told == ["deferred", "DEFERRED", "not_due", HOUR, "stable-m1", 1]
    assert line.levelname == "INFO"


def test_a_batch_handler_never_sees_it() -> None:  # SPEC J4
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


def test_a_batch_handler_that_raises_says_nothing_of_it() -> None:  # SPEC B4, J4
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        raise ValueError

    with orders() as wire:
        handler(event(record("{}", "a"), delayed(HOUR, "later")), Context())
    assert wire.visibilities() == {"handle-a": 60, "handle-later": HOUR}


def test_an_async_handler_never_sees_it() -> None:  # SPEC J4
    seen: list[str] = []

    @consumer
    async def handler(message: Message) -> None:
        seen.append(message.delivery_id)

    with orders():
        assert failed(handler(event(delayed(HOUR, "later"), record("{}", "now")), Context())) == ["later"]
    assert seen == ["now"]


def test_when_the_batch_ends_early_it_is_hidden_and_not_given_back() -> None:  # SPEC A5, J4
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
def test_a_wait_that_could_not_be_set_leaves_it_reported_and_unrun(error: Exception) -> None:  # SPEC A2, J4
    seen = Seen()
    with orders(fails={"ChangeMessageVisibilityBatch": error}):
        assert failed(consumer(seen)(event(delayed(HOUR)), Context())) == ["m1"]
    assert seen.messages == []


# due


def test_a_message_runs_when_it_is_due_at_its_first_attempt() -> None:  # SPEC J4, C2
    seen = Seen()
    with orders(HOUR) as wire:
        assert failed(consumer(seen)(event(delayed(HOUR, receives=2)), Context())) == []
    assert seen.messages == [("stable-m1", 1)]
    assert wire.requests == []


def test_the_due_time_survives_redeliveries() -> None:  # SPEC J4, C2
    """The first receive hides it, two runs fail, the third succeeds."""
    seen = Seen(ValueError("not yet"))
    handler = consumer(max_attempts=3, backoff=Fixed(60))(seen)
    for receives, elapsed in [(1, 0), (2, HOUR), (3, HOUR + 60), (4, HOUR + 120)]:
        with orders(elapsed) as wire:
            handler(event(delayed(HOUR, receives=receives)), Context())
    assert seen.messages == [("stable-m1", attempt) for attempt in (1, 2, 3)]
    assert [letter["MessageBody"] for letter in wire.letters()] == ["{}"]
    assert wire.records()[0]["failure"]["attempts"] == 3
    assert "due" not in wire.records()[0]


def test_received_before_it_is_due_a_second_time_it_is_hidden_again() -> None:  # SPEC J4
    """As when hiding it failed. That receive cannot be told from a run afterwards: it counts, as every other does."""
    seen = Seen()
    with orders(180) as wire:
        consumer(seen)(event(delayed(HOUR, receives=2)), Context())
    assert wire.visibilities() == {"handle-m1": HOUR - 180}
    with orders(HOUR):
        consumer(seen)(event(delayed(HOUR, receives=3)), Context())
    assert seen.messages == [("stable-m1", 2)]


def test_what_became_due_between_its_receive_and_the_invocation_comes_back_at_once() -> None:  # SPEC C2, J4
    """A first receive before the due time counts as no attempt, so none may be made in it."""
    seen = Seen()
    with orders(20) as wire:
        assert failed(consumer(seen)(event(delayed(10)), Context())) == ["m1"]
        assert failed(consumer(seen)(event(delayed(10, receives=2)), Context())) == []
    assert wire.visibilities() == {"handle-m1": 0}
    assert seen.messages == [("stable-m1", 1)]


@pytest.mark.parametrize("count", [None, "", "many"])
def test_without_a_receive_count_it_runs_when_it_is_due(count: Any) -> None:  # SPEC C9, J4
    seen = Seen()
    message = delayed(10)
    message["attributes"]["ApproximateReceiveCount"] = count
    with orders(20):
        assert failed(consumer(seen)(event(message), Context())) == []
    assert len(seen.messages) == 1


def test_first_received_after_it_was_due_it_runs_at_once() -> None:  # SPEC J4
    seen = Seen()
    with orders(20):
        assert failed(consumer(seen)(event(delayed(-5)), Context())) == []
        assert failed(consumer(seen)(event(delayed(-5, receives=2)), Context())) == []
    assert seen.messages == [("stable-m1", 1), ("stable-m1", 2)]


# what has no due time


def test_on_fifo_there_is_no_due_time() -> None:  # SPEC J4, H1
    seen = Seen()
    with Wire(queues={"ledger.fifo": Queue()}) as wire:
        assert failed(consumer(seen)(event(delayed(HOUR, queue="ledger.fifo", group="a")), Context())) == []
        assert failed(consumer(seen)(event(delayed(HOUR, queue="ledger.fifo", group="a", receives=2)), Context())) == []
    assert [attempt for _, attempt in seen.messages] == [1, 2]
    assert wire.visibilities() == {"handle-m1": 31}  # the lease renewed before it runs, and no more


def test_a_record_copied_to_another_message_delays_nothing() -> None:  # SPEC J4
    seen = Seen()
    copied = delayed(HOUR)
    copied["body"] = "another"
    with orders() as wire:
        assert failed(consumer(seen)(event(copied), Context())) == []
    assert len(seen.messages) == 1
    assert wire.requests == []
