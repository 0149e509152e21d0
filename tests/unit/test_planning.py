"""Planning has no effects: the settlement plan is a pure function of the verdict and the facts passed in."""

from __future__ import annotations

from copy import copy
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tarry import DeadLetter, Exponential, Failure, Outcome, Reject, RetryInPlace, RetryPolicy, SendAgain
from tarry.decide.decision import Decision, ask_steps, decide
from tarry.decide.steps import FailureSteps
from tarry.message.delivery import QueueFacts, StepContext
from tarry.message.diagnosis import diagnose
from tarry.message.invocation import Invocation
from tarry.message.message import Message, delivery_of
from tarry.settle.planner import Planner, Situation, SizeLimit
from tarry.support.values import queue_arn
from tarry.world import World
from tests.records import record

if TYPE_CHECKING:
    from tarry.message.delivery import Delivery
    from tarry.settle.planner import SettlementPlan

NOW = 1_767_225_600.0
DEAD = queue_arn("arn:aws:sqs:us-east-1:123456789012:dead")
SLOW = queue_arn("arn:aws:sqs:us-east-1:123456789012:slow")


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
    delivery = delivery_with_unusable_world(receives=receives)
    before = copy(delivery.__dict__)
    first = planned(delivery, raised, STEPS, error)
    assert delivery.__dict__ == before
    second = planned(delivery_with_unusable_world(receives=receives), raised, STEPS, error)
    assert [plan.decision.outcome for plan in first] == [plan.decision.outcome for plan in second]
    assert [plan.copy and plan.copy.variants for plan in first] == [plan.copy and plan.copy.variants for plan in second]


def test_a_plan_names_the_queue_whose_facts_it_needs_and_calls_no_step_twice() -> None:
    calls: list[str] = []

    def step(failure: Failure, next_step: Any) -> Outcome:
        calls.append(failure.reason)
        return Outcome.resend("slow", 60)

    plans = planned(delivery_with_unusable_world(), ValueError("no"), FailureSteps([step]), None)
    assert [plan.needs for plan in plans] == [SLOW, None]
    assert plans[-1].copy is not None
    assert plans[-1].copy.target == SLOW
    assert calls == ["error"]


def test_the_hooks_of_a_dead_letter_are_called_once_the_size_limit_is_known() -> None:
    enriched: list[Failure] = []

    def enrich(failure: Failure) -> dict[str, Any]:
        enriched.append(failure)
        return {}

    steps = FailureSteps([DeadLetter(enrich=enrich)])
    plans = planned(delivery_with_unusable_world(), ValueError("no"), steps, None)
    assert [plan.needs for plan in plans] == [DEAD, None]
    assert len(enriched) == 1


def test_the_plan_after_a_refusal_depends_on_the_refusal() -> None:
    """At its last delivery, SQS would move the message without a record, so tarry dead-letters it instead."""
    steps = FailureSteps([SendAgain("slow-lane", queue="slow")])
    *_, sent, next_plan = planned(delivery_with_unusable_world(receives=10), ValueError("no"), steps, OSError("no"))
    assert (sent.copy.target, sent.needs) == (SLOW, None)
    assert (next_plan.needs, next_plan.copy) == (DEAD, None)
    assert next_plan.not_sent == ("slow: no (it may be there all the same)",)
