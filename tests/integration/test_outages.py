"""FIFO groups during an outage: messages that use up their attempts, and messages that only wait."""

from collections import Counter

import pytest

from tarry import Message, consumer
from tarry.testing import Sandbox


@pytest.mark.parametrize(
    ("batch_size", "receives", "attempts", "isolate"),
    [(1, 15, 5, True), (1, 15, 5, False), (10, 155, 15, True), (10, 155, 15, False), (10, 55, 5, True)],
    ids=["exact", "exact, not isolated", "many receives", "many receives, not isolated", "few receives"],
)
def test_only_messages_that_used_all_their_attempts_are_dead_lettered(
    batch_size: int, receives: int, attempts: int, isolate: bool, sandbox: Sandbox
) -> None:  # SPEC C9, H1
    """With `BatchSize: 1`, as in the template, attempts are exact: the first two messages use all five.

    Above that, messages that wait behind the first of their group are received with it each time. With a high
    `maxReceiveCount` they survive the outage; with a low one none is dead-lettered without a run.
    """
    runs: Counter[str] = Counter()
    order: list[str] = []

    @consumer(max_attempts=attempts, isolate=isolate)
    def handler(message: Message) -> None:
        runs[message.body] += 1
        if sandbox.elapsed < 300:
            raise ConnectionError
        order.append(message.body)

    sandbox.queue("orders.fifo", dead_letter="orders-dlq.fifo", max_receive_count=receives, visibility_timeout=180)
    sandbox.connect(handler, "orders.fifo", batch_size=batch_size, timeout=30)
    bodies = [f"m{number}" for number in range(10)]
    for body in bodies:
        sandbox.send("orders.fifo", body, group_id="g", deduplication_id=body)
    sandbox.run()
    dead = [dead_letter.body for dead_letter in sandbox.messages("orders-dlq.fifo")]
    assert [*dead, *order] == bodies
    assert all(runs[body] for body in dead)
    if batch_size == 1:
        assert {body: runs[body] for body in dead} == {"m0": 5, "m1": 5}
    if receives == 155:
        assert dead == []
