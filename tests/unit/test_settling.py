"""Settling messages: what happens early, who waits for whom, leases, and the records of an attempt store."""

import asyncio
import hashlib
import math
import sys
import threading
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import (
    AttemptChange,
    DeadLetter,
    DropMessage,
    Exponential,
    Failure,
    MemoryAttempts,
    Outcome,
    RetryPolicy,
    consumer,
)
from tarry.decide.decision import Decision
from tarry.decide.steps import FailureSteps
from tarry.errors import LeaseLost, ProcessCrashed
from tarry.message.delivery import Delivery, QueueFacts
from tarry.message.invocation import Invocation
from tarry.message.message import Message, delivery_of
from tarry.record.attribute import Envelope
from tarry.settle.attempts import Tracking, _what_to_do, change_of, start_of, trace_of, tracking_of
from tarry.settle.copies import Copy, NoDeadLetterQueue, dead_letter_queue
from tarry.settle.eager_acks import Acks
from tarry.settle.extending import Keepalive, extend
from tarry.settle.planner import IN_PLACE, Planner, SettlementPlan
from tarry.settle.requests import (
    VisibilityChange,
    change_visibility,
    extend_leases,
    extension,
    lease_end,
    prolongation,
    send_copies,
    spread,
)
from tarry.settle.settlement import EarlyWaits, Settlement
from tarry.settle.table_answers import TableFailed, TableNotAsked, answer_of, answer_to_task, answers_of, patience
from tarry.sqs.client import Lookups, Requests
from tarry.sqs.refusals import OutOfTime, Refused
from tarry.support.values import QueueArn, queue_arn
from tarry.world import Interrupted, World
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, record
from tests.wire import Queue, Request, TestClock, Wire, arn, client_error

NOW = RECEIVED_AT
CHANGE, SEND, DELETE = "ChangeMessageVisibilityBatch", "SendMessageBatch", "DeleteMessageBatch"
STALE, DENIED = ("ReceiptHandleIsInvalid", "gone"), ("AccessDenied", "not you")


def invocation_in(world: World, remaining: float = 30) -> Invocation:
    return Invocation(world, Context(remaining), lambda _: None, consumer(print).log)


def delivery_of_age(seconds: float = 0, remaining: float = 30, **fields: Any) -> Delivery:
    """Return the delivery of a message that was received ``seconds`` before its invocation, which begins at `NOW`."""
    invocation = invocation_in(World(TestClock(NOW)), remaining)
    return delivery_of(Message(record(received_at=NOW - seconds, **fields), "m1", invocation))


def settlement_in(wire: Wire, *steps: Any) -> Settlement:
    invocation = invocation_in(wire.world)
    return Settlement(invocation, RetryPolicy(3, Exponential(10)), FailureSteps([*steps]), invocation.log)


@pytest.mark.parametrize(
    ("queue", "outcome", "threads"),
    [
        *(("orders", Outcome.retry(delay), threads) for delay, threads in ((29, 1), (30, 0), (400, 0))),
        ("orders.fifo", Outcome.retry(29), 0), ("short", Outcome.retry(400), 1), ("as long", Outcome.retry(400), 0),
        ("orders", Outcome.dead_letter("fatal"), 0), ("orders", Outcome.resend("dead", 29), 1),
    ],
)  # fmt: skip
def test_a_delay_or_lease_that_may_end_before_the_invocation_is_settled_early_except_on_fifo(
    queue: str, outcome: Outcome, threads: int
) -> None:  # SPEC C11, E6
    timeouts, started = {"orders": 180, "orders.fifo": 180, "short": 29, "as long": 30}, list[Any]()
    with Wire(queues={name: Queue("dead", 15, seconds) for name, seconds in timeouts.items()}) as wire:
        settlement = settlement_in(wire)
        settlement.lookups.source(QueueArn(arn(queue)))
        settlement.executor.look_up(QueueArn(arn("dead")))
        event: Any = SimpleNamespace(set=lambda: None)
        wire.world.threads = SimpleNamespace(start_unless=lambda *_: started.append(1), event=lambda: event)
        invocation = settlement.lookups.requests.invocation
        delivery = delivery_of(Message(record(queue=queue), "m1", invocation))
        failure = Failure(delivery.message, None, "fatal", failed_at=invocation.now())
        settlement.add(Decision(delivery, outcome, invocation.now(), failure), early=True)
    assert len(started) == threads


@pytest.mark.parametrize("may_look_up", [True, False])
def test_a_message_that_may_not_look_its_target_up_needs_it_until_it_is_settled(may_look_up: bool) -> None:
    with Wire(queues={"orders": Queue("dead")}) as wire:
        settlement = settlement_in(wire)
        delivery = delivery_of(Message(record(), "m1", settlement.lookups.requests.invocation))
        failure = Failure(delivery.message, None, "fatal", failed_at=NOW)
        decision = Decision(delivery, Outcome.dead_letter("fatal"), NOW, failure)
        settlement.add(decision, early=False, may_look_up=may_look_up)
        assert settlement.needed_by(delivery) == (None if may_look_up else queue_arn(arn("dead")))
        settlement.finish()
        assert (wire.acts, settlement.needed_by(delivery)) == (["SendMessageBatch", "DeleteMessageBatch"], None)
        assert delivery.is_given_up  # `keepalive` does not extend it meanwhile


def test_a_message_that_is_settled_early_waits_for_an_extension_by_keepalive_in_progress() -> None:  # SPEC I4
    with Wire(queues={"orders": Queue()}) as wire:
        settlement, waits = settlement_in(wire), list[float]()
        invocation = settlement.lookups.requests.invocation
        invocation.keepalive_idle = SimpleNamespace(wait=waits.append)
        open_, settled = (invocation.delivery(each, record(message_id=each)) for each in ("m1", "m2"))
        settled.is_settled = True
        settlement.executor.give_up([open_, settled])
    assert (waits, open_.is_given_up, settled.is_given_up) == ([2.0], True, False)


OF_AN_ERROR = "grant sqs:GetQueueAttributes, or set TARRY_DEAD_LETTER_QUEUE_URL"


@pytest.mark.parametrize(
    ("named", "facts", "text", "is_late"),
    [
        (None, {"dead_letter": "orders"}, "its dead-letter queue orders is the queue it is in: name another one",
         False),
        (None, {"dead_letter": "old"}, "its dead-letter queue old is the queue it was dead-lettered from before: name "
         "another one", False),
        ("https://nowhere", {}, "'https://nowhere' is not an SQS queue: give the dead-letter queue as name, URL or ARN",
         False),
        (None, {}, "orders has no dead-letter queue: add a RedrivePolicy to it in the template", False),
        (None, {"error": OSError("no")}, f"the redrive policy of orders cannot be read (no): {OF_AN_ERROR}", False),
        (None, {"error": OutOfTime("no time")}, "there was no time to read the redrive policy of orders (no time): "
         "give the function a longer Timeout or more memory", True),
    ],
)  # fmt: skip
def test_the_error_says_why_a_dead_letter_queue_cannot_be_used(
    named: str | None, facts: dict[str, Any], text: str, is_late: bool
) -> None:  # SPEC F1, F5, F7
    delivery = delivery_of_age()
    delivery.envelope = Envelope({"id": "m1", "origin": arn("old"), "failure": {}}, NOW)
    known = {name: queue_arn(arn(value)) if name == "dead_letter" else value for name, value in facts.items()}
    with pytest.raises(NoDeadLetterQueue) as caught:
        dead_letter_queue(delivery, named, QueueFacts(**known))
    assert (str(caught.value), caught.value.is_late) == (text, is_late)
    assert dead_letter_queue(delivery, "other", QueueFacts(**known)) == QueueArn(arn("other"))
    delivery.envelope = Envelope({"id": "m1", "origin": arn("old"), "failure": {}, "hops": 1}, NOW)  # a deferred copy
    assert dead_letter_queue(delivery, "old", QueueFacts()) == QueueArn(arn("old"))


class EventByHand:
    """An event that never blocks: it notes each timeout, and whether it was set then."""

    def __init__(self, threads: "ThreadsByHand") -> None:
        self.is_set, self._threads = False, threads

    def set(self) -> None:
        self.is_set = True

    def clear(self) -> None:
        self.is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._threads.waits.append((timeout, self.is_set))
        self._threads.meanwhile(timeout)
        return self.is_set


class ThreadsByHand:
    """Threads that the test runs itself."""

    def __init__(self, *, can_start: bool = False) -> None:
        self.started: list[tuple[float, Any]] = []
        self._can_start = can_start
        self.events: list[EventByHand] = []
        self.waits: list[tuple[float | None, bool]] = []
        self.meanwhile: Any = lambda timeout: None
        """Called by each wait."""

    def event(self) -> EventByHand:
        self.events.append(EventByHand(self))
        return self.events[-1]

    def start(self, work: Any) -> None:
        if not self._can_start:
            raise RuntimeError("can't start new thread")
        self.started.append((0, work))

    def start_unless(self, _: Any, seconds: float, work: Any) -> None:
        self.started.append((seconds, work))


