"""Attempts, delays, and failure steps, as the requests to SQS show them."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tarry import (
    ConfigurationError,
    DeadLetter,
    Exponential,
    Failure,
    Fixed,
    Linear,
    Message,
    Outcome,
    Retry,
    RetryInPlace,
    Schedule,
    Undecodable,
    batch_consumer,
    consumer,
)
from tarry.record.attribute import body_sum
from tests.records import RECEIVED_AT, Context, batch_of, event, failed, record
from tests.wire import Queue, Request, TestClock, Wire, client_error

NextStep = Callable[[Failure], Outcome]


def orders(visibility_timeout: int = 180, **more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq", visibility_timeout=visibility_timeout)}, **more)


def ledger(**more: Any) -> Wire:
    return Wire(queues={"ledger.fifo": Queue(dead_letter="ledger-dlq.fifo")}, **more)


def fails(message: Message) -> None:
    raise ValueError(message.id)


def attributes_of_copy(body: str = "{}", **fields: Any) -> dict[str, Any]:
    """The attributes of a copy whose `Tarry` attribute has these fields."""
    envelope = {"v": 1, "sum": body_sum(body), "id": "stable", **fields}
    return {"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}}


def attempts_of(*records: dict[str, Any], now: float = RECEIVED_AT) -> list[int]:
    seen: list[int] = []
    with orders(clock=TestClock(now)):
        consumer(lambda message: seen.append(message.attempt))(event(*records), Context())
    return seen


def events_of(caplog: pytest.LogCaptureFixture, name: str) -> list[Any]:
    return [line for line in caplog.records if getattr(line, "event", None) == name]


# which attempt it is


@pytest.mark.parametrize(
    ("count", "attempt"),
    [
        ("1", 1),
        ("2", 2),
        ("1000", 1000),
        (" 3 ", 3),
        (4, 4),
        ("0", 1),
        ("-5", 1),
        ("", 1),
        ("many", 1),
        ("1e3", 1),
        ("2.5", 1),
        (None, 1),
        ([], 1),
        ({}, 1),
    ],
)
def test_the_attempt_is_the_receive_count_or_1_if_it_is_unreadable(count: Any, attempt: int) -> None:  # SPEC C2
    delivered = record()
    delivered["attributes"]["ApproximateReceiveCount"] = count
    assert attempts_of(delivered) == [attempt]


@pytest.mark.parametrize("attributes", [None, [], "none", {}], ids=repr)
def test_a_message_without_system_attributes_is_at_its_first_attempt(attributes: Any) -> None:  # SPEC C2
    assert attempts_of({**record(), "attributes": attributes}) == [1]


@pytest.mark.parametrize(
    ("carried", "receives", "due_after_receive", "attempt"),
    [
        pytest.param(0, 1, None, 1, id="nothing carried"),
        pytest.param(3, 1, None, 4, id="carried"),
        pytest.param(3, 4, None, 7, id="carried, and received again"),
        pytest.param(3, 1, -10, 4, id="received after its due time"),
        pytest.param(3, 2, 10, 4, id="the first receive was before the due time"),
        pytest.param(3, 3, 10, 5, id="received before the due time, then a failure"),
        pytest.param(3, 4, 10, 6, id="a visibility change failed once, which tarry cannot know"),
        pytest.param(0, 2, 10, 1, id="received before the due time, nothing carried"),
    ],
)
def test_a_copy_continues_the_attempts_of_the_earlier_copies(
    carried: int, receives: int, due_after_receive: float | None, attempt: int
) -> None:  # SPEC C2
    due: dict[str, Any] = {} if due_after_receive is None else {"due": RECEIVED_AT + due_after_receive}
    delivered = record("{}", receives=receives, attributes=attributes_of_copy(carried=carried, **due))
    assert attempts_of(delivered, now=RECEIVED_AT + 20) == [attempt]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_on_fifo_a_message_behind_another_of_its_group_is_at_its_first_attempt(concurrency: int) -> None:  # SPEC C2
    seen: dict[str, int] = {}

    @consumer(concurrency=concurrency)
    def handler(message: Message) -> None:
        seen[message.delivery_id] = message.attempt

    records = [
        record("{}", "head", "ledger.fifo", receives=3, group="a"),
        record("{}", "tail", "ledger.fifo", receives=4, group="a"),
        record("{}", "copy", "ledger.fifo", receives=9, group="a", attributes=attributes_of_copy(carried=2)),
        record("{}", "other", "ledger.fifo", receives=5, group="b"),
    ]
    with ledger():
        handler(event(*records), Context())
    assert seen == {"head": 3, "tail": 1, "copy": 3, "other": 5}


def test_on_a_standard_queue_a_group_id_does_not_change_the_attempt() -> None:  # SPEC C2, H3
    records = [record("{}", f"m{index}", receives=4, group="a") for index in range(2)]
    assert attempts_of(*records) == [4, 4]


@pytest.mark.parametrize(
    ("handler_settings", "receives", "expected"),
    [
        pytest.param({"max_attempts": 3}, 2, (3, False), id="before the last"),
        pytest.param({"max_attempts": 3}, 3, (3, True), id="the last"),
        pytest.param({"max_attempts": 3}, 9, (3, True), id="after the last"),
        pytest.param({}, 5, (5, True), id="five by default"),
        pytest.param({"on_failure": [DeadLetter()]}, 5, (None, None), id="nothing is retried in place"),
    ],
)
def test_a_message_knows_its_max_attempts_and_whether_this_is_the_last(
    handler_settings: Any, receives: int, expected: tuple[Any, Any]
) -> None:  # SPEC C2
    seen: list[tuple[Any, Any]] = []

    @consumer(**handler_settings)
    def handler(message: Message) -> None:
        seen.append((message.max_attempts, message.is_last_attempt))

    with orders():
        handler(event(record(receives=receives)), Context())
    assert seen == [expected]


@pytest.mark.parametrize(
    ("limit", "receives", "dead_lettered"),
    [(1, 1, True), (2, 1, False), (2, 2, True), (4, 3, False), (4, 4, True), (4, 40, True), (1000, 999, False)],
)
def test_max_attempts_includes_the_first_attempt(limit: int, receives: int, dead_lettered: bool) -> None:  # SPEC C1, C8
    with Wire(queues={"orders": Queue(dead_letter="orders-dlq", max_receive_count=1000)}) as wire:
        response = consumer(max_attempts=limit)(fails)(event(record(receives=receives)), Context())
    assert bool(wire.sent_entries()) is dead_lettered
    assert failed(response) == ([] if dead_lettered else ["m1"])


def test_by_default_a_message_has_five_attempts_and_growing_delays() -> None:  # SPEC C1
    delays = {}
    for receives in range(1, 6):
        with orders(random=Random(7)) as wire:
            consumer(fails)(event(record(receives=receives)), Context())
            delays[receives] = wire.visibilities().get("handle-m1", -1)
    assert 15 <= delays[1] <= 30
    assert 45 <= delays[2] <= 90
    assert 135 <= delays[3] <= 270
    assert 405 <= delays[4] <= 810
    assert delays[5] == -1  # dead-lettered


# the delay before a retry


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Fixed(7), [7, 7, 7, 7]),
        (Fixed(0), [0, 0, 0, 0]),
        (Fixed(0.2), [1, 1, 1, 1]),
        (Linear(10, 5, maximum=18), [10, 15, 18, 18]),
        (Exponential(2, 3, maximum=50), [2, 6, 18, 50]),
        (Exponential(5, 5), [5, 25, 125, 625]),
        (Schedule([1, 10, 100]), [1, 10, 100, 100]),
        (Schedule.rocketmq(), [10, 30, 60, 120]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "",
)
def test_the_delay_depends_on_the_attempt_that_just_failed(backoff: Any, delays: list[int]) -> None:  # SPEC C3
    handler = consumer(max_attempts=10, backoff=backoff)(fails)
    records = [record("{}", f"m{receives}", receives=receives) for receives in (1, 2, 3, 4)]
    with orders() as wire:
        handler(event(*records), Context())
    assert [wire.visibilities()[f"handle-m{receives}"] for receives in (1, 2, 3, 4)] == delays


def test_the_delay_depends_on_the_attempt_and_not_on_the_receive_count() -> None:  # SPEC C3, C2
    handler = consumer(max_attempts=10, backoff=Schedule([1, 10, 100]))(fails)
    with orders() as wire:
        handler(event(record("{}", attributes=attributes_of_copy(carried=2))), Context())
    assert wire.visibilities() == {"handle-m1": 100}


def test_jitter_spreads_delays_between_its_bounds() -> None:  # SPEC C4
    handler = consumer(backoff=Fixed(1000, jitter="equal"))(fails)
    with orders(random=Random(1)) as wire:
        handler(batch_of(50), Context())
    delays = set(wire.visibilities().values())
    assert len(delays) > 20
    assert min(delays) >= 500
    assert max(delays) <= 1000


@pytest.mark.parametrize(("queue", "expected"), [("ledger.fifo", {30}), ("orders", set(range(15, 31)))])
def test_on_fifo_the_default_delay_is_always_30_seconds(queue: str, expected: set[int]) -> None:  # SPEC C7
    with orders() as wire:
        for receives in (1, 2, 3):
            consumer(fails)(event(record("{}", f"m{receives}", queue, receives=receives, group="a")), Context())
    assert wire.visibilities()["handle-m1"] in expected
    if queue == "ledger.fifo":
        assert set(wire.visibilities().values()) == {30}


def test_a_backoff_set_by_the_user_applies_on_fifo_too() -> None:  # SPEC C7
    with ledger() as wire:
        consumer(backoff=Fixed(7))(fails)(event(record("{}", "m1", "ledger.fifo", group="a")), Context())
    assert wire.visibilities() == {"handle-m1": 7}


# the limits of SQS


@pytest.mark.parametrize(
    ("receives", "age", "handling", "cut"),
    [
        pytest.param(1, 0, 0, 43_199, id="first receive, just now"),
        pytest.param(1, 200, 0, 42_999, id="first receive, a while ago"),
        pytest.param(1, 200, 60, 42_939, id="first receive, and the handler took a minute"),
        pytest.param(2, 0, 0, 42_869, id="a later receive"),
        pytest.param(2, 5_000, 0, 42_869, id="a later receive: the first has no influence"),
        pytest.param(2, 0, 60, 42_809, id="a later receive, and the handler took a minute"),
    ],
)
def test_a_delay_of_the_policy_is_cut_to_the_limit_of_sqs_and_logged(
    receives: int, age: float, handling: float, cut: int, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C6
    wire = orders(visibility_timeout=1_000)

    @consumer(backoff=Fixed(43_200))
    def handler(message: Message) -> None:
        wire.clock.sleep(handling)
        raise ValueError

    with wire:
        wire.clock.now += age
        handler(event(record(receives=receives)), Context(900))
    assert wire.visibilities() == {"handle-m1": cut}
    [line] = events_of(caplog, "waiting_retry")
    assert (line.delay, line.asked_for) == (cut, 43_200)


@pytest.mark.parametrize("first_received", [None, "", "soon", "-1", "1"], ids=repr)
def test_an_unknown_first_receive_counts_as_330_seconds_ago(first_received: Any) -> None:  # SPEC C6
    delivered = record()
    delivered["attributes"]["ApproximateFirstReceiveTimestamp"] = first_received
    with orders() as wire:
        consumer(backoff=Fixed(43_200))(fails)(event(delivered), Context())
    assert wire.visibilities() == {"handle-m1": 42_869}


TOO_LONG = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"


def refuse_beyond(limit: int) -> Callable[[Request, dict[str, Any]], tuple[str, str] | None]:
    def refuse(_: Request, entry: dict[str, Any]) -> tuple[str, str] | None:
        return ("InvalidParameterValue", TOO_LONG) if entry["VisibilityTimeout"] > limit else None

    return refuse


def test_a_visibility_timeout_refused_as_too_long_is_requested_once_more_with_a_shorter_one() -> None:  # SPEC C6
    handler = consumer(backoff=Schedule([43_000, 60]))(fails)
    with orders(refuses={"ChangeMessageVisibilityBatch": refuse_beyond(42_900)}) as wire:
        wire.queues["orders"].visibility_timeout = 600
        handler(event(record("{}", "m1"), record("{}", "m2", receives=2)), Context())
    first, second = wire.sent("ChangeMessageVisibilityBatch")
    assert [entry["VisibilityTimeout"] for entry in first.entries] == [43_000, 60]
    assert [(entry["ReceiptHandle"], entry["VisibilityTimeout"]) for entry in second.entries] == [("handle-m1", 42_600)]


def test_a_visibility_timeout_refused_twice_is_not_requested_a_third_time() -> None:  # SPEC C6, G1
    with orders(refuses={"ChangeMessageVisibilityBatch": refuse_beyond(10)}) as wire:
        response = consumer(backoff=Fixed(43_000))(fails)(batch_of(1), Context())
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == 2
    assert failed(response) == ["m0"]


def test_the_second_request_stays_below_the_limit_if_the_queues_visibility_timeout_is_unknown() -> None:  # SPEC C6, A8
    denied = client_error("AccessDenied", status=403)
    with orders(
        fails={"GetQueueAttributes": denied}, refuses={"ChangeMessageVisibilityBatch": refuse_beyond(43_170)}
    ) as wire:
        consumer(backoff=Fixed(43_199))(fails)(batch_of(1), Context())
    assert wire.visibilities()["handle-m0"] <= 43_170


@pytest.mark.parametrize("error", [client_error("InvalidParameterValue", TOO_LONG), client_error("MalformedInput")])
def test_a_request_refused_as_a_whole_is_repeated_entry_by_entry(error: Exception) -> None:  # SPEC C6
    def refuse_together(request: Request) -> Exception | None:
        return error if len(request.entries) > 1 else None

    with orders(fails={"ChangeMessageVisibilityBatch": refuse_together}) as wire:
        response = consumer(backoff=Fixed(60))(fails)(batch_of(3), Context())
    assert [len(request.entries) for request in wire.sent("ChangeMessageVisibilityBatch")] == [3, 1, 1, 1]
    assert wire.visibilities() == {f"handle-m{index}": 60 for index in range(3)}
    assert failed(response) == ["m0", "m1", "m2"]


def test_an_entry_that_makes_the_request_fail_does_not_affect_the_delays_of_the_others() -> None:  # SPEC C6, G1
    def refuse(request: Request) -> Exception | None:
        is_bad = any(entry["ReceiptHandle"] == "handle-m1" for entry in request.entries)
        return client_error("InvalidParameterValue", TOO_LONG) if is_bad else None

    with orders(fails={"ChangeMessageVisibilityBatch": refuse}) as wire:
        assert failed(consumer(backoff=Fixed(60))(fails)(batch_of(3), Context())) == ["m0", "m1", "m2"]
    alone = [request.entries[0] for request in wire.sent("ChangeMessageVisibilityBatch") if len(request.entries) == 1]
    asked = [entry["ReceiptHandle"] for entry in alone]
    assert asked.count("handle-m0") == 1
    assert asked.count("handle-m2") == 1


# exhausted messages


@pytest.mark.parametrize(
    ("max_receive_count", "receives", "dead_lettered"),
    [(3, 2, False), (3, 3, True), (3, 7, True), (1, 1, True), (15, 4, False)],
)
def test_a_message_is_exhausted_at_the_last_delivery_of_its_queue_despite_a_higher_max_attempts(
    max_receive_count: int, receives: int, dead_lettered: bool
) -> None:  # SPEC C8
    with Wire(queues={"orders": Queue("orders-dlq", max_receive_count)}) as wire:
        response = consumer(max_attempts=100)(fails)(event(record(receives=receives)), Context())
    assert [envelope["failure"]["reason"] for envelope in wire.envelopes()] == (["exhausted"] if dead_lettered else [])
    assert failed(response) == ([] if dead_lettered else ["m1"])


def test_the_last_delivery_is_determined_by_receives_and_not_by_attempts() -> None:  # SPEC C8
    delivered = record("{}", receives=1, attributes=attributes_of_copy(carried=50))
    with Wire(queues={"orders": Queue("orders-dlq", 3)}) as wire:
        consumer(max_attempts=100)(fails)(event(delivered), Context())
    assert wire.sent_entries() == []


def test_a_retry_verdict_at_the_last_attempt_is_exhausted() -> None:  # SPEC E1, C8
    with orders() as wire:
        response = consumer(max_attempts=2)(lambda message: message.retry(60))(event(record(receives=2)), Context())
    assert failed(response) == []
    [envelope] = wire.envelopes()
    assert envelope["failure"]["reason"] == "exhausted"


def test_a_deferral_is_never_exhausted() -> None:  # SPEC E1
    with orders() as wire:
        response = consumer(max_attempts=2)(lambda message: message.defer(60))(event(record(receives=9)), Context())
    assert failed(response) == []
    [copy] = wire.sent_entries()
    assert copy["DelaySeconds"] == 60
    assert "failure" not in wire.envelopes()[0]


@pytest.mark.parametrize("receives", [5, 15, 500])
def test_a_message_is_not_dead_lettered_before_its_handler_has_run(receives: int) -> None:  # SPEC C9
    runs: list[str] = []
    with orders() as wire:
        response = consumer(lambda message: runs.append(message.id))(event(record(receives=receives)), Context())
    assert (runs, failed(response), wire.sent_entries()) == (["m1"], [], [])


def test_a_message_released_at_its_last_attempt_is_not_dead_lettered() -> None:  # SPEC C9, A5
    def handler(message: Message) -> None:
        raise SystemExit

    with orders() as wire:
        response = consumer(handler)(event(record("{}", "m1"), record("{}", "m2", receives=500)), Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.visibilities()["handle-m2"] == 0
    assert wire.sent_entries() == []


# fatal and retried errors


class BaseProblem(Exception):
    pass


class MiddleProblem(BaseProblem):
    pass


class LeafProblem(MiddleProblem):
    pass


RETRIED, FATAL = "retried", "fatal"


@pytest.mark.parametrize(
    ("settings", "error", "expected"),
    [
        pytest.param({}, BaseProblem(), RETRIED, id="by default all are retried"),
        pytest.param({"fatal": BaseProblem}, BaseProblem(), FATAL, id="fatal"),
        pytest.param({"fatal": BaseProblem}, LeafProblem(), FATAL, id="a subclass of fatal"),
        pytest.param({"fatal": MiddleProblem}, BaseProblem(), RETRIED, id="a base of fatal"),
        pytest.param({"fatal": (KeyError, BaseProblem)}, BaseProblem(), FATAL, id="a tuple"),
        pytest.param({"fatal": ()}, BaseProblem(), RETRIED, id="an empty tuple"),
        pytest.param({"retry_on": BaseProblem}, MiddleProblem(), RETRIED, id="retry_on"),
        pytest.param({"retry_on": BaseProblem}, KeyError(), FATAL, id="retry_on alone makes others fatal"),
        pytest.param({"retry_on": MiddleProblem}, BaseProblem(), FATAL, id="retry_on alone makes its base fatal"),
        pytest.param({"retry_on": BaseProblem, "fatal": KeyError}, TypeError(), RETRIED, id="named in neither"),
        pytest.param({"retry_on": BaseProblem, "fatal": KeyError}, KeyError(), FATAL, id="both, fatal"),
        pytest.param(
            {"fatal": BaseProblem, "retry_on": MiddleProblem}, LeafProblem(), RETRIED, id="the nearer base wins: retry"
        ),
        pytest.param(
            {"fatal": BaseProblem, "retry_on": MiddleProblem}, BaseProblem(), FATAL, id="the nearer base wins: fatal"
        ),
        pytest.param(
            {"fatal": MiddleProblem, "retry_on": BaseProblem},
            LeafProblem(),
            FATAL,
            id="the nearer base wins, the other way",
        ),
        pytest.param({"fatal": Exception, "retry_on": BaseProblem}, LeafProblem(), RETRIED, id="all but one fatal"),
        pytest.param({"fatal": Exception}, Retry(60), RETRIED, id="a signal is not an error"),
        pytest.param({"retry_on": BaseProblem}, Retry(60), RETRIED, id="a signal is not one of the others"),
    ],
)
def test_the_most_specific_class_decides_whether_an_error_is_fatal(
    settings: Any, error: Exception, expected: str
) -> None:  # SPEC D1
    @consumer(**settings)
    def handler(message: Message) -> None:
        raise error

    with orders() as wire:
        response = handler(event(record()), Context())
    assert failed(response) == (["m1"] if expected == RETRIED else [])
    assert [envelope["failure"]["reason"] for envelope in wire.envelopes()] == (
        [] if expected == RETRIED else ["fatal"]
    )


def test_a_body_that_is_not_json_is_never_retried() -> None:  # SPEC D4
    body = '{"half": "\u00fc\u0000'

    @consumer(retry_on=ValueError)
    def handler(message: Message) -> None:
        message.json()

    with orders() as wire:
        response = handler(event(record(body)), Context())
    assert failed(response) == []
    [dead_letter] = wire.sent_entries()
    assert dead_letter["MessageBody"] == body
    assert wire.envelopes()[0]["failure"]["reason"] == "undecodable"
    assert wire.envelopes()[0]["failure"]["type"] == "tarry.Undecodable"


def test_undecodable_can_be_caught_as_a_value_error() -> None:  # SPEC D4
    def handler(message: Message) -> None:
        with pytest.raises(ValueError, match="m1") as caught:
            message.json()
        assert isinstance(caught.value, Undecodable)

    with orders():
        assert failed(consumer(handler)(event(record("not json")), Context())) == []


def test_a_json_error_of_the_handlers_own_is_an_ordinary_failure() -> None:  # SPEC D4
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        json.loads("the answer of some service")

    with orders() as wire:
        assert failed(handler(event(record("{}")), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}


# failure steps


class FixedAnswer:
    """A failure step that returns a fixed answer, or asks the next step, and keeps the failures it was asked about."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[Failure] = []

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        self.asked.append(failure)
        return next_step(failure) if self.answer is None else self.answer


