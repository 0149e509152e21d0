"""FIFO groups during an outage: messages that use up their attempts, and messages that only wait."""

from collections import Counter
from typing import Any

import pytest

from tarry import Message, consumer
from tarry.testing import Sandbox


class Outage:
    """A run of ten messages of a FIFO group whose handler fails for the first five minutes."""

    def __init__(self, sandbox: Sandbox, batch_size: int, receives: int, **settings: Any) -> None:
        self.runs: Counter[str] = Counter()
        self.order: list[str] = []

        @consumer(**settings)
        def handler(message: Message) -> None:
            self.runs[message.body] += 1
            if sandbox.elapsed < 300:
                raise ConnectionError
            self.order.append(message.body)

        sandbox.queue("orders.fifo", dead_letter="orders-dlq.fifo", max_receive_count=receives, visibility_timeout=180)
        sandbox.connect(handler, "orders.fifo", batch_size=batch_size, timeout=30)
        for number in range(10):
            sandbox.send("orders.fifo", f"m{number}", group_id="g", deduplication_id=f"{number}")
        sandbox.run()
        self.dead = [dead_letter.body for dead_letter in sandbox.messages("orders-dlq.fifo")]


@pytest.mark.parametrize("isolate", [True, False])
def test_with_a_batch_size_of_1_only_messages_that_used_all_attempts_are_dead_lettered(
    isolate: bool, sandbox: Sandbox
) -> None:  # SPEC C9, H1
    """With `BatchSize: 1`, as in the template, attempts are exact. Only the first two messages use all five."""
    outage = Outage(sandbox, batch_size=1, receives=15, max_attempts=5, isolate=isolate)
    assert outage.dead == ["m0", "m1"]
    assert {body: outage.runs[body] for body in outage.dead} == {"m0": 5, "m1": 5}
    assert outage.order == [f"m{number}" for number in range(2, 10)]


@pytest.mark.parametrize("isolate", [True, False])
def test_with_a_high_max_receive_count_a_whole_batch_survives_the_outage(
    isolate: bool, sandbox: Sandbox
) -> None:  # SPEC C9, H1
    """Above `BatchSize: 1`, messages that wait behind the first of their group are received with it each time."""
    outage = Outage(sandbox, batch_size=10, receives=10 * 15 + 5, max_attempts=15, isolate=isolate)
    assert outage.dead == []
    assert outage.order == [f"m{number}" for number in range(10)]


def test_with_a_low_max_receive_count_no_message_is_dead_lettered_without_a_run(sandbox: Sandbox) -> None:  # SPEC C9
    outage = Outage(sandbox, batch_size=10, receives=10 * 5 + 5, max_attempts=5)
    assert all(outage.runs[body] for body in outage.dead)
    assert [*outage.dead, *outage.order] == [f"m{number}" for number in range(10)]
