"""Idempotency in virtual time: messages that are delivered twice, processes that die, and a table that fails."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tarry import Batch, Consumer, Fixed, LogOptions, Message, batch_consumer, consumer
from tarry.testing import Report, Sandbox
from tests.loglines import field, lines
from tests.tables import SlowTable, Table, made, tables
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
    caplog.set_level(logging.INFO)
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


# slow tables: no message dies of them, and none is left in progress

KINDS = ["sync", "threads", "async", "batch", "async batch"]


class Slow:
    """A system whose table is slow, and whose handler takes some seconds; it may fail at the first two attempts."""

    def __init__(self, kind: str, table: SlowTable, seconds: float = 0.1, fails: str = "", **settings: Any) -> None:
        self.table = table
        self.ran: list[str] = []
        """The id of the message of each run."""
        self.sandbox = Sandbox()
        self.seconds = seconds

        self.fails = fails
        settings = {"idempotency": table, "name": "orders", "backoff": Fixed(20), "max_attempts": 3, **settings}
        if "batch" in kind:
            self.handler: Consumer[Any] = batch_consumer(**settings)(
                self.batch if kind == "batch" else self.batch_async
            )
        else:
            concurrency = 1 if kind == "sync" else 10
            self.handler = consumer(concurrency=concurrency, **settings)(
                self.one_async if kind == "async" else self.one
            )

    def one(self, message: Message) -> None:
        self._begin(message)
        self.sandbox.sleep(self.seconds)
        self._end(message)

    async def one_async(self, message: Message) -> None:
        self._begin(message)
        await asyncio.sleep(self.seconds)
        self._end(message)

    def batch(self, messages: Batch) -> None:
        self._begin(*messages)
        self.sandbox.sleep(self.seconds)
        self._end_all(messages)

    async def batch_async(self, messages: Batch) -> None:
        self._begin(*messages)
        await asyncio.sleep(self.seconds)
        self._end_all(messages)

    def _begin(self, *messages: Message) -> None:
        self.ran += [message.id for message in messages]

    def _end(self, message: Message) -> None:
        if self.fails and message.attempt <= 2:
            raise ValueError(self.fails)

    def _end_all(self, messages: Batch) -> None:
        for message in messages:
            try:
                self._end(message)
            except ValueError as error:
                message.fail(error)

    def run(
        self, messages: int, timeout: int, queue: str = "orders", max_receive_count: int = 15, batch_size: int = 10
    ) -> Report:
        """Send messages, each in a FIFO group of its own, and run; check that no invocation was killed."""
        with self.sandbox as sandbox:
            is_fifo = queue.endswith(".fifo")
            dlq = "dlq.fifo" if is_fifo else "dlq"
            sandbox.queue(queue, dead_letter=dlq, visibility_timeout=120, max_receive_count=max_receive_count)
            window = 1 if batch_size > 10 else 0
            sandbox.connect(self.handler, queue, timeout=timeout, batch_size=batch_size, window=window)
            for index in range(messages):
                sandbox.send(queue, {"id": index}, group_id=f"g{index}" if is_fifo else None)
            report = sandbox.run()
            self.dead_letters = sandbox.messages(dlq)
            assert all(each.answered is not None for each in report.history.invocations.values())
            return report

    @property
    def runs(self) -> Counter[str]:
        """How often each message ran."""
        return Counter(self.ran)


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_table_leaves_handlers_their_time(
    kind: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K4
    """Messages that are not claimed by then are released; each runs once, with a record."""
    is_batch = "batch" in kind and queue == "orders"
    slow = Slow(kind, SlowTable(1.2), seconds=6)
    report = slow.run(60 if is_batch else 10, 30, queue, batch_size=60 if is_batch else 10)
    assert set(slow.runs.values()) == {1}
    assert slow.table.statuses() == {"COMPLETED": len(slow.ran)}
    assert (report.count("COMMITTED"), slow.dead_letters) == (60 if is_batch else 10, [])
    if "batch" in kind:
        lines_of_first = lines(caplog, "out_of_time")
        assert "no time left to claim all messages" in field(lines_of_first[0], "text")
        assert len(lines_of_first) < len(report.history.invocations)  # one an invocation, not in the last


@pytest.mark.parametrize("seconds", [1.8, 2.5, 4])
@pytest.mark.parametrize("timeout", [6, 10])
@pytest.mark.parametrize("kind", ["batch", "async batch"])
def test_on_fifo_claims_without_an_answer_do_not_take_the_time_of_a_batch_handler(
    kind: str, timeout: int, seconds: float
) -> None:  # SPEC K4
    """A claim waits for a quarter of the time left; the time to end it is known only when its answer comes."""
    slow = Slow(kind, SlowTable(seconds), seconds=1)
    report = slow.run(10, timeout, "orders.fifo", max_receive_count=60)
    assert set(slow.runs.values()) == {1}
    assert (report.count("COMMITTED"), slow.dead_letters) == (10, [])


@pytest.mark.parametrize("kind", KINDS)
def test_timeout_begins_with_the_handler_not_with_the_claim(kind: str) -> None:  # SPEC K4, I3
    slow = Slow(kind, SlowTable(3), seconds=1, timeout=2)
    slow.run(10, 30)
    assert set(slow.runs.values()) == {1}
    assert (slow.table.statuses(), slow.dead_letters) == ({"COMPLETED": 10}, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_exceeds_its_timeout_after_a_slow_claim_is_still_stopped(kind: str) -> None:  # SPEC K4, I3
    slow = Slow(kind, SlowTable(1), seconds=60, timeout=2, max_attempts=1)
    report = slow.run(1, 30)
    [invocation] = report.history.invocations.values()
    assert invocation.answered is not None
    # The claim, two seconds, and two requests to remove the record; an abandoned thread's record stays.
    ended_after = invocation.answered.at - invocation.invoked.at
    assert ended_after == pytest.approx(3 if kind == "threads" else 5, abs=0.3)
    assert slow.dead_letters[0].failure.type == "TimeoutError"


@pytest.mark.parametrize(("kind", "fails"), [("threads", "no"), ("batch", ""), ("batch", "no")])
def test_what_has_run_is_ended_in_time_however_many_messages_there_are(kind: str, fails: str) -> None:  # SPEC K4
    """Without a bound, the ends of 100 claims of 0.3 s each would take longer than the invocation has."""
    table = SlowTable(0.3)
    slow = Slow(kind, table, fails=fails)
    slow.run(100, 6, batch_size=100, max_receive_count=100)
    assert table.statuses() == {"COMPLETED": 100}
    assert not slow.dead_letters


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_runs_until_the_deadline_leaves_time_to_end_its_claim(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K4, I3
    """Two requests of 1.2 s do not fit into the second that is kept for settling; so more is kept."""
    slow = Slow(kind, SlowTable(1.2), seconds=100, max_attempts=1)
    slow.run(1, 30)
    assert slow.table.statuses() == ({"INPROGRESS": 1} if kind == "threads" else {})
    assert len(slow.dead_letters) == 1
    assert not lines(caplog, "claim_not_removed")


@pytest.mark.parametrize("kind", ["batch", "async batch"])
def test_a_batch_handler_that_needs_more_than_half_of_the_time_gets_it_next_time(kind: str) -> None:  # SPEC K4
    slow = Slow(kind, SlowTable(1.2), seconds=20)
    slow.run(30, 30, batch_size=30)
    assert set(slow.runs.values()) == {2}  # the first time, it was interrupted
    assert (slow.table.statuses(), slow.dead_letters) == ({"COMPLETED": 30}, [])


@pytest.mark.parametrize("kind", ["batch", "sync", "threads", "async"])
def test_at_its_last_delivery_a_message_that_cannot_be_claimed_in_time_runs_all_the_same(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K4
    """If it were released, SQS would dead-letter it without a run."""
    caplog.set_level(logging.INFO)
    seconds, messages = (1.0, 60) if kind == "batch" else (0.1, 14 if kind == "sync" else 90)
    slow = Slow(kind, SlowTable(0.7), seconds=seconds)
    slow.run(messages, 8, max_receive_count=2, batch_size=messages)
    assert len(slow.runs) == messages
    assert slow.dead_letters == []
    unprotected = lines(caplog, "unprotected")
    assert unprotected
    assert "no time was left" in field(unprotected[0], "text")


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_one_silent_answer_costs_one_message_its_protection(
    kind: str, is_applied: bool, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K4
    """Its record is completed all the same, so that it does not run twice; an answer may come after minutes."""
    silent = list[str]()

    def seconds(operation: str, key: str) -> float:
        if operation == "put" and not silent:
            silent.append(key)
            return 12 if is_applied else 600  # it is applied when half of the time is over
        return 0.01

    slow = Slow(kind, SlowTable(seconds))
    slow.run(10, 30)
    assert set(slow.runs.values()) == {1}
    assert slow.table.statuses() == {"COMPLETED": 10}
    [line] = lines(caplog, "unprotected")
    assert f"orders#{field(line, 'message_id')}" == silent[0]
    assert not lines(caplog, "completion_not_stored")


@pytest.mark.parametrize("kind", KINDS)
def test_one_end_without_an_answer_leaves_the_others_as_they_are(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K4
    silent = list[str]()

    def seconds(operation: str, key: str) -> float:
        if operation == "update" and not silent:
            silent.append(key)
            return 600
        return 0.01

    slow = Slow(kind, SlowTable(seconds))
    slow.run(10, 30)
    assert set(slow.runs.values()) == {1}
    [line] = lines(caplog, "completion_not_stored")
    assert f"orders#{field(line, 'message_id')}" == silent[0]


@pytest.mark.parametrize("kind", ["sync", "threads", "async"])
def test_a_table_that_never_answers_lets_the_first_message_run_and_loses_none(kind: str) -> None:  # SPEC K4
    slow = Slow(kind, SlowTable(600), max_attempts=5)
    slow.run(5, 30)
    assert set(slow.runs.values()) == {1}
    assert slow.dead_letters == []


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_the_retry_of_an_abandoned_run_does_not_meet_its_own_record(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K4
    """The record counts until the retry, so that each attempt is a run; a duplicate before that would wait."""
    caplog.set_level(logging.INFO)
    slow = Slow(kind, SlowTable(0.01), seconds=10, timeout=2, backoff=Fixed(5))
    slow.run(1, 60)
    assert set(slow.runs.values()) == {3}
    assert not lines(caplog, "deferred")
    assert slow.dead_letters[0].failure.attempts == 3


def test_on_fifo_no_message_runs_beside_an_abandoned_run_of_its_group(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC H1, I3. The request that ends the claim of the abandoned message does not let its group go on."""
    slow = Slow("threads", SlowTable(0.01), seconds=10, timeout=2, max_attempts=1)
    with slow.sandbox as sandbox:
        sandbox.queue("orders.fifo", dead_letter="dlq.fifo", visibility_timeout=120)
        sandbox.connect(slow.handler, "orders.fifo", timeout=60)
        for index in range(3):
            sandbox.send("orders.fifo", {"id": index}, group_id="a")
        sandbox.run()  # checks that the groups keep their order
        assert set(slow.runs.values()) == {1}
        assert len(sandbox.messages("dlq.fifo")) == len(lines(caplog, "process_ends")) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_is_done_is_acknowledged_however_slow_the_redact_of_the_log_is(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K4, I7
    """The hook's time is that of the claim: no handler runs that could exceed its time."""
    caplog.set_level(logging.INFO)

    def redact(fields: dict[str, Any]) -> dict[str, Any]:
        slow.sandbox.sleep(20)
        return fields

    slow = Slow(kind, SlowTable(0.1), max_attempts=2, log=LogOptions(redact=redact))
    slow.sandbox.faults.add("duplicate", seconds=10)
    report = slow.run(1, 3)
    assert (set(slow.runs.values()), slow.dead_letters) == ({1}, [])
    assert len(lines(caplog, "done_before")) == 1
    [message_id] = slow.runs
    assert "WAITING_RETRY" not in [step.state for step in report.story(message_id)]


def test_redelivered_messages_are_claimed_only_if_there_is_time_for_their_handlers(sandbox: Sandbox) -> None:  # SPEC K4
    """Their batch waits first for what settling them needs."""
    table, runs = SlowTable(), Counter[str]()

    @consumer(idempotency=table)
    def handle(message: Message) -> None:
        runs[message.body] += 1
        if message.body == "slow":
            if runs["slow"] == 1:
                os._exit(1)
            table.seconds = 1.2
            sandbox.sleep(3.5)

    sandbox.queue("orders.fifo", dead_letter="orders-dlq.fifo", max_receive_count=50, visibility_timeout=60)
    sandbox.connect(handle, "orders.fifo", timeout=10)
    for body in ("slow", "fast"):
        sandbox.send("orders.fifo", body, group_id="g")
    report = sandbox.run()
    assert runs == {"slow": 2, "fast": 1}
    assert sum(event.what == "invoked" for event in report.events) == 3


def test_what_a_slow_claim_took_is_missing_at_its_end_not_for_the_handler(sandbox: Sandbox) -> None:  # SPEC K4
    """A look-up that hangs and a slow claim take half of the invocation; the handler runs in the rest."""
    table, runs = SlowTable(), list[int]()

    @consumer(idempotency=table, max_attempts=2)
    def handle(message: Message) -> None:
        runs.append(message.receive_count)
        if len(runs) == 1:
            table.seconds = 0.9
            os._exit(1)
        sandbox.sleep(0.5)

    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=60)
    sandbox.connect(handle, "orders", timeout=6)
    sandbox.faults.add("late", operation="GetQueueAttributes", seconds=20)
    sandbox.send("orders", "-")
    report = sandbox.run()
    assert (runs, report.count("COMMITTED")) == ([1, 2], 1)
