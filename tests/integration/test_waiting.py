"""Waits that are spent as a copy: deferrals, and what would outlast SQS's memory of the message."""

import json
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
from tarry.envelope.attribute import body_sum
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, Context, batch_of, event, failed, record
from tests.wire import Queue, TestClock, Wire, client_error

HOUR, DAY = 3_600, 86_400


def orders(elapsed: float = 0, **queue: Any) -> Wire:
    """A world so many seconds after the message was sent and received."""
    source = Queue(dead_letter="orders-dlq", **queue)
    return Wire(queues={"orders": source, "orders.fifo": source}, clock=TestClock(RECEIVED_AT + elapsed))


def redelivered(wire: Wire, receives: int = 1, **more: Any) -> dict[str, Any]:
    """The copy that was sent last, as SQS delivers it."""
    entry = wire.letters()[-1]
    attributes = {
        name: {"stringValue": value.get("StringValue"), "dataType": value["DataType"]}
        for name, value in entry["MessageAttributes"].items()
    }
    now = wire.clock.now
    return record(entry["MessageBody"], "copy", attributes=attributes, receives=receives, received_at=now, **more)


def carrying(**fields: Any) -> dict[str, Any]:
    """A record's attribute for the body ``{}``."""
    kept = {"v": 1, "sum": body_sum("{}"), "id": "stable", **fields}
    return {"Tarry": {"stringValue": json.dumps(kept), "dataType": "String"}}


TEN = {f"a{index}": {"stringValue": "x", "dataType": "String"} for index in range(10)}
"""As many attributes as SQS takes: there is no place for a record beside them."""


def defers(message: Message) -> None:
    message.defer(60)


def fails(message: Message) -> None:
    raise ValueError("no")


# deferring


def test_a_deferred_message_is_sent_again_and_then_deleted() -> None:  # SPEC J5, E6
    with orders() as wire:
        assert failed(consumer(defers)(event(record()), Context())) == []
    assert wire.operations == ["GetQueueAttributes", "SendMessageBatch", "DeleteMessageBatch"]
    [copy], [kept] = wire.letters(), wire.records()
    assert copy["DelaySeconds"] == 60
    assert (kept["id"], kept["carried"], kept["hops"]) == ("m1", 0, 1)
    assert "failure" not in kept


def test_a_deferral_consumes_no_attempt() -> None:  # SPEC J5
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
    assert [kept["hops"] for kept in wire.records()] == [1, 2, 3, 4]


def test_the_run_after_a_long_deferral_has_the_number_of_the_deferred_one() -> None:  # SPEC J5, C2
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


def test_a_deferred_copy_keeps_what_is_known_of_earlier_failures() -> None:  # SPEC J5, E6
    def fails_then_defers(message: Message) -> None:
        if message.failure is None:
            raise ValueError("no stock")
        message.defer(60)

    handler = consumer(on_failure=[SendAgain("later")])(fails_then_defers)
    with orders() as wire:
        handler(event(record()), Context())
        handler(event(redelivered(wire)), Context())
    failed_copy, deferred = wire.records()
    assert deferred["failure"] == failed_copy["failure"]
    assert deferred["history"] == failed_copy["history"]
    assert deferred["steps"] == {"later": 1}
    assert (deferred["carried"], deferred["hops"]) == (1, 2)


def test_the_total_of_attempts_survives_a_redrive_retries_and_a_deferral() -> None:  # SPEC F2, J5
    died_before = carrying(failure={"reason": "exhausted", "attempts": 5}, origin="arn:aws:sqs:us-east-1:1:elsewhere")

    @consumer
    def handler(message: Message) -> None:
        if message.delivery_id == "copy":
            raise Reject
        message.defer(60)

    with orders() as wire:
        handler(event(record(receives=3, attributes=died_before)), Context())  # two failures in place before
        handler(event(redelivered(wire)), Context())
    assert wire.records()[-1]["failure"]["attempts"] == 5 + 3