def run_one(steps: list[Any], handle: Any = fails, receives: int = 1, **settings: Any) -> tuple[list[str], Wire]:
    with orders() as wire:
        response = consumer(on_failure=steps, **settings)(handle)(event(record(receives=receives)), Context())
    return failed(response), wire


def gives_reject(message: Message) -> None:
    message.reject("bad")


def gives_retry(message: Message) -> None:
    message.retry(60)


def undecodable(message: Message) -> None:
    raise Undecodable("no")


@pytest.mark.parametrize(
    ("handle", "receives", "reason", "delay", "error"),
    [
        pytest.param(fails, 1, "error", None, ValueError, id="error"),
        pytest.param(fails, 5, "exhausted", None, ValueError, id="exhausted"),
        pytest.param(gives_reject, 1, "rejected", None, None, id="rejected"),
        pytest.param(undecodable, 1, "undecodable", None, Undecodable, id="undecodable"),
        pytest.param(gives_retry, 5, "exhausted", 60, None, id="retry verdict at the last attempt"),
    ],
)
def test_a_failure_step_gets_the_failed_message_and_the_reason(
    handle: Any, receives: int, reason: str, delay: int | None, error: Any
) -> None:  # SPEC E1
    step = FixedAnswer()
    run_one([step, RetryInPlace(), DeadLetter()], handle, receives)
    [failure] = step.asked
    assert (failure.reason, failure.attempt, failure.queue, failure.delay) == (reason, receives, "orders", delay)
    assert failure.message.id == "m1"
    assert failure.crashes is None
    if error is not None:
        assert isinstance(failure.error, error)