def test_short_delays_are_requested_together_after_a_second_by_one_thread_until_the_batch_has_run(
    caplog: Caplog,
) -> None:  # SPEC C11
    threads, asked = ThreadsByHand(), list[list[Delivery]]()
    invocation = invocation_in(World(TestClock(NOW), threads=threads))  # type: ignore[arg-type]
    first, taken, second, late = (invocation.delivery(each, record(message_id=each)) for each in "abcd")

    def request(deliveries: list[Delivery]) -> None:
        asked.append(deliveries)
        if len(asked) == 1:
            assert early.take([first, late]) == [late]
            raise ValueError("a defect")
        early.stop()
        early.end()
        invocation.world.clock.sleep(60)
        early.end()

    early: Any = EarlyWaits(invocation, request, invocation.log)  # type: ignore[arg-type]
    early.add(first)
    early.add(taken)
    assert early.take([taken]) == [taken]

    def add_second(timeout: float | None) -> None:
        if timeout is None and len(asked) == 1:
            early.add(second)
            assert early._some.is_set

    threads.meanwhile = add_second
    [(seconds, work)] = threads.started
    work()
    assert (asked, seconds) == ([[first], [second]], 1)
    # the thread waits for a message and a second; `stop` waits for two, and `end` as long as there is time
    left = pytest.approx(29.9)
    assert threads.waits == [(None, False), (1, False), (2, False), (left, False), (0, False), (None, True), (1, True)]
    assert [event.is_set for event in threads.events] == [True] * 3
    assert [field(line, "error") for line in lines(caplog, "runtime_failed")] == ["ValueError: a defect"]
    early.stop()
    early.end()
    early.add(late)
    work()
    assert (len(asked), len(threads.waits)) == (2, 7)


@pytest.mark.parametrize("ends", [True, False])
def test_a_request_in_progress_when_the_batch_has_run_is_awaited_after_the_others(ends: bool, caplog: Caplog) -> None:
    threads, asked = ThreadsByHand(), list[str]()  # SPEC C11
    with Wire(queues={"orders": Queue()}, clock=TestClock(NOW)) as wire:
        wire.world.threads = threads  # type: ignore[assignment]
        settlement: Any = settlement_in(wire)
        invocation = settlement.lookups.requests.invocation
        for name, delay in (("m1", 5), ("m2", 60)):
            delivery = delivery_of(Message(record(message_id=name), name, invocation))
            failure = Failure(delivery.message, ValueError("bad"), "error", failed_at=NOW)
            settlement.add(Decision(delivery, Outcome.retry(delay), NOW, failure), early=True)

        def change(request: Request) -> None:
            asked.extend(entry["ReceiptHandle"][7:] for entry in request.entries)
            if len(asked) == 1:
                settlement.finish()

        def let_it_end(timeout: float | None) -> None:
            if ends and timeout == pytest.approx(29.9):
                settlement._early._under_way = []

        wire.fails[CHANGE], threads.meanwhile = change, let_it_end  # type: ignore[assignment]
        [(_, work)] = threads.started
        work()
    assert asked == ["m1", "m2", "m1"][: 2 + ends]
    assert len(lines(caplog, "out_of_time")) == (not ends)
    assert sorted(field(line, "message_id") for line in lines(caplog, "waiting_retry")) == ["m1", "m2"]


@pytest.mark.parametrize(
    ("began_with", "left", "messages"), [(30, 1.501, 500), (30, 0.503, 1), (30, 0.501, 0), (2, 0.301, 100)]
)
def test_settling_leaves_half_a_second_for_the_response_and_a_twentieth_of_a_short_invocation(
    began_with: float, left: float, messages: int
) -> None:  # SPEC I2
    """The first ten messages for which there is no time are settled, so that they are logged."""
    invocation = invocation_in(World(clock := TestClock(NOW)), began_with)
    settlement = Settlement(invocation, RetryPolicy(), FailureSteps([]), invocation.log)
    clock.sleep(began_with - left)
    assert settlement._affordable() == messages
    assert [settlement.has_time for _ in range(12)] == [True] * 10 + [messages > 0] * 2
    invocation = invocation_in(World(TestClock(NOW)), math.inf)
    assert Settlement(invocation, RetryPolicy(), FailureSteps([]), invocation.log)._affordable() == 100


@pytest.mark.parametrize(
    ("seconds_each", "left", "slices", "cost"),
    [
        (0.01, 1.5105, [100, 10], 0.01),  # there is time for one
        (0.01, 1.5095, [100], 0.01),
        (0.0001, 0.5, [10], 0.0002),
        (0, 0.601, [50, 100, 100], 0.0002),
        (0, 30, [100, 100, 50], 0.0002),
    ],
)
def test_messages_are_settled_in_slices_for_which_there_is_time_by_the_cost_of_those_before(
    seconds_each: float, left: float, slices: list[int], cost: float
) -> None:  # SPEC I2
    invocation, settled = invocation_in(World(clock := TestClock(NOW))), list[int]()
    settlement: Any = Settlement(invocation, RetryPolicy(), FailureSteps([]), invocation.log)
    clock.sleep(30 - left)

    def carry_out(deliveries: range) -> None:
        settled.append(len(deliveries))
        clock.sleep(seconds_each * len(deliveries))

    settlement._todo = [None] * 7
    settlement._in_slices(range(9), lambda _: clock.sleep(0))
    assert settlement.owed_seconds() == 7 * 0.002  # fewer than ten are not measured
    settlement._in_slices(range(250), carry_out)
    assert settled == slices
    assert settlement.owed_seconds() == pytest.approx(7 * cost)


def test_messages_that_there_is_no_time_to_settle_are_counted(caplog: Caplog) -> None:  # SPEC I2
    with Wire() as wire:
        settlement = settlement_in(wire)
        invocation = settlement.lookups.requests.invocation
        for number in range(25):
            delivery = invocation.delivery(f"m{number}", record(message_id=f"m{number}"))
            settlement.add(Decision(delivery, Outcome.release(), NOW), early=False)
        settlement.report_only()
        settlement.report_only(3)
        wire.clock.sleep(30)
        settlement.finish()
    assert (wire.requests, len(lines(caplog, "released"))) == ([], 10)
    assert ["19 messages were not settled" in field(line, "text") for line in lines(caplog, "out_of_time")] == [True]


@pytest.mark.parametrize(
    ("delay", "until", "seconds"),
    [
        (None, None, None), (None, 60, None), (30, None, 30), (900, 600, 590), (900, 5_000, 900), (30, 5, 0),
        (30, 15.0005, 5), (30, 15.0015, 6),
    ],
)  # fmt: skip
def test_a_copy_that_is_sent_later_has_a_shorter_delay_at_most_that_of_sqs_and_none_on_fifo(
    delay: int | None, until: float | None, seconds: int | None
) -> None:  # SPEC C11
    copy = Copy(delivery_of_age(), "{}", QueueArn(arn("dead")), [{}], delay, until and NOW + until)
    assert copy.delay_seconds(NOW + 10) == seconds


# leases


