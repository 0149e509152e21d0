"""A queue with more in it than there is time for, at 90 % of what its function can do."""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from tarry import Message, consumer
from tarry.testing import Realism, Report, Sandbox

SECONDS = 5.0
"""A message takes so long: in a function of 30 seconds there is time for five of a batch of ten."""
AT_ONCE = 2
LOAD = 0.9
BURST = 500
"""Messages that come at once, so that batches are full."""


@dataclass(frozen=True)
class Backlog:
    """What became of it."""

    report: Report
    receives: Counter[int]
    """At which delivery messages were run."""
    dead: list[str]
    """The bodies of dead letters."""


def half_of_each_batch(messages: int, seed: int = 0, **settings: Any) -> Backlog:
    """Plays so many messages, in batches of which there is time for half."""
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

        sandbox.queue("orders", dead_letter="letters", max_receive_count=15, visibility_timeout=180)
        sandbox.connect(handler, "orders", batch_size=10, timeout=30, max_concurrency=AT_ONCE)
        for number in range(messages // BURST):
            sandbox._simulation.scheduler.after(number * BURST * SECONDS / AT_ONCE / LOAD, burst)
        report = sandbox.run()
        return Backlog(report, receives, [letter.body for letter in sandbox.messages("letters")])
