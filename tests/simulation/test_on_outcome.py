"""``on_outcome`` and metrics in virtual time, with faults: they agree with the history of the run."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from tarry import Batch, Consumer, Fixed, Message, Outcome, State, batch_consumer, consumer
from tarry.testing import Sandbox

MESSAGES = 60


def finish(message: Message) -> None:
    """Commit, retry, dead-letter, discard or defer a message, as its number says."""
    match message.json() % 5:
        case 1:
            raise ValueError("never works")
        case 2 if message.attempt < 3:
            raise ValueError("again")
        case 3:
            message.discard("old")
        case 4 if message.id == message.delivery_id and message.receive_count == 1:
            message.defer(20)


def orders(kind: str, sandbox: Sandbox, settings: dict[str, Any]) -> Consumer[Any]:
    def sync(message: Message) -> None:
        sandbox.sleep(0.2)
        finish(message)

    async def runs_async(message: Message) -> None:
        await asyncio.sleep(0.2)
        finish(message)

    def in_batches(batch: Batch) -> None:
        for message in batch:
            try:
                finish(message)
            except ValueError as error:
                message.fail(error)

    if kind == "batch":
        return batch_consumer(**settings)(in_batches)
    return consumer(concurrency=1 if kind == "one by one" else 5, **settings)(runs_async if kind == "tasks" else sync)


@pytest.mark.parametrize("kind", ["one by one", "threads", "tasks", "batch"])
def test_each_delivery_is_reported_once_and_the_last_outcome_of_a_message_is_its_state(
    kind: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # SPEC L3, L5
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "shop")
    calls: list[tuple[str, str, int, State]] = []

    def hook(message: Message, outcome: Outcome) -> None:
        calls.append((message.id, message.delivery_id, message.receive_count, outcome.state))
        if len(calls) % 7 == 0:
            raise RuntimeError("the hook fails")

    handler = orders(kind, sandbox, {"on_outcome": hook, "backoff": Fixed(20), "max_attempts": 4, "name": "orders"})
    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=30, visibility_timeout=60)
    sandbox.connect(handler, "orders", batch_size=10, timeout=30)
    sandbox.faults.add("throttle", queue="orders", times=4)
    sandbox.faults.add("denied", operation="SendMessageBatch", times=2)
    for number in range(MESSAGES):
        sandbox.send("orders", str(number))
    report = sandbox.run()
    capsys_lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"_aws"')]

    assert [key for key, count in Counter(call[1:3] for call in calls).items() if count > 1] == []
    last = {stable_id: state for stable_id, _, _, state in calls}
    assert len(last) == MESSAGES
    assert {stable_id: report.state(stable_id) for stable_id in last} == last
    assert Counter(last.values())[State.DEAD_LETTERED] == MESSAGES // 5
    states = Counter(state for *_, state in calls)
    totals = Counter[str]()
    for line in capsys_lines:
        totals.update({name: sum(value) for name, value in line.items() if type(value) is list})
    assert totals["MessagesCommitted"] == states[State.COMMITTED]
    assert totals["MessagesDeadLettered"] == states[State.DEAD_LETTERED]
    assert totals["MessagesWaitingRetry"] == states[State.WAITING_RETRY]
    assert totals["MessagesDeferred"] == states[State.DEFERRED]
    assert totals["SettlementErrors"] > 0
