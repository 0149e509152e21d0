"""Idempotency in virtual time: messages that are delivered twice, processes that die, and a table that fails."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tarry import Consumer, Fixed, Message, batch_consumer, consumer
from tarry.testing import Sandbox
from tests.loglines import field, lines
from tests.tables import Table, made, tables
from tests.wire import client_error

SAYS_SO = ("unprotected", "completion_not_stored")
"""The log lines that say that a message may run twice."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Table]:
    with tables() as made_later:
        yield made_later


@pytest.fixture
def records(shared: Table) -> Iterator[Table]:
    with made(shared) as table:
        yield table


def orders(kind: str, records: Table, sandbox: Sandbox, done: list[str]) -> Consumer[Any]:
    """Return a consumer whose handler takes 3 seconds, and fails on every third message at its first attempt."""

    def finish(message: Message) -> None:
        if message.json()["id"] % 3 == 0 and message.attempt == 1:
            raise ValueError("again")
        done.append(message.id)

    def sync(message: Message) -> None:
        sandbox.sleep(3)
        finish(message)

    async def runs_async(message: Message) -> None:
        await asyncio.sleep(3)
        finish(message)

    def batch(messages: Any) -> None:
        sandbox.sleep(3)
        for message in messages:
            try:
                finish(message)
            except ValueError as error:
                message.fail(error)

    settings: Any = {"idempotency": records.layer(), "name": kind, "backoff": Fixed(20), "max_attempts": 10}
    if kind == "batch":
        return batch_consumer(**settings)(batch)
    return consumer(concurrency=1 if kind == "sync" else 50, **settings)(runs_async if kind == "async" else sync)


@pytest.mark.parametrize("kind", ["sync", "threads", "async", "batch"])
def test_a_killed_handlers_message_runs_again_after_the_functions_deadline(
    kind: str, records: Table
) -> None:  # SPEC K4
    """A second delivery, 10 seconds after the first, waits for that deadline, not for the record's life of 14 days."""
    with Sandbox() as sandbox:
        done: list[str] = []
        sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=180)
        plain = orders(kind, records, sandbox, done)
        sandbox.connect(plain, "orders", timeout=30)
        sandbox.faults.add("crash", seconds=2)
        sandbox.faults.add("duplicate", seconds=10)
        sandbox.send("orders", {"id": 1})
        sandbox.run()
        assert len(done) == 1
        assert 30 <= sandbox.elapsed <= 45
        assert set(records.statuses().values()) == {"COMPLETED"}
        assert sandbox.messages("orders-dlq") == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["sync", "threads", "async", "batch"])
def test_no_message_is_lost_while_the_table_fails_and_one_that_runs_twice_is_named_in_the_log(
    kind: str, seed: int, records: Table, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    random = Random(f"{kind} {seed}")

    def fault(operation: str, is_applied: bool) -> Exception | None:
        codes = ["InternalServerError"] if is_applied else ["ThrottlingException", "AccessDeniedException"]
        return client_error(random.choice(codes)) if random.random() < 0.1 else None

    records.fault = fault
    with Sandbox(seed=seed) as sandbox:
        done: list[str] = []
        sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=180, max_receive_count=50)
        sandbox.connect(orders(kind, records, sandbox, done), "orders", timeout=30)
        sandbox.faults.add("duplicate", seconds=1, times=None, chance=0.3)
        sandbox.faults.add("crash", seconds=2)
        sandbox.faults.add("lost_answer", operation="ChangeMessageVisibilityBatch", times=None, chance=0.1, maybe=True)
        sent = {sandbox.send("orders", {"id": index}) for index in range(12)}
        sandbox.run()
        assert set(done) == sent
        twice = {message for message, runs in Counter(done).items() if runs > 1}
        said = {field(line, "message_id") for event in SAYS_SO for line in lines(caplog, event)}
        assert twice <= said


@pytest.mark.parametrize("kind", ["sync", "async", "batch"])
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_messages_of_one_key_that_arrive_together_settle_within_seconds(
    queue: str, kind: str, records: Table
) -> None:  # SPEC K4, H1
    """The second one of a batch waits for the first only briefly, and is then acknowledged without running."""
    with Sandbox() as sandbox:
        done: list[str] = []
        dead_letters = "orders-dlq.fifo" if queue.endswith(".fifo") else "orders-dlq"
        sandbox.queue(queue, dead_letter=dead_letters, visibility_timeout=5_400)
        keyed = records.layer(event_key_jmespath="key", expires_after_seconds=1_209_600)
        plain = orders(kind, records, sandbox, done).replace(idempotency=keyed)
        sandbox.connect(plain, queue, timeout=900)
        for index in range(8):
            group = f"g{index % 3}" if queue.endswith(".fifo") else None
            sandbox.send(queue, {"id": 3 * index + 1, "key": index // 2 + 1}, group_id=group)
        sandbox.run()
        assert len(done) == 4
        assert sandbox.elapsed < 120
