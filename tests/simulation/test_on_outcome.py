"""``on_outcome`` and metrics in virtual time, with faults: they agree with the history of the run."""

import json
from collections import Counter

import pytest

from tarry import Fixed, Message, Outcome, State
from tarry.testing import Sandbox
from tests.handlers import WAYS
from tests.sandboxes import work

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

    handler = WAYS[kind](finish, on_outcome=hook, backoff=Fixed(20), max_attempts=4, name="orders")
    sandbox.faults.add("throttle", queue="orders", times=4)
    sandbox.faults.add("denied", operation="SendMessageBatch", times=2)
    work(sandbox, handler, *map(str, range(MESSAGES)), max_receive_count=30, visibility_timeout=60, timeout=30)
    report = sandbox.run()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"_aws"')]

    assert [key for key, count in Counter(call[1:3] for call in calls).items() if count > 1] == []
    last = {stable_id: state for stable_id, _, _, state in calls}
    assert len(last) == MESSAGES
    assert {stable_id: report.state(stable_id) for stable_id in last} == last
    assert Counter(last.values())[State.DEAD_LETTERED] == MESSAGES // 5
    states = Counter(state for *_, state in calls)
    totals = Counter[str]()
    for line in lines:
        totals.update({name: sum(value) for name, value in line.items() if type(value) is list})
    names = {"Committed": State.COMMITTED, "DeadLettered": State.DEAD_LETTERED, "WaitingRetry": State.WAITING_RETRY}
    names["Deferred"] = State.DEFERRED
    assert {name: totals[f"Messages{name}"] for name in names} == {name: states[state] for name, state in names.items()}
    assert totals["SettlementErrors"] > 0