def test_the_failure_of_a_retry_verdict_has_no_error() -> None:  # SPEC E1
    step = FixedAnswer()
    run_one([step, RetryInPlace()], gives_retry, 5)
    assert step.asked[0].error is None


def test_the_failure_of_a_fatal_error_has_the_reason_fatal() -> None:  # SPEC E1
    step = FixedAnswer()
    run_one([step], fatal=ValueError)
    assert step.asked[0].reason == "fatal"


@pytest.mark.parametrize(
    "handle", [lambda message: message.ack(), lambda message: message.discard(), lambda message: message.defer(5)]
)
def test_failure_steps_are_not_asked_about_acks_discards_and_deferrals(handle: Any) -> None:  # SPEC E1
    step = FixedAnswer()
    run_one([step], handle, receives=9)
    assert step.asked == []


@pytest.mark.parametrize(
    ("answer", "reported", "visibility", "sends"),
    [
        pytest.param(Outcome.retry(), True, 60, 0, id="retry, as the policy says"),
        pytest.param(Outcome.retry(7), True, 7, 0, id="retry"),
        pytest.param(Outcome.retry(0), True, 0, 0, id="retry at once"),
        pytest.param(Outcome.defer(9), False, None, 1, id="defer"),
        pytest.param(Outcome.dead_letter("my reason"), False, None, 1, id="dead letter"),
        pytest.param(Outcome.ack(), False, None, 0, id="ack"),
        pytest.param(Outcome.discard("never mind"), False, None, 0, id="discard"),
        pytest.param(Outcome.unhandled(), True, 900, 0, id="unhandled"),
    ],
)
def test_the_outcome_that_a_failure_step_returns_is_carried_out(
    answer: Outcome, reported: bool, visibility: int | None, sends: int
) -> None:  # SPEC E1, E5
    reports, wire = run_one([FixedAnswer(answer), RetryInPlace()], backoff=Fixed(60))
    assert reports == (["m1"] if reported else [])
    assert wire.visibilities().get("handle-m1") == visibility
    assert len(wire.sent_entries()) == sends


