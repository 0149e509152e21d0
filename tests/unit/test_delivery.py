"""One delivery: its attempt, its due time, the delays that SQS can keep, and its failure as failure steps see it."""

from random import Random
from typing import Any

import pytest

from tarry import DelayNotSupported, Exponential, Failure, MemoryAttempts, Outcome, Reject, Retry, RetryPolicy, consumer
from tarry.message.delivery import Delivery, QueueFacts, StepContext
from tarry.message.failure_record import copy_record, dead_letter_record, failure_part, trace_record, waiting_record
from tarry.message.invocation import Invocation, message_of
from tarry.message.message import delivery_of
from tarry.record.attribute import body_sum, timestamp
from tarry.testing import message
from tarry.world import World
from tests.records import RECEIVED_AT, record
from tests.settled import tarry_attribute
from tests.wire import TestClock, arn

NOW = RECEIVED_AT + 100
NO_COUNT, NO_TIME = ({"system": {name: ""}} for name in ("ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"))


def delivery(envelope: dict[str, Any] | None = None, now: float = NOW, **fields: Any) -> Delivery:
    """Return the delivery of a record, with the fields of its `Tarry` attribute if it has one."""
    attributes = None if envelope is None else tarry_attribute(**envelope)
    invocation = Invocation(World(TestClock(now)), None, lambda _: 5, consumer(print).log)
    return delivery_of(message_of(record(attributes=attributes, **fields), "m1", invocation, invocation.log))


# attempts

EXACT, BOUND, DEFERRED = {"failure": {}}, {"failure": {"attempts_at_most": True}}, {"failure": None}
EARLY, LATE = {"due": RECEIVED_AT}, {"due": RECEIVED_AT + 1}  # the first receive was not before it, or was


@pytest.mark.parametrize(
    ("receives", "envelope", "stored", "attempt", "at_most"),
    [
        (1, None, None, 1, False), (2, None, None, 2, True), (0, None, None, 1, False), ("x", None, None, 1, False),
        (1, {"carried": 2, **EXACT}, None, 3, False), (2, {"carried": 2, **EXACT}, None, 4, True),
        (1, {"carried": 2, **BOUND}, None, 3, True), (1, {"carried": 2, **DEFERRED}, None, 3, True),
        (1, BOUND, None, 1, False), (1, DEFERRED, None, 1, False),
        (1, LATE, None, 1, False), (2, LATE, None, 1, False), (3, LATE, None, 2, True), (2, EARLY, None, 2, True),
        (1, {"carried": 2, **LATE, **EXACT}, None, 2, False), (2, {"carried": 2, **LATE, **EXACT}, None, 3, False),
        (5, None, {}, 1, False), (5, None, {"runs": [1, 3]}, 3, False), (5, None, {"runs": [0, 4, 5, 9]}, 2, False),
        (5, {"carried": 2, **EXACT}, {"runs": [1]}, 4, False), (5, {"carried": 2, **BOUND}, {"runs": [1]}, 4, True),
        (3, LATE, {"runs": [2]}, 2, False),
    ],
)  # fmt: skip
def test_the_attempt_is_counted_by_receives_or_runs_from_those_that_a_copy_carries(
    receives: object, envelope: Any, stored: Any, attempt: int, at_most: bool
) -> None:  # SPEC C2, J4, O2
    found = delivery(envelope, receives=receives)
    found.stored = stored
    assert (found.attempt, found.attempts_at_most) == (attempt, at_most)
    found.is_of_crash = True  # its last run crashed, and it does not run now
    assert found.attempt == attempt - 1


@pytest.mark.parametrize(
    ("deliveries", "attempt", "at_most"), [([1, 2, 3, 4], 2, False), ([1, 2, 4], 3, True), ([1], 5, True)]
)
def test_a_run_that_the_store_did_not_take_counts_the_deliveries_without_a_trace_as_runs(
    deliveries: list[int], attempt: int, at_most: bool
) -> None:  # SPEC O4
    found = delivery(receives=5)
    found.stored, found.is_untraced = {"runs": [1], "deliveries": deliveries}, True
    assert (found.attempt, found.attempts_at_most, found.crashes) == (attempt, at_most, 4 - len(deliveries))


