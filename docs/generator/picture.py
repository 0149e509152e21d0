"""The pictures of the pages: the sample run of the README, a run of the sandbox, and the story of one message."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tarry import DeadLetter, Exponential, Fixed, Message, RetryInPlace, SendAgain, consumer
from tarry.decide.retry_policy import RetryPolicy
from tarry.decide.steps import StepList
from tarry.failed.text import coarse
from tarry.guard.decision import GuardLimits
from tarry.message.outcomes import State
from tarry.testing import Sandbox
from tarry.tools.local.plan import RunSettings, make_plan
from tarry.tools.local.runs.virtual import play
from tarry.tools.plan.drawing import picture_of as picture_of_plan
from tarry.tools.plan.policy import policy_of
from tarry.tools.plan.simulation import SEEDS, Consuming, Load, LoadResult, simulate
from tarry.tools.plan.timeline import timeline_of
from tarry.tools.story.picture import picture as picture_of
from tarry.tools.template import TemplateQueue
from tarry.tools.testing.drawing import Drawing, Row
from tarry.tools.testing.report import stories_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.tools.local.show.timeline import MessageTimeline

ROOT = Path(__file__).parents[2]
EVENT = "events/orders.json"


def sample_run() -> str:
    """Run the sample event and return the picture of the run as SVG."""
    with chdir(ROOT):
        settings = RunSettings(Path("template.yaml"), Path(EVENT), skip_time=True)
        run = play(make_plan(settings, lambda _: None), settings, lambda _: None)
    messages = run.report.messages
    ended = max(step.at for message in messages for step in message.steps)
    dead = sum(message.state == State.DEAD_LETTERED for message in messages)
    return Drawing(
        rows_of(messages),
        title=f"{len(messages)} messages: {len(messages) - dead} committed, {dead} dead-lettered",
        subtitle=f"tarry local --event {EVENT} --skip-time: {coarse(ended - run.began)} in about a second",
        began=run.began,
        ended=ended,
    ).svg()


def rows_of(messages: Sequence[MessageTimeline]) -> list[Row]:
    """Return a row for each message, by the time at which it settled; those that succeeded at once share one."""
    at_once = [message for message in messages if [step.state for step in message.steps[1:]] == [State.COMMITTED]]
    others = [message for message in messages if message not in at_once]
    others.sort(key=lambda message: message.steps[-1].at)
    together = [Row(" ".join(f"#{message.number}" for message in at_once), "", at_once[0].steps)] if at_once else []
    return [*together, *(Row(f"#{message.number}", "", message.steps) for message in others)]


def sandbox_run() -> str:
    """Return the picture of a report, as `report.svg` writes it."""

    @consumer(max_attempts=3, backoff=Fixed(600))
    def handler(message: Message) -> None:
        order = message.json()
        if not order["lines"]:
            message.reject("no lines")
        if order["id"] == 2 or (order["id"] == 4 and message.attempt == 1):
            raise TimeoutError("the gateway does not answer")

    with Sandbox() as sandbox, TemporaryDirectory() as directory:
        sandbox.queue("orders", dead_letter="orders-dlq")
        sandbox.connect(handler, "orders", batch_size=2)
        sandbox.faults.add("lost_answer", operation="SendMessageBatch")
        sandbox.faults.add("throttled")
        for number, lines in enumerate((["tea"], ["cups"], [], ["pots", "tea"]), start=1):
            sandbox.send("orders", {"id": number, "lines": lines})
        path = Path(directory) / "orders.svg"
        sandbox.run().svg(path)
        return path.read_text("utf-8")


def story() -> str:
    """Return the picture of one message, as `tarry story` draws it: two consumers, and a redrive."""
    deployed: list[bool] = []

    @consumer(
        max_attempts=3,
        backoff=Exponential(30, 3, jitter=None),
        on_failure=[RetryInPlace(), SendAgain("slow", queue="slow"), DeadLetter()],
    )
    def orders(message: Message) -> None:
        if not deployed:
            raise TimeoutError("the gateway does not answer")

    @consumer(max_attempts=5, backoff=Fixed(3600))
    def slow(message: Message) -> None:
        orders.function(message)

    with Sandbox() as sandbox:
        for queue, handler in (("orders", orders), ("slow", slow)):
            sandbox.queue(queue, dead_letter=f"{queue}-dlq", max_receive_count=20)
            sandbox.connect(handler, queue)
        sandbox.send("orders", {"id": 1})
        sandbox.run()
        deployed.append(True)
        sandbox.advance(1800)
        sandbox.redrive("slow-dlq", to="orders")
        [found] = stories_of(sandbox.run())
        return picture_of(found)


def plan() -> str:
    """Return the picture of the default backoff during an outage, as `tarry plan --svg` writes it."""
    return _of_load(Load(rate=5, failing=0.2, outage=900, handler_time=0.1), None)


def outage() -> str:
    """Return the picture of the default backoff during a longer outage, without and with the guard."""
    return _of_load(Load(rate=2, failing=1, outage=2700, handler_time=2), None, GuardLimits())


def _of_load(load: Load, *guards: GuardLimits | None) -> str:
    policy = policy_of("A consumer", RetryPolicy(), StepList(None), fifo=False)
    timeline = timeline_of(policy, TemplateQueue("its queue", ""))
    results = []
    for guard in guards:
        runs = [simulate(load, timeline, Consuming(), seed, guard=guard) for seed in range(SEEDS)]
        results.append(LoadResult(load, Consuming(), runs, guard is not None))
    return picture_of_plan(timeline, *results)
