"""Planning has no effects: the settlement plan is a pure function of the verdict and the facts passed in."""

from __future__ import annotations

import json
import logging
import re
from copy import copy
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tarry import (
    DeadLetter,
    Exponential,
    Failure,
    MemoryAttempts,
    Outcome,
    Reject,
    RetryInPlace,
    RetryPolicy,
    SendAgain,
    consumer,
)
from tarry.decide.decision import Decision, ask_steps, decide
from tarry.decide.steps import FailureSteps
from tarry.message.delivery import QueueFacts, StepContext
from tarry.message.diagnosis import diagnose
from tarry.message.invocation import Invocation
from tarry.message.message import Message, delivery_of
from tarry.message.outcomes import RUNS_ELSEWHERE
from tarry.record.attribute import Envelope
from tarry.settle.copies import CannotCopy, Copy, CopyWriter, NoDeadLetterQueue, record_cut
from tarry.settle.planner import (
    IN_PLACE,
    FactsNeeded,
    Planner,
    SettlementPlan,
    Situation,
    SizeLimit,
    Way,
    may_hop,
    seconds_until,
    waits_until,
    ways_of,
    why_it_could_not_wait,
)
from tarry.sqs.refusals import NoAnswer, OutOfTime, message_size
from tarry.support.values import PAGES, queue_arn
from tarry.world import World
from tests.records import record
from tests.wire import TestClock

if TYPE_CHECKING:
    from tarry.message.delivery import Delivery

NOW = 1_767_225_600.0
DEAD = queue_arn("arn:aws:sqs:us-east-1:123456789012:dead")
SLOW = queue_arn("arn:aws:sqs:us-east-1:123456789012:slow")
SOURCE = queue_arn("arn:aws:sqs:us-east-1:123456789012:orders")