@pytest.mark.parametrize(
    ("queue", "receives", "stored", "crashes", "waits"),
    [
        ("orders", 1, None, 0, 0), ("orders", 2, None, None, 0), ("orders.fifo", 1, None, 0, 0),
        ("orders.fifo", 3, None, None, 2), ("orders.fifo", 3, {}, 2, 0), ("orders", 3, {"deliveries": [1]}, 1, 1),
        ("orders", 4, {"deliveries": [1, 2, 3], "runs": [2]}, 0, 2), ("orders", 3, {"deliveries": [0, 3]}, 2, 2),
    ],
)  # fmt: skip
def test_a_store_tells_deliveries_that_crashed_from_those_that_waited(
    queue: str, receives: int, stored: Any, crashes: int | None, waits: int
) -> None:  # SPEC K5, O2
    found = delivery(queue=queue, receives=receives)
    found.stored, found.invocation.attempt_store = stored, MemoryAttempts()
    assert (found.crashes, found.waits_in_place) == (crashes, waits)
    found.invocation.attempt_store_fails = True
    assert found.crashes == (None if stored is None else crashes)
    found.invocation.attempt_store = None
    assert found.crashes == (None if stored is None else crashes)


# due times and delays


@pytest.mark.parametrize(
    ("due", "fields", "seconds"),
    [
        (None, {}, None), (0.2, {}, 1), (1, {}, 1), (1.5, {}, 2), (0.2, {"receives": 2}, 1),
        (0, {}, 0), (-1, {}, 0), (-99, {}, 0), (-100, {}, None), (-101, {}, None), (0, {"received_at": NOW}, None),
        (-1, {"receives": 2}, None), (-1, NO_COUNT, None), (-1, NO_TIME, None), (1, {"queue": "orders.fifo"}, None),
    ],
)  # fmt: skip
def test_a_message_is_kept_until_it_is_due_and_a_first_receive_before_that_is_no_attempt(
    due: float | None, fields: Any, seconds: int | None
) -> None:  # SPEC C2, J4
    """It was received at -100."""
    assert delivery({} if due is None else {"due": NOW + due}, **fields).seconds_until_due() == seconds


@pytest.mark.parametrize(
    ("queue", "received_ago", "longest", "here"),
    [
        ("orders", 100, 43_200, ""), ("orders.fifo", 100, 43_099, " here"), ("orders.fifo", 0, 43_199, " here"),
        ("orders.fifo", 43_199, 0, " here"),
    ],
)  # fmt: skip
def test_a_delay_longer_than_sqs_can_keep_is_refused(queue: str, received_ago: int, longest: int, here: str) -> None:
    """SPEC C6, J4. On FIFO no copy can wait."""
    found = delivery(queue=queue, received_at=NOW - received_ago)
    for delay in (None, 0, longest):
        found.check_delay(Retry(delay))
    with pytest.raises(DelayNotSupported, match=f"between 0 and {longest} seconds{here}, got {longest + 1}: "):
        found.check_delay(Retry(longest + 1))
    found.check_delay(Retry(min(longest, 43_098)), now=NOW + 1 if received_ago < 43_000 else NOW)
    if queue == "orders.fifo":
        with pytest.raises(DelayNotSupported):
            found.check_delay(Retry(max(1, longest)), now=NOW + 1)


