"""FIFO groups behind an outage: who has used his attempts, and who has only waited."""

from collections import Counter
from typing import Any

import pytest

from tarry import Message, consumer
from tarry.testing import Sandbox


class Outage:
    """A FIFO group of ten behind an outage of five minutes, under a consumer of these settings."""

    def __init__(self, sandbox: Sandbox, batch_size: int, receives: int, **settings: Any) -> None:
        self.runs: Counter[str] = Counter()
        self.order: list[str] = []

        @consumer(**settings)
        def handler(message: Message) -> None:
            self.runs[message.body] += 1
            if sandbox.elapsed < 300:
                raise ConnectionError
            self.order.append(message.body)

        sandbox.queue("orders.fifo", dead_letter="letters.fifo", max_receive_count=receives, visibility_timeout=180)
        sandbox.connect(handler, "orders.fifo", batch_size=batch_size, timeout=30)
        for number in range(10):
            sandbox.send("orders.fifo", f"m{number}", group_id="g", deduplication_id=f"{number}")
        sandbox.run()
        self.dead = [letter.body for letter in sandbox.messages("letters.fifo")]


@pytest.mark.parametrize("isolate", [True, False])
def test_behind_an_outage_nobody_of_a_group_dies_who_has_not_used_his_attempts(
    isolate: bool, sandbox: Sandbox
) -> None:  # SPEC C9, H1
    """With `BatchSize: 1`, as the template has it, attempts are exact: the first two use all five, and no more do."""
    outage = Outage(sandbox, batch_size=1, receives=15, max_attempts=5, isolate=isolate)
    assert outage.dead == ["m0", "m1"]
    assert {body: outage.runs[body] for body in outage.dead} == {"m0": 5, "m1": 5}
    assert outage.order == [f"m{number}" for number in range(2, 10)]


@pytest.mark.parametrize("isolate", [True, False])
def test_with_room_for_the_waits_behind_a_failing_head_a_whole_batch_survives_the_outage(
    isolate: bool, sandbox: Sandbox
) -> None:  # SPEC C9, H1
    """Above `BatchSize: 1` a message that waits behind its head is received along with it each time."""
    outage = Outage(sandbox, batch_size=10, receives=10 * 15 + 5, max_attempts=15, isolate=isolate)
    assert outage.dead == []
    assert outage.order == [f"m{number}" for number in range(10)]


def test_without_that_room_none_dies_unrun_either(sandbox: Sandbox) -> None:  # SPEC C9
    outage = Outage(sandbox, batch_size=10, receives=10 * 5 + 5, max_attempts=5)
    assert all(outage.runs[body] for body in outage.dead)
    assert [*outage.dead, *outage.order] == [f"m{number}" for number in range(10)]
