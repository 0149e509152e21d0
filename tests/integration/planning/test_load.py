"""The load of `tarry plan`: against arithmetic where there is some, and against the sandbox where there is none."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from statistics import fmean, variance
from typing import Any, NamedTuple

import pytest

from tarry import Consumer, DeadLetter, Exponential, Fixed, LocalRetry, Message, RetryInPlace, SendAgain, consumer
from tarry.guard.decision import GuardLimits
from tarry.testing import Sandbox
from tarry.tools.plan import simulation
from tarry.tools.plan.policy import policy_of
from tarry.tools.plan.request import load_warnings
from tarry.tools.plan.simulation import Consuming, Load, LoadResult, LoadRun, dollars_of, simulate
from tarry.tools.plan.text import load_text
from tarry.tools.plan.timeline import PolicyTimeline, timeline_of
from tarry.tools.template import TemplateQueue

ARN = "arn:aws:sqs:us-east-1:123456789012:orders"
QUEUE = TemplateQueue("orders", ARN, None, {"VisibilityTimeout": "60"}, f"{ARN}-dlq", 50)


def timeline(handler: Consumer[Any]) -> PolicyTimeline:
    return timeline_of(policy_of("orders", handler.policy, handler.steps.of("orders"), fifo=False), QUEUE)


def made(**settings: Any) -> PolicyTimeline:
    return timeline(consumer(**settings)(lambda message: None))


def result(load: Load, planned: PolicyTimeline, consuming: Consuming | None = None, seeds: int = 3) -> LoadResult:
    consuming = consuming or Consuming()
    return LoadResult(load, consuming, [simulate(load, planned, consuming, seed) for seed in range(seeds)])


# arithmetic


@pytest.mark.parametrize("simulated", [100_000, 1_000], ids=["message by message", "each stands for several"])
def test_the_waiting_messages_are_rate_times_share_times_mean_delay(
    monkeypatch: pytest.MonkeyPatch, simulated: int
) -> None:
    monkeypatch.setattr(simulation, "MANY_MESSAGES", simulated)
    planned = made(max_attempts=3, backoff=Fixed(60, jitter="equal"))  # two delays of 45 s on average
    found = result(Load(rate=20, failing=0.5, outage=300, handler_time=0.01), planned, seeds=5)
    assert (found.runs[0].scale > 1) == (simulated == 1_000)
    assert found.of(lambda run: run.waiting_at_end).mean == pytest.approx(20 * 0.5 * 2 * 45, rel=0.08)
    # Those die that arrive so early that both delays end before the outage does.
    assert found.of(lambda run: run.dead).mean == pytest.approx(20 * 0.5 * (300 - 2 * 45), rel=0.08)
    assert found.of(lambda run: run.failed).mean == pytest.approx(20 * 0.5 * 300, rel=0.08)
    assert found.drained is not None
    assert 360 - 15 < found.drained.mean < 360 + 2
    assert found.runs[0].requests > found.runs[0].messages


def test_a_function_that_is_too_slow_leaves_the_rest_of_the_rate_in_the_queue() -> None:
    planned = made(max_attempts=2, backoff=Fixed(60))
    slow = Consuming(maximum_concurrency=2)
    found = result(Load(rate=60, failing=0.01, outage=60, handler_time=0.05), planned, slow, seeds=2)
    assert slow.messages_per_second(0.05) == 2 * 10 / 0.05 / 10  # two batches of ten in half a second
    assert found.drained is None
    ended = found.runs[0].ended_at
    assert found.of(lambda run: run.peak_ready).mean == pytest.approx((60 - 40) * ended, rel=0.1)
    assert "not within" in load_text(found)
    assert "at most 40 messages/s, fewer than arrive" in next(load_warnings(found, planned, 30))


def test_copies_are_not_in_flight_in_their_first_15_minutes() -> None:
    copies = made(on_failure=[SendAgain("later", delay=600), DeadLetter()])
    found = result(Load(rate=2, failing=1, outage=300, handler_time=0.01), copies, seeds=1).runs[0]
    assert found.waiting_at_end > 500
    assert found.peak_in_flight < 50
    long = made(on_failure=[SendAgain("later", delay=1200), DeadLetter()])
    found = result(Load(rate=2, failing=1, outage=300, handler_time=0.01), long, seeds=1).runs[0]
    assert found.peak_in_flight > 500


def test_warnings_name_the_limits_that_a_load_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.tools.plan.request.IN_FLIGHT_LIMIT", 100)
    planned = made(max_attempts=2, backoff=Fixed(60))
    found = result(Load(rate=5, failing=1, outage=100, handler_time=4), planned, seeds=1)
    warnings = [*load_warnings(found, planned, 30)]
    for part in ("takes 40 s, longer than the function's timeout of 30 s", "100 places", "attempts end after at most"):
        assert any(part in warning for warning in warnings), warnings


# the guard


@pytest.mark.parametrize("simulated", [100_000, 3_000], ids=["message by message", "each stands for several"])
def test_a_guarded_consumer_keeps_the_attempts_of_its_messages_during_an_outage(
    monkeypatch: pytest.MonkeyPatch, simulated: int
) -> None:
    monkeypatch.setattr(simulation, "MANY_MESSAGES", simulated)
    load, planned, consuming = Load(8, 1, 1800, 0.1), made(), Consuming(maximum_concurrency=20)
    alone, guarded = (simulate(load, planned, consuming, 0, guard=guard) for guard in (None, GuardLimits()))
    assert (guarded.scale > 1) == (simulated == 3_000)
    assert alone.dead > 4_000
    assert guarded.dead == 0
    assert guarded.runs < alone.runs / 2
    assert guarded.peak_in_flight < alone.peak_in_flight / 2
    assert guarded.drained_at is not None
    assert [phase for _, phase in guarded.phases[:3]] == ["suspended", "probing", "judging"]
    assert [phase for _, phase in guarded.phases[-3:]] == ["resuming", "resumed", ""]
    [suspended, *_, (restored, _), _] = guarded.phases
    assert suspended[0] <= 240
    assert 1800 < restored < 1800 + 15 * 60


def test_a_message_in_ten_that_fails_suspends_no_consumer() -> None:
    load = Load(20, 0.1, 1200, 0.1)
    found = simulate(load, made(), Consuming(), 0, guard=GuardLimits())
    assert found.phases == []
    assert "The same load with the outage guard: the consumer is never suspended." in load_text(
        LoadResult(load, Consuming(), [found], True)
    )


# the sandbox


class Numbers(NamedTuple):
    """The numbers of one run."""

    failed: float
    runs: float
    waiting_at_end: float
    peak_waiting: float
    dead: float
    drained_at: float
    invocations: float


def in_the_sandbox(load: Load, handler: Callable[..., Consumer[Any]], until: float, seed: int) -> Numbers:
    random, runs = Random(seed), dict[str, list[tuple[float, bool]]]()
    with Sandbox(seed=seed) as sandbox:

        def run(message: Message) -> None:
            fails = message.body == "fails" and sandbox.elapsed < load.outage
            sandbox.sleep(load.handler_time)
            runs.setdefault(message.id, []).append((sandbox.elapsed, fails))
            if fails:
                raise TimeoutError

        sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=50)
        sandbox.connect(handler(run), "orders", max_concurrency=3)
        at = 0.0
        while (at := at + random.expovariate(load.rate)) < until:
            body = "fails" if at < load.outage and random.random() < load.failing else "succeeds"
            sandbox._simulation.scheduler.after(at, partial(sandbox.send, "orders", body))
        report = sandbox.run(check=False)
        dead = {each.id for each in sandbox.messages("orders-dlq")}
    failed = {key: times for key, times in runs.items() if times[0][1]}
    drained = max(times[-1][0] for times in failed.values())
    changes = []
    for key, times in failed.items():
        for place, (ended, fails) in enumerate(times):
            if fails and not (key in dead and place == len(times) - 1):
                changes += [(ended, 1), (times[place + 1][0] - load.handler_time, -1)]
    levels = [sum(change for at, change in changes if at <= moment) for moment, _ in changes]
    return Numbers(
        failed=len(failed),
        runs=sum(at <= max(drained, load.outage) for times in runs.values() for at, _ in times),
        waiting_at_end=sum(change for at, change in changes if at <= load.outage),
        peak_waiting=max(levels),
        dead=len(dead),
        drained_at=max(drained, load.outage),
        invocations=sum(event.what == "answered" and event.at - report.began <= drained for event in report.events),
    )


def in_the_model(load: Load, planned: PolicyTimeline, seed: int) -> Numbers:
    run = simulate(load, planned, Consuming(maximum_concurrency=3), seed)
    assert run.drained_at is not None
    return Numbers(
        run.failed, run.runs, run.waiting_at_end, run.peak_waiting, run.dead, run.drained_at, run.invocations
    )


SEEDS = 20


def test_twenty_seeds_of_the_sandbox_agree_within_their_spread() -> None:
    steps = [LocalRetry(1), RetryInPlace(), SendAgain("later", delay=5), DeadLetter()]
    handler = consumer(max_attempts=3, backoff=Exponential(4, 2, jitter="equal"), on_failure=steps)
    load = Load(rate=1.5, failing=0.6, outage=16, handler_time=0.2)
    planned = timeline(handler(lambda message: None))
    until = load.outage + planned.ends.latest
    real = [in_the_sandbox(load, handler, until, seed) for seed in range(SEEDS)]
    simulated = [in_the_model(load, planned, seed) for seed in range(SEEDS)]
    for name in Numbers._fields:
        sandbox, modelled = ([getattr(each, name) for each in numbers] for numbers in (real, simulated))
        spread = math.sqrt((variance(sandbox) + variance(modelled)) / SEEDS)
        assert fmean(modelled) == pytest.approx(fmean(sandbox), abs=2.5 * spread), name


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 5, "backoff": Exponential(30, 3, 900, jitter="full")},
        {"max_attempts": 3, "backoff": Fixed(43_000)},
        {
            "max_attempts": 2,
            "backoff": Fixed(100),
            "on_failure": [LocalRetry(2, 5), RetryInPlace(), SendAgain("slow", times=2, delay=1000), DeadLetter()],
        },
        {"max_attempts": 4, "backoff": Fixed(60), "queue": {"max_receive_count": 2}},
        {"max_attempts": 5, "backoff": Fixed(28_800), "queue": {"retention": 86_400}},
    ],
    ids=["backoff", "long delays", "steps", "maxReceiveCount", "retention"],
)
def test_a_message_that_always_fails_runs_at_the_times_of_its_timeline(settings: dict[str, Any]) -> None:
    facts = settings.pop("queue", {})
    with Sandbox() as sandbox:
        runs, numbers = list[float](), count(1)

        @consumer(**settings)
        def handler(message: Message) -> None:
            runs.append(sandbox.elapsed)
            raise TimeoutError(next(numbers))

        sandbox.queue("orders", dead_letter="orders-dlq", **{"max_receive_count": 50, **facts})
        sandbox.connect(handler, "orders")
        sandbox.send("orders", "x")
        sandbox.run()
        assert len(sandbox.messages("orders-dlq")) == 1
    given = {"MessageRetentionPeriod": str(facts["retention"])} if "retention" in facts else {}
    queue = replace(QUEUE, attributes=given, max_receive_count=facts.get("max_receive_count", 50))
    planned = timeline_of(
        policy_of("orders", handler.policy, handler.steps.of("orders"), fifo=False), queue, timeout=30
    )
    first = [at for attempt, at in zip(_attempt_of_each_run(planned), runs, strict=True) if attempt is not None]
    for attempt, at in zip(planned.attempts, first, strict=True):
        assert attempt.begins.earliest <= at + 0.01
        assert at <= attempt.begins.latest + 1.2 * attempt.number  # whole seconds, and the time of requests


def _attempt_of_each_run(planned: PolicyTimeline) -> list[int | None]:
    """The number of the attempt that each run begins; None for a run by `LocalRetry`."""
    return [number for each in planned.attempts for number in [each.number, *[None] * (each.runs - 1)]]


def test_the_costs_are_those_of_requests_invocations_and_their_time() -> None:
    run = LoadRun(0, requests=10**6, invocations=10**7, busy_seconds=10**6)
    found = dollars_of(LoadResult(Load(1, 0, 0, 1), Consuming(memory_mb=512), [run, run]))
    assert found == {"requests": 0.4, "invocations": pytest.approx(2), "compute": pytest.approx(8.33335)}