@pytest.mark.parametrize(
    ("retention", "margin"), [(None, 3_600), (345_600, 3_600), (43_200, 3_600), (21_600, 1_800), (1_200, 100)]
)
def test_a_wait_is_too_long_if_it_ends_within_an_hour_or_a_twelfth_of_the_retention_before_the_message_expires(
    retention: int | None, margin: int
) -> None:  # SPEC C10
    facts, found, left = QueueFacts(retention=retention), delivery(), (retention or 345_600) - 100
    assert facts.seconds_left_if_short(found, left - margin, NOW) is None
    assert facts.seconds_left_if_short(found, left - margin + 1, NOW) == left
    assert facts.seconds_left_if_short(found, left - margin, NOW + 1) == left - 1
    assert [facts.would_expire(found, left - margin + more, NOW) for more in (0, 1)] == [False, True]
    assert not facts.would_expire(delivery(system={"SentTimestamp": ""}), left, NOW)


def test_a_message_older_than_any_can_be_is_a_sample_event_and_does_not_expire() -> None:  # SPEC G5
    for age, expires in ((929, True), (930, False)):
        assert QueueFacts(retention=600).would_expire(delivery(now=RECEIVED_AT + age), 0, RECEIVED_AT + age) is expires


def test_a_delivery_is_the_last_one_at_the_receive_count_of_the_queue() -> None:  # SPEC C8
    counts = [QueueFacts(max_receive_count=5).is_last_delivery(delivery(receives=receives)) for receives in (4, 5, 6)]
    assert (counts, QueueFacts().is_last_delivery(delivery(receives=9))) == ([False, True, True], False)


@pytest.mark.parametrize("handle", [None, "", 7, ["x"]], ids=repr)
def test_only_a_text_is_a_receipt_handle(handle: Any) -> None:  # SPEC G5
    found = delivery()
    assert (found.receipt_handle, repr(found)) == ("handle-m1", "<Delivery of 'm1' from orders>")
    found.record["receiptHandle"] = handle
    assert found.receipt_handle is None


# failures


def test_a_failure_made_by_hand_has_the_defaults_of_one_that_a_handler_raised() -> None:  # SPEC E1
    failure = Failure(message(attempt=3), ValueError("no"), "error")
    assert (failure.attempt, failure.tries, failure.was_requested, failure.does_not_fit) == (3, 1, False, False)
    assert (failure.delay, failure.until, failure.said, failure.policy_delay) == (None, None, None, None)


@pytest.mark.parametrize(
    ("reason", "error", "more", "asks_for_retry", "was_deferral"),
    [
        ("error", ValueError(), {}, False, False), ("error", None, {"was_requested": True}, True, False),
        ("error", ValueError(), {"delay": 0}, True, False), ("exhausted", None, {"was_requested": True}, False, False),
        ("fatal", ValueError(), {"delay": 5}, False, False), ("expiring", None, {}, False, True),
        ("expiring", None, {"was_requested": True}, False, False), ("expiring", Reject(), {}, False, False),
        ("error", None, {}, False, False),
    ],
)  # fmt: skip
def test_a_failure_knows_whether_the_handler_asked_for_a_retry_or_a_deferral(
    reason: str, error: Any, more: Any, asks_for_retry: bool, was_deferral: bool
) -> None:  # SPEC B7, C10, J5
    failure = Failure(message(), error, reason, **more)
    assert (failure.asks_for_retry, failure.was_deferral) == (asks_for_retry, was_deferral)


def test_the_delay_of_the_policy_is_drawn_once_for_an_attempt() -> None:  # SPEC C4, E1
    context = StepContext(Random(7), lambda: 30.0)
    first, second = (Failure(message(attempt=each), None, "error", context=context) for each in (1, 2))
    assert (first.policy_delay, context.is_policy_delay(Outcome.retry(0)), context.is_expiring) == (None, False, False)
    context.policy = RetryPolicy(5, Exponential(10, jitter="full"))
    drawn = first.policy_delay
    assert drawn is not None
    assert first.policy_delay == drawn
    assert [context.is_policy_delay(Outcome.retry(int(drawn) + more)) for more in (0, 1, 2)] == [False, True, False]
    assert not context.is_policy_delay(Outcome.defer(int(drawn) + 1))
    assert second.policy_delay != drawn
    assert second.policy_delay == second.policy_delay