def test_failure_steps_are_asked_in_order_until_one_returns_an_outcome() -> None:  # SPEC E1
    first, second, third = FixedAnswer(), FixedAnswer(Outcome.retry(7)), FixedAnswer(Outcome.ack())
    reports, wire = run_one([first, second, third])
    assert (len(first.asked), len(second.asked), len(third.asked)) == (1, 1, 0)
    assert (reports, wire.visibilities()) == (["m1"], {"handle-m1": 7})


@pytest.mark.parametrize("nonsense", ["ack", {}, 60, Outcome, False, {"batchItemFailures": []}], ids=repr)
def test_a_message_has_failed_if_a_failure_step_returns_something_other_than_an_outcome(
    nonsense: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E5, A2
    reports, wire = run_one([FixedAnswer(nonsense)])
    assert reports == ["m1"]
    assert wire.visibilities() == {"handle-m1": 900}
    assert len(events_of(caplog, "step_failed")) == 1


def test_a_message_has_failed_if_a_failure_step_returns_none() -> None:  # SPEC E5, A2
    class ForgetsToReturn:
        def handle(self, failure: Failure, next_step: NextStep) -> None:
            next_step(failure)

    reports, wire = run_one([ForgetsToReturn(), DeadLetter()])
    assert (reports, wire.sent_entries()) == (["m1"], [])


def test_a_message_has_failed_if_a_failure_step_raises_an_exception_which_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E5
    class RaisesOSError:
        def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
            raise OSError("the pager is down")

    reports, wire = run_one([RaisesOSError(), DeadLetter()])
    assert (reports, wire.sent_entries()) == (["m1"], [])
    assert wire.visibilities() == {"handle-m1": 900}
    [line] = events_of(caplog, "step_failed")
    assert "the pager is down" in line.error


def test_an_unhandled_message_waits_15_minutes_and_is_logged_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E4
    reports, wire = run_one([RetryInPlace()], receives=5, backoff=Fixed(60))
    assert (reports, wire.sent_entries(), wire.visibilities()) == (["m1"], [], {"handle-m1": 900})
    [line] = events_of(caplog, "unhandled")
    assert line.levelname == "ERROR"
    assert (line.message_id, line.error_type) == ("m1", "ValueError")
    assert "ValueError: m1" in line.getMessage()


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [
        (Fixed(60), 900),
        (Fixed(2000), 2000),
        (Exponential(60, 10, maximum=5000), 5000),
        (Schedule([10, 7200, 10]), 7200),
        (Fixed(43_200), 42_869),
    ],
    ids=["short", "long", "growing", "longest in the middle", "beyond what SQS allows"],
)
def test_an_unhandled_message_waits_for_the_longest_delay_of_the_policy(backoff: Any, seconds: int) -> None:  # SPEC E4
    reports, wire = run_one([RetryInPlace()], receives=5, backoff=backoff)
    assert (reports, wire.visibilities()) == (["m1"], {"handle-m1": seconds})