@pytest.mark.parametrize(
    ("age", "seconds", "end", "asked"),
    [
        (0, 60, 10, 60), (0, 60, 90.5, 91), (0, 0.2, 0, 1), (0, 10, None, 30), (0, 50, None, 50),
        (43_190, 60, 10, 9), (43_199, 60, 1, 0),
    ],
)  # fmt: skip
def test_a_lease_is_extended_from_now_and_never_shortened(
    age: float, seconds: float, end: float | None, asked: int
) -> None:  # SPEC I4, I6
    delivery = delivery_of_age(age)
    assert prolongation(delivery, seconds, None if end is None else NOW + end).seconds == asked
    assert extension(delivery, seconds).seconds == min(asked, -int(-seconds // 1))


def test_keepalive_asks_for_no_extension_that_sqs_would_not_grant() -> None:  # SPEC I4, C6
    for age, asked in ((43_198, 1), (43_199, None)):
        delivery = delivery_of_age(age)
        keepalive = Keepalive(20, {}, delivery.invocation, consumer(print).log)
        change = keepalive._extension(delivery)
        assert (change and change.seconds) == asked


def test_keepalive_extends_what_is_pending_and_deletes_the_others_at_each_interval_until_it_ends(
    caplog: Caplog,
) -> None:  # SPEC I4
    """The requests are made in this thread, since no other one can be started."""
    threads, at = ThreadsByHand(), list[tuple[float, list[int]]]()
    with Wire(queues={"orders": Queue(visibility_timeout=60)}, clock=TestClock(NOW)) as wire:
        wire.world.threads = threads  # type: ignore[assignment]
        invocation = invocation_in(wire.world, 900)
        pending = {name: record(message_id=name) for name in ("m1", "m2", "m3")}
        keepalive = Keepalive(10, pending, invocation, invocation.log)
        idle: Any = invocation.keepalive_idle
        assert idle.is_set

        def change(request: Request) -> None:
            assert not idle.is_set
            at.append((wire.clock.now - NOW, [entry["VisibilityTimeout"] for entry in request.entries]))

        def pass_time(_: Any) -> None:
            assert idle.is_set
            wire.clock.sleep(10)
            if wire.clock.now == NOW + 20:
                del pending["m1"]
            if wire.clock.now == NOW + 30:
                keepalive._pending = None  # type: ignore[assignment]  # as a defect of tarry
            if wire.clock.now == NOW + 40:
                keepalive._pending = pending
            if wire.clock.now == NOW + 60:
                keepalive.stop()

        threads.meanwhile = pass_time
        wire.fails[CHANGE] = change  # type: ignore[assignment]
        keepalive.start()
        keepalive._work()
        assert idle.is_set
    # at first, the leases are longer than three intervals
    assert at == [(10, [50, 50, 50]), (20, [40, 40]), (40, [30, 30]), (50, [30, 30])]
    assert [entry["ReceiptHandle"] for request in wire.sent(DELETE) for entry in request.entries] == ["handle-m1"]
    assert threads.waits == [(10, False)] * 6
    assert [field(line, "event") for line in lines(caplog)] == ["not_kept_alive", "runtime_failed"]
    assert "AttributeError" in field(lines(caplog)[1], "error")


@pytest.mark.parametrize(("time_left", "share"), [(900, 1 / 90), (10, 1), (5, 1), (-1, 1), (math.inf, 1)])
def test_keepalive_gives_its_requests_an_interval(
    time_left: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC G6, I4
    shares, invocation = list[float](), invocation_in(World(TestClock(NOW)), time_left)
    monkeypatch.setattr("tarry.settle.extending.extend_leases", lambda *given: shares.append(given[3]) or [])
    Keepalive(10, {}, invocation, invocation.log)._extend([])
    assert shares == [pytest.approx(share)]


@pytest.mark.parametrize(
    ("ends_in", "more", "is_lost"),
    [(5, {}, True), (5.1, {}, False), (5, {"is_given_up": True}, False), (5, {"is_lost": True}, True)],
)
def test_a_lease_that_ends_while_its_extension_fails_is_lost_unless_the_message_is_being_settled(
    ends_in: float, more: dict[str, Any], is_lost: bool, caplog: Caplog
) -> None:  # SPEC E6, I4
    with Wire(queues={"orders": Queue()}, clock=TestClock(NOW)) as wire:
        wire.world.threads = ThreadsByHand()  # type: ignore[assignment]
        invocation = invocation_in(wire.world, 900)
        delivery = invocation.delivery("m1", record())
        delivery.visible_at = NOW + ends_in

        def change(_: Request) -> Exception:
            vars(delivery).update(more)
            wire.clock.sleep(5)
            return OSError("no")

        wire.fails[CHANGE] = change
        keepalive = Keepalive(10, {"m1": delivery.record}, invocation, invocation.log)
        keepalive._extend([delivery])
        text = (
            "The lease could not be extended and has ended: another consumer may have the message. Unless its handler "
            "succeeds, it is only reported as failed."
        )
        assert delivery.is_lost == is_lost
        assert [field(line, "text") for line in lines(caplog, "lease_lost")] == [text] * is_lost
        caplog.clear()
        Keepalive(10, {}, invocation, invocation.log)._extend([delivery])  # it is not pending any more
        assert lines(caplog, "lease_lost") == []


@pytest.mark.parametrize(("left", "asked"), [(None, None), (10.1, None), (10, 30), (31, None)])
def test_keepalive_leaves_a_lease_to_the_handler_that_extends_it_unless_it_ends_within_the_interval(
    left: float | None, asked: int | None
) -> None:  # SPEC I4, I6
    delivery = delivery_of_age()
    delivery.is_being_extended, delivery.visible_at = True, left and NOW + left
    change = Keepalive(10, {}, delivery.invocation, consumer(print).log)._extension(delivery)
    assert (change and change.seconds) == asked


@pytest.mark.parametrize(("every", "is_too_long"), [(29.9, False), (30, True), (45, True)])
def test_a_keepalive_as_long_as_the_visibility_timeout_is_too_long(
    every: float, is_too_long: bool, caplog: Caplog
) -> None:  # SPEC I4
    with Wire(queues={"orders": Queue(visibility_timeout=30)}) as wire:
        keepalive = Keepalive(every, {}, (of := invocation_in(wire.world)), of.log)
        assert keepalive._visibility_timeout(QueueArn(arn("orders"))) == 30
    text = f"keepalive={every:g} is too long: the visibility timeout of orders is 30 s. Set keepalive=10, or a longer "
    found = [field(line, "text") for line in lines(caplog, "keepalive_too_long")]
    assert found == [f"{text}VisibilityTimeout."] * is_too_long


@pytest.mark.parametrize(
    ("state", "error"),
    [({}, None), ({"visible_at": NOW + 0.1}, None), ({"visible_at": NOW}, LeaseLost), ({"is_lost": True}, LeaseLost)],
)
def test_a_handler_extends_a_lease_that_has_not_ended(state: dict[str, Any], error: Any) -> None:  # SPEC E6, I6
    with Wire(queues={"orders.fifo": Queue(visibility_timeout=60)}, clock=TestClock(NOW)) as wire:
        invocation = invocation_in(wire.world, 900)
        invocation.records = {
            name: record("{}", name, "orders.fifo", group=name[0])
            for name in ("a0", "a1", "b1", "a2", "a3", "a4", "a5")
        }
        invocation.deliveries = {name: invocation.delivery(name, of) for name, of in invocation.records.items()}
        _, first, _, lost, fails, settled, last = deliveries = [*invocation.deliveries.values()]
        settled.is_given_up, seen = True, list[list[str]]()
        vars(first).update(state)
        refusals = {"handle-a2": STALE, "handle-a3": DENIED}
        wire.refuses[CHANGE] = lambda _, entry: refusals.get(entry["ReceiptHandle"])

        def change(_: Request) -> None:
            seen.append([each.delivery_id for each in deliveries if each.is_being_extended])
            wire.clock.sleep(5)

        wire.fails[CHANGE] = change  # type: ignore[assignment]
        with pytest.raises(error) if error else nullcontext():
            extend(first, 300)
        assert seen == ([] if error else [["a1", "a2", "a3", "a5"]])
        assert not any(each.is_being_extended for each in deliveries)
        assert first.is_lost == (error is not None)
        if not error:
            assert (first.visible_at, last.visible_at, fails.visible_at) == (NOW + 300, NOW + 300, None)
            assert [each.is_lost for each in deliveries] == [each is lost for each in deliveries]
        for refusal, raised in ((STALE, LeaseLost), (DENIED, Refused)):
            first.is_lost, first.visible_at, refusals["handle-a1"] = False, None, refusal
            with pytest.raises(raised, match=refusal[0]):
                extend(first, 300)
            assert first.is_lost == (refusal == STALE)


@pytest.mark.parametrize(
    ("receives", "age", "ends_in"),
    [
        (1, 30, 30),  # received 30 s before the invocation
        (1, 59, 1),
        (1, 60, 60),  # a batching window: Lambda keeps the messages invisible for longer than the queue's timeout
        (1, 300, 60),
        (1, -5, 60),  # the clocks of SQS and the function differ
        (2, 30, 60),  # redelivered: when it was received is unknown
    ],
)
def test_a_lease_begins_at_the_receive_unless_it_would_have_ended_before_the_invocation(
    receives: int, age: float, ends_in: float
) -> None:  # SPEC E6
    delivery = delivery_of_age(age, receives=receives)
    assert lease_end(delivery, 60) == delivery.invocation.started_at + ends_in
    assert lease_end(delivery, None) is None
    delivery.visible_at = 7.0
    assert lease_end(delivery, 60) == 7.0


@pytest.mark.parametrize(
    ("units", "seconds"),
    [([1], [60]), ([1, 1, 1], [60, 90, 120]), ([2, 1], [60, 60, 90]), ([1] * 31, [60 + 30 * n for n in range(31)])],
)
def test_messages_that_come_back_one_by_one_are_thirty_seconds_apart(units: list[int], seconds: list[int]) -> None:
    """SPEC G4."""
    delivery = delivery_of_age()
    assert [change.seconds for change in spread([[delivery] * size for size in units], 60)] == seconds
    last = spread([[delivery]] * 61, 60)[-1]
    assert last.seconds == 60 + 900


# the attempt store


def in_this_thread() -> Invocation:
    """Return an invocation that makes requests to a store in this thread: no busy machine makes them late."""

    def start(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    return invocation_in(World(TestClock(NOW), threads=SimpleNamespace(event=threading.Event, start=start)))


@pytest.mark.parametrize(("time_left", "seconds"), [(-1, 0), (8, 2), (20, 5), (28, 5)])
def test_a_table_is_waited_for_a_quarter_of_the_time_left_and_at_most_five_seconds_or_four_to_load_it(
    time_left: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert patience(SimpleNamespace(time_left=lambda: time_left)) == seconds
    invocation, waits = invocation_in(World(TestClock(NOW)), time_left), list[float]()
    monkeypatch.setattr("tarry.settle.attempts.answers_of", lambda _, of, most: waits.append(most(of)))
    Tracking(SimpleNamespace(_is_loaded=False), invocation, invocation.log)._load()
    assert waits == [min(4, seconds)]


def test_any_error_of_a_table_is_an_answer_but_an_interruption_ends_the_handler() -> None:  # SPEC K4, I3
    assert answer_of(lambda: 1) == 1
    assert type(answer_of(lambda: {}["no"])) is KeyError
    failed = answer_of(sys.exit)
    assert (type(failed), str(failed)) == (TableFailed, "the persistence layer raised SystemExit")

    def interrupt() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        answer_of(interrupt)


@pytest.mark.parametrize("longest", [5, 5.1])
@pytest.mark.parametrize(("may_begin", "answers"), [(None, [1]), (lambda: True, [1]), (lambda: False, None)])
def test_a_request_that_ends_in_time_is_made_in_the_threads_of_the_handler(
    longest: float, may_begin: Any, answers: Any
) -> None:  # SPEC K4
    invocation, starts = invocation_in(World(TestClock(NOW))), list[Any]()
    pool = SimpleNamespace(threads=ThreadsByHand(), start=starts.append)
    pool.threads.meanwhile = lambda _: starts[0]()
    invocation.world.keep = lambda _: pool  # type: ignore[method-assign, assignment, return-value]
    found = answers_of([lambda: 1], invocation, may_begin=may_begin, longest=longest)
    assert [type(answer) for answer in found] == [TableNotAsked] if answers is None else found == answers
    assert len(starts) == (longest > 5)


@pytest.mark.parametrize(("count", "started"), [(0, 0), (2, 2), (10, 10), (11, 10)])
def test_at_most_ten_requests_to_a_table_are_made_at_once_and_after_a_silence_no_more(count: int, started: int) -> None:
    invocation, starts = invocation_in(World(TestClock(NOW))), list[Any]()  # SPEC O4
    pool = SimpleNamespace(threads=ThreadsByHand(), start=starts.append)
    invocation.world.keep = lambda _: pool  # type: ignore[method-assign, assignment, return-value]
    works = [lambda n=n: n for n in range(count)]
    pool.threads.meanwhile = lambda _: starts[0]()
    assert answers_of(works, invocation) == [*range(count)]
    assert (len(starts), pool.threads.waits) == (started, [(5, False)] * (count > 0))

    def hang() -> None:
        raise Interrupted  # out of the pool's thread, so that no answer comes

    def hang_at_the_second(_: float) -> None:
        """The first answer comes, or just after the wait has ended; the second request hangs."""
        pool.threads.meanwhile = lambda _: None
        with suppress(Interrupted):
            starts[-1]()
        if count > 2:
            pool.threads.events[-1].clear()

    pool.threads.meanwhile = hang_at_the_second
    works[1:2] = [hang] * (count > 0)  # type: ignore[list-item]
    first, *others = answers_of(works, invocation) or [0]
    assert (first, {*pool.threads.waits}) == (0, {(5, False)} if count else set())
    assert [str(each) for each in others] == [
        "no answer within 5.0 seconds", *["no time left to ask"] * (len(others) - 1)
    ][: len(others)]  # fmt: skip


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_task_waits_for_the_answer_of_a_table_no_longer_than_it_may(is_silent: bool) -> None:  # SPEC K4
    invocation, timers = invocation_in(World(TestClock(NOW)), -1 if is_silent else 30), list[Any]()
    pool: Any = SimpleNamespace(start=(lambda _: None) if is_silent else (lambda work: work()))
    invocation.world.keep = lambda _: pool  # type: ignore[method-assign, assignment]

    async def ask() -> Any:
        loop: Any = asyncio.get_running_loop()
        call_later = loop.call_later
        loop.call_later = lambda *given: timers.append((given[0], call_later(*given))) or timers[-1][1]
        return await answer_to_task(lambda: 1, invocation)

    assert str(asyncio.run(ask())) == ("no answer within 0.0 seconds" if is_silent else "1")
    assert [(seconds, timer.cancelled()) for seconds, timer in timers] == [(0 if is_silent else 5, True)]


def test_the_crash_of_a_message_that_runs_again_is_in_its_history_with_no_delay() -> None:
    delivery = delivery_of_age()
    assert delivery.crashes is None
    delivery.invocation.attempt_store = MemoryAttempts()
    assert delivery.crashes == 0  # a first delivery has none that is known
    delivery = delivery_of_age(receives=2)
    delivery.stored = {"runs": (1,), "deliveries": (1,), "history": ()}
    first = start_of(delivery, None, DeadLetter(), delivery.invocation.log)
    expires = int(NOW) + 15 * 86_400
    base = {"queue": "orders", "message": "m1", "attempt": 2, "expires": expires, "state": "IN_FLIGHT"}
    assert first == AttemptChange("orders#m1", 2, "start", {**base, "next_try": NOW + 30})
    delivery.visible_at = NOW + 7.12345
    assert start_of(delivery, None, DeadLetter(), delivery.invocation.log).fields["next_try"] == NOW + 7.123
    crash = Failure(delivery.message, ProcessCrashed("no"), "error", failed_at=NOW)
    change = start_of(delivery, crash, DeadLetter(), delivery.invocation.log)
    assert [entry["delay"] for entry in change.fields["history"]] == [0]
    assert change.fields["failure"] == delivery.stored["failure"]
    assert (*change.fields["history"],) == delivery.stored["history"]
    assert delivery.stored["runs"] == (1,)


@pytest.mark.parametrize(
    ("outcome", "is_of_crash", "kind"),
    [
        *((outcome, False, "run") for outcome in (Outcome.retry(60), Outcome.unhandled())),
        *((outcome, False, "seen") for outcome in (Outcome.defer(60), Outcome.wait(60), Outcome.release())),
        *((Outcome.retry(60), True, "seen"), (None, False, None)),
    ],
    ids=repr,
)
def test_a_delivery_that_is_only_reported_is_recorded_as_what_it_was(
    outcome: Outcome | None, is_of_crash: bool, kind: str | None
) -> None:
    written, invocation = list[AttemptChange](), in_this_thread()
    delivery = invocation.delivery("m1", record())
    delivery.outcome, delivery.is_of_crash = outcome, is_of_crash
    Tracking(SimpleNamespace(write=written.extend), invocation, invocation.log).finish({"m1"})
    assert [change.kind for change in written] == ([] if kind is None else [kind])


KEY = (
    "AttributeDefinitions: [{AttributeName: id, AttributeType: S}] and KeySchema: [{AttributeName: id, KeyType: HASH}]"
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("x" * 600), f"failed ({'x' * 500})."),
        (OSError(), "failed (OSError)."),
        (
            client_error("ResourceNotFoundException", "no"),
            "does not exist (An error occurred (ResourceNotFoundException) when calling the AnyOperation operation: "
            "no). Correct the name in DynamoDBAttempts(...), or create the table in the function's region and account, "
            f"with {KEY}.",
        ),
        (
            client_error("ValidationException", "no"),
            "refuses its records (An error occurred (ValidationException) when calling the AnyOperation operation: "
            f"no). If it has another key, make a table with {KEY}.",
        ),
    ],
    ids=repr,
)
def test_the_log_says_what_to_do_about_a_store_that_fails(error: Exception, text: str) -> None:
    assert _what_to_do(error) == text


def test_a_record_of_the_store_is_checked_and_starts_without_an_end_are_crashes() -> None:  # SPEC O2
    failure, entry = {"reason": "error"}, {"attempt": 1}
    read: Any = {
        "m1": {}, "m2": {"runs": [1, 3], "deliveries": [1, 2, 3], "started": [3, 4, "5"], "failure": failure},
        "m3": {"started": [2], "deliveries": [2], "history": [entry]}, "m4": {"runs": 7}, "m5": {"failure": 7},
    }  # fmt: skip
    tracking: Any = Tracking(SimpleNamespace(read=lambda ids: read), (of := in_this_thread()), of.log)
    found = tracking._read([*read, "m6"])
    empty: dict[str, Any] = {"runs": set(), "deliveries": set(), "crashed": set(), "failure": None, "history": ()}
    assert found["m1"] == empty
    runs = {"runs": {1, 3, 4, 5}, "deliveries": {1, 2, 3, 4, 5}, "crashed": {4, 5}}
    assert found["m2"] == {**empty, **runs, "failure": failure}
    assert found["m3"] == {**empty, "deliveries": {2}, "history": (entry,)}
    assert [type(found[key]) for key in ("m4", "m5", "m6")] == [TypeError, AttributeError, dict]
    assert found["m6"] == {}


FIELDS = {"queue": "orders", "message": "m1", "attempt": 1}


@pytest.mark.parametrize(
    ("outcome", "more", "kind", "next_try"),
    [
        (Outcome.retry(60), {}, "run", 60),
        (Outcome.retry(60), {"is_of_crash": True}, "seen", 60),
        (Outcome.defer(60), {}, "seen", 60),
        (Outcome.retry(2), {}, "run", 5),  # it is due already
    ],
    ids=repr,
)
def test_the_store_has_when_and_why_a_failed_message_comes_back(
    outcome: Outcome, more: dict[str, Any], kind: str, next_try: float
) -> None:  # SPEC O3
    invocation = in_this_thread()
    invocation.attempt_store = MemoryAttempts()
    delivery, at = delivery_of(Message(record(), "m1", invocation)), NOW + 0.12345
    vars(delivery).update(more)
    failure = Failure(delivery.message, ValueError("no"), "error", failed_at=at)
    decision = Decision(delivery, outcome, at, failure)
    planner: Any = Planner(RetryPolicy(3, Exponential(10)), FailureSteps([]))
    lookups: Any = SimpleNamespace(known=lambda _: QueueFacts(retention=3_600), log=invocation.log)
    plan = SettlementPlan(decision, decision, (IN_PLACE,))
    change = trace_of(plan, planner, lookups, at + 5)
    failed, history = change.fields["failure"], change.fields["history"]
    base = {**FIELDS, "attempt": delivery.attempt, "expires": int(NOW) + 3_600 + 86_400}
    state = {"state": str(outcome.state), "next_try": round(NOW + 0.123 + next_try, 3)}
    expected = {**base, **state, "failure": failed, "history": history}
    assert change == AttemptChange("orders#m1", 1, kind, expected)  # type: ignore[arg-type]
    assert (failed["message"], [entry["delay"] for entry in history]) == ("no", [next_try if next_try > 5 else 2])
    invocation.attempt_store_fails = True
    assert "history" not in trace_of(plan, planner, lookups, at).fields  # that in the store has more
    lookups.known = lambda _: None
    assert trace_of(plan, planner, lookups, at).fields["expires"] == int(NOW) + 14 * 86_400 + 86_400
    del delivery.record["attributes"]["SentTimestamp"]
    assert trace_of(plan, planner, lookups, at).fields["expires"] == int(NOW) + 14 * 86_400 + 86_400


def test_the_store_has_the_crash_of_a_message_that_did_not_run() -> None:  # SPEC O2
    delivery, lookups = delivery_of_age(receives=3), SimpleNamespace(known=lambda _: None)
    stored: Any
    delivery.crashed, entry = (2,), {"attempt": 1}
    planner: Any = Planner(RetryPolicy(), FailureSteps([]))
    plan = SettlementPlan(*[Decision(delivery, Outcome.release(), NOW)] * 2, (IN_PLACE,))
    known = {"failure": {"reason": "error"}, "history": (entry,)}
    for stored, more in ((None, {}), ({}, {}), (known, {"history": [entry]})):
        delivery.stored = stored and {**stored, "runs": (), "deliveries": (2,)}
        change = trace_of(plan, planner, lookups, NOW)  # type: ignore[arg-type]
        got = change.fields
        assert (change.kind, change.crashed, got["next_try"], got["state"]) == ("seen", (2,), NOW, "READY")
        assert {name: got[name] for name in ("history",) if name in got} == more
        assert got.get("failure") == (stored or {}).get("failure")


def test_a_start_is_written_with_the_ends_of_those_before_and_a_message_is_closed_once() -> None:  # SPEC O2
    written, invocation = list[list[str]](), in_this_thread()
    faults, pending = list[Exception](), {"m1", "m2", "m3", "m4"}

    def write(changes: list[AttemptChange]) -> None:
        written.append([f"{change.kind} of {change.id[-2:]}" for change in changes])
        for fault in faults:
            raise fault

    tracking = Tracking(SimpleNamespace(write=write), invocation, invocation.log)
    deliveries = [invocation.delivery(name, record(message_id=name)) for name in sorted(pending)]
    first, second, third, fourth = deliveries

    def start(delivery: Delivery) -> bool:
        return tracking.start(delivery, change_of(delivery, "start", NOW), pending)

    assert start(first)
    tracking.close_started(pending)
    pending.remove("m1")
    assert start(second)
    second.outcome = Outcome.retry(60)
    faults.append(OSError())
    assert (start(third), start(fourth)) == (False, True)  # it is said once that the end of `second` is not written
    assert not invocation.attempt_store_fails
    faults.clear()
    pending.remove("m3")
    tracking.close_started(pending)
    tracking.close_started(pending)
    pending.remove("m4")
    tracking.finish(pending)
    starts = [["start of m1"], ["end of m1", "start of m2"], ["run of m2", "start of m3"]]
    assert written == [*starts, ["end of m3"], ["run of m2"]]


@pytest.mark.parametrize(("waited", "seconds"), [(0.0, 0.5), (0.375, 0.125), (0.75, -0.25)])
def test_handlers_wait_for_half_a_second_in_all_for_the_starts_of_their_messages(waited: float, seconds: float) -> None:
    asked, invocation = list[float](), invocation_in(World())  # SPEC O4
    tracking = Tracking(MemoryAttempts(), invocation, invocation.log)
    tracking._waited = waited
    tracking._answers = lambda works, most, **_: asked.append(most) or [None for _ in works]
    delivery = invocation.delivery("m1", record())
    assert tracking.start(delivery, change_of(delivery, "start", NOW), {"m1"})
    assert asked == [seconds]


@pytest.mark.parametrize(
    ("waited", "time_left", "seconds"), [(0, 30, 1), (0.75, 30, 0.25), (0, 2, 0.5), (0.75, 2, 0.25), (0, 0.5, 0.125)]
)
def test_a_store_is_waited_for_a_second_in_all_and_a_quarter_of_the_time_left(
    waited: float, time_left: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC O4
    waits, invocation = list[float](), invocation_in(World(clock := TestClock(NOW)), time_left)

    def answer(_: Any, of: Invocation, most: Any) -> list[Any]:
        for each in (0, seconds / 2, 1):
            clock.sleep(each)
            waits.append(most(of))
        return [None]

    monkeypatch.setattr("tarry.settle.attempts.answers_of", answer)
    tracking = Tracking(MemoryAttempts(), invocation, invocation.log)
    tracking._waited = waited
    tracking.write({"m1": change_of(invocation.delivery("m1", record()), "seen", NOW)}, in_background=False)
    assert waits == [pytest.approx(seconds), pytest.approx(seconds / 2), 0]
    assert tracking._waited == pytest.approx(waited + seconds / 2 + 1)


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("AccessDeniedException", 1), ("ResourceNotFoundException", 1), ("ValidationException", 1),
        ("ThrottlingException", 2), ("of a fork", 0),
    ],
)  # fmt: skip
def test_a_store_that_refuses_all_requests_is_not_asked_again(code: str, asked: int, caplog: Caplog) -> None:
    calls, invocation = list[Any](), in_this_thread()  # SPEC O4

    def write(changes: Any) -> None:
        calls.append(changes)
        raise client_error(code, "no")

    invocation.attempt_store = SimpleNamespace(write=write, table="attempts")  # type: ignore[assignment]
    tracking = tracking_of(invocation, invocation.log)
    assert tracking_of(invocation, invocation.log) is tracking
    invocation.began_in -= asked == 0
    for name in ("m1", "m2"):
        change = change_of(invocation.delivery(name, record(message_id=name)), "seen", NOW)
        tracking.write({name: change}, in_background=False)
    assert (len(calls), invocation.attempt_store_fails) == (asked, asked > 0)
    text = "For now, attempts are counted by receives: their number may be too high. No message is lost."
    found = [field(line, "text") for line in lines(caplog, "attempts_not_exact")]
    assert [each[:26] + each[-len(text) :] for each in found] == ["The attempts table attempt" + text] * (asked > 0)


@pytest.mark.parametrize(("takes", "waited"), [(0.75, 0), (1.0, 1.0)])
def test_writing_in_the_background_keeps_no_handler_waiting_unless_no_answer_comes(takes: float, waited: float) -> None:
    invocation = in_this_thread()  # SPEC O4
    store = SimpleNamespace(write=lambda _: invocation.world.clock.sleep(takes))
    tracking = Tracking(store, invocation, invocation.log)
    tracking.write({"m1": change_of(invocation.delivery("m1", record()), "seen", NOW)}, in_background=True)
    assert tracking._waited == waited


@pytest.mark.parametrize(("waited", "is_asked"), [(0.9, True), (1.0, False), (1.1, False)])
def test_a_store_that_has_taken_its_second_is_not_asked_again(waited: float, is_asked: bool) -> None:  # SPEC O4
    written, invocation = list[AttemptChange](), in_this_thread()
    tracking = Tracking(SimpleNamespace(write=written.extend), invocation, invocation.log)
    tracking._waited = waited
    tracking.write({}, in_background=False)
    assert not invocation.attempt_store_fails
    tracking.write({"m1": change_of(invocation.delivery("m1", record()), "seen", NOW)}, in_background=False)
    assert (len(written), invocation.attempt_store_fails) == (is_asked, not is_asked)


# requests


def lookups_in(wire: Wire, remaining: float = 30) -> Lookups:
    invocation = invocation_in(wire.world, remaining)
    return Lookups(Requests(invocation), invocation.log)


def delivery_in(lookups: Lookups, name: str = "m1", **fields: Any) -> Delivery:
    return lookups.requests.invocation.delivery(name, record(message_id=name, **fields))


ENDED = "The lease has ended: another consumer may have the message. It waits."
REFUSED = "SQS refuses the receipt handle: another consumer may have the message. It waits."


@pytest.mark.parametrize(
    ("state", "refusal", "asked", "ends_in", "text"),
    [
        ({}, None, True, 100, None),
        ({"visible_at": NOW + 1}, None, True, 100, None),
        ({"visible_at": NOW + 500}, None, True, 500, None),  # it is never shortened
        ({"visible_at": NOW}, None, False, 0, ENDED),
        ({"visible_at": NOW, "is_given_up": True}, None, False, 0, None),
        ({}, STALE, True, None, REFUSED),
        ({"is_given_up": True}, STALE, True, None, None),
        ({}, DENIED, True, None, None),
    ],
)
def test_a_lease_that_has_ended_or_whose_handle_is_refused_is_lost_and_others_are_extended(
    state: dict[str, Any], refusal: Any, asked: bool, ends_in: float | None, text: str | None,
    caplog: Caplog, monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC E6, H4, I4  # fmt: skip
    monkeypatch.setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")
    with Wire(queues={"orders": Queue(visibility_timeout=60)}) as wire:
        lookups = lookups_in(wire)
        delivery, other = delivery_in(lookups), delivery_in(lookups, "m2")
        lookups.source(delivery.source)
        vars(delivery).update(state)
        is_of = {delivery.receipt_handle: refusal}
        wire.refuses["ChangeMessageVisibilityBatch"] = lambda _, entry: is_of.get(entry["ReceiptHandle"])
        wire.fails["ChangeMessageVisibilityBatch"] = lambda _: wire.clock.sleep(5)
        changes = [VisibilityChange(delivery, 100), VisibilityChange(other, 10)]
        extend_leases(changes, lookups, lookups.log, 1, "It waits.")
    assert wire.visibilities() == {**({"handle-m1": 100} if asked else {}), "handle-m2": 10}
    # counted from before the request: it may have reached SQS at once
    assert (delivery.visible_at, other.visible_at) == (None if ends_in is None else NOW + ends_in, NOW + 10)
    assert (delivery.is_lost, other.is_lost) == (text is not None, False)
    lost, others = (lines(caplog, name) for name in ("lease_lost", "missing_permission"))
    assert [field(line, "text") for line in lost] == ([] if text is None else [text])
    assert ([line.levelname for line in lost], len(others)) == (["WARNING"] * len(lost), refusal == DENIED)


def test_a_timeout_beyond_twelve_hours_is_requested_once_more_with_one_that_is_certain_to_be_allowed() -> None:
    beyond = ("InvalidParameterValue", "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]")
    asked, clock = list[tuple[str, int]](), TestClock(NOW)  # SPEC C6

    def refuse(_: Request, entry: dict[str, Any]) -> tuple[str, str] | None:
        asked.append((entry["ReceiptHandle"], entry["VisibilityTimeout"]))
        return beyond if len(asked) <= 2 or entry["ReceiptHandle"] == "handle-m2" else None

    with Wire(queues={"orders": Queue(visibility_timeout=60)}, clock=clock) as wire:
        wire.refuses["ChangeMessageVisibilityBatch"] = refuse
        lookups = lookups_in(wire)
        changes = [VisibilityChange(delivery_in(lookups, name), 43_150 - 9 * index) for index, name in enumerate(IDS)]
        found = {result.change: result.error is None for result in change_visibility(changes, lookups)}
    assert asked[3:] == [("handle-m1", 43_140), ("handle-m2", 43_140)]
    assert [(change.delivery.delivery_id, change.seconds, done) for change, done in found.items()] == [
        ("m3", 43_132, True), ("m1", 43_140, True), ("m2", 43_140, False)
    ]  # fmt: skip


IDS = ("m1", "m2", "m3")
HEADER = {"AWSTraceHeader": "Root=1-5759e988-bd862e3fe1be46a994272793"}


@pytest.mark.parametrize(
    ("queue", "fields", "delay", "entry"),
    [
        ("dead", {}, None, {}),
        ("dead", {"group": "g"}, 0, {"DelaySeconds": 0, "MessageGroupId": "g"}),
        ("dead", {"system": HEADER}, 5, {"DelaySeconds": 5, "MessageSystemAttributes": {
            "AWSTraceHeader": {"DataType": "String", "StringValue": HEADER["AWSTraceHeader"]}}}),
        ("dead.fifo", {"group": "g"}, 5, {"MessageGroupId": "g"}),
        ("dead.fifo", {}, None, {"MessageGroupId": "m1"}),
    ],
)  # fmt: skip
def test_a_copy_is_sent_with_the_group_and_trace_of_its_message_and_a_delay_unless_on_fifo(
    queue: str, fields: Any, delay: int | None, entry: dict[str, Any]
) -> None:  # SPEC E6, E7
    with Wire() as wire:
        lookups, target = lookups_in(wire), QueueArn(arn(queue))
        delivery = delivery_in(lookups, **fields)
        variants: list[Any] = [{"a": {"DataType": "String", "StringValue": "b"}}, {}]
        copies = [Copy(delivery, "[1]", target, variants, delay), Copy(delivery, "[2]", target, variants[1:], delay)]
        for copy, attributes in zip(copies, variants, strict=True):
            assert [
                (sent.copy, sent.error, sent.not_deleted, sent.may_be_twice) for sent in send_copies([copy], lookups)
            ] == [(copy, None, None, False)]
            [sent] = wire.sent("SendMessageBatch")[-1].entries
            deduplication = sent.pop("MessageDeduplicationId", None)
            own = {"Id": "0", "MessageBody": copy.body, **({"MessageAttributes": attributes} if attributes else {})}
            assert sent == {**own, **entry}
            assert deduplication == (hashlib.sha256(f"m1 {target}".encode()).hexdigest() if target.is_fifo else None)
    assert wire.operations == ["SendMessageBatch", "DeleteMessageBatch"] * 2


TOO_LARGE = ("InvalidParameterValue", "Message must be shorter than 2048 bytes.")
TOO_LONG = client_error("AWS.SimpleQueueService.BatchRequestTooLong", "too long")


@pytest.mark.parametrize(
    ("refusals", "fails", "sends", "error"),
    [
        *(([TOO_LARGE] * count, [], min(3, count + 1), None if count < 3 else TOO_LARGE[1]) for count in range(4)),
        ([], [TOO_LONG], 2, None),
        ([DENIED], [], 1, DENIED[1]),
        ([], [client_error("AccessDenied", "not you")], 1, "not you"),
    ],
)
def test_a_copy_that_is_refused_as_too_large_is_sent_with_smaller_attributes(
    refusals: list[Any], fails: list[Exception], sends: int, error: str | None, caplog: Caplog
) -> None:  # SPEC F1, F3
    left, variants = refusals.copy(), [{name: {"DataType": "String", "StringValue": "b"}} for name in "abc"]
    for cut in (None, {"id": "m1", "failure": {"reason": "error"}}):
        caplog.clear()
        left[:], faults = refusals, fails.copy()
        with Wire() as wire:
            wire.refuses[SEND] = lambda *_: left.pop() if left else None
            wire.fails[SEND] = lambda _, faults=faults: faults.pop() if faults else None  # type: ignore[misc]
            lookups = lookups_in(wire)
            delivery = delivery_in(lookups)
            copy = Copy(delivery, "{}", QueueArn(arn("dead")), variants, 0, record=cut)
            [sent] = send_copies([copy], lookups)
        assert (str(sent.error)[-len(error) :] if error else sent.error) == error
        assert [entry["MessageAttributes"] for entry in wire.sent_entries()] == variants[:sends]
        assert [field(line, "record") for line in lines(caplog, "record_cut")] == ([cut] if cut and sends > 1 else [])
        assert delivery.is_done == (error is None)


@pytest.mark.parametrize("is_done", [True, False])
def test_if_a_request_is_cut_short_a_confirmed_copy_counts_as_sent_and_its_original_as_not_deleted(
    is_done: bool,
) -> None:  # SPEC E6, G6
    with Wire() as wire:
        lookups = lookups_in(wire)
        copy = Copy(delivery_in(lookups), "{}", QueueArn(arn("dead")), [{}], 0)
        copy.delivery.is_done = is_done
        wire.clock.sleep(30)
        [sent] = send_copies([copy], lookups)
    assert (type(sent.error), type(sent.not_deleted)) == (
        (type(None), OutOfTime) if is_done else (OutOfTime, type(None))
    )
    assert not sent.may_be_twice


@pytest.mark.parametrize("is_loaded", [True, False])
def test_sends_have_spans_where_opentelemetry_is_loaded(is_loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []  # SPEC L4
    monkeypatch.setattr("tarry.settle.requests.modules", {"opentelemetry.trace": None} if is_loaded else {})
    monkeypatch.setattr("tarry.settle.requests._traced", lambda chunk, *_: traced.append(chunk) or {"m1": None})
    with Wire() as wire:
        lookups = lookups_in(wire)
        copy = Copy(delivery_in(lookups), "{}", QueueArn(arn("dead")), [{}], 0)
        assert [sent.error for sent in send_copies([copy], lookups)] == [None]
    assert traced == [[copy]] * is_loaded


# early deletes


def ten(invocation: Invocation, first: int = 0) -> list[Delivery]:
    return [invocation.delivery(f"m{n}", record(message_id=f"m{n}")) for n in range(first, first + 10)]


def test_a_thread_deletes_ten_acknowledged_messages_or_fewer_after_a_second(caplog: Caplog) -> None:  # SPEC G3
    threads = ThreadsByHand(can_start=True)
    with Wire(clock=TestClock(NOW)) as wire:
        wire.world.threads = threads  # type: ignore[assignment]
        invocation = invocation_in(wire.world)
        acks, batch = Acks(invocation, invocation.log, waits=True), ten(invocation)
        lost, late = ten(invocation, 10)[:2]
        lost.is_lost = True
        for delivery in (*batch[:9], *batch[:9], lost):
            acks.add(delivery)
        assert (threads.waits, [seconds for seconds, _ in threads.started]) == ([], [0])

        def work(timeout: float | None) -> None:
            if timeout == 2:  # the tenth `add` waits for the thread
                threads.started[0][1]()
            if timeout is None and wire.requests:
                acks.close()

        threads.meanwhile = work
        acks.add(batch[9])
        acks.add(late)
    assert [entry["ReceiptHandle"][7:] for request in wire.requests for entry in request.entries] == [
        f"m{n}" for n in range(10)
    ]
    assert (lost.is_given_up, late.is_given_up, len(threads.started)) == (False, False, 1)
    assert threads.waits == [(2, False), (None, True), (1, True), (None, False), (1, True)]
    assert [event.is_set for event in threads.events] == [False, False, True]
    assert lines(caplog) == []


@pytest.mark.parametrize(("waits", "expected"), [(True, [(2, False)]), (False, [])])
def test_after_a_delete_was_awaited_in_vain_no_other_one_is(waits: bool, expected: Any) -> None:  # SPEC G6
    threads = ThreadsByHand(can_start=True)
    invocation = invocation_in(World(TestClock(NOW), threads=threads))  # type: ignore[arg-type]
    acks = Acks(invocation, invocation.log, waits=waits)
    for delivery in (*ten(invocation), *ten(invocation, 10)):
        acks.add(delivery)
    assert (threads.waits, len(threads.started)) == (expected, 1)


OF_ALL = "3 acknowledged messages were not deleted. Lambda deletes them after the response."
OF_ONE = "The message is acknowledged, but it was not deleted. Lambda deletes it after the response."


@pytest.mark.parametrize(
    ("error", "refused", "remaining", "texts", "goes_on"),
    [
        (None, "", 30, [], True),
        (None, "m1", 30, [OF_ONE], True),
        (None, "m0 m1 m2", 30, [OF_ONE] * 3, True),
        (client_error("RequestThrottled"), "", 30, [OF_ALL], True),
        (OSError("no"), "", 30, [OF_ALL], False),
        (OutOfTime("no time left"), "", 30, [], False),
        (client_error("AccessDenied"), "", 30, [], False),
        (None, "", 10, [], False),  # without a thread, there is no time to wait for the answer
    ],
    ids=str,
)
def test_no_more_messages_are_deleted_early_if_that_would_fail_or_cost_time(
    error: Any, refused: str, remaining: float, texts: list[str], goes_on: bool, caplog: Caplog
) -> None:  # SPEC G3, G6
    with Wire() as wire:
        wire.world.threads = ThreadsByHand()  # type: ignore[assignment]
        invocation = invocation_in(wire.world, remaining)
        acks = Acks(invocation, invocation.log, waits=False)
        wire.fails[DELETE] = lambda _: error
        handles = {f"handle-{name}" for name in refused.split()}
        wire.refuses[DELETE] = lambda _, entry: ("InternalError", "no") if entry["ReceiptHandle"] in handles else None
        acks._notify = [EventByHand(wire.world.threads)]  # type: ignore[arg-type, list-item]
        waiting = acks._notify[0]
        assert acks.delete_now(ten(invocation)[:3]) == goes_on
        assert waiting.is_set  # type: ignore[attr-defined]
        wire.fails.clear()
        handles.clear()
        acks.delete_now(ten(invocation, 10)[:2])
    assert [len(request.entries) for request in wire.requests] == ([3, 2] if goes_on else [3][: remaining == 30])
    assert [field(line, "text") for line in lines(caplog, "delete_failed")] == texts
    assert len(lines(caplog, "missing_permission")) == ("AccessDenied" in str(error))


def test_messages_that_fill_whole_requests_are_settled_while_the_others_run() -> None:  # SPEC I2
    with Wire(queues={"orders": Queue("dead")}) as wire:
        settlement: Any = settlement_in(wire)
        invocation = settlement.lookups.requests.invocation
        deliveries = [delivery_of(Message(record(message_id=f"m{n}"), f"m{n}", invocation)) for n in range(37)]
        dead = Outcome.dead_letter("fatal")
        for index, delivery in enumerate(deliveries):
            failure = Failure(delivery.message, ValueError("bad"), "error", failed_at=NOW)
            outcome = dead if index >= 25 else Outcome.retry(60)
            settlement.add(Decision(delivery, outcome, NOW, failure), early=False, may_look_up=index != 36)
        deliveries[0].is_settled = True
        settlement.settle_full_requests()
        done = [n for n, delivery in enumerate(deliveries) if delivery.is_settled and delivery.is_given_up]
        assert done == [*range(1, 21), *range(25, 35)]
        assert sum(delivery.is_settled or delivery.is_given_up for delivery in deliveries) == 31
        sizes = [(each.operation, len(each.entries)) for each in wire.requests if "Entries" in each.parameters]
        assert sorted(sizes) == [(CHANGE, 10), (CHANGE, 10), (DELETE, 10), (SEND, 10)]
        count = len(wire.requests)
        settlement.settle_full_requests()
        assert (len(wire.requests), settlement.owed_seconds()) == (count, pytest.approx(6 * settlement._cost))


# the log, and lost leases

NO, PERHAPS = OSError("no"), "no (it may be there all the same)"
TO_ITSELF: Any = {SEND: lambda request: NO if request.queue == "orders" else None}
LAST = {"receives": 15}
FAILED, EXPIRING = {"reason": "error"}, {"reason": "expiring", "dead_letter_queue": "dead"}
RESENT = {**FAILED, "delay": 43_200, "sent_to": "orders"}


@pytest.mark.parametrize(
    ("outcome", "fails", "more", "event", "fields"),
    [
        (Outcome.release(), {}, {}, "INFO released", {"delay": 0}),
        (Outcome.retry(60), {}, {}, "WARNING waiting_retry", {**FAILED, "delay": 60}),
        (
            Outcome.retry(60), {CHANGE: NO}, {}, "WARNING waiting_retry",
            {**FAILED, "not_settled": "no; the message comes back when the queue's visibility timeout ends"},
        ),
        (
            Outcome.retry(43_200), {}, {"by_backoff": True}, "WARNING waiting_retry",
            {**FAILED, "delay": 43_199, "asked_for": 43_200},
        ),
        (
            Outcome.retry(43_200), {SEND: NO}, {}, "WARNING waiting_retry",
            {**FAILED, "delay": 43_199, "asked_for": 43_200, "not_sent": f"orders: {PERHAPS}"},
        ),
        (Outcome.retry(43_200), {}, {}, "WARNING waiting_retry", RESENT),
        (
            Outcome.wait(100_000), {}, LAST, "INFO deferred",
            {**RESENT, "reason": "not_due", "asked_for": 100_000},
        ),
        (
            Outcome.wait(60), TO_ITSELF, LAST, "ERROR dead_lettered",
            {**EXPIRING, "not_sent": f"orders: {PERHAPS}", "text": "sent with a delay; 60 s of it were left when the "
             "queue was about to delete or move the message, which could not be sent again"},
        ),
        (
            Outcome.defer(60), TO_ITSELF, LAST, "ERROR dead_lettered",
            {**EXPIRING, "not_sent": f"orders: {PERHAPS}", "text": "deferred for 60 s at the queue's last delivery "
             "(maxReceiveCount), and could not be sent again"},
        ),
        (
            Outcome.defer(60), {SEND: NO}, LAST, "ERROR unhandled",
            {"delay": 60, "not_sent": f"orders: {PERHAPS}; dead: {PERHAPS}"},
        ),
        (
            Outcome.dead_letter("fatal"), {}, {}, "ERROR dead_lettered",
            {"reason": "fatal", "dead_letter_queue": "dead"},
        ),
        (
            Outcome.dead_letter("fatal"), {}, {"receives": 3}, "ERROR dead_lettered",
            {"reason": "fatal", "dead_letter_queue": "dead"},
        ),
        (
            Outcome.dead_letter("exhausted"), {}, {"receives": 3}, "ERROR dead_lettered",
            {"reason": "exhausted", "dead_letter_queue": "dead", "text": "at most 3 attempts"},
        ),
        (
            Outcome.dead_letter("fatal"), {SEND: NO}, {}, "ERROR unhandled",
            {**FAILED, "delay": 900, "not_sent": f"dead: {PERHAPS}"},
        ),
        (Outcome.resend("slow", 60), {}, {}, "WARNING resent", {**FAILED, "delay": 60, "sent_to": "slow"}),
        (Outcome.unhandled(), {}, {}, "ERROR unhandled", {**FAILED, "delay": 900}),
    ],
    ids=repr,
)  # fmt: skip
def test_the_log_says_what_became_of_a_message_and_why(
    outcome: Outcome, fails: Any, more: Any, event: str, fields: dict[str, Any], caplog: Caplog
) -> None:  # SPEC L2
    caplog.set_level("DEBUG")
    by_backoff, queues = more.get("by_backoff", False), {"orders": Queue("dead")}
    with Wire(queues=queues, fails=fails) as wire:
        settlement = settlement_in(wire)
        sqs_record = record(receives=more.get("receives", 1))
        delivery = delivery_of(Message(sqs_record, "m1", settlement.lookups.requests.invocation))
        has_failed = outcome.kind not in ("release", "wait", "defer")
        failure = Failure(delivery.message, ValueError("bad"), "error", failed_at=NOW, said="why")
        decision = Decision(delivery, outcome, NOW, failure if has_failed else None, by_backoff=by_backoff)
        settlement.add(decision, early=False)
        settlement.finish()
    [line] = lines(caplog)
    names = ("delay", "reason", "asked_for", "not_settled", "not_sent", "dead_letter_queue", "sent_to", "text")
    assert f"{line.levelname} {field(line, 'event')}" == event
    assert {name: value for name in names if (value := field(line, name)) is not None} == fields
    assert (field(line, "said"), field(line, "error")) == (("why", "ValueError: bad") if has_failed else (None, None))
    assert delivery.is_settled
    assert delivery.is_done == ("dead_letter_queue" in fields or "sent_to" in fields)


@pytest.mark.parametrize(
    ("age", "elapsed", "visibility_timeout", "looked_up", "is_lost"),
    [
        (10, 19.9, 60, False, False), (10, 20, 60, True, False), (10, 20, 30, True, True), (10, 20, 31, True, False),
        (-5, 29.5, 60, False, False), (0, 29.5, 60, False, False),
    ],
)  # fmt: skip
def test_whether_a_lease_has_ended_is_looked_up_once_that_is_possible(
    age: float, elapsed: float, visibility_timeout: int, looked_up: bool, is_lost: bool, caplog: Caplog
) -> None:
    """SPEC E6. The queue's visibility timeout is at least the function's timeout: here, 30 seconds."""
    with Wire(queues={"orders": Queue(visibility_timeout=visibility_timeout)}, clock=TestClock(NOW)) as wire:
        settlement = settlement_in(wire)
        invocation = settlement.lookups.requests.invocation
        delivery = invocation.delivery("m1", record(received_at=NOW - age))
        settlement.add(Decision(delivery, Outcome.release(), NOW), early=False)
        wire.clock.sleep(elapsed)
        settlement.executor.note_if_lost(delivery)
        assert (len(wire.requests), delivery.is_settled, delivery.is_lost) == (looked_up, is_lost, is_lost)
    why = "the lease is lost, so the message is only reported as failed"
    assert [field(line, "not_settled") for line in lines(caplog, "released")] == [why] * is_lost


def test_a_message_that_a_step_drops_when_its_copy_cannot_be_made_is_done(caplog: Caplog) -> None:  # SPEC E3, L2
    caplog.set_level("DEBUG")
    with Wire(queues={"orders": Queue("dead")}) as wire:
        settlement = settlement_in(wire, DropMessage())
        delivery = delivery_of(Message(record(), "m1", settlement.lookups.requests.invocation))
        failure = Failure(delivery.message, ValueError("bad"), "error", failed_at=NOW)
        settlement.add(Decision(delivery, Outcome.resend(body=""), NOW, failure), early=False)
    assert (delivery.is_settled, delivery.is_done, wire.acts) == (True, True, [])
    found = [(line.levelname, field(line, "event")) for line in lines(caplog)]
    assert found == [("ERROR", "step_passed_on"), ("WARNING", "discarded")]


@pytest.mark.parametrize(("seconds", "asked"), [(9.9, {"m1": 1, "m2": 11}), (10, {"m2": 10})])
def test_an_early_delay_that_sqs_did_not_confirm_is_requested_once_more_only_before_it_ends(
    seconds: float, asked: dict[str, int], caplog: Caplog
) -> None:  # SPEC C11
    faults = [client_error("AccessDenied", "not you")]
    with Wire(fails={CHANGE: lambda _: faults.pop() if faults else None}, clock=TestClock(NOW)) as wire:
        settlement = settlement_in(wire)
        invocation = settlement.lookups.requests.invocation
        deliveries = [delivery_of(Message(record(message_id=name), name, invocation)) for name in ("m1", "m2")]
        for delivery, delay in zip(deliveries, (10, 20), strict=True):
            failure = Failure(delivery.message, ValueError("bad"), "error", failed_at=NOW)
            settlement.add(Decision(delivery, Outcome.retry(delay), NOW, failure), early=False)
        settlement.executor.request_early(deliveries)
        assert [(delivery.is_settled, delivery.is_given_up) for delivery in deliveries] == [(False, True)] * 2
        assert [field(line, "event") for line in lines(caplog)] == ["missing_permission"]
        wire.clock.sleep(seconds)
        settlement.finish()
    again = {entry["ReceiptHandle"][7:]: entry["VisibilityTimeout"] for entry in wire.sent(CHANGE)[1].entries}
    assert (again, len(wire.sent(CHANGE))) == (asked, 2)
    found = {field(line, "message_id"): line for line in lines(caplog, "waiting_retry")}
    over = "SQS did not confirm the delay, and it is over: another delivery may have begun"
    assert {name: field(line, "delay") for name, line in found.items()} == {"m1": None, **asked}
    assert field(found["m1"], "not_settled") == (None if "m1" in asked else over)


def failing(invocation: Invocation, outcome: Outcome, name: str = "m1", **fields: Any) -> Decision:
    """Return the decision on a message that has failed now."""
    delivery = delivery_of(Message(record(message_id=name, **fields), name, invocation))
    invocation.deliveries[name] = delivery
    failure = Failure(delivery.message, ValueError("bad"), "fatal", failed_at=invocation.now())
    return Decision(delivery, outcome, invocation.now(), failure)


@pytest.mark.parametrize(("dead_letter", "requests"), [("dead", 2), (None, 1)])
def test_the_facts_of_a_queue_and_its_target_are_fetched_until_they_are_known(
    dead_letter: str | None, requests: int
) -> None:  # SPEC C8, I2
    threads, done = ThreadsByHand(can_start=True), list[bool]()
    with Wire(queues={"orders": Queue(dead_letter)}) as wire:
        wire.world.threads = threads  # type: ignore[assignment]
        settlement = settlement_in(wire)
        delivery = settlement.lookups.requests.invocation.delivery("m1", record())
        for is_fetched in (True, False):
            assert settlement.fetch(delivery, lambda: done.append(True)) == is_fetched
            for _, work in threads.started:
                work()
            threads.started.clear()
        assert (wire.operations, done) == (["GetQueueAttributes"] * requests, [True])
    with Wire(queues={"orders": Queue("dead")}) as wire:
        settlement = settlement_in(wire)
        settlement.lookups.source(delivery.source)
        wire.world.threads = threads  # type: ignore[assignment]
        assert settlement.fetch(delivery, print)  # the size limit of the target is missing


@pytest.mark.parametrize("error", [None, OSError("no")])
def test_on_fifo_a_copy_is_sent_before_the_group_goes_on(error: Exception | None) -> None:  # SPEC H1
    with Wire(queues={"orders.fifo": Queue("dead.fifo")}, fails={SEND: error} if error else {}) as wire:
        settlement = settlement_in(wire)
        decision = failing(settlement.lookups.requests.invocation, Outcome.dead_letter("fatal"), queue="orders.fifo")
        assert settlement.send_now(decision) == (error is None)
        assert wire.acts == [SEND, DELETE][: 1 + (error is None)]
        assert settlement.owed_seconds() == 0.002 * (error is not None)
        settlement.finish()
    assert wire.visibilities() == ({} if error is None else {"handle-m1": 240})


def test_messages_are_settled_in_the_order_of_the_batch() -> None:  # SPEC G6
    with Wire(queues={"orders": Queue()}) as wire:
        settlement = settlement_in(wire)
        invocation, place = settlement.lookups.requests.invocation, {f"m{n}": n for n in range(6)}
        for name in ("m5", "m0", "m3"):
            settlement.add(failing(invocation, Outcome.retry(60), name), early=False)
        for name in ("m4", "m1", "m2"):
            delivery = invocation.delivery(name, record(message_id=name))
            settlement.add(Decision(delivery, Outcome.release(), NOW), early=False)
        settlement.sort(place.__getitem__)
        settlement.finish()
    asked = [[entry["ReceiptHandle"][7:] for entry in request.entries] for request in wire.sent(CHANGE)]
    assert asked == [["m0", "m3", "m5"], ["m1", "m2", "m4"]]


@pytest.mark.parametrize("early", [True, False])
def test_a_message_that_waited_for_a_look_up_is_settled_early_once_that_is_made(early: bool) -> None:  # SPEC C11, E6
    threads = ThreadsByHand()
    with Wire(queues={"orders": Queue("dead", visibility_timeout=29)}) as wire:
        settlement = settlement_in(wire)
        decision = failing(settlement.lookups.requests.invocation, Outcome.dead_letter("fatal"))
        settlement.lookups.source(decision.delivery.source)
        wire.world.threads = threads  # type: ignore[assignment]
        settlement.add(decision, early=early, may_look_up=False)
        assert (settlement.needed_by(decision.delivery), threads.started) == (QueueArn(arn("dead")), [])
        settlement.go_on(decision.delivery, early=early)
        assert (settlement.needed_by(decision.delivery), len(threads.started)) == (None, early)


def test_on_fifo_only_a_handle_that_may_have_expired_is_tested_before_a_send(caplog: Caplog) -> None:  # SPEC E6
    queues = {"orders": Queue("dead"), "orders.fifo": Queue("dead.fifo", 15, 60)}
    with Wire(queues=queues, clock=TestClock(NOW)) as wire:
        settlement = settlement_in(wire)
        invocation = settlement.lookups.requests.invocation
        batch = [("s", "orders"), ("fresh", "orders.fifo"), ("old", "orders.fifo"), ("gone", "orders.fifo")]
        ages = {"old": 30, "gone": 31, "fresh": 29}
        for name, queue in batch:
            received_at, group = NOW - ages.get(name, 59), None if queue == "orders" else name
            dead = Outcome.dead_letter("fatal")
            settlement.add(
                failing(invocation, dead, name, queue=queue, received_at=received_at, group=group), early=False
            )
        wire.refuses[CHANGE] = lambda _, entry: STALE if entry["ReceiptHandle"] == "handle-gone" else None
        settlement.finish()
        assert wire.visibilities() == {"handle-old": 60, "handle-gone": 60}
    assert sorted(each["id"] for each in wire.envelopes()) == ["fresh", "old", "s"]
    [line] = lines(caplog, "lease_lost")
    text = "SQS refuses the receipt handle. The message is not sent on, and only reported as failed."
    assert (field(line, "message_id"), field(line, "text"), line.levelname) == ("gone", text, "WARNING")
    old, gone = (invocation.deliveries[name] for name in ("old", "gone"))
    assert (old.visible_at, gone.is_lost, gone.is_settled, gone.is_done) == (NOW + 60, True, True, False)
    assert [field(line, "delay") for line in lines(caplog, "unhandled")] == [None]


@pytest.mark.parametrize("early", [True, False])
def test_a_message_is_in_the_store_before_it_is_shown_again_and_is_spent_if_it_cannot_be(early: bool) -> None:
    store, seen = MemoryAttempts(), list[dict[str, Any]]()  # SPEC O1, O4
    with Wire(queues={"orders": Queue("dead")}, clock=TestClock(NOW)) as wire:
        wire.fails[CHANGE] = lambda _: seen.append(dict(store.records["orders#m1"]))  # type: ignore[func-returns-value]
        settlement = settlement_in(wire)
        invocation = settlement.lookups.requests.invocation
        invocation.attempt_store, invocation.max_attempts_of = store, lambda _: 3
        wire.world.threads = ThreadsByHand()  # type: ignore[assignment]
        first = failing(invocation, Outcome.retry(5), "m1")
        settlement.add(first, early=False)
        if early:
            settlement.executor.request_early([first.delivery])
        settlement.finish()
        assert [each["next_try"] for each in seen] == [NOW + 5]
        store.write = lambda _: {}["no"]  # type: ignore[method-assign]
        spent, traced = (failing(invocation, Outcome.retry(5), name, receives=3) for name in ("m2", "m3"))
        spent.delivery.stored, traced.delivery.stored = (
            {"runs": {1}, "deliveries": {1}},
            {"runs": {1}, "deliveries": {1, 2}},
        )
        for decision in (spent, traced):
            settlement.add(decision, early=False)
        settlement.executor.wait_in_place([spent.delivery, traced.delivery], early=early)
    assert (spent.delivery.is_untraced, traced.delivery.is_untraced) == (True, False)
    assert (spent.delivery.outcome, spent.delivery.is_done) == (Outcome.dead_letter("fatal"), True)
    assert [request.operation for request in wire.requests][-3:] == [SEND, DELETE, CHANGE]


def test_each_acknowledged_message_is_named_whose_delete_is_not_confirmed(caplog: Caplog) -> None:  # SPEC I3, L2
    with Wire() as wire:
        settlement = settlement_in(wire)
        invocation = settlement.lookups.requests.invocation
        batch = [invocation.delivery(name, record(message_id=name)) for name in IDS]
        wire.refuses[DELETE] = lambda _, entry: DENIED if entry["ReceiptHandle"] == "handle-m2" else None
        settlement.executor.delete(batch)
        wire.clock.sleep(30)
        settlement.executor.delete(batch[:1])
    found = [(field(line, "message_id"), line.levelname) for line in lines(caplog, "delete_failed")]
    assert found == [("m2", "WARNING"), ("m1", "WARNING")]
    assert len(lines(caplog, "missing_permission")) == 1