# the record of a failure


def failure_of(found: Delivery, error: BaseException | None = None, reason: str = "error", **more: Any) -> Failure:
    return Failure(found.message, error, reason, failed_at=NOW, **more)


def dead_letter_of(found: Delivery, *given: Any, **more: Any) -> dict[str, Any]:
    return dead_letter_record(failure_of(found, *given), "fatal", NOW, include_traceback=False, **more)


THEN, AT = timestamp(RECEIVED_AT), timestamp(NOW)
OF_MESSAGE = {"v": 1, "sum": body_sum("{}"), "id": "m1", "origin": arn("orders"), "sent": THEN}


def test_a_dead_letter_says_who_sent_the_message_why_it_failed_and_how_often() -> None:  # SPEC F2
    assert dead_letter_of(delivery()) == OF_MESSAGE | {
        "failure": {"reason": "fatal", "attempts": 1, "first_failed_at": AT, "failed_at": AT},
        "history": [{"attempt": 1, "at": AT}],
    }
    found = delivery({"id": "stable", "origin": arn("old"), "sent": AT, "edited": THEN, "failure": {}})
    record = dead_letter_of(found, ValueError("no"), "error", origin=arn("other"), text="unused")
    assert (record["id"], record["origin"], record["sent"], record["edited"]) == ("stable", arn("other"), AT, THEN)
    assert (record["failure"]["type"], record["failure"]["message"]) == ("ValueError", "no")
    assert [entry["error"] for entry in record["history"]] == ["ValueError: no"]
    assert dead_letter_of(delivery(), text="too late")["failure"]["message"] == "too late"
    assert "sent" not in dead_letter_of(delivery(system={"SentTimestamp": ""}))
    part = failure_part(failure_of(delivery(), said="s"), "r" * 201, NOW, 1, False)["failure"]
    assert (part["reason"], part["said"]) == ("r" * 200, "s")


@pytest.mark.parametrize(
    ("before", "carried", "total"),
    [(5, 0, 6), (5, 2, 6), (1, 2, 3), (0, 0, 1), (None, 0, 1), (None, 2, 3), (999_999, 0, 1_000_000),
     (1_000_000, 0, 1_000_000)],
)  # fmt: skip
def test_the_attempts_of_a_dead_letter_include_those_before_it_was_last_redriven(
    before: int | None, carried: int, total: int
) -> None:  # SPEC F2
    found = delivery({"carried": carried, "failure": {"attempts": before}})
    assert dead_letter_of(found)["failure"]["attempts"] == total
    waiting = waiting_record(found, carried + 1, due=None, note={})["failure"]
    assert waiting.get("attempts") == (None if before is None else total)


@pytest.mark.parametrize(
    ("envelope", "receives", "stored", "at_most", "crashes"),
    [
        (None, 1, None, None, None), (None, 2, None, True, None), (BOUND, 1, None, True, None),
        (EXACT, 1, None, None, None), ({}, 2, {"deliveries": [1]}, None, None), (BOUND, 3, {}, True, 2),
    ],
)  # fmt: skip
def test_a_dead_letter_says_whether_its_attempts_may_be_too_many_and_how_many_deliveries_crashed(
    envelope: Any, receives: int, stored: Any, at_most: bool | None, crashes: int | None
) -> None:  # SPEC O2
    found = delivery(envelope, receives=receives)
    found.stored = stored
    failure = dead_letter_of(found)["failure"]
    assert (failure.get("attempts_at_most"), failure.get("crashes")) == (at_most, crashes)


FIRST = timestamp(RECEIVED_AT - 500)