@pytest.mark.parametrize("handle", [gives_reject, undecodable], ids=["rejected", "undecodable"])
def test_rejected_and_undecodable_messages_are_dead_lettered_if_no_failure_step_takes_them(
    handle: Any,
) -> None:  # SPEC E1
    reports, wire = run_one([RetryInPlace()], handle)
    assert reports == []
    assert [envelope["failure"]["reason"] for envelope in wire.envelopes()] == [
        "rejected" if handle is gives_reject else "undecodable"
    ]


def test_a_fatal_failure_is_dead_lettered_if_no_failure_step_takes_it() -> None:  # SPEC E1
    reports, wire = run_one([RetryInPlace()], fatal=ValueError)
    assert reports == []
    assert [envelope["failure"]["reason"] for envelope in wire.envelopes()] == ["fatal"]


def test_an_empty_list_of_failure_steps_means_the_default() -> None:  # SPEC E1, E2
    reports, wire = run_one([], backoff=Fixed(60))
    assert (reports, wire.visibilities()) == (["m1"], {"handle-m1": 60})


def test_without_retry_in_place_the_first_failure_is_dead_lettered() -> None:  # SPEC E1
    reports, wire = run_one([DeadLetter()])
    assert reports == []
    assert [envelope["failure"]["reason"] for envelope in wire.envelopes()] == ["error"]


