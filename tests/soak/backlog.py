"""A queue with more messages than an invocation has time for, at 90 % of the capacity of its function."""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from tarry import Message, consumer
from tarry.testing import Realism, Report, Sandbox

SECONDS = 5.0
"""The time per message: in a function of 30 seconds there is time for five messages of a batch of ten."""
AT_ONCE = 2
LOAD = 0.9
BURST = 500
"""The number of messages sent at once, so that batches are full."""


@dataclass(frozen=True)
class Backlog:
    """The result of a run."""

    report: Report
    receives: Counter[int]
    """The number of runs at each receive count."""
    dead: list[str]
    """The bodies of dead letters."""


def half_of_each_batch(messages: int, seed: int = 0, **settings: Any) -> Backlog:
    """Send ``messages`` and run them in batches; there is time for half of each batch."""
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
        return Backlog(report, receives, [dead_letter.body for dead_letter in sandbox.messages("orders-dlq")])
