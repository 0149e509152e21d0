"""Leases: when they end, are extended and are lost, by the parts; tests/integration has whole batches."""

import math
from contextlib import nullcontext
from typing import Any

import pytest

from tarry import Outcome, consumer
from tarry.decide.decision import Decision
from tarry.errors import LeaseLost
from tarry.settle.extending import Keepalive, extend
from tarry.settle.requests import (
    VisibilityChange,
    change_visibility,
    extend_leases,
    extension,
    lease_end,
    prolongation,
    spread,
)
from tarry.sqs.refusals import Refused
from tarry.support.values import QueueArn
from tarry.world import World
from tests.loglines import Caplog, field, lines
from tests.records import record
from tests.settlement import (
    CHANGE,
    DELETE,
    DENIED,
    IDS,
    NOW,
    STALE,
    ThreadsByHand,
    delivery_in,
    delivery_of_age,
    failing,
    invocation_in,
    lookups_in,
    settlement_in,
)
from tests.wire import Queue, Request, TestClock, Wire, arn, client_error


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


@pytest.mark.parametrize(("count", "sizes", "errors"), [(1, [1], 1), (2, [2, 1, 1], 0)])
def test_a_request_that_is_refused_as_a_whole_is_repeated_entry_by_entry(
    count: int, sizes: list[int], errors: int
) -> None:  # SPEC C6
    faults = [client_error("InvalidParameterValue", "one of them is odd")]
    with Wire(fails={CHANGE: lambda _: faults.pop() if faults else None}) as wire:
        lookups = lookups_in(wire)
        changes = [VisibilityChange(delivery_in(lookups, name), 60) for name in IDS[:count]]
        results = [*change_visibility(changes, lookups)]
    assert [len(request.entries) for request in wire.requests] == sizes
    assert ([result.change for result in results], sum(result.error is not None for result in results)) == (
        changes,
        errors,
    )
