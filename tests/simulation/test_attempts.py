"""Exact attempts in virtual time, with an attempt store that fails, is slow, throttles, and loses answers."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tarry import AttemptChange, Fixed, MemoryAttempts, Message, consumer
from tarry.testing import Sandbox
from tests.loglines import lines
from tests.simulation.attempts import MOODS, FailingStore, judge_alone

SEEDS = range(24)


@pytest.mark.filterwarnings("ignore")
def test_no_seed_miscounts_an_attempt_or_breaks_a_rule_whatever_the_store_does() -> None:  # SPEC O2, O4
    """A thousand seeds: ``python -m tests.simulation.attempts``."""
    assert {FailingStore(seed).mood for seed in SEEDS} == {*MOODS}
    bad = [result.text for seed in SEEDS if (result := judge_alone(seed)).text]
    logging.getLogger("tarry").propagate = True
    assert not bad, "\n".join(bad)


def test_a_store_that_counts_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryAttempts, "write", lambda self, changes: None)
    well = [seed for seed in range(40) if FailingStore(seed).mood == "well"]
    assert any(judge_alone(seed).text for seed in well[:8])
    logging.getLogger("tarry").propagate = True


class SlowStore(MemoryAttempts):
    """A store that takes its time."""

    def __init__(self, sandbox: Sandbox, seconds: float) -> None:
        super().__init__()
        self._sleep, self._seconds = sandbox.sleep, seconds

    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        self._sleep(self._seconds)
        return super().read(ids)

    def write(self, changes: Sequence[AttemptChange]) -> None:
        self._sleep(self._seconds)
        super().write(changes)


@pytest.mark.parametrize("seconds", [0.3, 0.7, 20])
def test_no_invocation_waits_longer_than_a_second_for_the_store(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC O4
    with Sandbox() as sandbox:
        store = SlowStore(sandbox, seconds)

        @consumer(max_attempts=4, backoff=Fixed(60), attempts=store)
        def handler(message: Message) -> None:
            raise ValueError("no")

        sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=13)
        sandbox.connect(handler, "orders", timeout=30)
        for index in range(60):
            sandbox.send("orders", str(index))
        report = sandbox.run()
        invoked = {event.fields["request_id"]: event.at for event in report.events if event.what == "invoked"}
        took = [event.at - invoked[event.fields["request_id"]] for event in report.events if event.what == "answered"]
        assert len(took) > 20
        assert max(took) < 1.5  # the requests to SQS take time as well
        assert {each.failure.attempts for each in sandbox.messages("orders-dlq") if each.failure} == {4}
        assert bool(lines(caplog, "attempts_not_exact")) == (seconds > 0.5)


@pytest.mark.parametrize("counts", [True, False])
def test_a_message_that_crashes_takes_no_attempt_from_its_neighbours(counts: bool) -> None:
    ran: list[int] = []

    @consumer(max_attempts=2, backoff=Fixed(60), attempts=MemoryAttempts() if counts else None)
    def handler(message: Message) -> None:
        if message.body == "poison":
            os._exit(1)
        ran.append(message.attempt)
        raise ValueError("no")

    with Sandbox() as sandbox:
        sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=9, visibility_timeout=60)
        sandbox.connect(handler, "orders", batch_size=10, timeout=10)
        for body in ("poison", "neighbour"):
            sandbox.send("orders", body)
        sandbox.run()
        [neighbour] = [each for each in sandbox.messages("orders-dlq") if each.body == "neighbour" and each.failure]
        assert neighbour.failure is not None
        assert ran == ([1, 2] if counts else [ran[0]])
        assert (neighbour.failure.crashes or 0) > 0 if counts else neighbour.failure.attempts_at_most


def test_ten_messages_behind_a_failing_head_have_all_their_own_attempts() -> None:
    """SQS counts a receive of each message for each retry of the first one."""
    ran: dict[str, list[int]] = {}

    @consumer(max_attempts=3, backoff=Fixed(30), attempts=MemoryAttempts())
    def handler(message: Message) -> None:
        ran.setdefault(message.body, []).append(message.attempt)
        raise ValueError("no")

    with Sandbox() as sandbox:
        sandbox.queue("ledger.fifo", dead_letter="ledger-dlq.fifo", max_receive_count=10 * 3 + 5)
        sandbox.connect(handler, "ledger.fifo", batch_size=10, timeout=10)
        for index in range(10):
            sandbox.send("ledger.fifo", str(index), group_id="a")
        sandbox.run()
        assert ran == {str(index): [1, 2, 3] for index in range(10)}
        histories = [each.failure.history for each in sandbox.messages("ledger-dlq.fifo") if each.failure]
        assert [len(history) for history in histories] == [3] * 10


@pytest.mark.parametrize("batch_size", [1, 10])
def test_on_fifo_sqs_moves_the_rest_of_its_batch_with_a_message_that_crashes(batch_size: int) -> None:
    """The guide says so: SQS has counted the same receives for all of them."""

    @consumer(max_attempts=2, backoff=Fixed(30), attempts=MemoryAttempts())
    def handler(message: Message) -> None:
        if message.body == "0":
            os._exit(1)

    with Sandbox() as sandbox:
        sandbox.queue("ledger.fifo", dead_letter="ledger-dlq.fifo", max_receive_count=25)
        sandbox.connect(handler, "ledger.fifo", batch_size=batch_size, timeout=10)
        for index in range(12):
            sandbox.send("ledger.fifo", str(index), group_id="a")
        sandbox.run()
        moved = [each for each in sandbox.messages("ledger-dlq.fifo") if each.failure is None]
        assert [each.body for each in moved] == [str(index) for index in range(batch_size)]
