"""Many messages through consumers of every kind, while handlers fail, hang and crash, and SQS fails.

Every combination of batch size and concurrency has its own queue. The checkers of the sandbox verify that no message is
lost, doubled without a cause, redelivered too early or out of order. A backlog is a queue with more messages than an
invocation has time for.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Any

from tarry import Fixed, Message, consumer
from tarry.testing import Realism, Report, Sandbox
from tarry.world import current

CONCURRENCIES = (1, 2, 16, 100)
SHARES = {10: 1, 100: 1, 1_000: 1, 10_000: 3}
"""The share of the messages for each batch size. FIFO takes one more share, with batches of ten."""
TIMEOUT = 3
RECEIVES, ATTEMPTS = 60, 30
"""With room for crashes and released messages, which SQS counts as receives too."""
GROUPS = 40
PATIENCE_SECONDS = 120
"""Ten thousand messages that never wait are one step of the simulation, and take real time."""


@dataclass(frozen=True)
class SoakStage:
    """One queue, and the consumer that it feeds."""

    batch_size: int
    concurrency: int
    is_fifo: bool
    is_async: bool
    messages: int

    def __str__(self) -> str:
        kind = "async" if self.is_async else "sync"
        return f"{'fifo' if self.is_fifo else 'standard'} {kind} batch {self.batch_size} concurrency {self.concurrency}"


@dataclass(frozen=True)
class StageResult:
    """The result of a stage."""

    runs: Counter[str]
    unrun: list[str]
    """The bodies of dead letters that no handler ran."""
    untimely: list[str]
    """The bodies of dead letters whose temper does not lead to the dead-letter queue."""
    open: int
    """The number of messages that are still in the queue."""
    answers: Counter[str]
    seconds: float

    @property
    def is_good(self) -> bool:
        return not (self.unrun or self.untimely or self.open)


def stages(messages: int) -> Iterator[SoakStage]:
    """Yield the stages for ``messages`` in total, sync and async in turn."""
    share = messages / (sum(SHARES.values()) + 1) / len(CONCURRENCIES)
    for number, (batch_size, shares) in enumerate([*SHARES.items(), (10, 1)]):
        for place, concurrency in enumerate(CONCURRENCIES):
            is_async = (number + place) % 2 == 1
            yield SoakStage(batch_size, concurrency, number == len(SHARES), is_async, round(share * shares))


TEMPERS = {"calm": 900, "slow": 40, "fails once": 30, "fails": 10, "hangs once": 8, "rejects": 5, "crashes once": 1}
MORTAL = ("fails", "rejects")


class SoakHandler:
    """A handler that behaves according to the message's body and how often the message has run."""

    def __init__(self, stage: SoakStage) -> None:
        self.runs: Counter[str] = Counter()
        decorate: Any = consumer(
            concurrency=stage.concurrency, timeout=TIMEOUT, max_attempts=ATTEMPTS, backoff=Fixed(20, jitter=0.5)
        )
        self.consumer: Any = decorate(self._async if stage.is_async else self._sync)

    def _sync(self, message: Message) -> None:
        if seconds := self._seconds(message):
            current().clock.sleep(seconds)
        self._end(message)

    async def _async(self, message: Message) -> None:
        if seconds := self._seconds(message):
            await current().clock.asleep(seconds)
        self._end(message)

    def _seconds(self, message: Message) -> float:
        self.runs[message.body] += 1
        temper = message.body.partition(" ")[2]
        if temper == "hangs once" and self.runs[message.body] == 1:
            return TIMEOUT + 2
        return 0.2 if temper == "slow" else 0

    def _end(self, message: Message) -> None:
        match message.body.partition(" ")[2]:
            case "fails":
                raise ValueError
            case "fails once" if self.runs[message.body] == 1:
                raise ValueError
            case "rejects":
                message.reject("on its own account")
            case "crashes once" if self.runs[message.body] == 1:
                os._exit(1)  # in the sandbox, ends only the simulated process


def play(stage: SoakStage, seed: int) -> StageResult:
    """Run a stage to its end.

    Raises:
        AssertionError: a rule was broken.
    """
    began, random, handler = perf_counter(), Random(f"{seed} {stage}"), SoakHandler(stage)
    end = ".fifo" if stage.is_fifo else ""
    queue, dead_letter_queue = f"work{end}", f"dlq{end}"
    with Sandbox(seed=seed, realism=Realism(reorder=True, partial=True)) as sandbox:
        sandbox._simulation.actors.patience_seconds = PATIENCE_SECONDS
        sandbox.queue(queue, dead_letter=dead_letter_queue, max_receive_count=RECEIVES, visibility_timeout=1_800)
        window = 0 if stage.batch_size == 10 else 60
        sandbox.connect(handler.consumer, queue, batch_size=stage.batch_size, window=window, timeout=300)
        sandbox.faults.add("throttle", times=20, chance=0.02, maybe=True)
        sandbox.faults.add("lost_answer", times=20, chance=0.02, maybe=True)
        sandbox.faults.add("partial_failure", times=20, chance=0.02, maybe=True)
        for number in range(stage.messages):
            [temper] = random.choices(list(TEMPERS), list(TEMPERS.values()))
            fifo: Any = {"group_id": f"g{number % GROUPS}", "deduplication_id": f"{number}"} if stage.is_fifo else {}
            sandbox.send(queue, f"{number} {temper}", **fifo)
        report = sandbox.run()
        dead = [dead_letter.body for dead_letter in sandbox.messages(dead_letter_queue)]
        return StageResult(
            handler.runs,
            unrun=[body for body in dead if not handler.runs[body]],
            untimely=[body for body in dead if body.partition(" ")[2] not in MORTAL],
            open=len(sandbox.messages(queue)),
            answers=Counter(event.fields["kind"] for event in report.events if event.what == "answered"),
            seconds=perf_counter() - began,
        )


# a backlog

SECONDS = 5.0
"""The time per message: in a function of 30 seconds there is time for five messages of a batch of ten."""
AT_ONCE = 2
LOAD = 0.9
BURST = 500
"""The number of messages sent at once, so that batches are full."""


def half_of_each_batch(messages: int, seed: int = 0, **settings: Any) -> tuple[Report, Counter[int], list[str]]:
    """Run messages in batches, with time for half of each batch, at 90 % of the capacity of their function.

    Return the report, the number of runs at each receive count, and the bodies of dead letters.
    """
    receives: Counter[int] = Counter()
    random = Random(seed)
    with Sandbox(seed=seed, realism=Realism(reorder=True)) as sandbox:

        @consumer(**settings)
        def handler(message: Message) -> None:
            receives[message.receive_count] += 1
            sandbox.sleep(random.uniform(SECONDS - 0.5, SECONDS + 0.5))

        def burst() -> None:
            for number in range(BURST):
                sandbox.send("orders", str(number))

        sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=15, visibility_timeout=180)
        sandbox.connect(handler, "orders", batch_size=10, timeout=30, max_concurrency=AT_ONCE)
        for number in range(messages // BURST):
            sandbox._simulation.scheduler.after(number * BURST * SECONDS / AT_ONCE / LOAD, burst)
        report = sandbox.run()
        return report, receives, [dead_letter.body for dead_letter in sandbox.messages("orders-dlq")]
