"""Messages that kill their process until they are dead-lettered, and the effect on other messages of the batch.

In virtual time, in a sandbox. `tests/acceptance/test_crashes.py` tests the same with real processes.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Message, consumer
from tarry.testing import Realism, Sandbox
from tarry.world import Interrupted, current

RECEIVES = 15
A_FEW = 3


def exits(_: Message) -> None:
    os._exit(1)


def runs_until_it_is_killed(_: Message) -> None:
    while True:
        with contextlib.suppress(Interrupted):
            current().clock.sleep(60)


class PoisonRun:
    """A run of a consumer whose handler kills the process on messages with the body ``poison``."""

    def __init__(
        self, sandbox: Sandbox, kill: Callable[[Message], None], is_async: bool = False, **settings: Any
    ) -> None:
        self.sandbox = sandbox
        self.runs: Counter[str] = Counter()
        self.bodies: dict[str, str] = {}

        def work(message: Message) -> None:
            self.runs[message.body] += 1
            if message.body == "poison":
                kill(message)

        async def work_async(message: Message) -> None:
            await current().clock.asleep(0.01)
            work(message)

        self.handler: Any = consumer(**settings)(work_async if is_async else work)

    def of(self, bodies: list[str], queue: str = "orders", groups: int = 10) -> "PoisonRun":
        """Send the bodies (on FIFO to the groups in turn) and run until the queue is empty. A batch is ten messages."""
        is_fifo = queue.endswith(".fifo")
        self.dead_letter_queue = "orders-dlq.fifo" if is_fifo else "orders-dlq"
        self.sandbox.queue(
            queue, dead_letter=self.dead_letter_queue, max_receive_count=RECEIVES, visibility_timeout=180
        )
        self.sandbox.connect(self.handler, queue, batch_size=10, timeout=30)
        for number, body in enumerate(bodies):
            fifo: Any = {"group_id": f"g{number % groups}", "deduplication_id": body} if is_fifo else {}
            self.bodies[self.sandbox.send(queue, body, **fifo)] = body
        self.report = self.sandbox.run()
        return self

    @property
    def dead(self) -> list[str]:
        return [dead_letter.body for dead_letter in self.sandbox.messages(self.dead_letter_queue)]

    def crashes(self) -> list[list[str]]:
        """The unfinished messages of the batch at each crash."""
        batches, deleted, crashed = {}, set(), []
        for event in self.report.events:
            match event.what:
                case "invoked":
                    batches[event.fields["request_id"]] = event.fields["delivery_ids"]
                case "deleted":
                    deleted.add(event.fields["delivery_id"])
                case "answered" if event.fields["kind"] in ("crash", "timeout"):
                    batch = batches[event.fields["request_id"]]
                    crashed.append([self.bodies[each] for each in batch if each not in deleted])
        return crashed

    def crashes_by_body(self) -> Counter[str]:
        """The number of crashes that each other message was part of."""
        return Counter(body for batch in self.crashes() for body in batch if body != "poison")


def ten(place: int) -> list[str]:
    """Ten bodies, with ``poison`` at the index ``place``."""
    return [*(f"m{number}" for number in range(place)), "poison", *(f"m{number}" for number in range(place, 9))]


WAYS = [
    pytest.param(exits, {}, id="one after the other"),
    pytest.param(exits, {"concurrency": 4}, id="threads"),
    pytest.param(exits, {"concurrency": 4, "is_async": True}, id="tasks"),
    pytest.param(exits, {"ack": "eager"}, id="eager"),
    pytest.param(runs_until_it_is_killed, {}, id="timeout"),
]


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize(("kill", "settings"), WAYS)
def test_a_poison_message_is_dead_lettered_alone(
    kill: Callable[[Message], None], settings: dict[str, Any], place: int, queue: str, sandbox: Sandbox
) -> None:  # SPEC G4
    """On FIFO each message has a group of its own, because a group is redelivered as a whole."""
    run = PoisonRun(sandbox, kill, **settings).of(ten(place), queue)
    assert run.dead == ["poison"]
    assert run.report.count("COMMITTED") == 9
    assert run.runs["poison"] == RECEIVES
    assert max(run.crashes_by_body().values()) <= A_FEW
    assert run.crashes()[2 * A_FEW :] == [["poison"]] * (RECEIVES - 2 * A_FEW)


def test_on_fifo_messages_before_a_poison_message_of_their_group_succeed_after_a_few_crashes(sandbox: Sandbox) -> None:
    """SPEC G4. For messages behind it, each crash counts as a receive, unless `BatchSize` is 1."""
    run = PoisonRun(sandbox, exits).of(["a", "b", "c", "poison", "behind"], "orders.fifo", groups=1)
    assert run.dead == ["poison", "behind"]
    assert run.report.count("COMMITTED") == 3
    assert max(run.crashes_by_body()[body] for body in "abc") <= 5


def test_on_fifo_a_poison_message_does_not_affect_the_order_of_other_groups(sandbox: Sandbox) -> None:  # SPEC G4, H1
    """The checkers of the sandbox check the order."""
    run = PoisonRun(sandbox, exits).of(ten(1), "orders.fifo", groups=4)
    assert run.dead == ["poison", "m4", "m8"]  # its own group
    assert run.report.count("COMMITTED") == 7


def test_without_isolation_the_whole_batch_of_a_poison_message_is_dead_lettered(sandbox: Sandbox) -> None:  # SPEC G4
    run = PoisonRun(sandbox, exits, isolate=False).of(ten(0))
    assert sorted(run.dead) == sorted(ten(0))


@pytest.mark.parametrize("seed", range(3))
def test_poison_messages_in_a_busy_queue_are_dead_lettered_alone(seed: int) -> None:  # SPEC G4
    """Three poison messages among three hundred, in batches of random size and order."""
    with Sandbox(seed=seed, realism=Realism(reorder=True, partial=True)) as sandbox:
        bodies = [f"m{number}" for number in range(297)]
        for place in (7, 100, 250):
            bodies.insert(place, "poison")
        run = PoisonRun(sandbox, exits).of(bodies)
        assert run.dead == ["poison"] * 3
        assert run.report.count("COMMITTED") == 297
        assert max(run.crashes_by_body().values()) <= 2 * A_FEW
