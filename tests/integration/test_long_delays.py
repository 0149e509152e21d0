"""Messages that are not due yet: they wait in their queue and use no attempt."""

from typing import Any

import pytest

from tarry import Batch, Fixed, Message, batch_consumer, consumer
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, event, record
from tests.settled import orders, settle, tarry_attribute
from tests.wire import Wire, client_error

HOUR = 3_600
CHANGE = "ChangeMessageVisibilityBatch"


def delayed(due_in: float, message_id: str = "m1", **more: Any) -> dict[str, Any]:
    """Return a message first received at RECEIVED_AT and due ``due_in`` seconds later."""
    attributes = tarry_attribute(id=f"stable-{message_id}", due=RECEIVED_AT + due_in)
    return record("{}", message_id, attributes=attributes, **more)


class Handler:
    def __init__(self, error: BaseException | None = None, **settings: Any) -> None:
        self.ran: list[tuple[str, int]] = []

        @consumer(**settings)
        def handler(message: Message) -> None:
            self.ran.append((message.id, message.attempt))
            if error is not None:
                raise error

        self._handler = handler

    def at(
        self, elapsed: float, *records: dict[str, Any], wire: Wire | None = None
    ) -> tuple[list[str], dict[str, int]]:
        """Run a batch at that time; return the ids that are reported as failed, and the visibility timeouts."""
        reported, self.wire = settle(self._handler, event(*records), wire or orders(elapsed))
        return reported, self.wire.visibilities()


def test_messages_that_are_not_due_wait_until_then_and_do_not_run_while_the_others_do(caplog: Caplog) -> None:
    """SPEC G1, J4, L2. Ten in a request, each logged without a failure."""
    caplog.set_level("DEBUG", logger="tarry")
    handler = Handler()
    records = [delayed(HOUR + index, f"d{index}") for index in range(12)] + [record("{}", "now")]
    reported, visibilities = handler.at(0, *records)
    assert (reported, handler.ran) == ([f"d{index}" for index in range(12)], [("now", 1)])
    assert visibilities == {f"handle-d{index}": HOUR + index for index in range(12)}
    assert sorted(len(request.entries) for request in handler.wire.sent(CHANGE)) == [2, 10]  # several at once
    assert handler.wire.operations[0] == "GetQueueAttributes"  # shows whether this is the last delivery
    line = next(line for line in lines(caplog) if field(line, "message_id") == "stable-d0")
    fields = [field(line, name) for name in ("event", "state", "reason", "delay", "attempt")]
    assert (fields, line.levelname) == (["deferred", "DEFERRED", "not_due", HOUR, 1], "INFO")
    assert len(lines(caplog)) == 12


@pytest.mark.parametrize(
    ("due", "elapsed", "seconds", "receives"),
    [
        (100, 0, 100, 1), (100, 0.5, 100, 1), (100, 99.2, 1, 1), (100, 40, 60, 1), (42_300, 0, 42_300, 1),
        (100_000, 0, 43_199, 1),  # of a delay of 12 hours, the first 900 s were DelaySeconds
        (100_000, 43_200, 42_869, 2),  # continues at the next receive
    ],
)  # fmt: skip
def test_the_remaining_delay_is_rounded_up_to_seconds_within_the_limit_of_sqs(
    due: float, elapsed: float, seconds: int, receives: int
) -> None:  # SPEC B6, J4
    handler = Handler()
    assert handler.at(elapsed, delayed(due, receives=receives)) == (["m1"], {"handle-m1": seconds})
    assert handler.ran == []


def test_a_batch_handler_and_an_async_handler_do_not_get_messages_that_are_not_due() -> None:  # SPEC B4, J4
    seen: list[list[str]] = []

    @batch_consumer(backoff=Fixed(60))
    def of_batches(batch: Batch) -> None:
        seen.append([message.delivery_id for message in batch])
        raise ValueError

    @consumer
    async def of_one(message: Message) -> None:
        seen.append([message.delivery_id])

    records, wire = [record("{}", "a"), delayed(HOUR, "later"), record("{}", "b")], orders()
    assert settle(of_batches, event(*records), wire)[0] == ["a", "later", "b"]
    assert settle(of_batches, event(delayed(HOUR, "alone")), wire)[0] == ["alone"]
    assert wire.visibilities() == {"handle-a": 60, "handle-later": HOUR, "handle-b": 60, "handle-alone": HOUR}
    assert settle(of_one, event(*records))[0] == ["later"]
    assert seen == [["a", "b"], ["a"], ["b"]]


