"""Delays that a copy waits: deferrals, also by an open circuit, and delays beyond the retention of the queue."""

import asyncio
import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aws_lambda_powertools.utilities.circuit_breaker import circuit_breaker
from aws_lambda_powertools.utilities.circuit_breaker.config import CircuitBreakerConfig
from aws_lambda_powertools.utilities.circuit_breaker.exceptions import CircuitBreakerOpenError
from aws_lambda_powertools.utilities.circuit_breaker.persistence.base import CircuitBreakerPersistenceLayer
from aws_lambda_powertools.utilities.circuit_breaker.persistence.record import CircuitStateRecord
from aws_lambda_powertools.utilities.circuit_breaker.states import CircuitState

from tarry import (
    Batch,
    DeadLetter,
    Defer,
    DropMessage,
    Fixed,
    MemoryAttempts,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.tools.testing.hosting import give_powertools_the_time
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, batch_of, event, failed, record
from tests.settled import fails, orders, reasons, redelivered, settle, targets, tarry_attribute
from tests.wire import Wire, client_error

HOUR, DAY = 3_600, 86_400

TEN_ATTRIBUTES = {f"a{index}": {"stringValue": "x", "dataType": "String"} for index in range(10)}
"""The maximum number of attributes, which leaves no space for a `Tarry` attribute."""
INVALID_BASE64 = {"a": {"binaryValue": "%%%a", "dataType": "Binary"}}
DENIED = client_error("AccessDenied", "not authorized to perform: sqs:SendMessage", status=403)
TEMPORARY = {"lost answer": ConnectionError("lost"), "throttle": client_error("RequestThrottled")}


def sending(fault: Any, **source: Any) -> Wire:
    """Return a wire whose sends fail: with an error, or with a denial if it is the name of a queue."""
    wire = orders(**source)
    wire.fails["SendMessageBatch"] = lambda request: (
        (DENIED if request.queue == fault else None) if isinstance(fault, str) else fault
    )
    return wire


def defers(message: Message) -> None:
    message.defer(60)


def rejects_copy(message: Message) -> None:
    if message.delivery_id == "copy":
        raise Reject
    raise Defer(60)


# deferrals


@pytest.mark.parametrize(
    ("receives", "max_receive_count"), [(1, 15), (9, 15), (5, 5)], ids=["first", "beyond max_attempts", "last delivery"]
)
def test_a_deferred_message_is_sent_as_a_copy_and_then_deleted(receives: int, max_receive_count: int) -> None:
    """SPEC C8, E1, E6, J5. It is never exhausted, since it has not failed."""
    wire = orders(max_receive_count=max_receive_count)
    reported, _ = settle(consumer(max_attempts=2)(defers), event(record("{}", receives=receives)), wire)
    assert (reported, targets(wire), wire.acts) == ([], ["orders"], ["SendMessageBatch", "DeleteMessageBatch"])
    [copy], [envelope] = wire.sent_entries(), wire.envelopes()
    assert (envelope["id"], envelope["carried"], envelope["hops"]) == ("m1", receives - 1, 1)
    assert (copy["DelaySeconds"], "failure" in envelope) == (60, False)


def test_a_deferral_uses_no_attempt() -> None:  # SPEC F2, J5
    attempts: list[int] = []

    @consumer
    def handler(message: Message) -> None:
        attempts.append(message.attempt)
        raise Defer(60)

    _, wire = settle(handler, event(record(receives=3)))
    for _ in range(3):
        settle(handler, event(redelivered(wire)), wire)
    assert attempts == [3, 3, 3, 3]
    assert [envelope["hops"] for envelope in wire.envelopes()] == [1, 2, 3, 4]
    # the total of attempts includes those before a redrive, and two in place before the deferral
    before = tarry_attribute(failure={"reason": "exhausted", "attempts": 5}, origin="arn:aws:sqs:us-east-1:1:elsewhere")
    _, wire = settle(consumer(rejects_copy), event(record("{}", receives=3, attributes=before)))
    settle(consumer(rejects_copy), event(redelivered(wire)), wire)
    assert wire.envelopes()[-1]["failure"]["attempts"] == 5 + 3


def test_failures_that_a_failure_step_defers_are_no_attempts() -> None:  # SPEC E5, F2, J5
    def defers_three_times(failure: Any, next_step: Any) -> Outcome:
        return Outcome.defer(90) if len(wire.sent_entries()) < 3 else next_step(failure)

    wire, handler = orders(), consumer(on_failure=[defers_three_times, DeadLetter()])(fails)
    settle(handler, event(record(receives=2)), wire)
    for _ in range(3):
        settle(handler, event(redelivered(wire)), wire)
    found = [
        (each.get("carried"), each["failure"]["attempts"], each["failure"]["message"]) for each in wire.envelopes()
    ]
    assert found == [(1, 1, "no")] * 3 + [(None, 2, "no")]


def test_a_deferred_copy_keeps_the_record_of_earlier_failures() -> None:  # SPEC J5, E6
    handler = consumer(on_failure=[SendAgain("later")])(
        lambda message: fails(message) if message.failure is None else message.defer(60)
    )
    _, wire = settle(handler)
    settle(handler, event(redelivered(wire)), wire)
    failed_copy, deferred = wire.envelopes()
    assert (deferred["failure"], deferred["history"]) == (failed_copy["failure"], failed_copy["history"])
    assert (deferred["steps"], deferred["carried"], deferred["hops"]) == ({"later": 1}, 1, 2)


@pytest.mark.parametrize(
    ("fault", "attributes", "reason"),
    [
        pytest.param(DENIED, {}, "AccessDenied", id="denied"),
        pytest.param(TEMPORARY["throttle"], {}, "RequestThrottled", id="throttle"),
        pytest.param(TEMPORARY["lost answer"], {}, "lost", id="lost answer"),
        pytest.param(None, TEN_ATTRIBUTES, "attribute", id="no space for the Tarry attribute"),
        pytest.param(None, INVALID_BASE64, "", id="an attribute that cannot be read"),
    ],
)
def test_a_deferred_message_whose_copy_cannot_be_sent_waits_in_place_and_is_not_unhandled(
    fault: Exception | None, attributes: Any, reason: str, caplog: Caplog
) -> None:  # SPEC A2, A8, E6, J5
    seen: list[Message] = []
    handler = consumer(lambda message: seen.append(message) or message.defer(60))
    reported, wire = settle(handler, event(record(attributes=attributes)), sending(fault))
    assert (reported, wire.visibilities(), wire.accepted[:-1]) == (["m1"], {"handle-m1": 60}, [])
    assert seen[0].outcome == Outcome.defer(60)
    assert reason in field(lines(caplog, "deferred")[0], "not_sent")


def test_redact_is_not_called_for_a_copy_without_a_failure_record(caplog: Caplog) -> None:  # SPEC F3
    def mask(envelope: dict[str, Any]) -> dict[str, Any]:
        return {**envelope, "failure": {**envelope["failure"], "message": "***"}}

    failed_before = tarry_attribute(
        failure={"reason": "error", "attempts": 1, "message": "4111-1111"}, carried=1, hops=1
    )
    batch = event(record("{}", "m1"), record("{}", "m2", attributes=failed_before))
    _, wire = settle(consumer(on_failure=[RetryInPlace(), DeadLetter(redact=mask)])(defers), batch)
    without_failure, with_failure = wire.envelopes()
    assert ("failure" in without_failure, with_failure["failure"]["message"]) == (False, "***")
    assert lines(caplog, "redact_failed") == []


def test_no_copy_of_a_deferred_message_with_a_lost_lease_is_sent(caplog: Caplog) -> None:  # SPEC J5, E6
    wire = orders(visibility_timeout=100)
    handler = consumer(lambda message: wire.clock.sleep(101) or message.defer(60))
    assert settle(handler, wire=wire, remaining=200)[0] == ["m1"]
    assert wire.operations == ["GetQueueAttributes"]
    assert "the lease is lost" in caplog.text


def test_only_the_refused_one_of_ten_deferrals_waits_in_place() -> None:  # SPEC J5, G1
    @batch_consumer
    def handler(batch: Batch) -> None:
        for message in batch:
            message.defer(60)

    wire = orders()
    wire.refuses["SendMessageBatch"] = lambda _, entry: ("InternalError", "no") if entry["Id"] == "3" else None
    wire.fails["DeleteMessageBatch"] = client_error("ThrottlingException")
    assert settle(handler, batch_of(10), wire)[0] == ["m3"]
    assert wire.visibilities() == {"handle-m3": 60}


def test_on_fifo_a_deferred_message_waits_in_place_and_delays_its_group() -> None:  # SPEC C8, G1, H1, J5
    """Its queue is looked up because this may be its last delivery."""
    batch = event(*(record("{}", name, "orders.fifo", group="g") for name in ("a", "b")))
    reported, wire = settle(consumer(defers), batch)
    assert (reported, wire.visibilities()) == (["a", "b"], {"handle-a": 60, "handle-b": 0})
    assert wire.operations == ["GetQueueAttributes", *["ChangeMessageVisibilityBatch"] * 2]


@pytest.mark.parametrize(
    ("handle", "hops", "is_allowed", "sent", "warnings"),
    [
        pytest.param(defers, 11, False, [], 1, id="the twelfth"),
        pytest.param(defers, 11, True, [("stable", 12)], 0, id="the twelfth, allowed"),
        pytest.param(defers, 1_000, True, [("stable", 1_000)], 0, id="beyond what readers accept"),
        pytest.param(fails, 20, False, [], 0, id="a retry in place is not a hop"),
    ],
)
def test_from_the_twelfth_hop_a_deferred_message_waits_in_place_unless_loops_are_allowed(
    handle: Any, hops: int, is_allowed: bool, sent: Any, warnings: int,
    caplog: Caplog, monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC J5, E8  # fmt: skip
    if is_allowed:
        monkeypatch.setenv("TARRY_RECURSIVE_LOOP", "Allow")
    _, wire = settle(
        consumer(backoff=Fixed(60))(handle), event(record("{}", attributes=tarry_attribute(id="stable", hops=hops)))
    )
    assert ["RecursiveLoop" in field(line, "text") for line in lines(caplog, "many_hops")] == [True] * warnings
    assert [(envelope["id"], envelope["hops"]) for envelope in wire.envelopes()] == sent
    assert wire.visibilities() == ({} if sent else {"handle-m1": 60})


# an open circuit of Powertools' circuit breaker (SPEC K5)

RECOVERY_SECONDS = 45


class OpenCircuit(CircuitBreakerPersistenceLayer):
    """The store of a circuit that opened at a time."""

    def __init__(self, opened_at: Callable[[], float]) -> None:
        super().__init__()
        self._opened_at = opened_at

    def get_state(self, name: str) -> CircuitStateRecord:
        return CircuitStateRecord(name=name, state=CircuitState.OPEN, opened_at=int(self._opened_at()))

    def try_acquire_half_open(self, name: str, owner: str, opened_at: int) -> bool:
        return False  # another process tries the circuit

    _get_record = _put_record = _update_record = None  # type: ignore[assignment]


@pytest.fixture
def wire() -> Any:
    with orders() as made:
        give_powertools_the_time()
        yield made


def protected(wire: Wire, *, opened_seconds_ago: float) -> Callable[[], None]:
    config = CircuitBreakerConfig(recovery_timeout=RECOVERY_SECONDS)
    store = OpenCircuit(lambda: wire.clock.now - opened_seconds_ago)

    @circuit_breaker(name="bank", persistence_store=store, config=config)
    def pay() -> None:
        raise AssertionError("the circuit is open")

    return pay


def test_each_deferral_is_twice_as_long_and_no_attempt(wire: Wire, caplog: Caplog) -> None:  # SPEC K5
    """The first one ends when the circuit may be tried; the last ones are 900 s. Other messages run."""
    caplog.set_level("INFO")
    pay, handled = protected(wire, opened_seconds_ago=15), list[int]()

    @consumer
    def handler(message: Message) -> None:
        handled.append(message.attempt)
        if message.delivery_id != "other":
            pay()

    assert failed(handler(event(record(), record({}, "other")), Context())) == []
    for _ in range(6):
        handler(event(redelivered(wire)), Context())
    assert handled == [1] * 8
    assert [entry["DelaySeconds"] for entry in wire.sent_entries()] == [30, 60, 120, 240, 480, 900, 900]
    assert {field(line, "reason") for line in lines(caplog, "deferred")} == {"circuit_open"}
    assert lines(caplog, level=30) == []


@pytest.mark.parametrize(
    ("count", "seconds", "noted"), [(None, 1, 1), (9, 512, 10), (10, 900, 11), (1_000, 900, 1_000)]
)
def test_a_deferral_counts_those_before_up_to_1000(count: Any, seconds: int, noted: int, wire: Wire) -> None:
    """SPEC E3, K5. The circuit may be tried in a second."""
    pay = protected(wire, opened_seconds_ago=RECOVERY_SECONDS + 1)
    batch = event(record("{}", attributes=tarry_attribute(steps={"tarry.circuit": count} if count else {})))
    assert settle(consumer(lambda message: pay()), batch, wire)[0] == []
    assert (wire.sent_entries()[0]["DelaySeconds"], wire.envelopes()[0]["steps"]) == (seconds, {"tarry.circuit": noted})


def test_without_the_times_of_a_circuit_a_message_is_deferred_for_30_seconds_and_the_longest_of_several_counts() -> (
    None
):
    """SPEC K5."""
    circuits = [None, SimpleNamespace(opened_at=None), SimpleNamespace(opened_at=RECEIVED_AT - 20)]
    errors = [CircuitBreakerOpenError("open", circuit=cast("Any", circuit)) for circuit in circuits]
    seconds = []
    for error in (*errors, ExceptionGroup("several", errors), ExceptionGroup("several", errors[::-1])):

        @consumer
        def handler(message: Message, error: Exception = error) -> None:
            raise error

        seconds += [entry["DelaySeconds"] for entry in settle(handler)[1].sent_entries()]
    assert seconds == [30, 30, 10, 30, 30]


@pytest.mark.parametrize(
    ("queue", "settings", "receives"),
    [("orders.fifo", {}, (1, 2, 3, 4)), ("orders", {"attempts": MemoryAttempts()}, (1, 2, 6, 7))],
    ids=["fifo", "attempt store"],
)
def test_on_fifo_and_with_an_attempt_store_the_message_waits_in_place_and_each_delay_is_longer(
    queue: str, settings: dict[str, Any], receives: tuple[int, ...], wire: Wire
) -> None:  # SPEC J5, K5
    """With a store, only deferrals make it longer: the message was delivered three times more, without a trace."""
    pay = protected(wire, opened_seconds_ago=0)

    @consumer(**settings)
    def handler(message: Message) -> None:
        assert settings == {} or message.attempt == 1
        pay()

    delays = []
    for count in receives:
        batch = event(record({}, "a", queue, count, "g"), record({}, "b", queue, 1, "g"))
        assert failed(handler(batch, Context())) == ["a", "b"]
        delays.append(wire.visibilities()["handle-a"])
    assert delays == [45, 90, 180, 360]
    assert wire.sent_entries() == []


def test_with_an_attempt_store_a_failed_run_makes_no_deferral_longer(wire: Wire) -> None:  # SPEC K5
    pay = protected(wire, opened_seconds_ago=0)

    @consumer(attempts=MemoryAttempts(), backoff=Fixed(10))
    def handler(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError
        pay()

    for count in (1, 2):
        assert failed(handler(event(record(receives=count)), Context())) == ["m1"]
    assert wire.visibilities()["handle-m1"] == 45


def test_batches_and_exception_groups_are_deferred_and_an_error_beside_it_is_a_failure(wire: Wire) -> None:
    pay = protected(wire, opened_seconds_ago=RECOVERY_SECONDS * 2)

    @batch_consumer
    def as_a_batch(batch: Batch) -> None:
        batch[0].ack()
        pay()

    async def call(error: Exception | None) -> None:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        pay()

    @consumer
    async def in_a_group(message: Message) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(call(None))
            group.create_task(call(ValueError() if message.delivery_id == "fails" else None))

    @consumer
    def asks_for_a_retry(message: Message) -> None:
        try:
            pay()
        except Exception as error:
            raise Retry(600) from error

    as_a_batch(event(record({}, "done"), record({}, "a")), Context())
    in_a_group(event(record({}, "b")), Context())
    assert [entry["DelaySeconds"] for entry in wire.sent_entries()] == [1, 1]
    assert failed(in_a_group(event(record({}, "fails")), Context())) == ["fails"]
    asks_for_a_retry(event(record({}, "later")), Context())
    assert wire.visibilities()["handle-later"] == 600


# delays beyond the retention period


def aged(age: float, queue: str = "orders", **more: Any) -> dict[str, Any]:
    """Return an event with a message that was sent ``age`` seconds before it was received."""
    sent_at = {"SentTimestamp": str(int((RECEIVED_AT - age) * 1000))}
    return event(record("{}", queue=queue, system=sent_at, group="g", **more))


@pytest.mark.parametrize(
    ("retention", "age", "delay", "is_renewed"),
    [
        pytest.param(4 * DAY, 4 * DAY - 2 * HOUR, HOUR - 1, False, id="more than an hour before the message expires"),
        pytest.param(4 * DAY, 4 * DAY - 2 * HOUR, HOUR + 1, True, id="less than an hour before the message expires"),
        pytest.param(4 * DAY, 4 * DAY - 2 * HOUR, 3 * HOUR, True, id="ends after the message expires"),
        pytest.param(4 * DAY, 4 * DAY - 60, 0, True, id="no delay is short enough"),
        pytest.param(4 * DAY, DAY, 12 * HOUR, False, id="expires in days, cut to what SQS allows"),
        pytest.param(14 * DAY, 4 * DAY - HOUR, HOUR, False, id="a longer retention period"),
        pytest.param(None, 4 * DAY - HOUR, HOUR, True, id="an unreadable retention period is four days"),
        pytest.param(HOUR, 0, 55 * 60 + 1, True, id="ends in the last twelfth of the retention period"),
    ],
)
def test_a_retry_whose_delay_would_outlast_the_message_is_sent_as_a_copy(
    retention: int | None, age: float, delay: int, is_renewed: bool
) -> None:  # SPEC C10, E8
    wire = orders(retention=retention or DAY)
    wire.fails["GetQueueAttributes"] = lambda _: None if retention else client_error("AccessDenied")
    reported, _ = settle(consumer(backoff=Fixed(delay))(fails), aged(age), wire)
    assert (reported, targets(wire)) == (([], ["orders"]) if is_renewed else (["m1"], []))
    assert wire.visibilities() == ({} if is_renewed else {"handle-m1": min(delay, 43_199)})
    assert [(envelope["carried"], envelope["failure"]["message"]) for envelope in wire.envelopes()] == (
        [(1, "no")] * is_renewed
    )


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_message_that_would_expire_while_its_handler_runs_is_saved_by_a_copy(queue: str) -> None:  # SPEC C10
    wire = orders()
    handler = consumer(backoff=Fixed(30))(lambda message: wire.clock.sleep(60) or fails(message))
    assert settle(handler, aged(4 * DAY - 30, queue), wire, remaining=600)[0] == []
    assert len(wire.sent_entries()) == 1


def test_a_copy_of_a_message_with_a_delay_beyond_12_hours_is_due_in_12_hours() -> None:  # SPEC C10, C6
    reported, wire = settle(consumer(retry_when=lambda failure: 2 * DAY)(fails), aged(4 * DAY - 5 * HOUR))
    assert (reported, wire.envelopes()[0]["due"]) == ([], RECEIVED_AT + 12 * HOUR)


def test_a_cached_short_retention_period_counts_for_messages_that_are_not_due() -> None:  # SPEC C10, J4
    wire, handler = orders(retention=HOUR), consumer(lambda message: message.defer(5 * HOUR))
    settle(handler, wire=wire)
    wire.clock.now += 900
    assert settle(handler, event(redelivered(wire)), wire)[0] == []
    assert [envelope["due"] for envelope in wire.envelopes()] == [RECEIVED_AT + 5 * HOUR] * 2
    assert wire.operations.count("GetQueueAttributes") == 2  # one for each send, because the cache lasts 900 s


@pytest.mark.parametrize("wait", [2 * HOUR, 2 * HOUR + 0.5, 100_000])
def test_the_copy_of_a_message_that_is_not_due_keeps_the_due_time(wait: float) -> None:  # SPEC C10, J4
    due = tarry_attribute(due=RECEIVED_AT + wait, carried=3, hops=3)
    reported, wire = settle(consumer(fails), aged(12 * HOUR, attributes=due), orders(retention=13 * HOUR))
    [envelope] = wire.envelopes()
    assert (reported, envelope["due"], envelope["carried"]) == ([], RECEIVED_AT + wait, 3)


@pytest.mark.parametrize(
    ("source", "fault", "sends", "reported"),
    [
        pytest.param({"dead_letter": None}, None, ["orders"], [], id="no dead-letter queue"),
        pytest.param({}, "orders-dlq", ["orders-dlq", "orders"], [], id="dead letter refused"),
        pytest.param({}, TEMPORARY["lost answer"], ["orders-dlq"], ["m1"], id="may be in the dead-letter queue"),
    ],
)
def test_a_rejected_message_that_is_not_in_the_dead_letter_queue_is_copied_before_it_expires(
    source: Any, fault: Any, sends: list[str], reported: list[str]
) -> None:  # SPEC C10, F4, F5
    handler = consumer(lambda message: message.reject())
    found, wire = settle(handler, aged(4 * DAY - HOUR), sending(fault, **source))
    assert (found, targets(wire)) == (reported, sends)
    assert wire.sent_entries()[-1]["DelaySeconds"] == (900 if sends[-1] == "orders" else 0)


def raises(failure: Any, next_step: Any) -> Outcome:
    raise RuntimeError("the step's own error")


@pytest.mark.parametrize(
    ("handle", "steps", "attributes", "reason"),
    [
        pytest.param(fails, [], {}, "expiring", id="retried"),
        pytest.param(defers, [], {}, "expiring", id="deferred"),
        pytest.param(fails, [raises], {}, "expiring", id="a step raises"),
        pytest.param(fails, [], TEN_ATTRIBUTES, None, id="no space for the attribute"),
        pytest.param(defers, [], TEN_ATTRIBUTES, None, id="deferred, and no space for the attribute"),
        pytest.param(fails, [RetryInPlace(), DropMessage()], {}, "expiring", id="a step behind RetryInPlace"),
    ],
)
def test_a_message_that_cannot_be_copied_is_dead_lettered_before_it_expires(
    handle: Any, steps: list[Any], attributes: Any, reason: str | None
) -> None:  # SPEC C10, E5, F5
    handler = consumer(backoff=Fixed(30), on_failure=steps)(handle)
    reported, wire = settle(handler, aged(4 * DAY - HOUR / 2, attributes=attributes), sending("orders"))
    [sent] = [entry for request, entry in wire.accepted if request.queue == "orders-dlq"]
    found = json.loads(sent["MessageAttributes"].get("Tarry", {}).get("StringValue", "{}"))
    assert (reported, sent["MessageBody"], found.get("failure", {}).get("reason")) == ([], "{}", reason)
    assert [request.queue for request in wire.sent("DeleteMessageBatch")] == ["orders"]


def test_a_dead_letter_that_could_not_wait_says_why_in_the_log_and_names_no_first_failure(caplog: Caplog) -> None:
    """SPEC C8, C10. Of a message that is not due, the time that was left is shown."""
    batch = aged(4 * DAY - HOUR / 2)
    batch["Records"].append(record("{}", "last", receives=15))
    reported, wire = settle(consumer(defers), batch, sending("orders"))
    assert reported == []
    moments = ("before it would expire", "at the queue's last delivery (maxReceiveCount)")
    for line, envelope, when in zip(lines(caplog, "dead_lettered"), wire.envelopes()[-2:], moments, strict=True):
        why = f"deferred for 60 s {when}, and could not be sent again"
        assert field(line, "text").partition("; ")[0] == envelope["failure"]["message"] == why
        assert "first_failed_at" not in envelope["failure"]
    last = event(record("{}", "last", receives=15, attributes=tarry_attribute(due=RECEIVED_AT + 600)))
    reported, wire = settle(consumer(fails), last, sending("orders", elapsed=59.5))
    assert reported == []
    assert wire.envelopes()[-1]["failure"]["message"].startswith("sent with a delay; 541 s of it were left when")


def test_a_message_that_is_not_due_is_not_dead_lettered_without_a_run() -> None:  # SPEC C9, C10
    batch = aged(12 * HOUR, attributes=tarry_attribute(due=RECEIVED_AT + 2 * HOUR))
    reported, wire = settle(consumer(fails), batch, sending("orders", retention=13 * HOUR))
    assert (reported, targets(wire)) == (["m1"], ["orders"])


@pytest.mark.parametrize(
    ("left", "seconds"), [(10 * HOUR, 5 * HOUR), (100, 60)], ids=["half of the remaining time", "a minute at least"]
)
@pytest.mark.parametrize("error", TEMPORARY.values(), ids=TEMPORARY)
def test_a_message_whose_copy_failed_temporarily_comes_back_before_it_expires(
    left: int, seconds: int, error: Exception
) -> None:  # SPEC C10
    reported, wire = settle(consumer(backoff=Fixed(12 * HOUR))(fails), aged(4 * DAY - left), sending(error))
    assert (reported, targets(wire), wire.visibilities()) == (["m1"], ["orders"], {"handle-m1": seconds})


# on FIFO, where no copy can be sent


def defers_unless_expiring(failure: Any, next_step: Any) -> Outcome:
    return next_step(failure) if failure.reason == "expiring" else Outcome.defer(60)  # type: ignore[no-any-return]


BREAKS_ORDER = SendAgain("again", breaks_order=True)


@pytest.mark.parametrize(
    ("handle", "steps", "receives", "sends"),
    [
        pytest.param(fails, [], 1, 1, id="retried"),
        pytest.param(lambda message: message.defer(HOUR), [], 1, 1, id="deferred"),
        pytest.param(fails, [defers_unless_expiring], 1, 1, id="deferred by a step"),
        pytest.param(fails, [RetryInPlace()], 5, 1, id="unhandled"),
        pytest.param(fails, [RetryInPlace()], 1, 1, id="no step takes it"),
        pytest.param(fails, [RetryInPlace(), BREAKS_ORDER, DeadLetter()], 1, 1, id="SendAgain passes it on"),
        pytest.param(fails, [RetryInPlace(), DropMessage()], 1, 0, id="DropMessage takes it"),
    ],
)
def test_on_fifo_failure_steps_are_asked_about_a_message_that_is_about_to_expire(
    handle: Any, steps: list[Any], receives: int, sends: int
) -> None:  # SPEC C10, E1, E4
    handler = consumer(on_failure=steps, backoff=Fixed(HOUR))(handle)
    reported, wire = settle(handler, aged(4 * DAY - HOUR, "orders.fifo", receives=receives))
    assert (reported, targets(wire)) == ([], ["orders-dlq.fifo"] * sends)
    assert reasons(wire) == ["expiring"] * sends


@pytest.mark.parametrize(("left", "stays"), [(HOUR, ["m1"]), (HOUR - 1, [])])
def test_on_fifo_a_message_waits_if_it_comes_back_an_hour_before_it_expires(left: int, stays: list[str]) -> None:
    """SPEC C10."""
    handler = consumer(backoff=Fixed(0), on_failure=[RetryInPlace(), DropMessage()])(fails)
    reported, wire = settle(handler, aged(4 * DAY - left, "orders.fifo"))
    assert (reported, wire.sent_entries()) == (stays, [])


KEEPS = {
    "retry": lambda failure, next_step: Outcome.retry(11 * HOUR),
    "retry by the backoff": lambda failure, next_step: Outcome.retry(),
    "defer": lambda failure, next_step: Outcome.defer(11 * HOUR),
    "unhandled": lambda failure, next_step: Outcome.unhandled(),
    "raises": raises,
    "raises at last": lambda failure, next_step: (
        raises(failure, next_step) if failure.reason == "expiring" else Outcome.defer(11 * HOUR)
    ),
}
"""Failure steps that keep a message in its queue, also if it is about to expire."""


@pytest.mark.parametrize("step", KEEPS.values(), ids=KEEPS)
def test_on_fifo_a_message_is_dead_lettered_before_it_expires_whatever_its_failure_steps_answer(
    step: Any, caplog: Caplog
) -> None:
    """SPEC C10, E5, F5. Without a dead-letter queue, it stays, with one error."""
    old = aged(4 * DAY - HOUR, "orders.fifo")
    handler = consumer(on_failure=[step, RetryInPlace(), DeadLetter(queue="elsewhere")], backoff=Fixed(40))(fails)
    reported, wire = settle(handler, old)
    assert (reported, targets(wire)) == ([], ["orders-dlq.fifo"])
    failure = wire.envelopes()[0]["failure"]
    assert (failure["reason"], failure["message"]) == ("expiring", "no")
    caplog.clear()
    reported, wire = settle(consumer(on_failure=[step, RetryInPlace()])(fails), old, orders(dead_letter=None))
    assert (reported, wire.sent_entries()) == (["m1"], [])
    [error] = [line for line in lines(caplog, level=logging.ERROR) if field(line, "event") != "step_failed"]
    assert (field(error, "event"), field(error, "reason")) == ("unhandled", "error" if step is raises else "expiring")
    assert "orders.fifo has no dead-letter queue" in field(error, "not_sent")


@pytest.mark.parametrize("error", [DENIED, *TEMPORARY.values()], ids=["refused", *TEMPORARY])
def test_on_fifo_a_message_about_to_expire_comes_back_before_that_if_its_dead_letter_cannot_be_sent(
    error: Exception, caplog: Caplog
) -> None:  # SPEC C10, F4
    handler = consumer(on_failure=[KEEPS["retry"]])(fails)
    reported, wire = settle(handler, aged(4 * DAY - HOUR, "orders.fifo"), sending(error))
    assert (reported, targets(wire), wire.visibilities()) == (["m1"], ["orders-dlq.fifo"], {"handle-m1": HOUR / 2})
    assert lines(caplog, "unhandled")
