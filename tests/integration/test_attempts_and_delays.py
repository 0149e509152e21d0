"""Attempts, delays, and failure steps, as the requests to SQS show them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tarry import (
    ConfigurationError,
    DeadLetter,
    Exponential,
    Failure,
    Fixed,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    Schedule,
    Undecodable,
    batch_consumer,
    consumer,
)
from tarry.record.attribute import body_sum
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, batch_of, event, record
from tests.settled import fails, orders, reasons, settle, targets
from tests.wire import Request, Wire, client_error


def attributes_of_copy(**fields: Any) -> dict[str, Any]:
    """The attributes of a copy whose `Tarry` attribute has these fields."""
    envelope = {"v": 1, "sum": body_sum("{}"), "id": "stable", **fields}
    return {"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}}


def attempts_of(*records: dict[str, Any], wire: Wire | None = None, **settings: Any) -> dict[str, int]:
    seen: dict[str, int] = {}

    @consumer(**settings)
    def handler(message: Message) -> None:
        seen[message.delivery_id] = message.attempt

    settle(handler, event(*records), wire)
    return seen


# which attempt it is

COUNTS: dict[Any, int] = {"1": 1, "2": 2, "1000": 1000, " 3 ": 3, 4: 4}
NOT_COUNTS: list[Any] = [
    "0", "-5", "", "many", "1e3", "2.5", "NaN", "x1", "9" * 5_000, float("inf"), float("nan"), None, [], {},
]  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "attempt"),
    [
        *(({"ApproximateReceiveCount": count}, attempt) for count, attempt in COUNTS.items()),
        *(({"ApproximateReceiveCount": count}, 1) for count in NOT_COUNTS),
        *((attributes, 1) for attributes in (None, [], "none", {})),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_the_attempt_is_the_receive_count_or_1_if_it_is_unreadable(attributes: Any, attempt: int) -> None:
    """SPEC A7, C2. The batch contains the message twice, which compares the counts."""
    seen: list[tuple[int, int]] = []
    delivered = {**record(), "attributes": attributes}
    handler = consumer(lambda message: seen.append((message.attempt, message.receive_count)))
    settle(handler, event(delivered, delivered))
    assert seen == [(attempt, attempt)]


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
    assert attempts_of(delivered, wire=orders(elapsed=20)) == {"m1": attempt}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_on_fifo_a_message_behind_another_of_its_group_is_at_its_first_attempt(concurrency: int) -> None:
    """SPEC C2, H3. On a standard queue, a group id does not change the attempt."""
    fifo = [
        record("{}", "head", "orders.fifo", receives=3, group="a"),
        record("{}", "tail", "orders.fifo", receives=4, group="a"),
        record("{}", "copy", "orders.fifo", receives=9, group="a", attributes=attributes_of_copy(carried=2)),
        record("{}", "other", "orders.fifo", receives=5, group="b"),
    ]
    standard = [record("{}", name, receives=4, group="a") for name in ("m1", "m2")]
    assert attempts_of(*fifo, concurrency=concurrency) == {"head": 3, "tail": 1, "copy": 3, "other": 5}
    assert attempts_of(*standard, concurrency=concurrency) == {"m1": 4, "m2": 4}


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
    handler = consumer(**handler_settings)(lambda each: seen.append((each.max_attempts, each.is_last_attempt)))
    settle(handler, event(record(receives=receives)))
    assert seen == [expected]


@pytest.mark.parametrize(
    ("max_attempts", "max_receive_count", "carried", "receives", "is_exhausted"),
    [
        (1, 1_000, 0, 1, True),
        (2, 1_000, 0, 1, False),
        (2, 1_000, 0, 2, True),
        (4, 1_000, 0, 3, False),
        (4, 1_000, 0, 4, True),
        (4, 1_000, 0, 40, True),
        (1_000, 1_000, 0, 999, False),
        (100, 3, 0, 2, False),
        (100, 3, 0, 3, True),
        (100, 3, 0, 7, True),
        (100, 1, 0, 1, True),
        (100, 15, 0, 4, False),
        (100, 3, 50, 1, False),
    ],
)
def test_a_message_is_exhausted_at_its_last_attempt_and_at_the_last_delivery_of_its_queue(
    max_attempts: int, max_receive_count: int, carried: int, receives: int, is_exhausted: bool
) -> None:  # SPEC C1, C8
    batch = event(record("{}", receives=receives, attributes=attributes_of_copy(carried=carried)))
    wire = orders(max_receive_count=max_receive_count)
    reported, _ = settle(consumer(max_attempts=max_attempts)(fails), batch, wire)
    failures = [(envelope["failure"]["reason"], envelope["failure"]["attempts"]) for envelope in wire.envelopes()]
    assert (reported, failures) == (([], [("exhausted", receives)]) if is_exhausted else (["m1"], []))


def test_by_default_a_message_has_five_attempts_and_growing_delays_and_on_fifo_30_seconds() -> None:  # SPEC C7, C1
    for receives, (least, most) in enumerate([(15, 30), (45, 90), (135, 270), (405, 810)], start=1):
        _, wire = settle(consumer(fails), event(record(receives=receives)))
        assert least <= wire.visibilities()["handle-m1"] <= most
        _, wire = settle(consumer(fails), event(record(queue="orders.fifo", receives=receives)))
        assert wire.visibilities() == {"handle-m1": 30}
    reported, wire = settle(consumer(fails), event(record(receives=5)))
    assert (reported, reasons(wire), wire.visibilities()) == ([], ["exhausted"], {})
    _, wire = settle(consumer(backoff=Fixed(7))(fails), event(record(queue="orders.fifo")))
    assert wire.visibilities() == {"handle-m1": 7}


# the delay before a retry


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Fixed(0), [0, 0, 0, 0]),
        (Fixed(0.2), [1, 1, 1, 1]),
        (Exponential(2, 3, maximum=50), [2, 6, 18, 50]),
        (Schedule([1, 10, 100]), [1, 10, 100, 100]),
    ],
    ids=repr,
)
def test_the_delay_depends_on_the_attempt_that_just_failed(backoff: Any, delays: list[int]) -> None:  # SPEC C3, C2
    records = [record("{}", f"m{receives}", receives=receives) for receives in (1, 2, 3, 4)]
    copy = record("{}", "m5", attributes=attributes_of_copy(carried=2))
    _, wire = settle(consumer(max_attempts=10, backoff=backoff)(fails), event(*records, copy))
    assert [wire.visibilities()[f"handle-m{number}"] for number in range(1, 6)] == [*delays, delays[2]]


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
    wire = orders(age, visibility_timeout=1_000)

    @consumer(backoff=Fixed(43_200))
    def handler(message: Message) -> None:
        wire.clock.sleep(handling)
        raise ValueError

    settle(handler, event(record(receives=receives)), wire, remaining=900)
    assert wire.visibilities() == {"handle-m1": cut}
    [line] = lines(caplog, "waiting_retry")
    assert (field(line, "delay"), field(line, "asked_for")) == (cut, 43_200)


@pytest.mark.parametrize("first_received", [None, "", "soon", "-1", "1"], ids=repr)
def test_an_unknown_first_receive_counts_as_330_seconds_ago(first_received: Any) -> None:  # SPEC C6
    delivered = record()
    delivered["attributes"]["ApproximateFirstReceiveTimestamp"] = first_received
    _, wire = settle(consumer(backoff=Fixed(43_200))(fails), event(delivered))
    assert wire.visibilities() == {"handle-m1": 42_869}


TOO_LONG = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"


def refuses_beyond(limit: int, **source: Any) -> Wire:
    wire = orders(**source)
    wire.refuses["ChangeMessageVisibilityBatch"] = lambda _, entry: (
        ("InvalidParameterValue", TOO_LONG) if entry["VisibilityTimeout"] > limit else None
    )
    return wire


def test_a_visibility_timeout_refused_as_too_long_is_requested_once_more_with_a_shorter_one() -> None:  # SPEC C6
    batch = event(record("{}", "m1"), record("{}", "m2", receives=2))
    wire = refuses_beyond(42_900, visibility_timeout=600)
    settle(consumer(backoff=Schedule([43_000, 60]))(fails), batch, wire)
    first, second = wire.sent("ChangeMessageVisibilityBatch")
    assert [entry["VisibilityTimeout"] for entry in first.entries] == [43_000, 60]
    assert [(entry["ReceiptHandle"], entry["VisibilityTimeout"]) for entry in second.entries] == [("handle-m1", 42_600)]


def test_a_visibility_timeout_refused_twice_is_not_requested_a_third_time() -> None:  # SPEC C6, G1
    reported, wire = settle(consumer(backoff=Fixed(43_000))(fails), wire=refuses_beyond(10))
    assert (reported, len(wire.sent("ChangeMessageVisibilityBatch"))) == (["m1"], 2)


def test_the_second_request_stays_below_the_limit_if_the_queues_visibility_timeout_is_unknown() -> None:  # SPEC C6, A8
    wire = refuses_beyond(43_170)
    wire.fails["GetQueueAttributes"] = client_error("AccessDenied", status=403)
    settle(consumer(backoff=Fixed(43_199))(fails), wire=wire)
    assert wire.visibilities()["handle-m1"] <= 43_170


@pytest.mark.parametrize("error", [client_error("InvalidParameterValue", TOO_LONG), client_error("MalformedInput")])
def test_a_request_refused_as_a_whole_for_one_entry_is_repeated_entry_by_entry(error: Exception) -> None:
    """SPEC C6, G1. The delays of the others are kept."""

    def refuse(request: Request) -> Exception | None:
        return error if any(entry["ReceiptHandle"] == "handle-m1" for entry in request.entries) else None

    wire = orders()
    wire.fails["ChangeMessageVisibilityBatch"] = refuse
    reported, _ = settle(consumer(backoff=Fixed(60))(fails), batch_of(3), wire)
    first, *alone = [
        [entry["ReceiptHandle"].removeprefix("handle-") for entry in request.entries]
        for request in wire.sent("ChangeMessageVisibilityBatch")
    ]
    assert (first, {*map(tuple, alone)}) == (["m0", "m1", "m2"], {("m0",), ("m1",), ("m2",)})
    assert (alone.count(["m0"]), alone.count(["m2"])) == (1, 1)
    assert (wire.visibilities()["handle-m0"], wire.visibilities()["handle-m2"]) == (60, 60)
    assert reported == ["m0", "m1", "m2"]


def test_a_message_is_not_dead_lettered_before_its_handler_has_run() -> None:  # SPEC A5, C9
    """However often it was received; the second time, an exit of the message before it releases it."""
    runs: list[str] = []
    batch = event(record("{}", "m1"), record("{}", "m2", receives=500))

    @consumer
    def handler(message: Message) -> None:
        runs.append(message.id)
        if len(runs) == 3:
            raise SystemExit

    reported, wire = settle(handler, batch)
    assert (sorted(runs), reported, wire.sent_entries()) == (["m1", "m2"], [], [])
    reported, wire = settle(handler, batch)
    assert (reported, wire.visibilities()["handle-m2"], wire.sent_entries()) == (["m1", "m2"], 0, [])


# fatal and retried errors


@pytest.mark.parametrize(
    ("settings", "error", "dead_letters"),
    [
        ({"fatal": OSError}, ConnectionError(), ["fatal"]),
        ({"fatal": OSError}, ValueError(), []),
        ({"retry_on": OSError}, ValueError(), ["fatal"]),
        ({"fatal": Exception}, Retry(60), []),
    ],
    ids=repr,
)
def test_a_fatal_error_is_dead_lettered_at_once(settings: Any, error: Exception, dead_letters: list[str]) -> None:
    """SPEC D1. A signal is not an error, so it is not fatal."""

    @consumer(**settings)
    def handler(message: Message) -> None:
        raise error

    reported, wire = settle(handler)
    assert (reported, reasons(wire)) == ([] if dead_letters else ["m1"], dead_letters)


# failure steps

NextStep = Callable[[Failure], Outcome]


class FixedAnswer:
    """A failure step that returns a fixed answer, or asks the next step, and keeps the failures it was asked about."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[Failure] = []

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        self.asked.append(failure)
        return next_step(failure) if self.answer is None else self.answer


