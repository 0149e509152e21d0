"""Delays that a copy waits: deferrals, and delays beyond the retention period of the queue."""

import json
import logging
from typing import Any

import pytest

from tarry import (
    DeadLetter,
    Defer,
    DropMessage,
    Fixed,
    Message,
    Outcome,
    Reject,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.record.attribute import body_sum
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, Context, batch_of, event, failed, record
from tests.wire import Queue, TestClock, Wire, client_error

HOUR, DAY = 3_600, 86_400


def orders(elapsed: float = 0, **queue: Any) -> Wire:
    """Return a wire whose clock is ``elapsed`` seconds after the message was sent and received."""
    source = Queue(dead_letter="orders-dlq", **queue)
    return Wire(queues={"orders": source, "orders.fifo": source}, clock=TestClock(RECEIVED_AT + elapsed))


def redelivered(wire: Wire, receives: int = 1, **more: Any) -> dict[str, Any]:
    """Return the record of the copy that was sent last."""
    entry = wire.sent_entries()[-1]
    attributes = {
        name: {"stringValue": value.get("StringValue"), "dataType": value["DataType"]}
        for name, value in entry["MessageAttributes"].items()
    }
    now = wire.clock.now
    return record(entry["MessageBody"], "copy", attributes=attributes, receives=receives, received_at=now, **more)


def carrying(**fields: Any) -> dict[str, Any]:
    """Return a `Tarry` attribute with these fields, for the body ``{}``."""
    envelope = {"v": 1, "sum": body_sum("{}"), "id": "stable", **fields}
    return {"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}}


TEN_ATTRIBUTES = {f"a{index}": {"stringValue": "x", "dataType": "String"} for index in range(10)}
"""The maximum number of attributes, which leaves no space for a `Tarry` attribute."""


def defers(message: Message) -> None:
    message.defer(60)


def fails(message: Message) -> None:
    raise ValueError("no")


# deferrals


def test_a_deferred_message_is_sent_as_a_copy_and_then_deleted() -> None:  # SPEC J5, E6
    with orders() as wire:
        assert failed(consumer(defers)(event(record()), Context())) == []
    assert wire.operations == ["GetQueueAttributes", "SendMessageBatch", "DeleteMessageBatch"]
    [copy], [envelope] = wire.sent_entries(), wire.envelopes()
    assert copy["DelaySeconds"] == 60
    assert (envelope["id"], envelope["carried"], envelope["hops"]) == ("m1", 0, 1)
    assert "failure" not in envelope


def test_a_deferral_uses_no_attempt() -> None:  # SPEC J5
    attempts: list[int] = []

    @consumer
    def handler(message: Message) -> None:
        attempts.append(message.attempt)
        raise Defer(60)

    with orders() as wire:
        handler(event(record(receives=3)), Context())
        for _ in range(3):
            handler(event(redelivered(wire)), Context())
    assert attempts == [3, 3, 3, 3]
    assert [envelope["hops"] for envelope in wire.envelopes()] == [1, 2, 3, 4]


def test_the_attempt_after_a_long_deferral_equals_the_deferred_one() -> None:  # SPEC J5, C2
    attempts: list[int] = []

    @consumer
    def handler(message: Message) -> None:
        attempts.append(message.attempt)
        message.defer(2 * HOUR)

    with orders() as wire:
        handler(event(record(receives=2)), Context())
        wire.clock.now += 900
        copy = redelivered(wire)
        assert failed(handler(event(copy), Context())) == ["copy"]  # not due
        copy["attributes"]["ApproximateReceiveCount"] = "2"
        wire.clock.now += 2 * HOUR
        handler(event(copy), Context())
    assert attempts == [2, 2]


def test_a_deferred_copy_keeps_the_record_of_earlier_failures() -> None:  # SPEC J5, E6
    def fails_then_defers(message: Message) -> None:
        if message.failure is None:
            raise ValueError("no stock")
        message.defer(60)

    handler = consumer(on_failure=[SendAgain("later")])(fails_then_defers)
    with orders() as wire:
        handler(event(record()), Context())
        handler(event(redelivered(wire)), Context())
    failed_copy, deferred = wire.envelopes()
    assert deferred["failure"] == failed_copy["failure"]
    assert deferred["history"] == failed_copy["history"]
    assert deferred["steps"] == {"later": 1}
    assert (deferred["carried"], deferred["hops"]) == (1, 2)


def test_the_total_of_attempts_includes_those_before_a_redrive_and_a_deferral() -> None:  # SPEC F2, J5
    dead_lettered_before = carrying(
        failure={"reason": "exhausted", "attempts": 5}, origin="arn:aws:sqs:us-east-1:1:elsewhere"
    )

    @consumer
    def handler(message: Message) -> None:
        if message.delivery_id == "copy":
            raise Reject
        message.defer(60)

    with orders() as wire:
        handler(event(record(receives=3, attributes=dead_lettered_before)), Context())  # after two failures in place
        handler(event(redelivered(wire)), Context())
    assert wire.envelopes()[-1]["failure"]["attempts"] == 5 + 3


def test_a_message_deferred_at_its_last_delivery_is_sent_as_a_copy() -> None:  # SPEC J5, C8
    with orders(max_receive_count=5) as wire:
        assert failed(consumer(defers)(event(record(receives=5)), Context())) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (client_error("AccessDenied", "not authorized to perform sqs:SendMessage"), "AccessDenied"),
        (client_error("ThrottlingException"), "ThrottlingException"),
        (ConnectionError("reset"), "reset"),
    ],
)
def test_a_deferred_message_whose_copy_cannot_be_sent_waits_in_place(
    error: Exception, expected: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC J5, A8
    with orders() as wire:
        wire.fails["SendMessageBatch"] = error
        assert failed(consumer(defers)(event(record()), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert wire.sent("DeleteMessageBatch") == []
    assert expected in field(lines(caplog, "deferred")[0], "not_sent")


def test_a_deferred_message_without_space_for_a_tarry_attribute_waits_in_place() -> None:  # SPEC J5, E6
    with orders() as wire:
        assert failed(consumer(defers)(event(record(attributes=TEN_ATTRIBUTES)), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert wire.sent_entries() == []


def test_a_deferred_message_that_cannot_be_copied_waits_in_place_and_is_not_unhandled() -> None:  # SPEC J5, A2
    seen: list[Message] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(message)
        message.defer(60)

    invalid_base64 = {"a": {"binaryValue": "%%%a", "dataType": "Binary"}}
    with orders() as wire:
        assert failed(handler(event(record(attributes=invalid_base64)), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert seen[0].outcome == Outcome.defer(60)


def test_redact_is_not_called_for_a_copy_without_a_failure_record(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    def mask(envelope: dict[str, Any]) -> dict[str, Any]:
        return {**envelope, "failure": {**envelope["failure"], "message": "***"}}

    handler = consumer(on_failure=[RetryInPlace(), DeadLetter(redact=mask)])(defers)
    failed_before = carrying(failure={"reason": "error", "attempts": 1, "message": "4111-1111"}, carried=1, hops=1)
    with orders() as wire:
        handler(event(record()), Context())
        handler(event(record(attributes=failed_before)), Context())
    without_failure, with_failure = wire.envelopes()
    assert "failure" not in without_failure
    assert with_failure["failure"]["message"] == "***"
    assert lines(caplog, "redact_failed") == []


def test_no_copy_of_a_deferred_message_with_a_lost_lease_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC J5, E6
    with orders(visibility_timeout=100) as wire:

        @consumer
        def handler(message: Message) -> None:
            wire.clock.now += 101
            message.defer(60)

        assert failed(handler(event(record()), Context(200))) == ["m1"]
    assert wire.operations == ["GetQueueAttributes"]
    assert "the lease is lost" in caplog.text


def test_only_the_refused_one_of_ten_deferrals_waits_in_place() -> None:  # SPEC J5, G1
    @batch_consumer
    def handler(batch: Any) -> None:
        for message in batch:
            message.defer(60)

    with orders() as wire:
        wire.refuses["SendMessageBatch"] = lambda _, entry: ("InternalError", "no") if entry["Id"] == "3" else None
        wire.fails["DeleteMessageBatch"] = client_error("ThrottlingException")
        assert failed(handler(batch_of(10), Context())) == ["m3"]
    assert wire.visibilities() == {"handle-m3": 60}


def test_on_fifo_a_deferred_message_waits_in_place_and_delays_its_group() -> None:  # SPEC J5, H1
    batch = event(*(record("{}", name, "orders.fifo", group="g") for name in ("a", "b")))
    with orders() as wire:
        assert failed(consumer(defers)(batch, Context())) == ["a", "b"]
    assert wire.visibilities() == {"handle-a": 60, "handle-b": 0}
    assert wire.sent_entries() == []


def test_deferrals_are_sent_in_batches_of_ten() -> None:  # SPEC J5, E6
    @batch_consumer
    def handler(batch: Any) -> None:
        for message in batch:
            message.defer(5)

    with orders() as wire:
        handler(event(*(record("{}", f"m{index}") for index in range(25))), Context())
    assert sorted(len(request.entries) for request in wire.sent("SendMessageBatch")) == [5, 10, 10]
    assert len(wire.sent("DeleteMessageBatch")) == 3


def test_a_message_deferred_by_a_failure_step_uses_no_attempt() -> None:  # SPEC E5, J5
    class DefersFailures:
        def handle(self, failure: Any, next_step: Any) -> Outcome:
            return Outcome.defer(90)

    with orders() as wire:
        consumer(on_failure=[DefersFailures()])(fails)(event(record(receives=2)), Context())
    [envelope] = wire.envelopes()
    assert envelope["carried"] == 1
    assert envelope["failure"]["message"] == "no"


def test_failures_that_a_failure_step_defers_do_not_count_in_the_attempts_of_the_failure_record() -> (
    None
):  # SPEC J5, F2
    class DefersThreeTimes:
        def handle(self, failure: Any, next_step: Any) -> Outcome:
            hops = len(wire.sent_entries())
            return Outcome.defer(90) if hops < 3 else next_step(failure)

    handler = consumer(on_failure=[DefersThreeTimes(), DeadLetter()])(fails)
    with orders() as wire:
        handler(event(record(receives=2)), Context())
        for _ in range(3):
            handler(event(redelivered(wire)), Context())
    assert [envelope["failure"]["attempts"] for envelope in wire.envelopes()] == [1, 1, 1, 2]


@pytest.mark.parametrize("is_allowed", [False, True])
def test_from_the_twelfth_hop_a_deferred_message_waits_in_place_unless_loops_are_allowed(
    is_allowed: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC J5, E8
    if is_allowed:
        monkeypatch.setenv("TARRY_RECURSIVE_LOOP", "Allow")
    with orders() as wire:
        consumer(defers)(event(record(attributes=carrying(hops=11))), Context())
    assert ["RecursiveLoop" in field(line, "text") for line in lines(caplog, "many_hops")] == [True] * (not is_allowed)
    assert len(wire.sent_entries()) == is_allowed
    assert len(wire.visibilities()) == (not is_allowed)


# delays beyond the retention period


def aged(age: float, queue: str = "orders", **more: Any) -> dict[str, Any]:
    """Return a message that was sent ``age`` seconds before it was received."""
    return record(queue=queue, system={"SentTimestamp": str(int((RECEIVED_AT - age) * 1000))}, **more)


def test_the_queue_of_a_deferred_message_is_looked_up_because_it_may_be_the_last_delivery() -> None:  # SPEC C8, G1
    with orders() as wire:
        consumer(lambda message: message.defer(5))(event(record(queue="orders.fifo", group="g")), Context())
    assert wire.operations == ["GetQueueAttributes", "ChangeMessageVisibilityBatch"]


@pytest.mark.parametrize(
    ("age", "delay", "is_renewed"),
    [
        pytest.param(4 * DAY - 2 * HOUR, HOUR - 1, False, id="ends an hour and a second before the message expires"),
        pytest.param(4 * DAY - 2 * HOUR, HOUR + 1, True, id="ends less than an hour before the message expires"),
        pytest.param(4 * DAY - 2 * HOUR, 3 * HOUR, True, id="ends after the message expires"),
        pytest.param(4 * DAY - 60, 0, True, id="no delay is short enough"),
        pytest.param(DAY, 11 * HOUR, False, id="expires in days"),
        pytest.param(9 * DAY, HOUR, False, id="older than any message of the queue: a sample event"),
    ],
)
def test_a_retry_whose_delay_would_outlast_the_message_is_sent_as_a_copy(
    age: float, delay: int, is_renewed: bool
) -> None:  # SPEC C10
    handler = consumer(backoff=Fixed(delay))(fails)
    with orders() as wire:
        reported = failed(handler(event(aged(age)), Context()))
    assert [request.queue for request in wire.sent("SendMessageBatch")] == (["orders"] if is_renewed else [])
    assert reported == ([] if is_renewed else ["m1"])
    if is_renewed:
        [envelope] = wire.envelopes()
        assert (envelope["carried"], envelope["failure"]["message"]) == (1, "no")


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_message_that_would_expire_while_its_handler_runs_is_saved_by_a_copy(queue: str) -> None:  # SPEC C10
    with orders() as wire:

        @consumer(backoff=Fixed(30))
        def handler(message: Message) -> None:
            wire.clock.now += 60
            raise ValueError("no")

        assert failed(handler(event(aged(4 * DAY - 30, queue, group="g")), Context(600))) == []
    assert len(wire.sent_entries()) == 1


def test_a_copy_of_a_message_with_a_delay_beyond_12_hours_is_due_in_12_hours() -> None:  # SPEC C10, C6
    handler = consumer(retry_when=lambda failure: 2 * DAY)(fails)
    with orders() as wire:
        assert failed(handler(event(aged(4 * DAY - 5 * HOUR)), Context())) == []
    assert wire.envelopes()[0]["due"] == RECEIVED_AT + 12 * HOUR


def test_a_backoff_of_12_hours_is_cut_in_place_long_before_the_message_expires() -> None:  # SPEC C10, E8
    with orders() as wire:
        assert failed(consumer(backoff=Fixed(12 * HOUR))(fails)(event(aged(DAY)), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 43_199}


def test_a_message_with_many_hops_that_is_retried_in_place_does_not_warn_of_loops(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E8
    with orders() as wire:
        consumer(backoff=Fixed(30))(fails)(event(record(attributes=carrying(hops=20))), Context())
    assert (wire.visibilities(), lines(caplog, "many_hops")) == ({"handle-m1": 30}, [])


def test_the_number_of_hops_ends_where_readers_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC E8
    monkeypatch.setenv("TARRY_RECURSIVE_LOOP", "Allow")
    with orders() as wire:
        consumer(defers)(event(record(attributes=carrying(hops=1_000))), Context())
    assert (wire.envelopes()[0]["id"], wire.envelopes()[0]["hops"]) == ("stable", 1_000)


@pytest.mark.parametrize(
    ("retention", "age", "delay", "is_renewed"),
    [
        pytest.param(6 * HOUR, 4 * HOUR, 2 * HOUR, True, id="the whole remaining time"),
        pytest.param(HOUR, 0, 2 * HOUR, True, id="longer than the retention period"),
        pytest.param(HOUR, 0, 55 * 60, False, id="ends a twelfth of the retention period before the end"),
        pytest.param(HOUR, 0, 55 * 60 + 1, True, id="ends in the last twelfth of the retention period"),
    ],
)
def test_a_retention_period_below_12_hours_counts_if_it_is_known(
    retention: int, age: float, delay: int, is_renewed: bool
) -> None:  # SPEC C10
    """The queue of a failed message is looked up for its `maxReceiveCount`."""
    with orders(retention=retention) as wire:
        consumer(backoff=Fixed(delay))(fails)(event(aged(age)), Context())
    assert len(wire.sent_entries()) == is_renewed


def test_a_cached_short_retention_period_counts_for_messages_that_are_not_due() -> None:  # SPEC C10, J4
    with orders(retention=HOUR) as wire:
        handler = consumer(lambda message: message.defer(5 * HOUR))
        handler(event(record()), Context())
        wire.clock.now += 900
        assert failed(handler(event(redelivered(wire)), Context())) == []
    first, renewed = wire.envelopes()
    assert renewed["due"] == first["due"] == RECEIVED_AT + 5 * HOUR
    assert wire.operations.count("GetQueueAttributes") == 2  # one for each send, because the cache lasts 900 s


def test_the_retention_period_of_the_queue_counts() -> None:  # SPEC C10
    handler = consumer(backoff=Fixed(HOUR))(fails)
    for retention, sends in ((14 * DAY, 0), (4 * DAY, 1)):
        with orders(retention=retention) as wire:
            handler(event(aged(4 * DAY - HOUR)), Context())
        assert len(wire.sent_entries()) == sends


def test_an_unreadable_retention_period_is_assumed_to_be_four_days() -> None:  # SPEC C10
    with orders() as wire:
        wire.fails["GetQueueAttributes"] = client_error("AccessDenied")
        consumer(backoff=Fixed(HOUR))(fails)(event(aged(4 * DAY - HOUR)), Context())
    assert len(wire.sent_entries()) == 1


@pytest.mark.parametrize("wait", [2 * HOUR, 2 * HOUR + 0.5, 100_000])
def test_the_copy_of_a_message_that_is_not_due_keeps_the_due_time(wait: float) -> None:  # SPEC C10, J4
    due = carrying(due=RECEIVED_AT + wait, carried=3, hops=3)
    with orders(retention=13 * HOUR) as wire:
        assert failed(consumer(fails)(event(aged(12 * HOUR, attributes=due)), Context())) == []
    [envelope] = wire.envelopes()
    assert (envelope["due"], envelope["carried"]) == (RECEIVED_AT + wait, 3)


def test_a_rejected_message_without_a_dead_letter_queue_is_copied_before_it_expires() -> None:  # SPEC C10, F5
    with Wire(queues={"orders": Queue()}) as wire:
        assert failed(consumer(lambda message: message.reject())(event(aged(4 * DAY - HOUR)), Context())) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders"]
    assert wire.sent_entries()[0]["DelaySeconds"] == 900


def denies(queue: str) -> Any:
    denied = client_error("AccessDenied", "not authorized to perform: sqs:SendMessage", status=403)
    return lambda request: denied if request.queue == queue else None


@pytest.mark.parametrize("handle", [fails, lambda message: message.defer(60)], ids=["retried", "deferred"])
@pytest.mark.parametrize("attributes", [{}, "ten"], ids=["not allowed", "no space for the attribute"])
def test_a_message_that_cannot_be_copied_is_dead_lettered_before_it_expires(
    handle: Any, attributes: Any
) -> None:  # SPEC C10
    old = aged(4 * DAY - HOUR / 2, attributes=TEN_ATTRIBUTES if attributes == "ten" else {})
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(consumer(backoff=Fixed(30))(handle)(event(old), Context())) == []
    assert [request.queue for request in wire.requests if request.operation == "DeleteMessageBatch"] == ["orders"]
    [dead_letter] = [entry for request, entry in wire.accepted if request.queue == "orders-dlq"]
    if attributes != "ten":
        assert wire.envelopes()[-1]["failure"]["reason"] == "expiring"
    assert dead_letter["MessageBody"] == "{}"


def test_a_dead_letter_that_could_not_wait_says_why_in_the_log_and_names_no_first_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC C8, C10
    last = record("{}", "last", receives=15)
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(consumer(defers)(event(aged(4 * DAY - HOUR / 2), last), Context())) == []
    moments = ("before it would expire", "at the queue's last delivery (maxReceiveCount)")
    dead_letters = lines(caplog, "dead_lettered")
    for line, envelope, when in zip(dead_letters, wire.envelopes()[-2:], moments, strict=True):
        why = f"deferred for 60 s {when}, and could not be sent again"
        assert field(line, "text").partition("; ")[0] == why
        assert envelope["failure"]["message"] == why
        assert "first_failed_at" not in envelope["failure"]


def test_a_message_that_cannot_be_copied_may_be_dropped_by_its_failure_step() -> None:  # SPEC C10, F5
    handler = consumer(on_failure=[RetryInPlace(), DropMessage()], backoff=Fixed(30))(fails)
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(handler(event(aged(4 * DAY - HOUR / 2)), Context())) == []


def test_a_deferred_message_that_cannot_be_copied_waits_in_place_long_before_it_expires() -> None:  # SPEC C10, J5
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(consumer(defers)(event(aged(DAY)), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}


def test_a_message_that_is_not_due_is_not_dead_lettered_without_a_run() -> None:  # SPEC C9, C10
    due = carrying(due=RECEIVED_AT + 2 * HOUR)
    with orders(retention=13 * HOUR) as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(consumer(fails)(event(aged(12 * HOUR, attributes=due)), Context())) == ["m1"]
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders"]


def test_a_message_whose_dead_letter_is_refused_is_copied_before_it_expires() -> None:  # SPEC C10, F4
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders-dlq")
        assert failed(consumer(lambda message: message.reject())(event(aged(4 * DAY - HOUR)), Context())) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq", "orders"]


@pytest.mark.parametrize(
    ("left", "seconds"),
    [(10 * HOUR, 5 * HOUR), (100, 60)],
    ids=["in half of the remaining time", "in a minute at least"],
)
@pytest.mark.parametrize(
    "error", [ConnectionError("lost"), client_error("RequestThrottled")], ids=["lost answer", "throttle"]
)
def test_a_message_whose_copy_failed_temporarily_comes_back_before_it_expires(
    left: int, seconds: int, error: Exception
) -> None:  # SPEC C10
    with orders() as wire:
        wire.fails["SendMessageBatch"] = error
        reported = failed(consumer(backoff=Fixed(12 * HOUR))(fails)(event(aged(4 * DAY - left)), Context()))
    assert reported == ["m1"]
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders"]
    assert wire.visibilities() == {"handle-m1": seconds}


def test_a_message_that_may_be_in_the_dead_letter_queue_is_not_copied() -> None:  # SPEC C10, F4
    with orders() as wire:
        wire.fails["SendMessageBatch"] = ConnectionError("lost")
        assert failed(consumer(lambda message: message.reject())(event(aged(4 * DAY - HOUR)), Context())) == ["m1"]
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"]


def test_on_fifo_a_message_about_to_expire_goes_to_the_next_failure_step() -> None:  # SPEC C10
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    with orders() as wire:
        assert failed(consumer(backoff=Fixed(HOUR))(fails)(event(old), Context())) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"]
    assert wire.envelopes()[0]["failure"]["reason"] == "expiring"


def test_on_fifo_a_deferral_that_would_outlast_the_message_goes_to_the_failure_steps() -> None:  # SPEC C10
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    with orders() as wire:
        assert failed(consumer(lambda message: message.defer(HOUR))(event(old), Context())) == []
    assert wire.envelopes()[0]["failure"]["reason"] == "expiring"


@pytest.mark.parametrize(
    ("steps", "sends", "reported"),
    [
        ([RetryInPlace()], 1, []),
        ([RetryInPlace(), SendAgain("again", breaks_order=True), DeadLetter()], 1, []),
        ([RetryInPlace(), DropMessage()], 0, []),
    ],
    ids=["no step takes it: dead-lettered", "SendAgain passes it on", "DropMessage takes it"],
)
def test_failure_steps_are_asked_about_a_message_that_is_about_to_expire(
    steps: list[Any], sends: int, reported: list[str]
) -> None:  # SPEC E1
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    with orders() as wire:
        assert failed(consumer(on_failure=steps)(fails)(event(old), Context())) == reported
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"] * sends


class DefersUnlessExpiring:
    """A failure step that defers failures unless the message is about to expire."""

    def handle(self, failure: Any, next_step: Any) -> Outcome:
        return next_step(failure) if failure.reason == "expiring" else Outcome.defer(60)


@pytest.mark.parametrize(
    ("steps", "receives"),
    [([DefersUnlessExpiring()], 1), ([RetryInPlace()], 5)],
    ids=["deferred by a step", "unhandled"],
)
def test_on_fifo_a_deferred_or_unhandled_message_about_to_expire_goes_to_the_next_failure_step(
    steps: list[Any], receives: int
) -> None:  # SPEC C10, E4
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g", receives=receives)
    with orders() as wire:
        assert failed(consumer(on_failure=steps)(fails)(event(old), Context())) == []
    assert wire.envelopes()[0]["failure"]["reason"] == "expiring"


def raises(failure: Any, next_step: Any) -> Outcome:
    raise RuntimeError("the step's own error")


KEEPS = {
    "retry": lambda failure, next_step: Outcome.retry(11 * HOUR),
    "retry by the backoff": lambda failure, next_step: Outcome.retry(),
    "defer": lambda failure, next_step: Outcome.defer(11 * HOUR),
    "unhandled": lambda failure, next_step: Outcome.unhandled(),
    "raises": raises,
}
"""Failure steps that keep a message in its queue, also if it is about to expire."""
keeps = pytest.mark.parametrize("step", KEEPS.values(), ids=KEEPS)


@keeps
def test_on_fifo_a_message_is_dead_lettered_before_it_expires_whatever_its_failure_steps_answer(
    step: Any,
) -> None:  # SPEC C10, E5
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    handler = consumer(on_failure=[step, RetryInPlace(), DeadLetter(queue="elsewhere")], backoff=Fixed(40))(fails)
    with orders() as wire:
        assert failed(handler(event(old), Context())) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"]
    failure = wire.envelopes()[0]["failure"]
    assert (failure["reason"], failure["message"]) == ("expiring", "no")


@keeps
def test_on_fifo_without_a_dead_letter_queue_a_message_about_to_expire_stays_with_one_error(
    step: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C10, F5
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    with Wire(queues={"orders.fifo": Queue()}) as wire:
        assert failed(consumer(on_failure=[step, RetryInPlace()])(fails)(event(old), Context())) == ["m1"]
    assert wire.sent_entries() == []
    errors = [line for line in lines(caplog, level=logging.ERROR) if field(line, "event") != "step_failed"]
    assert [field(line, "event") for line in errors] == ["unhandled"]
    assert "orders.fifo has no dead-letter queue" in field(errors[0], "not_sent")


@pytest.mark.parametrize(
    "error",
    [client_error("AccessDenied", status=403), ConnectionError("lost"), client_error("RequestThrottled")],
    ids=["refused", "lost answer", "throttle"],
)
def test_on_fifo_a_message_about_to_expire_comes_back_before_that_if_its_dead_letter_cannot_be_sent(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C10, F4
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    with orders() as wire:
        wire.fails["SendMessageBatch"] = error
        assert failed(consumer(on_failure=[KEEPS["retry"]])(fails)(event(old), Context())) == ["m1"]
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"]
    assert wire.visibilities() == {"handle-m1": HOUR / 2}
    assert lines(caplog, "unhandled")


def test_a_message_whose_failure_step_raises_is_dead_lettered_before_it_expires_if_it_cannot_be_copied() -> (
    None
):  # SPEC C10, E5
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(consumer(on_failure=[raises])(fails)(event(aged(4 * DAY - HOUR / 2)), Context())) == []
    assert wire.envelopes()[-1]["failure"]["reason"] == "expiring"