@pytest.mark.parametrize(
    "steps",
    [
        [RetryInPlace],
        ["DeadLetter"],
        [None],
        [lambda failure: Outcome.ack()],
        DeadLetter(),
        5,
    ],
    ids=["a class", "a name", "nothing", "a function of one", "a step instead of a list", "a number"],
)
def test_an_invalid_list_of_failure_steps_is_refused_when_the_consumer_is_made(steps: Any) -> None:  # SPEC E1, C5
    with pytest.raises(ConfigurationError):
        consumer(on_failure=steps)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 0},
        {"max_attempts": 1001},
        {"max_attempts": 2.5},
        {"max_attempts": True},
        {"backoff": 60},
        {"fatal": "ValueError"},
        {"retry_on": [ValueError]},
        {"fatal": ValueError, "retry_on": ValueError},
        {"log": {"body": True}},
    ],
    ids=str,
)
def test_invalid_settings_are_refused_when_the_consumer_is_made(settings: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError):
        consumer(**settings)


def test_replace_gives_a_changed_copy() -> None:  # SPEC C1
    first = consumer(max_attempts=3, backoff=Fixed(60))(fails)
    second = first.replace(max_attempts=1)
    with orders() as wire:
        assert failed(first(batch_of(1), Context())) == ["m0"]
        assert failed(second(batch_of(1), Context())) == []
    assert wire.visibilities() == {"handle-m0": 60}
    assert second.policy.backoff == Fixed(60)
    assert (first.policy.max_attempts, second.function) == (3, fails)


@pytest.mark.parametrize("make", [consumer, batch_consumer])
def test_an_unknown_setting_is_refused(make: Any) -> None:  # SPEC C5
    with pytest.raises(TypeError, match="max_attemps"):
        make(max_attemps=3)


def test_replace_refuses_an_unknown_setting() -> None:  # SPEC C5
    with pytest.raises(TypeError, match="max_attemps"):
        consumer(fails).replace(max_attemps=3)  # type: ignore[call-arg]


def test_a_setting_without_its_name_is_refused() -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match="5"):
        consumer(5)  # type: ignore[call-overload]
