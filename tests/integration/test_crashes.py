"""Messages that kill their process, to the end of their lives: their neighbours know nothing of it.

In virtual time, under the sandbox's Lambda; `tests/acceptance/test_crashes.py` is the same with real processes.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Message, consumer
from tarry.execution.timeouts import Interrupted
from tarry.testing import Realism, Sandbox
from tarry.world import current

RECEIVES = 15
A_FEW = 3


def dies(_: Message) -> None:
    os._exit(1)


def runs_until_it_is_killed(_: Message) -> None:
    while True:
        with contextlib.suppress(Interrupted):
            current().clock.sleep(60)


class Lives:
    """What becomes of messages, of which those with the body ``poison`` kill the process."""

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

    def of(self, bodies: list[str], queue: str = "orders", groups: int = 10) -> "Lives":
        """Plays these in one batch, at first; on FIFO in so many groups in turn."""
        is_fifo = queue.endswith(".fifo")
        self.letters = "letters.fifo" if is_fifo else "letters"
        self.sandbox.queue(queue, dead_letter=self.letters, max_receive_count=RECEIVES, visibility_timeout=180)
        self.sandbox.connect(self.handler, queue, batch_size=10, timeout=30)
        for number, body in enumerate(bodies):
            fifo: Any = {"group_id": f"g{number % groups}", "deduplication_id": body} if is_fifo else {}
            self.bodies[self.sandbox.send(queue, body, **fifo)] = body
        self.report = self.sandbox.run()
        return self

    @property
    def dead(self) -> list[str]:
        return [letter.body for letter in self.sandbox.messages(self.letters)]

    def crashes(self) -> list[list[str]]:
        """The messages that were in the process at each crash, and not done with."""
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

    def times_taken_down(self) -> Counter[str]:
        """How often each neighbour of the poison was among them."""
        return Counter(body for batch in self.crashes() for body in batch if body != "poison")


def ten(place: int) -> list[str]:
    """Ten bodies with the poison in that place."""
    return [*(f"m{number}" for number in range(place)), "poison", *(f"m{number}" for number in range(place, 9))]


WAYS = [
    pytest.param(dies, {}, id="one after the other"),
    pytest.param(dies, {"concurrency": 4}, id="threads"),
    pytest.param(dies, {"concurrency": 4, "is_async": True}, id="tasks"),
    pytest.param(dies, {"ack": "eager"}, id="eager"),
    pytest.param(runs_until_it_is_killed, {}, id="timeout"),
]


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize(("kill", "settings"), WAYS)
def test_a_poison_message_takes_none_of_its_batch_with_it(
    kill: Callable[[Message], None], settings: dict[str, Any], place: int, queue: str, sandbox: Sandbox
) -> None:  # SPEC G4
    """On FIFO each of them in a group of its own: a group comes back as one, poison and all."""
    lives = Lives(sandbox, kill, **settings).of(ten(place), queue)
    assert lives.dead == ["poison"]
    assert lives.report.count("COMMITTED") == 9
    assert lives.runs["poison"] == RECEIVES
    assert max(lives.times_taken_down().values()) <= A_FEW
    assert lives.crashes()[2 * A_FEW :] == [["poison"]] * (RECEIVES - 2 * A_FEW)


def test_on_fifo_what_stands_before_it_in_its_group_is_done_with_after_a_few_crashes(sandbox: Sandbox) -> None:
    """SPEC G4. What stands behind it has to wait for it, and SQS counts that: with `BatchSize: 1` nothing does."""
    lives = Lives(sandbox, dies).of(["a", "b", "c", "poison", "behind"], "orders.fifo", groups=1)
    assert lives.dead == ["poison", "behind"]
    assert lives.report.count("COMMITTED") == 3
    assert max(lives.times_taken_down()[body] for body in "abc") <= 5


def test_on_fifo_other_groups_of_several_messages_each_keep_their_order(sandbox: Sandbox) -> None:  # SPEC G4, H1
    """The sandbox's checkers see to the order."""
    lives = Lives(sandbox, dies).of(ten(1), "orders.fifo", groups=4)
    assert lives.dead == ["poison", "m4", "m8"]  # its own group
    assert lives.report.count("COMMITTED") == 7


def test_without_isolation_they_come_back_together_until_all_are_dead(sandbox: Sandbox) -> None:  # SPEC G4
    lives = Lives(sandbox, dies, isolate=False).of(ten(0))
    assert sorted(lives.dead) == sorted(ten(0))


@pytest.mark.parametrize("seed", range(3))
def test_a_poison_message_in_a_busy_queue_takes_nobody_with_it(seed: int) -> None:  # SPEC G4
    """Three of them among three hundred, in batches that SQS makes as it likes."""
    with Sandbox(seed=seed, realism=Realism(reorder=True, partial=True)) as sandbox:
        bodies = [f"m{number}" for number in range(297)]
        for place in (7, 100, 250):
            bodies.insert(place, "poison")
        lives = Lives(sandbox, dies).of(bodies)
        assert lives.dead == ["poison"] * 3
        assert lives.report.count("COMMITTED") == 297
        assert max(lives.times_taken_down().values()) <= 2 * A_FEW
