"""Settling messages: what happens early, who waits for whom, leases, and the records of an attempt store."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import AttemptChange, DeadLetter, Exponential, Failure, MemoryAttempts, Outcome, RetryPolicy, consumer
from tarry.decide.decision import Decision
from tarry.decide.steps import FailureSteps
from tarry.errors import ProcessCrashed
from tarry.message.delivery import Delivery, QueueFacts
from tarry.message.invocation import Invocation
from tarry.message.message import Message, delivery_of
from tarry.record.attribute import Envelope
from tarry.settle.attempts import Tracking, _what_to_do, change_of, start_of
from tarry.settle.copies import Copy, NoDeadLetterQueue, dead_letter_queue
from tarry.settle.extending import Keepalive
from tarry.settle.requests import extension, lease_end, prolongation, spread
from tarry.settle.settlement import Settlement
from tarry.settle.table_answers import patience
from tarry.support.values import QueueArn, queue_arn
from tarry.world import World
from tests.records import RECEIVED_AT, Context, record
from tests.wire import Queue, TestClock, Wire, arn

NOW = RECEIVED_AT


def invocation_in(world: World, remaining: float = 30) -> Invocation:
    return Invocation(world, Context(remaining), lambda _: None, consumer(print).log)


def delivery_of_age(seconds: float = 0, remaining: float = 30, **fields: Any) -> Delivery:
    """Return the delivery of a message that was received ``seconds`` before its invocation, which begins at `NOW`."""
    invocation = invocation_in(World(TestClock(NOW)), remaining)
    return delivery_of(Message(record(received_at=NOW - seconds, **fields), "m1", invocation))


def settlement_in(wire: Wire) -> Settlement:
    invocation = invocation_in(wire.world)
    return Settlement(invocation, RetryPolicy(3, Exponential(10)), FailureSteps([]), invocation.log)


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


def test_a_message_that_is_settled_early_waits_for_an_extension_by_keepalive_in_progress() -> None:  # SPEC I4
    with Wire(queues={"orders": Queue()}) as wire:
        settlement, waits = settlement_in(wire), list[float]()
        invocation = settlement.lookups.requests.invocation
        invocation.keepalive_idle = SimpleNamespace(wait=waits.append)
        open_, settled = (invocation.delivery(each, record(message_id=each)) for each in ("m1", "m2"))
        settled.is_settled = True
        settlement.executor.give_up([open_, settled])
    assert (waits, open_.is_given_up, settled.is_given_up) == ([2.0], True, False)


@pytest.mark.parametrize(
    ("dead_letter", "origin", "text"),
    [
        ("orders", None, "its dead-letter queue orders is the queue it is in: name another one"),
        ("old", "old", "its dead-letter queue old is the queue it was dead-lettered from before: name another one"),
    ],
)
def test_the_error_says_why_a_dead_letter_queue_cannot_be_used(dead_letter: str, origin: Any, text: str) -> None:
    delivery = delivery_of_age()
    if origin:
        delivery.envelope = Envelope({"id": "m1", "origin": arn(origin), "failure": {}}, NOW)
    with pytest.raises(NoDeadLetterQueue) as caught:
        dead_letter_queue(delivery, None, QueueFacts(dead_letter=queue_arn(arn(dead_letter))))
    assert str(caught.value) == text
    assert dead_letter_queue(delivery, "other", QueueFacts()) == QueueArn(arn("other"))
    delivery.envelope = Envelope({"id": "m1", "origin": arn("old"), "failure": {}, "hops": 1}, NOW)  # a deferred copy
    assert dead_letter_queue(delivery, "old", QueueFacts()) == QueueArn(arn("old"))


@pytest.mark.parametrize(("began_with", "left", "messages"), [(30, 1.5, 500), (30, 0.5, 0), (2, 0.3, 100)])
def test_settling_leaves_half_a_second_for_the_response_and_a_twentieth_of_a_short_invocation(
    began_with: float, left: float, messages: int
) -> None:  # SPEC I2
    invocation = invocation_in(World(clock := TestClock(NOW)), began_with)
    settlement = Settlement(invocation, RetryPolicy(), FailureSteps([]), invocation.log)
    clock.sleep(began_with - left)
    assert settlement._affordable() == pytest.approx(messages, abs=1)


@pytest.mark.parametrize(
    ("delay", "until", "seconds"),
    [(None, None, None), (None, 60, None), (30, None, 30), (900, 600, 590), (900, 5_000, 900), (30, 5, 0)],
)
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


def test_the_crash_of_a_message_that_runs_again_is_in_its_history_with_no_delay() -> None:
    delivery = delivery_of_age()
    assert delivery.crashes is None
    delivery.invocation.attempt_store = MemoryAttempts()
    assert delivery.crashes == 0  # a first delivery has none that is known
    delivery = delivery_of_age(receives=2)
    crash = Failure(delivery.message, ProcessCrashed("no"), "error", failed_at=NOW)
    change = start_of(delivery, crash, DeadLetter(), delivery.invocation.log)
    assert [entry["delay"] for entry in change.fields["history"]] == [0]


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


@pytest.mark.parametrize(("waited", "seconds"), [(0.0, 0.5), (0.375, 0.125), (0.75, -0.25)])
def test_handlers_wait_for_half_a_second_in_all_for_the_starts_of_their_messages(waited: float, seconds: float) -> None:
    asked, invocation = list[float](), invocation_in(World())  # SPEC O4
    tracking = Tracking(MemoryAttempts(), invocation, invocation.log)
    tracking._waited = waited
    tracking._answers = lambda works, most, **_: asked.append(most) or [None for _ in works]
    delivery = invocation.delivery("m1", record())
    assert tracking.start(delivery, change_of(delivery, "start", NOW), {"m1"})
    assert asked == [seconds]
    assert _what_to_do(OSError("x" * 600)) == f"failed ({'x' * 500})."


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
    tracking.write({"m1": change_of(invocation.delivery("m1", record()), "seen", NOW)})
    assert (len(written), invocation.attempt_store_fails) == (is_asked, not is_asked)