def run_one(steps: list[Any], handle: Any = fails, receives: int = 1, **settings: Any) -> tuple[list[str], Wire]:
    return settle(consumer(on_failure=steps, **settings)(handle), event(record("{", receives=receives)))


def rejects(message: Message) -> None:
    message.reject("bad")


def raises_reject(message: Message) -> None:
    raise Reject("bad")


def retries(message: Message) -> None:
    message.retry(60)


def decodes(message: Message) -> None:
    message.json()


@pytest.mark.parametrize(
    ("handle", "settings", "receives", "reason", "delay", "error", "error_type"),
    [
        pytest.param(fails, {}, 1, "error", None, ValueError, None, id="error"),
        pytest.param(fails, {}, 5, "exhausted", None, ValueError, "ValueError", id="exhausted"),
        pytest.param(fails, {"fatal": ValueError}, 1, "fatal", None, ValueError, "ValueError", id="fatal"),
        pytest.param(rejects, {}, 1, "rejected", None, Reject, "tarry.Reject", id="reject verdict"),
        pytest.param(raises_reject, {}, 1, "rejected", None, Reject, "tarry.Reject", id="raised reject"),
        pytest.param(decodes, {}, 1, "undecodable", None, Undecodable, "tarry.Undecodable", id="undecodable"),
        pytest.param(retries, {}, 5, "exhausted", 60, type(None), None, id="retry verdict at the last attempt"),
    ],
)
def test_a_failure_step_and_the_failure_record_get_the_reason_and_the_error(
    handle: Any, settings: Any, receives: int, reason: str, delay: int | None, error: Any, error_type: str | None
) -> None:  # SPEC E1, F2
    step = FixedAnswer()
    _, wire = run_one([step, RetryInPlace(), DeadLetter()], handle, receives, **settings)
    [failure] = step.asked
    assert (failure.reason, failure.attempt, failure.queue, failure.delay) == (reason, receives, "orders", delay)
    assert (failure.message.id, failure.crashes) == ("m1", None)
    assert isinstance(failure.error, error)
    sent = [envelope["failure"] for envelope in wire.envelopes()]
    assert [(each["reason"], each.get("type"), each["attempts"]) for each in sent] == (
        [] if reason == "error" else [(reason, error_type, receives)]
    )


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
def test_failure_steps_are_asked_in_order_until_one_returns_an_outcome_which_is_carried_out(
    answer: Outcome, reported: bool, visibility: int | None, sends: int
) -> None:  # SPEC E1, E5
    first, second, third = FixedAnswer(), FixedAnswer(answer), FixedAnswer(Outcome.discard())
    reports, wire = run_one([first, second, third], backoff=Fixed(60))
    assert (len(first.asked), len(second.asked), len(third.asked)) == (1, 1, 0)
    assert reports == (["m1"] if reported else [])
    assert wire.visibilities().get("handle-m1") == visibility
    assert len(wire.sent_entries()) == sends


