"""The settlement of an invocation: what is settled early, in which order, in which time, and what the log says."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import DropMessage, Failure, MemoryAttempts, Outcome, RetryPolicy
from tarry.decide.decision import Decision
from tarry.decide.steps import FailureSteps
from tarry.message.delivery import Delivery, QueueFacts
from tarry.message.message import Message, delivery_of
from tarry.record.attribute import Envelope
from tarry.settle.copies import NoDeadLetterQueue, dead_letter_queue
from tarry.settle.settlement import EarlyWaits, Settlement
from tarry.sqs.refusals import OutOfTime
from tarry.support.values import QueueArn, queue_arn
from tarry.world import World
from tests.loglines import Caplog, field, lines
from tests.records import record
from tests.settlement import (
    CHANGE,
    DELETE,
    NOW,
    SEND,
    ThreadsByHand,
    delivery_of_age,
    failing,
    invocation_in,
    settlement_in,
)
from tests.wire import Queue, Request, TestClock, Wire, arn, client_error


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
        assert not settlement.executor.stays(delivery)  # it is not delayed, if no time is left to send it
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
        assert all(map(settlement.executor.stays, deliveries))
        assert [field(line, "event") for line in lines(caplog)] == ["missing_permission"]
        wire.clock.sleep(seconds)
        settlement.finish()
    again = {entry["ReceiptHandle"][7:]: entry["VisibilityTimeout"] for entry in wire.sent(CHANGE)[1].entries}
    assert (again, len(wire.sent(CHANGE))) == (asked, 2)
    found = {field(line, "message_id"): line for line in lines(caplog, "waiting_retry")}
    over = "SQS did not confirm the delay, and it is over: another delivery may have begun"
    assert {name: field(line, "delay") for name, line in found.items()} == {"m1": None, **asked}
    assert field(found["m1"], "not_settled") == (None if "m1" in asked else over)


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