class NotToBeUsed:
    """An object that fails the test on any use."""

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def __getattr__(self, attribute: str) -> Any:
        raise AssertionError(f"planning uses the {self.__dict__['name']}: {attribute}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"planning calls {self.__dict__['name']}")


def delivery_with_unusable_world(**fields: Any) -> Delivery:
    """Return a delivery whose clock, log and client must not be used."""
    log: Any = NotToBeUsed("log")
    invocation = Invocation(World(), None, lambda _: 5, log)
    invocation.started_at = NOW
    unusable: Any = NotToBeUsed("world")
    invocation.world = unusable
    for name in ("now", "time_left", "elapsed"):
        setattr(invocation, name, NotToBeUsed(name))
    sqs_record = record(**fields)
    return delivery_of(Message(sqs_record, sqs_record["messageId"], invocation))


def situation(limits: dict[Any, SizeLimit]) -> Situation:
    facts = QueueFacts(dead_letter=DEAD, max_receive_count=10, visibility_timeout=30, retention=345_600)
    return Situation(NOW + 1, lambda: 30.0, facts, limits, Random(7), diagnose)


def planned(delivery: Delivery, raised: BaseException, steps: FailureSteps, error: Exception | None) -> list[Any]:
    """Return all plans for a message, including the one that follows if the copy is refused with ``error``."""
    policy, planner = RetryPolicy(3, Exponential(10, jitter="full")), None
    decided = decide(delivery, None, raised, policy, NOW, diagnose=diagnose, tries=1)
    if isinstance(decided, Failure):
        context = StepContext(Random(7), lambda: 30.0)
        of_queue = steps.of(decided.queue)
        decided = ask_steps(decided, policy, of_queue, situation({}).source, context, diagnose)
    assert isinstance(decided, Decision)
    planner = Planner(policy, steps)
    limits: dict[Any, SizeLimit] = {}
    plans: list[SettlementPlan] = [planner.start(decided, situation(limits))]
    while plans[-1].needs is not None:
        limits[plans[-1].needs] = SizeLimit(262_144, is_known=True)
        plans.append(planner.go_on(plans[-1], situation(limits)))
    if error is not None and plans[-1].copy is not None:
        plans.append(planner.refused(plans[-1], error, situation(limits)))
    return plans


STEPS = FailureSteps([SendAgain("slow-lane", times=1, queue="slow", delay=60), RetryInPlace(), DeadLetter()])


@pytest.mark.parametrize(
    "raised", [ValueError("no"), Reject("no"), OSError("x" * 300_000)], ids=["error", "reject", "long"]
)
@pytest.mark.parametrize("receives", [1, 3, 10])
@pytest.mark.parametrize("error", [None, TimeoutError("SQS hangs")], ids=["sent", "refused"])
def test_planning_uses_no_clock_log_or_client_and_changes_no_message(
    raised: Exception, receives: int, error: Exception | None
) -> None:
    delivery = delivery_with_unusable_world(receives=receives)
    before = copy(delivery.__dict__)
    first = planned(delivery, raised, STEPS, error)
    assert delivery.__dict__ == before
    second = planned(delivery_with_unusable_world(receives=receives), raised, STEPS, error)
    assert [plan.decision.outcome for plan in first] == [plan.decision.outcome for plan in second]
    assert [plan.copy and plan.copy.variants for plan in first] == [plan.copy and plan.copy.variants for plan in second]


def test_a_plan_names_the_queue_whose_facts_it_needs_and_calls_no_step_or_hook_twice() -> None:
    calls: list[str] = []
    note: Any = calls.append
    resends: Any = lambda *_: note("step") or Outcome.resend("slow", 60)  # noqa: E731
    enriches = DeadLetter(enrich=lambda _: note("enrich") or {})
    waits: Any = lambda *_: Outcome.retry(43_200)  # noqa: E731
    redacts = DeadLetter(redact=lambda record: note("redact") or record)
    delivery = delivery_with_unusable_world()
    for steps, queue in (([resends], SLOW), ([enriches], DEAD), ([waits, redacts], delivery.source)):
        plans = planned(delivery, ValueError("no"), FailureSteps(steps), None)
        assert [plan.needs for plan in plans] == [queue, None]
        assert plans[-1].copy.target == queue
    assert calls == ["step", "enrich", "redact"]
    with pytest.raises(FactsNeeded, match="us-east-1:123456789012:slow"):
        situation({}).limit_of(SLOW)


def test_the_plan_after_a_refusal_depends_on_the_refusal() -> None:
    """At its last delivery, SQS would move the message without a record, so tarry dead-letters it instead."""
    steps = FailureSteps([SendAgain("slow-lane", queue="slow")])
    *_, sent, next_plan = planned(delivery_with_unusable_world(receives=10), ValueError("no"), steps, OSError("no"))
    assert (sent.copy.target, sent.needs) == (SLOW, None)
    assert (next_plan.needs, next_plan.copy) == (DEAD, None)
    assert next_plan.not_sent == ("slow: no (it may be there all the same)",)


# the ways of a message, and until when it waits

RETENTION = 345_600
FACTS = QueueFacts(dead_letter=DEAD, max_receive_count=10, visibility_timeout=30, retention=RETENTION)
LAST, MANY, FIFO = {"receives": 10}, {"hops": 11}, {"queue": "orders.fifo"}
STORE = {"attempt_store": MemoryAttempts()}
SOON = {"left": 4_000}
"""The message expires before a delay of 400 seconds ends, with the margin of an hour."""


def delivery_in(
    *, left: float = RETENTION, hops: int = 0, attempt_store: Any = None, received_ago: float = 0, **fields: Any
) -> Delivery:
    """Return a delivery of a message that expires ``left`` seconds after `NOW`, and was sent on ``hops`` times."""
    sent = {"SentTimestamp": str(int((NOW + left - RETENTION) * 1000))}
    sqs_record = record(received_at=NOW - received_ago, system=sent, **fields)
    invocation = Invocation(World(TestClock(NOW)), None, lambda _: 5, consumer(print).log)
    invocation.attempt_store = attempt_store
    delivery = delivery_of(Message(sqs_record, "m1", invocation))
    delivery.envelope = Envelope({"id": "m1", "hops": hops}, NOW) if hops else None
    return delivery


def names_of(ways: tuple[Way, ...]) -> str:
    return " ".join(way.name + "?" * way.only_if_refused for way in ways)


@pytest.mark.parametrize(
    ("outcome", "facts", "ways"),
    [
        (Outcome.unhandled(), {}, "in_place"),
        (Outcome.unhandled(), LAST, "last_resort in_place"),
        (Outcome.unhandled(), SOON, "copy_waits expiring? in_place"),
        (Outcome.unhandled(), {**SOON, **LAST}, "copy_waits last_resort expiring? in_place"),
        (Outcome.unhandled(), {**SOON, **FIFO}, "expiring expiring? in_place"),
        (Outcome.retry(399), SOON, "in_place"),
        (Outcome.retry(400), SOON, "copy_waits expiring? in_place"),
        (Outcome.retry(399), {**SOON, **FIFO}, "in_place"),
        (Outcome.retry(402), {**SOON, **FIFO}, "expiring expiring? in_place"),
        (Outcome.retry(43_198), {}, "in_place"),
        (Outcome.retry(43_199), {}, "copy_waits in_place"),
        (Outcome.retry(43_200), {}, "copy_waits in_place"),
        (Outcome("retry", 43_201), {}, "in_place"),
        (Outcome.retry(43_200), FIFO, "in_place"),
        (Outcome.retry(60), {**FIFO, **LAST}, "last_resort in_place"),
        (Outcome.dead_letter("fatal"), {}, "as_decided in_place"),
        (Outcome.dead_letter("fatal"), LAST, "as_decided last_resort in_place"),
        (Outcome.dead_letter("fatal"), SOON, "as_decided copy_waits? in_place"),
        (Outcome.dead_letter("fatal"), {**SOON, **FIFO}, "as_decided expiring? in_place"),
        (Outcome.resend("slow", 60), {**SOON, **LAST}, "as_decided last_resort copy_waits? in_place"),
        (Outcome.defer(60), {}, "copy_waits in_place"),
        (Outcome.defer(60), {"hops": 10}, "copy_waits in_place"),
        (Outcome.defer(60), MANY, "in_place"),
        (Outcome.defer(60), {**MANY, **LAST}, "last_resort in_place"),
        (Outcome.defer(60), FIFO, "in_place"),
        (Outcome.defer(60), STORE, "in_place"),
        (Outcome.defer(43_198), STORE, "in_place"),
        (Outcome.defer(43_199), STORE, "copy_waits in_place"),
        (Outcome.defer(60), {**STORE, "most": 1}, "copy_waits last_resort in_place"),
        (Outcome.wait(60), {}, "in_place"),
        (Outcome.wait(60), MANY, "in_place"),
        (Outcome.wait(60), LAST, "copy_waits last_resort in_place"),
        (Outcome.wait(402), SOON, "copy_waits in_place"),
        (Outcome.wait(402), {**SOON, **MANY}, "expiring in_place"),
        (Outcome.wait(60), {**LAST, **MANY}, "last_resort in_place"),
        (Outcome("wait", 60, RUNS_ELSEWHERE), LAST, "in_place"),
        (Outcome("wait", 402, RUNS_ELSEWHERE), SOON, "copy_waits in_place"),
        (Outcome("wait", 402, RUNS_ELSEWHERE), {**SOON, **MANY}, "in_place"),
        (Outcome("wait", 402, RUNS_ELSEWHERE), {**SOON, **FIFO}, "in_place"),
        (Outcome("retry", 402, RUNS_ELSEWHERE), {**SOON, **LAST}, "copy_waits last_resort expiring? in_place"),
    ],
    ids=lambda value: re.sub(" at 0x\\w+", "", repr(value)),
)
def test_the_ways_of_a_message(outcome: Outcome, facts: dict[str, Any], ways: str) -> None:  # SPEC C6, C8, C10, F4, J5
    given = {**facts}
    queue = FACTS._changed(max_receive_count=given.pop("most", 10))
    decision = Decision(delivery_in(**given), outcome, NOW)
    assert names_of(ways_of(decision, queue, 900, NOW + 1)) == ways


def test_the_delay_of_a_backoff_is_cut_to_what_sqs_can_keep_and_expiry_to_the_delay_that_is_left() -> None:  # SPEC C6
    decision = Decision(delivery_in(), Outcome.retry(43_200), NOW, by_backoff=True)
    assert names_of(ways_of(decision, FACTS, 900, NOW + 1)) == "in_place"
    late = Decision(delivery_in(left=10_000, received_ago=43_000), Outcome.retry(30_000), NOW, by_backoff=True)
    assert names_of(ways_of(late, FACTS, 900, NOW + 1)) == "in_place"


@pytest.mark.parametrize(("reason", "ways"), [("error", "in_place"), ("expiring", "copy_waits expiring? in_place")])
def test_after_a_failed_step_a_message_that_may_not_wait_is_copied(reason: str, ways: str) -> None:  # SPEC C10
    delivery = delivery_in()
    failure = Failure(delivery.message, None, reason, failed_at=NOW)
    assert names_of(ways_of(Decision(delivery, Outcome.unhandled(), NOW, failure), FACTS, 900, NOW + 1)) == ways
    assert names_of(ways_of(Decision(delivery, Outcome.retry(1), NOW, failure), FACTS, 900, NOW + 1)) == "in_place"


def test_where_recursion_is_allowed_hops_are_unlimited(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC J5
    monkeypatch.setenv("TARRY_RECURSIVE_LOOP", "Allow")
    assert may_hop(delivery_in(hops=900))


@pytest.mark.parametrize(
    ("outcome", "until", "waits"),
    [
        (Outcome.retry(60), None, 60),
        (Outcome.retry(60), NOW + 45.5, 45.5),
        (Outcome.retry(60), NOW - 5, 0),
        (Outcome.retry(), None, 0),
        (Outcome.defer(60), NOW - 5, 1),
        (Outcome.wait(60), NOW - 5, 0),
        (Outcome.unhandled(), None, 900),
        (Outcome.dead_letter("fatal"), NOW + 5, 900),
    ],
    ids=repr,
)
def test_a_delay_is_counted_from_the_verdict(outcome: Outcome, until: float | None, waits: float) -> None:  # SPEC C11
    assert waits_until(Decision(delivery_in(), outcome, NOW, until=until), 900) == NOW + waits


@pytest.mark.parametrize(
    ("outcome", "more", "seconds"),
    [
        (Outcome.release(), {}, 0),
        (Outcome.retry(60), {}, 50),
        (Outcome.retry(60), {"late_delay": 20.0}, 50),
        (Outcome.unhandled(), {}, 900),
        (Outcome.unhandled(), {"late_delay": 60.0}, 50),
        (Outcome.unhandled(), {"may_be_sent": True}, 240),
        (Outcome.unhandled(), {"late_delay": 60.0, "may_be_sent": True}, 50),
        (Outcome.retry(5), {}, 0),
        (Outcome.retry(43_199), {}, 43_189),
        (Outcome.retry(43_200), {}, 43_189),
    ],
    ids=repr,
)
def test_for_how_long_a_message_waits_in_its_queue(outcome: Outcome, more: Any, seconds: int) -> None:  # SPEC C6, C8
    decision = Decision(delivery_in(), outcome, NOW)
    plan = SettlementPlan(decision, decision, (IN_PLACE,), **more)
    planner = Planner(RetryPolicy(3, Exponential(10)), FailureSteps([]))
    assert planner.seconds_in_place(plan, None, NOW + 10) == seconds
    assert planner.seconds_in_place(plan, FACTS, NOW + 10) == seconds
    assert [seconds_until(NOW + wait, NOW) for wait in (-1, 0, 0.0005, 0.002, 1.0005, 1.002)] == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize(("left", "seconds"), [(1_010, 500), (130, 60), (20, 60), (20_000, 900)])
def test_a_message_that_would_expire_comes_back_halfway(left: float, seconds: int) -> None:  # SPEC C10
    decision = Decision(delivery_in(left=left), Outcome.unhandled(), NOW)
    plan = SettlementPlan(decision, decision, (IN_PLACE,))
    planner = Planner(RetryPolicy(3, Exponential(10)), FailureSteps([]))
    assert planner.seconds_in_place(plan, FACTS, NOW + 10) == seconds
    assert planner.asked_for(decision) == 900


@pytest.mark.parametrize(
    ("outcome", "way", "why"),
    [
        (
            Outcome.wait(60), "last_resort",
            "sent with a delay; 60 s of it were left when the queue was about to delete or move the message, which "
            "could not be sent again",
        ),
        (Outcome.defer(60), "expiring", "deferred for 60 s before it would expire, and could not be sent again"),
        (
            Outcome.defer(0.5), "last_resort",
            "deferred for 1 s at the queue's last delivery (maxReceiveCount), and could not be sent again",
        ),
        (Outcome.unhandled(), "last_resort", None),
    ],
    ids=repr,
)  # fmt: skip
def test_why_a_message_that_has_not_failed_is_dead_lettered(outcome: Outcome, way: Any, why: str | None) -> None:
    decision = Decision(delivery_in(), outcome, NOW)
    assert why_it_could_not_wait(decision, Way(way)) == why


def test_a_plan_remembers_why_its_ways_have_failed() -> None:  # SPEC C8
    decision = Decision(delivery_in(), Outcome.unhandled(), NOW)
    plan = SettlementPlan(decision, decision, (Way("copy_waits"), Way("last_resort"), IN_PLACE))
    late = plan.failed("late", 5.0).failed("late", 7.0)
    assert (late.not_sent, late.late_delay, late.is_stuck, late.ways) == (("late",), 7.0, True, (IN_PLACE,))
    refused = plan.failed("refused").failed("late", 7.0)
    assert (refused.not_sent, refused.late_delay) == (("refused", "late"), None)
    assert not plan.failed("refused").is_stuck
    assert (plan.is_done, plan.may_be_sent, plan.is_refused, plan.sends_copy) == (False, False, True, False)
    assert plan.changed(needs=SLOW).sends_copy


TRACED = {"runs": {1}, "deliveries": {1}}


@pytest.mark.parametrize(
    ("receives", "stored", "outcome", "most", "is_spent"),
    [
        (5, TRACED, Outcome.retry(60), 5, True),
        (4, TRACED, Outcome.retry(60), 5, False),
        (5, TRACED, Outcome.retry(60), None, False),
        (5, TRACED, Outcome.defer(60), 5, False),
        (5, {"runs": {1, 2, 3, 4}, "deliveries": {1, 2, 3, 4}}, Outcome.retry(60), 5, False),  # its attempts are known
        (5, None, Outcome.retry(60), 5, False),
    ],
    ids=repr,
)
def test_a_run_that_cannot_be_recorded_is_the_last_if_crashes_may_have_been_the_other_attempts(
    receives: int, stored: Any, outcome: Outcome, most: int | None, is_spent: bool
) -> None:  # SPEC O4
    delivery = delivery_in(receives=receives)
    delivery.stored, delivery.invocation.max_attempts_of = stored, lambda _: most
    planner = Planner(RetryPolicy(5, Exponential(10)), FailureSteps([]))
    failure = Failure(delivery.message, ValueError("no"), "error", failed_at=NOW)
    decisions = [Decision(delivery, outcome, NOW, each) for each in (failure, None)]
    plans = [SettlementPlan(each, each, (IN_PLACE,)) for each in decisions]
    assert [planner.is_spent_untraced(plan) for plan in plans] == [is_spent, False]


@pytest.mark.parametrize(
    ("error", "late_delay"), [(OutOfTime("no time left"), 20), (OSError("no"), None), (NoAnswer("no answer"), 20)]
)
@pytest.mark.parametrize("has_failed", [True, False])
def test_a_message_that_there_was_no_time_to_send_waits_for_its_backoff(
    error: Exception, late_delay: float | None, has_failed: bool
) -> None:  # SPEC C8
    delivery, limits = delivery_in(receives=2), {DEAD: SizeLimit(262_144, is_known=True)}
    failure = Failure(delivery.message, ValueError("no"), "fatal", failed_at=NOW)
    outcome = Outcome.dead_letter("fatal") if has_failed else Outcome.defer(60)
    limits[delivery.source] = limits[DEAD]
    decision = Decision(delivery, outcome, NOW, failure if has_failed else None)
    planner = Planner(RetryPolicy(5, Exponential(10)), FailureSteps([]))
    plan = planner.refused(planner.start(decision, situation(limits)), error, situation(limits))
    assert (plan.late_delay, plan.ways) == (late_delay if has_failed else None, (IN_PLACE,))
    assert plan.tried == {DEAD if has_failed else delivery.source}
    assert (plan.is_refused, plan.may_be_sent, plan.is_stuck) == (False, False, False)


@pytest.mark.parametrize(
    ("answer", "untraced", "does_not_fit"),
    [
        (Outcome.again(0), "unhandled", "unhandled"),
        (Outcome.resend("slow", 60), "resend", "unhandled"),
        (Outcome.retry(60), "retry", "retry"),
        (Outcome.dead_letter("fatal"), "dead_letter", "dead_letter"),
    ],
    ids=repr,
)
def test_steps_that_are_asked_once_more_cannot_have_the_message_run_or_sent_again_if_that_is_impossible(
    answer: Outcome, untraced: str, does_not_fit: str
) -> None:  # SPEC E3, E6
    delivery, planner = delivery_in(), Planner(RetryPolicy(5), FailureSteps([lambda *_: answer]))
    failure = Failure(delivery.message, ValueError("no"), "error", failed_at=NOW)
    limits = dict.fromkeys((DEAD, SLOW, delivery.source), SizeLimit(262_144, is_known=True))
    retry, resend = (Decision(delivery, each, NOW, failure) for each in (Outcome.retry(1), Outcome.resend(body="")))
    again = planner.untraced(SettlementPlan(retry, retry, (IN_PLACE,)), situation(limits))
    assert (again.decided.outcome.kind, again.is_done, again.notices) == (untraced, False, ())
    passed_on = planner.start(resend, situation(limits))
    assert (passed_on.decided.outcome.kind, passed_on.is_done) == (does_not_fit, False)
    assert [notice.event for notice in passed_on.notices] == ["step_passed_on"]


# copies

AT = "2026-01-01T00:00:00.000Z"
AT_SIXTEEN = "Lambda stops at about 16, unless RecursiveLoop is Allow."
BASE = {"v": 1, "sum": "44136fa355b3678a", "id": "m1", "origin": SOURCE.text, "sent": AT}


def writer(limit: int = 262_144, *, is_known: bool = True, steps: Any = ()) -> CopyWriter:
    limits = dict.fromkeys((DEAD, SLOW, SOURCE), SizeLimit(limit, is_known))
    return CopyWriter(FailureSteps([*steps]), situation(limits))


def failure_of(delivery: Delivery) -> Failure:
    return Failure(delivery.message, ValueError("bad"), "error", failed_at=NOW)


def record_of(made: Copy, variant: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.variants[variant]["Tarry"]["StringValue"])
    return found


def test_a_dead_letter_has_as_much_of_its_record_as_fits_and_none_if_nothing_fits() -> None:  # SPEC F3
    failure, dead = failure_of(delivery_in()), Outcome.dead_letter("fatal")

    def made(limit: int, **more: Any) -> tuple[Copy, list[str]]:
        return (of := writer(limit, **more)).dead_letter(failure, dead, NOW), [each.event for each in of.notices]

    whole = made(262_144)[0]
    assert (whole.body, whole.target, whole.delay, whole.until) == ("{}", DEAD, 0, None)
    assert record_of(whole)["failure"]["reason"] == "fatal"
    size = whole.size
    for limit, room in ((size, 0), (size + 7, 7)):
        copy, notices = made(limit)
        assert (copy.variants, copy.room, copy.record, notices) == (whole.variants, room, record_of(whole), [])
    cut, notices = made(size - 1)
    assert (cut.size < size, cut.record, notices) == (True, None, ["record_cut"])
    for limit in (2, 50):
        without, notices = made(limit)
        assert (without.variants, without.room, without.record, notices) == ([{}], 0, None, ["record_in_log"])
    with pytest.raises(NoDeadLetterQueue, match="it has 2 bytes, and dead accepts 1: raise its MaximumMessageSize"):
        made(1)
    unknown, _ = made(262_144, is_known=False)
    assert [*unknown.variants] == [whole.variants[0], unknown.variants[1], {}]
    assert (record_of(unknown, 1)["failure"].keys(), unknown.room) == ({"reason", "attempts", "failed_at"}, 0)
    assert unknown.size == size
    least, _ = made(message_size("{}", unknown.variants[1]), is_known=False)
    assert [*least.variants] == [unknown.variants[1], {}]  # none is lighter


def test_a_record_without_a_body_is_sent_on_only_with_another_one() -> None:  # SPEC E3
    delivery = delivery_in()
    del delivery.record["body"]
    failure, decisions = failure_of(delivery), [Decision(delivery, Outcome.resend(), NOW, failure_of(delivery))]
    decisions.append(Decision(delivery, Outcome.resend(body="[]"), NOW, failure))
    for make in (
        lambda: writer().dead_letter(failure, Outcome.dead_letter("fatal"), NOW),
        lambda: writer().resend(failure, decisions[0]),
        lambda: writer().waiting(decisions[0], NOW),
    ):
        with pytest.raises(NoDeadLetterQueue, match="its record has no body to send"):
            make()
    assert writer().resend(failure, decisions[1]).body == "[]"


@pytest.mark.parametrize(("count", "name", "fits"), [(9, "a", True), (10, "a", False), (1, "Tarry", False)])
def test_a_copy_has_its_record_or_is_not_sent(count: int, name: str, fits: bool) -> None:  # SPEC E6, F3
    given = {f"{name}{n}" if n else name: {"dataType": "String", "stringValue": "x"} for n in range(count)}
    delivery = delivery_in(attributes=given)
    decision = Decision(delivery, Outcome.resend("slow", 60), NOW, failure_of(delivery))
    dead_letter = writer().dead_letter(decision.failure, decision.outcome, NOW)  # type: ignore[arg-type]
    if fits:
        assert {*writer().resend(decision.failure, decision).variants[0]} == {*given, "Tarry"}  # type: ignore[arg-type]
        assert {*dead_letter.variants[0]} == {*given, "Tarry"}
        return
    for make in (lambda: writer().resend(decision.failure, decision), lambda: writer().waiting(decision, NOW)):  # type: ignore[arg-type]
        with pytest.raises(CannotCopy, match="there is no space for its Tarry attribute"):
            make()
    assert {*dead_letter.variants[0]} == {*given}


@pytest.mark.parametrize(
    ("changes", "delay", "until", "fields"),
    [
        ({"queue": "slow", "delay": 60, "note": {"n": 1}}, 59, 60, {"steps": {"n": 1}}),
        ({"queue": "slow", "delay": 901}, 900, 901, {}),
        ({"queue": "slow", "delay": 902}, 900, 902, {"due": NOW + 902}),  # a second has passed since the verdict
        ({}, None, None, {}),
        ({"body": "{}", "attributes": {"a": "b"}}, None, None, {}),
        ({"body": "[]"}, None, None, {"sum": "4f53cda18c2baa0c", "edited": "2026-01-01T00:00:01.000Z"}),
        ({"attributes": {}}, None, None, {"edited": "2026-01-01T00:00:01.000Z"}),
        ({"queue": "slow.fifo", "delay": None}, None, None, {}),
    ],
    ids=repr,
)
def test_a_copy_carries_the_attempts_and_when_it_is_due(
    changes: dict[str, Any], delay: int | None, until: float | None, fields: dict[str, Any]
) -> None:  # SPEC E3, E6, J4
    delivery = delivery_in(receives=3, attributes={"a": {"dataType": "String", "stringValue": "b"}})
    failure, outcome = (
        failure_of(delivery),
        Outcome.resend(changes.pop("queue", None), changes.pop("delay", None), **changes),
    )
    of = writer()
    limits: Any = of._situation.limits
    limits[queue_arn(f"{SLOW.text}.fifo")] = limits[SLOW]
    copy = of.resend(failure, Decision(delivery, outcome, NOW, failure))
    found = record_of(copy)
    history, failed = found.pop("history"), found.pop("failure")
    assert found == {**BASE, "carried": 3, "hops": 1, **fields}
    assert (copy.delay, copy.until) == (delay, until and NOW + until)
    assert (copy.body, failed["attempts"]) == (changes.get("body", "{}"), 3)
    assert [entry.get("delay") for entry in history] == [outcome.delay]
    assert ("a" in copy.variants[0]) == (changes.get("attributes", {"a"}) != {})


@pytest.mark.parametrize(
    ("outcome", "until", "due", "delay", "fields", "waits"),
    [
        (Outcome.defer(60), 60, None, 59, {"carried": 4}, None),
        (Outcome.wait(60), 60, 60, 59, {"carried": 4}, None),
        (Outcome.wait(43_200), 43_200, 50_000, 900, {"carried": 4, "due": NOW + 50_000}, None),  # as it was sent
        (Outcome("wait", 60, RUNS_ELSEWHERE), 60, None, 59, {"carried": 4}, None),
        (Outcome.retry(5_000), 5_000, None, 900, {"carried": 5, "due": NOW + 5_000}, 5_000),
        (Outcome.retry(0), 0.5, None, 0, {"carried": 5}, 1),
        (Outcome.unhandled(), -1, None, 0, {"carried": 5}, 0),
    ],
    ids=repr,
)
def test_a_copy_that_waits_carries_the_attempts_before_this_one_unless_it_has_failed(
    outcome: Outcome, until: float, due: float | None, delay: int, fields: dict[str, Any], waits: int | None
) -> None:  # SPEC C2, J4, J5
    delivery, failed = delivery_in(receives=3), outcome.kind in ("retry", "unhandled")
    envelope = {"id": "m1", "carried": 2, "hops": 3, **({} if due is None else {"due": NOW + due})}
    delivery.envelope = Envelope({"v": 1, **envelope}, NOW)
    carried = fields["carried"] - (due is not None)  # its first receive only hid it
    decision = Decision(delivery, outcome, NOW, failure_of(delivery) if failed else None)
    found = record_of(copy := writer().waiting(decision, NOW + until))
    history, failure = found.pop("history", []), found.pop("failure", None)
    assert found == {**BASE, **fields, "carried": carried, "hops": 4}
    assert (copy.delay, copy.until, copy.target, copy.body) == (delay, NOW + until, SOURCE, "{}")
    assert ([entry["delay"] for entry in history], failure is not None) == ([] if waits is None else [waits], failed)


def test_the_log_says_what_a_copy_lacks_and_which_hook_has_failed() -> None:  # SPEC F3, F6
    def raises(_: Any) -> Any:
        raise KeyError

    def unreadable(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "failure": {"message": 7}}

    attribute = {"dataType": "String", "stringValue": "x"}
    delivery = delivery_in(attributes={"AWS.a": attribute, "Amazon.b": attribute, "c": attribute})
    texts, records = list[tuple[str, str]](), list[dict[str, Any]]()
    for options in ({}, {"enrich": raises}, {"redact": raises}, {"redact": unreadable}, {"enrich": lambda _: {"a": 1}}):
        of = writer(steps=[DeadLetter(**options)])  # type: ignore[arg-type]
        copy = of.dead_letter(failure_of(delivery), Outcome.dead_letter("fatal"), NOW)
        records.append(record_of(copy))
        texts += [(notice.event, notice.text) for notice in of.notices if notice.level == logging.ERROR]
        left_out = [notice.text for notice in of.notices if notice.level == logging.WARNING]
        assert left_out == [
            "Copied without the attributes AWS.a, Amazon.b: SQS refuses names that begin with AWS. or Amazon."
        ]
        assert {*copy.variants[0]} == {"c", "Tarry"}
    only = "Only the ids, the reason and the type are kept."
    assert texts == [
        ("enrich_failed", "DeadLetter's enrich raised, or returned no JSON (KeyError). The dead letter has no extra."),
        ("redact_failed", f"DeadLetter's redact raised (KeyError). {only}"),
        (
            "redact_failed",
            f"DeadLetter's redact returned an invalid record (tarry.record.attribute.UnreadableRecord). {only}",
        ),
    ]
    plain, without_extra, *least, with_extra = records
    assert (without_extra, with_extra) == (plain, {**plain, "extra": {"a": 1}})
    failed = {name: plain["failure"][name] for name in ("reason", "attempts", "failed_at", "type")}
    assert least == [{**BASE, "failure": failed}] * 2


def test_the_log_has_the_whole_record_or_its_least_part() -> None:  # SPEC F3
    record = {**BASE, "failure": {"reason": "error", "attempts": 1, "message": "x" * 70_000}}
    shown: Any = record_cut(record)
    assert (shown.event, shown.level) == ("record_cut", logging.WARNING)
    assert 60_000 < len(shown.more["record"]["failure"]["message"]) < 65_536
    too_large = {**BASE, "steps": {str(n): n for n in range(20_000)}, "failure": {"reason": "error", "message": "no"}}
    assert record_cut(too_large).more["record"] == {**too_large, "failure": {"reason": "error"}}  # type: ignore[index]


@pytest.mark.parametrize(
    ("outcome", "failed", "way", "reason", "text"),
    [
        (Outcome.resend("slow"), "exhausted", "last_resort", "exhausted", "bad"),
        (Outcome.dead_letter("mine", "slow"), "error", "last_resort", "mine", "bad"),
        (Outcome.unhandled(), "error", "expiring", "expiring", "bad"),
        (Outcome.defer(60), None, "last_resort", "expiring", "deferred for 60 s at the queue's last delivery"),
        (Outcome("defer", 60, "circuit_open"), None, "last_resort", "expiring", "deferred for 60 s"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_message_that_sqs_would_move_or_delete_is_dead_lettered_for_the_reason_of_its_failure(
    outcome: Outcome, failed: str | None, way: Any, reason: str, text: str
) -> None:  # SPEC C8, C10
    delivery = delivery_in()
    failure = failed and Failure(delivery.message, ValueError("bad"), failed, failed_at=NOW)
    decision = Decision(delivery, outcome, NOW, failure or None)
    planner, limits = Planner(RetryPolicy(5), FailureSteps([])), {DEAD: SizeLimit(262_144, is_known=True)}
    plan = SettlementPlan(decision, decision, (Way(way), IN_PLACE))
    dead = planner.go_on(plan, situation(limits))
    assert (dead.decided, dead.decision.outcome) == (decision, Outcome.dead_letter(reason))
    assert dead.copy is not None
    found = record_of(dead.copy)["failure"]
    assert (found["reason"], found["message"][: len(text)]) == (reason, text)
    again = planner.go_on(plan.changed(tried=frozenset([DEAD])), situation(limits))
    assert (again.copy, again.ways, again.not_sent) == (None, (IN_PLACE,), ())


@pytest.mark.parametrize(
    ("outcome", "left", "hops", "texts"),
    [
        (Outcome.resend("slow"), RETENTION, 10, []),
        (Outcome.resend("slow"), RETENTION, 11, [f"The message was sent again 12 times. {AT_SIXTEEN}"]),
        (Outcome.dead_letter("fatal"), RETENTION, 20, []),
        (Outcome.retry(400), 4_000, 10, []),
        (Outcome.retry(400), 4_000, 20, [f"The message was sent again 21 times. {AT_SIXTEEN}"]),
        (Outcome.defer(60), RETENTION, 10, []),
        (Outcome.defer(60), RETENTION, 11, ["The message was sent again 11 times, so it is deferred in place: Lambda "
         f"stops a function at about 16. See RecursiveLoop in {PAGES}/reference/permissions.md."]),
    ],
    ids=repr,
)  # fmt: skip
def test_from_the_twelfth_hop_the_log_says_that_lambda_stops_such_a_loop(
    outcome: Outcome, left: float, hops: int, texts: list[str]
) -> None:  # SPEC E8, J5
    delivery = delivery_in(left=left, hops=hops)
    limits = dict.fromkeys((DEAD, SLOW, SOURCE), SizeLimit(262_144, is_known=True))
    decision = Decision(delivery, outcome, NOW, failure_of(delivery))
    plan = Planner(RetryPolicy(5), FailureSteps([])).start(decision, situation(limits))
    assert [(notice.event, notice.text) for notice in plan.notices] == [("many_hops", text) for text in texts]