class ForgetsToReturn:
    def handle(self, failure: Failure, next_step: NextStep) -> None:
        next_step(failure)


class RaisesOSError:
    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        raise OSError("the pager is down")


NONSENSE: list[Any] = ["ack", {}, 60, Outcome, False, {"batchItemFailures": []}]


@pytest.mark.parametrize(
    "step", [*map(FixedAnswer, NONSENSE), ForgetsToReturn(), RaisesOSError(), RaisesOSError().handle]
)
def test_a_message_stays_in_its_queue_if_a_failure_step_raises_an_exception_or_returns_no_outcome(
    step: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E3, E5, A2
    reports, wire = run_one([step, DeadLetter()])
    assert (reports, wire.sent_entries(), wire.visibilities()) == (["m1"], [], {"handle-m1": 900})
    [line] = lines(caplog, "step_failed")
    assert ("the pager is down" in field(line, "error")) == ("RaisesOSError" in repr(step))


@pytest.mark.parametrize(
    ("backoff", "seconds"), [(Fixed(60), 900), (Schedule([10, 7200, 10]), 7200), (Fixed(43_200), 42_869)], ids=repr
)
def test_an_unhandled_message_waits_for_the_longest_delay_of_the_policy_and_is_logged_as_an_error(
    backoff: Any, seconds: int, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E4
    reports, wire = run_one([RetryInPlace()], receives=5, backoff=backoff)
    assert (reports, wire.sent_entries(), wire.visibilities()) == (["m1"], [], {"handle-m1": seconds})
    [line] = lines(caplog, "unhandled")
    assert (line.levelname, field(line, "message_id"), field(line, "error_type")) == ("ERROR", "m1", "ValueError")
    assert "ValueError: no" in line.getMessage()


@pytest.mark.parametrize(
    ("steps", "handle", "settings", "dead_letters"),
    [
        pytest.param([RetryInPlace()], rejects, {}, ["rejected"], id="no step takes a rejected message"),
        pytest.param([RetryInPlace()], decodes, {}, ["undecodable"], id="no step takes an undecodable message"),
        pytest.param([RetryInPlace()], fails, {"fatal": ValueError}, ["fatal"], id="no step takes a fatal failure"),
        pytest.param([DeadLetter()], fails, {}, ["error"], id="nothing is retried in place"),
        pytest.param([], fails, {}, [], id="an empty list means the default"),
    ],
)
def test_a_failure_that_is_not_retried_is_dead_lettered(
    steps: list[Any], handle: Any, settings: Any, dead_letters: list[str]
) -> None:  # SPEC E1, E2
    reports, wire = run_one(steps, handle, backoff=Fixed(60), **settings)
    assert (reports, targets(wire), reasons(wire)) == (
        ([], ["orders-dlq"], dead_letters) if dead_letters else (["m1"], [], [])
    )
    assert wire.visibilities() == ({} if dead_letters else {"handle-m1": 60})


# settings


@pytest.mark.parametrize(
    "settings", [{"max_attempts": 0}, {"log": {"body": True}}, {"on_failure": DeadLetter()}], ids=str
)
def test_invalid_settings_are_refused_when_the_consumer_is_made(settings: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError):
        consumer(**settings)


@pytest.mark.parametrize("make", [consumer, batch_consumer, consumer(fails).replace])
def test_an_unknown_setting_is_refused(make: Any) -> None:  # SPEC C5
    with pytest.raises(TypeError, match="max_attemps"):
        make(max_attemps=3)


def test_replace_gives_a_changed_copy() -> None:  # SPEC C1
    first = consumer(max_attempts=3, backoff=Fixed(60))(fails)
    second = first.replace(max_attempts=1)
    reported, wire = settle(first)
    assert (reported, wire.visibilities()) == (["m1"], {"handle-m1": 60})
    assert settle(second)[0] == []
    assert second.policy.backoff == Fixed(60)
    assert (first.policy.max_attempts, second.function) == (3, fails)