@pytest.mark.parametrize(
    ("envelope", "stored", "fields", "first_failed_at"),
    [
        (None, None, {}, AT), (None, None, {"receives": 2}, THEN), (None, {}, {"receives": 2}, AT),
        (None, None, {"receives": 2, **NO_TIME}, AT), (None, None, {"receives": 2, "received_at": NOW + 1}, AT),
        ({"failure": {"first_failed_at": FIRST}}, None, {"receives": 2}, FIRST),
        ({"failure": {"first_failed_at": THEN}}, {"failure": {"first_failed_at": FIRST}}, {}, FIRST),
        ({"failure": {}}, {"failure": None}, {"receives": 2}, AT),
    ],
)  # fmt: skip
def test_the_first_failure_is_the_recorded_one_or_not_before_the_first_receive(
    envelope: Any, stored: Any, fields: Any, first_failed_at: str
) -> None:  # SPEC F2, F3
    found = delivery(envelope, **fields)
    found.stored = stored
    assert dead_letter_of(found)["failure"]["first_failed_at"] == first_failed_at
    of_deferral = dead_letter_of(found, None, "expiring")["failure"].get("first_failed_at")
    has_failed = envelope is not None or bool(stored)
    assert of_deferral == (first_failed_at if has_failed else None)  # the message has waited, and never failed


def test_a_copy_counts_hops_and_carries_attempts_steps_and_notes() -> None:  # SPEC E3, E5, E6
    arguments: dict[str, Any] = {"note": {}, "due": None, "delay": 60, "include_traceback": False}
    copy = copy_record(failure_of(delivery()), NOW, carried=1, **arguments)
    assert copy == dead_letter_of(delivery()) | OF_MESSAGE | {
        "carried": 1,
        "hops": 1,
        "failure": {"reason": "error", "attempts": 1, "first_failed_at": AT, "failed_at": AT},
        "history": [{"attempt": 1, "at": AT, "delay": 60}],
    }
    for before, after in ((0, 1), (998, 999), (999, 1_000), (1_000, 1_000)):
        found = delivery({"hops": before, "steps": {"a": 1, "b": 2}, "notes": {"n": "x"}, "origin": arn("old")})
        note = {"b": 3, "m": "y"}
        copy = waiting_record(found, before + 1, due=NOW + 5, note=note)
        assert (copy["hops"], copy["carried"], copy["due"]) == (after, min(1_000, before + 1), NOW + 5)
        assert (copy["steps"], copy["notes"], copy["origin"]) == ({"a": 1, "b": 3}, {"n": "x", "m": "y"}, arn("old"))
    assert waiting_record(delivery(), 0, due=None, note={}) == OF_MESSAGE | {"carried": 0, "hops": 1}


def test_a_copy_that_waits_keeps_the_failure_that_the_store_or_its_message_has() -> None:  # SPEC J5, O2
    of_message = {"failure": {"reason": "error", "attempts": 2}, "history": [{"attempt": 2}], "extra": {"tenant": "a"}}
    found = delivery(of_message)
    copy = waiting_record(found, 1, due=None, note={})
    assert {name: copy[name] for name in of_message} == of_message | {"failure": {"reason": "error", "attempts": 3}}
    found.stored = {"failure": {"reason": "fatal", "attempts": 9}, "history": ({"attempt": 1},)}
    copy = waiting_record(found, 1, due=None, note={})
    assert (copy["failure"], copy["history"]) == ({"reason": "fatal", "attempts": 3}, [{"attempt": 1}])


def test_a_store_keeps_the_beginning_of_a_message_and_no_traceback() -> None:  # SPEC O2
    error = ValueError("x" * 301)
    error.__cause__ = KeyError()
    kept = trace_record(failure_of(delivery(), error), NOW, 60)
    assert (kept["failure"]["message"], "traceback" in kept["failure"]) == ("x" * 300, False)
    assert (kept["history"][0]["delay"], {name: kept[name] for name in OF_MESSAGE}) == (60, OF_MESSAGE)
    assert "message" not in trace_record(failure_of(delivery()), NOW, 60)["failure"]