def test_a_deferral_at_the_last_delivery_is_not_moved_bare() -> None:  # SPEC J5, C8
    with orders(max_receive_count=5) as wire:
        assert failed(consumer(defers)(event(record(receives=5)), Context())) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (client_error("AccessDenied", "not authorized to perform sqs:SendMessage"), "AccessDenied"),
        (client_error("ThrottlingException"), "ThrottlingException"),
        (ConnectionError("reset"), "reset"),
    ],
)
def test_what_cannot_be_sent_again_is_deferred_in_place(
    error: Exception, says: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC J5, A8
    with orders() as wire:
        wire.fails["SendMessageBatch"] = error
        assert failed(consumer(defers)(event(record()), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert wire.sent("DeleteMessageBatch") == []
    assert says in field(lines(caplog, "deferred")[0], "not_sent")


def test_where_the_record_has_no_room_a_message_is_deferred_in_place() -> None:  # SPEC J5, E6
    with orders() as wire:
        assert failed(consumer(defers)(event(record(attributes=TEN)), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert wire.letters() == []


def test_what_cannot_be_copied_is_deferred_and_not_unhandled() -> None:  # SPEC J5, A2
    seen: list[Message] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(message)
        message.defer(60)

    no_base64 = {"a": {"binaryValue": "%%%a", "dataType": "Binary"}}
    with orders() as wire:
        assert failed(handler(event(record(attributes=no_base64)), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert seen[0].outcome == Outcome.defer(60)


def test_a_redact_for_failures_is_not_shown_a_copy_that_has_none(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F3
    def hide(told: dict[str, Any]) -> dict[str, Any]:
        return {**told, "failure": {**told["failure"], "message": "***"}}

    handler = consumer(on_failure=[RetryInPlace(), DeadLetter(redact=hide)])(defers)
    told_of_one = carrying(failure={"reason": "error", "attempts": 1, "message": "4111-1111"}, carried=1, hops=1)
    with orders() as wire:
        handler(event(record()), Context())
        handler(event(record(attributes=told_of_one)), Context())
    never_failed, did = wire.records()
    assert "failure" not in never_failed
    assert did["failure"]["message"] == "***"
    assert lines(caplog, "redact_failed") == []


def test_a_deferral_with_a_lost_lease_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:  # SPEC J5, E6
    with orders(visibility_timeout=100) as wire:

        @consumer
        def handler(message: Message) -> None:
            wire.clock.now += 101
            message.defer(60)

        assert failed(handler(event(record()), Context(200))) == ["m1"]
    assert wire.operations == ["GetQueueAttributes"]
    assert "the lease is lost" in caplog.text


def test_of_ten_deferrals_the_refused_one_waits_in_place() -> None:  # SPEC J5, G1
    @batch_consumer
    def handler(batch: Any) -> None:
        for message in batch:
            message.defer(60)

    with orders() as wire:
        wire.refuses["SendMessageBatch"] = lambda _, entry: ("InternalError", "no") if entry["Id"] == "3" else None
        wire.fails["DeleteMessageBatch"] = client_error("ThrottlingException")
        assert failed(handler(batch_of(10), Context())) == ["m3"]
    assert wire.visibilities() == {"handle-m3": 60}


def test_on_fifo_a_message_is_deferred_in_place_and_holds_up_its_group() -> None:  # SPEC J5, H1
    batch = event(*(record("{}", name, "orders.fifo", group="g") for name in ("a", "b")))
    with orders() as wire:
        assert failed(consumer(defers)(batch, Context())) == ["a", "b"]
    assert wire.visibilities() == {"handle-a": 60, "handle-b": 0}
    assert wire.letters() == []


def test_messages_of_a_batch_are_deferred_in_tens() -> None:  # SPEC J5, E6
    @batch_consumer
    def handler(batch: Any) -> None:
        for message in batch:
            message.defer(5)

    with orders() as wire:
        handler(event(*(record("{}", f"m{index}") for index in range(25))), Context())
    assert sorted(len(request.entries) for request in wire.sent("SendMessageBatch")) == [5, 10, 10]
    assert len(wire.sent("DeleteMessageBatch")) == 3


def test_a_step_may_defer_what_has_failed_without_an_attempt() -> None:  # SPEC E5, J5
    class Later:
        def handle(self, failure: Any, next_step: Any) -> Outcome:
            return Outcome.defer(90)

    with orders() as wire:
        consumer(on_failure=[Later()])(fails)(event(record(receives=2)), Context())
    [kept] = wire.records()
    assert kept["carried"] == 1
    assert kept["failure"]["message"] == "no"


def test_a_failure_that_a_step_defers_is_none_of_the_attempts_in_the_record() -> None:  # SPEC J5, F2
    class ThreeTimesLater:
        def handle(self, failure: Any, next_step: Any) -> Outcome:
            hops = len(wire.letters())
            return Outcome.defer(90) if hops < 3 else next_step(failure)

    handler = consumer(on_failure=[ThreeTimesLater(), DeadLetter()])(fails)
    with orders() as wire:
        handler(event(record(receives=2)), Context())
        for _ in range(3):
            handler(event(redelivered(wire)), Context())
    assert [kept["failure"]["attempts"] for kept in wire.records()] == [1, 1, 1, 2]


@pytest.mark.parametrize("is_allowed", [False, True])
def test_from_the_twelfth_hop_a_deferral_waits_in_place_unless_lambda_allows_the_loop(
    is_allowed: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC J5, E8
    if is_allowed:
        monkeypatch.setenv("TARRY_RECURSIVE_LOOP", "Allow")
    with orders() as wire:
        consumer(defers)(event(record(attributes=carrying(hops=11))), Context())
    assert "RecursiveLoop" in field(lines(caplog, "many_hops")[0], "text")
    assert len(wire.letters()) == is_allowed
    assert len(wire.visibilities()) == (not is_allowed)


# waits that outlast the message


def aged(age: float, queue: str = "orders", **more: Any) -> dict[str, Any]:
    """A message that was sent so long before it was received."""
    return record(queue=queue, system={"SentTimestamp": str(int((RECEIVED_AT - age) * 1000))}, **more)


def test_a_deferral_looks_its_queue_up_since_it_may_be_the_last_delivery() -> None:  # SPEC C8, G1
    with orders() as wire:
        consumer(lambda message: message.defer(5))(event(record(queue="orders.fifo", group="g")), Context())
    assert wire.operations == ["GetQueueAttributes", "ChangeMessageVisibilityBatch"]


@pytest.mark.parametrize(
    ("age", "delay", "is_renewed"),
    [
        pytest.param(4 * DAY - 2 * HOUR, HOUR - 1, False, id="ends an hour and a second before"),
        pytest.param(4 * DAY - 2 * HOUR, HOUR + 1, True, id="ends within the hour before"),
        pytest.param(4 * DAY - 2 * HOUR, 3 * HOUR, True, id="ends after"),
        pytest.param(4 * DAY - 60, 0, True, id="no wait helps"),
        pytest.param(DAY, 11 * HOUR, False, id="days to go"),
        pytest.param(9 * DAY, HOUR, False, id="older than any message of the queue: a sample event"),
    ],
)
def test_a_wait_that_would_outlast_the_message_is_spent_as_a_copy(
    age: float, delay: int, is_renewed: bool
) -> None:  # SPEC C10
    handler = consumer(backoff=Fixed(delay))(fails)
    with orders() as wire:
        reported = failed(handler(event(aged(age)), Context()))
    assert [request.queue for request in wire.sent("SendMessageBatch")] == (["orders"] if is_renewed else [])
    assert reported == ([] if is_renewed else ["m1"])
    if is_renewed:
        [kept] = wire.records()
        assert (kept["carried"], kept["failure"]["message"]) == (1, "no")


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_what_expires_while_its_handler_runs_is_not_left_to_expire(queue: str) -> None:  # SPEC C10
    with orders() as wire:

        @consumer(backoff=Fixed(30))
        def handler(message: Message) -> None:
            wire.clock.now += 60
            raise ValueError("no")

        assert failed(handler(event(aged(4 * DAY - 30, queue, group="g")), Context(600))) == []
    assert len(wire.letters()) == 1


def test_a_backoff_beyond_12_hours_is_renewed_with_12() -> None:  # SPEC C10, C6
    with orders() as wire:
        assert failed(consumer(backoff=Fixed(2 * DAY))(fails)(event(aged(4 * DAY - 5 * HOUR)), Context())) == []
    assert wire.records()[0]["due"] == RECEIVED_AT + 12 * HOUR


def test_a_backoff_beyond_12_hours_is_cut_in_place_while_that_is_long_before_the_end() -> None:  # SPEC C10, E8
    with orders() as wire:
        assert failed(consumer(backoff=Fixed(4 * DAY))(fails)(event(aged(DAY)), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 43_199}


@pytest.mark.parametrize(
    ("retention", "age", "delay", "is_renewed"),
    [
        pytest.param(6 * HOUR, 4 * HOUR, 2 * HOUR, True, id="all that is left"),
        pytest.param(HOUR, 0, 2 * HOUR, True, id="longer than the queue keeps anything"),
        pytest.param(HOUR, 0, 55 * 60, False, id="ends a twelfth of it before"),
        pytest.param(HOUR, 0, 55 * 60 + 1, True, id="ends in its last twelfth"),
    ],
)
def test_a_retention_below_12_hours_counts_where_it_is_known(
    retention: int, age: float, delay: int, is_renewed: bool
) -> None:  # SPEC C10
    """The queue of what has failed was looked up for its `maxReceiveCount`."""
    with orders(retention=retention) as wire:
        consumer(backoff=Fixed(delay))(fails)(event(aged(age)), Context())
    assert len(wire.letters()) == is_renewed


def test_a_short_retention_is_remembered_for_what_waits_unrun() -> None:  # SPEC C10, J4
    with orders(retention=HOUR) as wire:
        handler = consumer(lambda message: message.defer(5 * HOUR))
        handler(event(record()), Context())
        wire.clock.now += 900
        assert failed(handler(event(redelivered(wire)), Context())) == []
    first, renewed = wire.records()
    assert renewed["due"] == first["due"] == RECEIVED_AT + 5 * HOUR
    assert wire.operations.count("GetQueueAttributes") == 2  # each for a send: what is known is kept 900 s


def test_the_queues_own_retention_counts() -> None:  # SPEC C10
    handler = consumer(backoff=Fixed(HOUR))(fails)
    for retention, sends in ((14 * DAY, 0), (4 * DAY, 1)):
        with orders(retention=retention) as wire:
            handler(event(aged(4 * DAY - HOUR)), Context())
        assert len(wire.letters()) == sends


def test_a_retention_that_may_not_be_read_is_taken_for_four_days() -> None:  # SPEC C10
    with orders() as wire:
        wire.fails["GetQueueAttributes"] = client_error("AccessDenied")
        consumer(backoff=Fixed(HOUR))(fails)(event(aged(4 * DAY - HOUR)), Context())
    assert len(wire.letters()) == 1


@pytest.mark.parametrize("wait", [2 * HOUR, 2 * HOUR + 0.5, 100_000])
def test_a_message_that_waits_for_its_due_time_is_renewed_with_that_time(wait: float) -> None:  # SPEC C10, J4
    due = carrying(due=RECEIVED_AT + wait, carried=3, hops=3)
    with orders(retention=13 * HOUR) as wire:
        assert failed(consumer(fails)(event(aged(12 * HOUR, attributes=due)), Context())) == []
    [kept] = wire.records()
    assert (kept["due"], kept["carried"]) == (RECEIVED_AT + wait, 3)


def test_what_no_dead_letter_queue_takes_is_renewed_before_it_expires() -> None:  # SPEC C10, F5
    with Wire(queues={"orders": Queue()}) as wire:
        assert failed(consumer(lambda message: message.reject())(event(aged(4 * DAY - HOUR)), Context())) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders"]
    assert wire.letters()[0]["DelaySeconds"] == 900


def denies(queue: str) -> Any:
    denied = client_error("AccessDenied", "not authorized to perform: sqs:SendMessage", status=403)
    return lambda request: denied if request.queue == queue else None


@pytest.mark.parametrize("handle", [fails, lambda message: message.defer(60)], ids=["retried", "deferred"])
@pytest.mark.parametrize("attributes", [{}, "ten"], ids=["not allowed", "no room for the record"])
def test_what_cannot_be_renewed_is_dead_lettered_before_it_expires(handle: Any, attributes: Any) -> None:  # SPEC C10
    old = aged(4 * DAY - HOUR / 2, attributes=TEN if attributes == "ten" else {})
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(consumer(backoff=Fixed(30))(handle)(event(old), Context())) == []
    assert [request.queue for request in wire.requests if request.operation == "DeleteMessageBatch"] == ["orders"]
    [letter] = [entry for request, entry in wire.accepted if request.queue == "orders-dlq"]
    if attributes != "ten":
        assert wire.records()[-1]["failure"]["reason"] == "expiring"
    assert letter["MessageBody"] == "{}"


def test_what_cannot_be_renewed_may_be_dropped_by_its_step() -> None:  # SPEC C10, F5
    handler = consumer(on_failure=[RetryInPlace(), DropMessage()], backoff=Fixed(30))(fails)
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(handler(event(aged(4 * DAY - HOUR / 2)), Context())) == []


def test_long_before_its_end_a_message_that_cannot_be_deferred_by_a_copy_waits_in_place() -> None:  # SPEC C10, J5
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(consumer(defers)(event(aged(DAY)), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}


def test_a_message_that_was_not_due_is_not_given_up_unrun() -> None:  # SPEC C9, C10
    due = carrying(due=RECEIVED_AT + 2 * HOUR)
    with orders(retention=13 * HOUR) as wire:
        wire.fails["SendMessageBatch"] = denies("orders")
        assert failed(consumer(fails)(event(aged(12 * HOUR, attributes=due)), Context())) == ["m1"]
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders"]


def test_a_letter_that_is_refused_is_renewed_before_it_expires() -> None:  # SPEC C10, F4
    with orders() as wire:
        wire.fails["SendMessageBatch"] = denies("orders-dlq")
        assert failed(consumer(lambda message: message.reject())(event(aged(4 * DAY - HOUR)), Context())) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq", "orders"]


@pytest.mark.parametrize(
    ("left", "seconds"), [(10 * HOUR, 5 * HOUR), (100, 60)], ids=["in half of what is left", "in a minute at least"]
)
@pytest.mark.parametrize(
    "error", [ConnectionError("lost"), client_error("RequestThrottled")], ids=["lost answer", "throttle"]
)
def test_what_may_be_renewed_the_next_time_comes_back_before_it_expires(
    left: int, seconds: int, error: Exception
) -> None:  # SPEC C10
    with orders() as wire:
        wire.fails["SendMessageBatch"] = error
        reported = failed(consumer(backoff=Fixed(12 * HOUR))(fails)(event(aged(4 * DAY - left)), Context()))
    assert reported == ["m1"]
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders"]
    assert wire.visibilities() == {"handle-m1": seconds}


def test_what_may_be_in_the_dead_letter_queue_is_not_sent_a_second_way() -> None:  # SPEC C10, F4
    with orders() as wire:
        wire.fails["SendMessageBatch"] = ConnectionError("lost")
        assert failed(consumer(lambda message: message.reject())(event(aged(4 * DAY - HOUR)), Context())) == ["m1"]
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"]


def test_on_fifo_a_message_about_to_expire_takes_the_next_step() -> None:  # SPEC C10
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    with orders() as wire:
        assert failed(consumer(backoff=Fixed(HOUR))(fails)(event(old), Context())) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"]
    assert wire.records()[0]["failure"]["reason"] == "expiring"


def test_on_fifo_a_deferral_that_would_outlast_the_message_takes_the_steps() -> None:  # SPEC C10
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    with orders() as wire:
        assert failed(consumer(lambda message: message.defer(HOUR))(event(old), Context())) == []
    assert wire.records()[0]["failure"]["reason"] == "expiring"


@pytest.mark.parametrize(
    ("steps", "sends", "reported"),
    [
        ([RetryInPlace()], 1, []),
        ([RetryInPlace(), SendAgain("again", breaks_order=True), DeadLetter()], 1, []),
        ([RetryInPlace(), DropMessage()], 0, []),
    ],
    ids=["none takes it: dead-lettered", "SendAgain passes it on", "DropMessage takes it"],
)
def test_the_steps_for_what_is_about_to_expire(steps: list[Any], sends: int, reported: list[str]) -> None:  # SPEC E1
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    with orders() as wire:
        assert failed(consumer(on_failure=steps)(fails)(event(old), Context())) == reported
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"] * sends


class LaterUnlessExpiring:
    """Defers what failed, but not for ever."""

    def handle(self, failure: Any, next_step: Any) -> Outcome:
        return next_step(failure) if failure.reason == "expiring" else Outcome.defer(60)


@pytest.mark.parametrize(
    ("steps", "receives"),
    [([LaterUnlessExpiring()], 1), ([RetryInPlace()], 5)],
    ids=["deferred by a step", "unhandled"],
)
def test_on_fifo_whatever_waits_takes_the_next_step_instead(steps: list[Any], receives: int) -> None:  # SPEC C10, E4
    old = aged(4 * DAY - HOUR, "orders.fifo", group="g", receives=receives)
    with orders() as wire:
        assert failed(consumer(on_failure=steps)(fails)(event(old), Context())) == []
    assert wire.records()[0]["failure"]["reason"] == "expiring"


def test_a_step_that_retries_even_what_is_expiring_has_the_backoff_and_no_hot_loop() -> None:  # SPEC C10, B7
    class Always:
        def handle(self, failure: Any, next_step: Any) -> Outcome:
            return Outcome.retry()

    old = aged(4 * DAY - HOUR, "orders.fifo", group="g")
    handler = consumer(on_failure=[Always(), RetryInPlace()], backoff=Fixed(40))(fails)
    with orders() as wire:
        assert failed(handler(event(old), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 40}
