"""Planning has no effects: what a message's verdict leads to is a function of what is handed in."""

from __future__ import annotations

from copy import copy
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tarry import DeadLetter, Exponential, Failure, Outcome, Reject, RetryInPlace, RetryPolicy, SendAgain
from tarry.invocation import Invocation
from tarry.message import Message, delivery_of
from tarry.policy.decision import Decision, ask_steps, decide
from tarry.policy.failure import StepContext
from tarry.policy.step_lists import FailureSteps
from tarry.settlement.facts import Situation, SizeLimit
from tarry.settlement.planner import Planner
from tarry.sqs.queue_facts import QueueFacts
from tarry.support.arn import queue_arn
from tarry.telemetry.diagnosis import diagnose
from tarry.world import World
from tests.records import record

if TYPE_CHECKING:
    from tarry.delivery import Delivery
    from tarry.settlement.plans import SettlementPlan

NOW = 1_767_225_600.0
DEAD = queue_arn("arn:aws:sqs:us-east-1:123456789012:dead")
SLOW = queue_arn("arn:aws:sqs:us-east-1:123456789012:slow")


class Untouchable:
    """Fails the test at any use."""

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def __getattr__(self, attribute: str) -> Any:
        raise AssertionError(f"planning uses the {self.__dict__['name']}: {attribute}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"planning calls {self.__dict__['name']}")


def untouchable_delivery(**fields: Any) -> Delivery:
    """A delivery whose clock, log and client must not be used."""
    log: Any = Untouchable("log")
    invocation = Invocation(World(), None, lambda _: 5, log)
    invocation.started_at = NOW
    untouchable: Any = Untouchable("world")
    invocation.world = untouchable
    for name in ("now", "time_left", "elapsed"):
        setattr(invocation, name, Untouchable(name))
    given = record(**fields)
    return delivery_of(Message(given, given["messageId"], invocation))


def situation(limits: dict[Any, SizeLimit]) -> Situation:
    facts = QueueFacts(dead_letter=DEAD, max_receive_count=10, visibility_timeout=30, retention=345_600)
    return Situation(NOW + 1, lambda: 30.0, facts, limits, Random(7), diagnose)


def planned(delivery: Delivery, raised: BaseException, steps: FailureSteps, error: Exception | None) -> list[Any]:
    """All that is decided and planned for a message: until the copy is refused with ``error``, and what follows."""
    policy, planner = RetryPolicy(3, Exponential(10, jitter="full")), None
    decided = decide(delivery, None, raised, policy, NOW, diagnose=diagnose)
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
    delivery = untouchable_delivery(receives=receives)
    before = copy(delivery.__dict__)
    first = planned(delivery, raised, STEPS, error)
    assert delivery.__dict__ == before
    again = planned(untouchable_delivery(receives=receives), raised, STEPS, error)
    assert [plan.decision.outcome for plan in first] == [plan.decision.outcome for plan in again]
    assert [plan.copy and plan.copy.variants for plan in first] == [plan.copy and plan.copy.variants for plan in again]


def test_a_plan_names_the_queue_whose_facts_it_needs_and_asks_no_step_twice() -> None:
    asked: list[str] = []

    def step(failure: Failure, next_step: Any) -> Outcome:
        asked.append(failure.reason)
        return Outcome.resend("slow", 60)

    plans = planned(untouchable_delivery(), ValueError("no"), FailureSteps([step]), None)
    assert [plan.needs for plan in plans] == [SLOW, None]
    assert plans[-1].copy is not None
    assert plans[-1].copy.target == SLOW
    assert asked == ["error"]


def test_the_hooks_of_a_dead_letter_are_called_once_it_is_known_how_large_it_may_be() -> None:
    enriched: list[Failure] = []

    def enrich(failure: Failure) -> dict[str, Any]:
        enriched.append(failure)
        return {}

    steps = FailureSteps([DeadLetter(enrich=enrich)])
    plans = planned(untouchable_delivery(), ValueError("no"), steps, None)
    assert [plan.needs for plan in plans] == [DEAD, None]
    assert len(enriched) == 1


def test_what_follows_a_refusal_is_planned_from_it() -> None:
    """At the queue's last delivery SQS would move the message without a record, so it is dead-lettered instead."""
    steps = FailureSteps([SendAgain("slow-lane", queue="slow")])
    *_, sent, next_plan = planned(untouchable_delivery(receives=10), ValueError("no"), steps, OSError("no"))
    assert (sent.copy.target, sent.needs) == (SLOW, None)
    assert (next_plan.needs, next_plan.copy) == (DEAD, None)
    assert next_plan.not_sent == ("slow: no (it may be there all the same)",)