def test_a_message_that_is_not_due_is_not_released_when_the_batch_ends_early() -> None:  # SPEC A5, J4
    records = [record("{}", "exits"), delayed(HOUR, "later"), record("{}", "next")]
    _, visibilities = Handler(SystemExit(), backoff=Fixed(60)).at(0, *records)
    assert visibilities == {"handle-exits": 60, "handle-later": HOUR, "handle-next": 0}


@pytest.mark.parametrize(
    "error", [client_error("AccessDenied"), client_error("InternalError", status=500), TimeoutError()], ids=repr
)
def test_a_message_that_is_not_due_is_reported_without_a_run_if_its_visibility_cannot_be_changed(
    error: Exception,
) -> None:  # SPEC A2, J4
    handler, wire = Handler(), orders()
    wire.fails[CHANGE] = error
    assert (handler.at(0, delayed(HOUR), wire=wire)[0], handler.ran) == (["m1"], [])


@pytest.mark.parametrize(
    ("due", "deliveries", "runs"),
    [
        # as when the first visibility change failed: the second receive could have been an attempt
        (HOUR, [(180, 2, HOUR - 180), (HOUR, 3, None)], [2]),
        # became due after its receive: a first receive before the due time does not count, so it must not run
        (10, [(20, 1, 0), (20, 2, None)], [1]),
        (-5, [(20, 1, None), (20, 2, None)], [1, 2]),
        *((10, [(20, odd, None)], [1]) for odd in (None, "", "many")),
    ],
    ids=["received twice before it is due", "due after its receive", "first received when it was due", *"123"],
)
def test_receives_before_the_due_time_are_no_attempts(due: float, deliveries: Any, runs: Any) -> None:
    handler = Handler()  # SPEC C2, C9, J4
    for elapsed, receives, delay in deliveries:
        waits = {} if delay is None else {"handle-m1": delay}
        message = delayed(due)
        message["attributes"]["ApproximateReceiveCount"] = receives and str(receives)
        assert handler.at(elapsed, message) == (["m1"] if waits else [], waits)
    assert handler.ran == [("stable-m1", attempt) for attempt in runs]


def test_the_due_time_survives_redeliveries() -> None:  # SPEC J4, C2
    """At the first receive it is not due; then it runs three times, from its first attempt on."""
    handler = Handler(ValueError("not yet"), max_attempts=3, backoff=Fixed(60))
    for receives, elapsed in [(1, 0), (2, HOUR), (3, HOUR + 60), (4, HOUR + 120)]:
        handler.at(elapsed, delayed(HOUR, receives=receives))
    assert handler.ran == [("stable-m1", attempt) for attempt in (1, 2, 3)]
    assert [dead_letter["MessageBody"] for dead_letter in handler.wire.sent_entries()] == ["{}"]
    [envelope] = handler.wire.envelopes()
    assert (envelope["failure"]["attempts"], "due" in envelope) == (3, False)


def test_a_due_time_is_ignored_on_fifo_and_on_a_copy_with_another_body() -> None:  # SPEC J4, H1
    on_fifo, handler = Handler(), Handler()
    for receives in (1, 2):
        made = delayed(HOUR, receives=receives, queue="orders.fifo", group="a")
        reported, visibilities = on_fifo.at(0, made)
        assert (reported, set(visibilities.values())) == ([], {31} if receives == 2 else set())  # of the lease
    assert [attempt for _, attempt in on_fifo.ran] == [1, 2]
    assert handler.at(0, {**delayed(HOUR), "body": "another"}) == ([], {})
    assert (len(handler.ran), handler.wire.requests) == (1, [])
