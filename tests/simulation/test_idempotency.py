"""Idempotency in virtual time: messages that are delivered twice, processes that die, tables that fail or are slow."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig

from tarry import Batch, Consumer, Fixed, LogOptions, Message, batch_consumer, consumer
from tarry.testing import Report, Sandbox
from tests.loglines import Caplog, field, lines
from tests.sandboxes import work
from tests.simulation.failing_tables import FailingRecords
from tests.tables import SlowTable

ONE_BY_ONE = ["sync", "threads", "async"]
KINDS = [*ONE_BY_ONE, "batch", "async batch"]
of_each_kind = pytest.mark.parametrize("kind", KINDS)


class Orders:
    """A system whose handler takes some seconds, and fails on some messages."""

    def __init__(
        self,
        kind: str,
        table: Any,
        seconds: float = 0.1,
        fails: Callable[[Message], bool] | None = None,
        **settings: Any,
    ) -> None:
        self.ran: list[str] = []
        """The id of the message of each run."""
        self.done: list[str] = []
        """The same of each run that succeeded."""
        self.table, self.seconds, self.sandbox = table, seconds, Sandbox()
        self._fails = fails or (lambda message: False)
        settings = {"idempotency": table, "name": "orders", "backoff": Fixed(20), "max_attempts": 3, **settings}
        handle = {"async": self.one_async, "batch": self.batch, "async batch": self.batch_async}.get(kind, self.one)
        if "batch" in kind:
            self.handler: Consumer[Any] = batch_consumer(**settings)(handle)
        else:
            self.handler = consumer(concurrency=1 if kind == "sync" else 10, **settings)(handle)

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
        if self._fails(message):
            raise ValueError("no")
        self.done.append(message.id)

    def _end_all(self, messages: Batch) -> None:
        for message in messages:
            try:
                self._end(message)
            except ValueError as error:
                message.fail(error)

    def run(
        self, bodies: Any, timeout: int, queue: str = "orders", groups: str = "", batch_size: int = 10, **settings: Any
    ) -> Report:
        """Send messages, each in a FIFO group of its own, and run; check that no invocation was killed."""
        bodies = [{"id": index} for index in range(bodies)] if isinstance(bodies, int) else bodies
        settings = {"visibility_timeout": 120, "max_receive_count": 15, "batch_size": batch_size, **settings}
        with self.sandbox as sandbox:
            window = 1 if batch_size > 10 else 0
            groups = groups or "".join(str(index % 10) for index in range(len(bodies)))
            self.sent = work(
                sandbox, self.handler, *bodies, queue=queue, groups=groups, timeout=timeout, window=window, **settings
            )
            report = sandbox.run()
            self.dead_letters = sandbox.messages("orders-dlq.fifo" if queue.endswith(".fifo") else "orders-dlq")
            killed = [each for each in report.history.invocations.values() if each.answered is None]
            assert len(killed) == sum(event.what == "crashed" for event in report.events)
            return report

    @property
    def runs(self) -> Counter[str]:
        """How often each message ran."""
        return Counter(self.ran)

    def assert_each_ran_once(self) -> None:
        assert set(self.runs.values()) == {1}
        assert self.dead_letters == []

    def assert_each_ran_once_with_a_record(self) -> None:
        self.assert_each_ran_once()
        assert self.table.statuses() == {"COMPLETED": len(self.ran)}


@pytest.mark.parametrize("kind", ["sync", "threads", "async", "batch"])
def test_a_killed_handlers_message_runs_again_after_the_functions_deadline(kind: str) -> None:  # SPEC K4
    """A second delivery, 10 seconds after the first, waits for that deadline, not for the record's life of 14 days."""
    orders = Orders(kind, SlowTable(), seconds=3)
    orders.sandbox.faults.add("crash", seconds=2)
    orders.sandbox.faults.add("duplicate", seconds=10)
    orders.run(1, 30)
    assert (len(orders.done), orders.dead_letters) == (1, [])
    assert 30 <= orders.sandbox.elapsed <= 45
    assert orders.table.statuses() == {"COMPLETED": 1}


@pytest.mark.parametrize("mood", ["throttled", "lost answers"])
@pytest.mark.parametrize("kind", ["sync", "threads", "async", "batch"])
def test_no_message_is_lost_while_the_table_fails_and_one_that_runs_twice_is_named_in_the_log(
    kind: str, mood: str, caplog: Caplog
) -> None:
    caplog.set_level(logging.INFO)
    orders = Orders(
        kind, FailingRecords(0, mood, 0), 3, lambda message: message.json()["id"] % 3 == message.attempt - 1
    )
    faults = orders.sandbox.faults
    faults.add("duplicate", seconds=1, times=None, chance=0.3)
    faults.add("crash", seconds=2)
    faults.add("lost_answer", operation="ChangeMessageVisibilityBatch", times=None, chance=0.1, maybe=True)
    orders.handler = orders.handler.replace(max_attempts=10)
    orders.run(12, 30, visibility_timeout=180, max_receive_count=50)
    assert {*orders.done} == {*orders.sent}
    twice = {message for message, runs in Counter(orders.done).items() if runs > 1}
    said = [line for event in ("unprotected", "completion_not_stored") for line in lines(caplog, event)]
    assert twice <= {field(line, "message_id") for line in said}


@pytest.mark.parametrize("kind", ["sync", "async", "batch"])
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_messages_of_one_key_that_arrive_together_settle_within_seconds(queue: str, kind: str) -> None:  # SPEC K4, H1
    """The second one of a batch waits for the first only briefly, and is then acknowledged without running."""
    table = SlowTable()
    table.configure(IdempotencyConfig(event_key_jmespath="key", expires_after_seconds=1_209_600))
    orders = Orders(kind, table, seconds=3)
    bodies = [{"id": index, "key": index // 2 + 1} for index in range(8)]
    orders.run(bodies, 900, queue, groups="01201201", visibility_timeout=5_400)
    assert len(orders.done) == 4
    assert orders.sandbox.elapsed < 120


# slow tables: no message dies of them, and none is left in progress


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@of_each_kind
def test_a_slow_table_leaves_handlers_their_time(kind: str, queue: str, caplog: Caplog) -> None:  # SPEC K4
    """Messages that are not claimed by then are released; each runs once, with a record."""
    count = 60 if "batch" in kind and queue == "orders" else 10
    orders = Orders(kind, SlowTable(1.2), seconds=6)
    report = orders.run(count, 30, queue, batch_size=count)
    orders.assert_each_ran_once_with_a_record()
    assert report.count("COMMITTED") == count
    if "batch" in kind:
        of_first = lines(caplog, "out_of_time")
        assert "no time left to claim all messages" in field(of_first[0], "text")
        assert len(of_first) < len(report.history.invocations)  # one an invocation, not in the last


@pytest.mark.parametrize("seconds", [1.8, 2.5, 4])
@pytest.mark.parametrize("timeout", [6, 10])
@pytest.mark.parametrize("kind", ["batch", "async batch"])
def test_on_fifo_claims_without_an_answer_do_not_take_the_time_of_a_batch_handler(
    kind: str, timeout: int, seconds: float
) -> None:  # SPEC K4
    """A claim waits for a quarter of the time left; the time to end it is known only when its answer comes."""
    orders = Orders(kind, SlowTable(seconds), seconds=1)
    report = orders.run(10, timeout, "orders.fifo", max_receive_count=60)
    orders.assert_each_ran_once()
    assert report.count("COMMITTED") == 10


@of_each_kind
def test_timeout_begins_with_the_handler_not_with_the_claim(kind: str) -> None:  # SPEC K4, I3
    orders = Orders(kind, SlowTable(3), seconds=1, timeout=2)
    orders.run(10, 30)
    orders.assert_each_ran_once_with_a_record()


@of_each_kind
def test_a_handler_that_exceeds_its_timeout_after_a_slow_claim_is_still_stopped(kind: str) -> None:  # SPEC K4, I3
    orders = Orders(kind, SlowTable(1), seconds=60, timeout=2, max_attempts=1)
    [invocation] = orders.run(1, 30).history.invocations.values()
    assert invocation.answered is not None
    # The claim, two seconds, and two requests to remove the record; an abandoned thread's record stays.
    ended_after = invocation.answered.at - invocation.invoked.at
    assert ended_after == pytest.approx(3 if kind == "threads" else 5, abs=0.3)
    assert orders.dead_letters[0].failure.type == "TimeoutError"


@pytest.mark.parametrize(("kind", "fails"), [("threads", True), ("batch", False), ("batch", True)])
def test_what_has_run_is_ended_in_time_however_many_messages_there_are(kind: str, fails: bool) -> None:  # SPEC K4
    """Without a bound, the ends of 100 claims of 0.3 s each would take longer than the invocation has."""
    orders = Orders(kind, SlowTable(0.3), fails=lambda message: fails and message.attempt <= 2)
    orders.run(100, 6, batch_size=100, max_receive_count=100)
    assert (orders.table.statuses(), orders.dead_letters) == ({"COMPLETED": 100}, [])


@of_each_kind
def test_a_handler_that_runs_until_the_deadline_leaves_time_to_end_its_claim(kind: str, caplog: Caplog) -> None:
    """SPEC K4, I3. Two requests of 1.2 s do not fit into the second that is kept for settling; so more is kept."""
    orders = Orders(kind, SlowTable(1.2), seconds=100, max_attempts=1)
    orders.run(1, 30)
    assert orders.table.statuses() == ({"INPROGRESS": 1} if kind == "threads" else {})
    assert (len(orders.dead_letters), lines(caplog, "claim_not_removed")) == (1, [])


@pytest.mark.parametrize("kind", ["batch", "async batch"])
def test_a_batch_handler_that_needs_more_than_half_of_the_time_gets_it_next_time(kind: str) -> None:  # SPEC K4
    orders = Orders(kind, SlowTable(1.2), seconds=20)
    orders.run(30, 30, batch_size=30)
    assert set(orders.runs.values()) == {2}  # the first time, it was interrupted
    assert (orders.table.statuses(), orders.dead_letters) == ({"COMPLETED": 30}, [])


@pytest.mark.parametrize("kind", ["batch", *ONE_BY_ONE])
def test_at_its_last_delivery_a_message_that_cannot_be_claimed_in_time_runs_all_the_same(
    kind: str, caplog: Caplog
) -> None:  # SPEC K4
    """If it were released, SQS would dead-letter it without a run."""
    caplog.set_level(logging.INFO)
    seconds, messages = (1.0, 60) if kind == "batch" else (0.1, 14 if kind == "sync" else 90)
    orders = Orders(kind, SlowTable(0.7), seconds=seconds)
    orders.run(messages, 8, max_receive_count=2, batch_size=messages)
    assert (len(orders.runs), orders.dead_letters) == (messages, [])
    assert "no time was left" in field(lines(caplog, "unprotected")[0], "text")


def silent_once(of: str, silence: float) -> tuple[list[str], SlowTable]:
    """Return a table, one of whose requests of this operation takes long, and the key of that one."""
    silent = list[str]()

    def seconds(operation: str, key: str) -> float:
        if operation == of and not silent:
            silent.append(key)
            return silence
        return 0.01

    return silent, SlowTable(seconds)


@pytest.mark.parametrize("silence", [12, 600])  # it is applied when half of the time is over, or never
@of_each_kind
def test_one_silent_answer_costs_one_message_its_protection(kind: str, silence: float, caplog: Caplog) -> None:
    """SPEC K4. Its record is completed all the same, so that it does not run twice; an answer may come much later."""
    silent, table = silent_once("put", silence)
    orders = Orders(kind, table)
    orders.run(10, 30)
    orders.assert_each_ran_once_with_a_record()
    [line] = lines(caplog, "unprotected")
    assert [f"orders#{field(line, 'message_id')}"] == silent
    assert not lines(caplog, "completion_not_stored")


@of_each_kind
def test_one_end_without_an_answer_leaves_the_others_as_they_are(kind: str, caplog: Caplog) -> None:  # SPEC K4
    silent, table = silent_once("update", 600)
    orders = Orders(kind, table)
    orders.run(10, 30)
    orders.assert_each_ran_once()
    [line] = lines(caplog, "completion_not_stored")
    assert [f"orders#{field(line, 'message_id')}"] == silent


@pytest.mark.parametrize(
    ("takes", "handler", "waits"),
    [(0.01, 0.1, "5.0"), (2, 0.1, "6.0"), (0.01, 20, "2.5"), (2, 22.75, "4.5")],
    ids=["five seconds", "three times a claim", "a quarter of the time left", "a quarter of the margin is left"],
)
def test_the_answer_to_the_end_of_a_claim_is_awaited_for_some_seconds(
    takes: float, handler: float, waits: str, caplog: Caplog
) -> None:  # SPEC K4
    """At least as long as two requests should take, and half as long again."""
    table = SlowTable(lambda operation, _: takes if operation == "put" else 600)
    orders = Orders("sync", table, seconds=handler)
    orders.run(1, 30)
    [line] = lines(caplog, "completion_not_stored")
    assert field(line, "text") == (
        "The message is done, but its idempotency record could not be completed (no answer within "
        f"{waits} seconds). If it is delivered again, its handler runs a second time."
    )


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_a_table_that_never_answers_lets_the_first_message_run_and_loses_none(kind: str) -> None:  # SPEC K4
    orders = Orders(kind, SlowTable(600), max_attempts=5)
    orders.run(5, 30)
    orders.assert_each_ran_once()


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_the_retry_of_an_abandoned_run_does_not_meet_its_own_record(kind: str, caplog: Caplog) -> None:  # SPEC K4
    """The record counts until the retry, so that each attempt is a run; a duplicate before that would wait."""
    caplog.set_level(logging.INFO)
    orders = Orders(kind, SlowTable(0.01), seconds=10, timeout=2, backoff=Fixed(5))
    orders.run(1, 60)
    assert set(orders.runs.values()) == {3}
    assert not lines(caplog, "deferred")
    assert orders.dead_letters[0].failure.attempts == 3


@pytest.mark.parametrize("make", [consumer, batch_consumer])
def test_the_record_of_an_abandoned_task_stays_since_its_handler_may_still_run(make: Any, sandbox: Sandbox) -> None:
    table = SlowTable(0.01)

    @make(timeout=2, idempotency=table, max_attempts=1)
    async def handler(_: object) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    work(sandbox, handler, "-", timeout=30)
    sandbox.run(for_=20)
    assert table.statuses() == {"INPROGRESS": 1}


def test_on_fifo_no_message_runs_beside_an_abandoned_run_of_its_group(caplog: Caplog) -> None:
    """SPEC H1, I3. The request that ends the claim of the abandoned message does not let its group go on."""
    orders = Orders("threads", SlowTable(0.01), seconds=10, timeout=2, max_attempts=1)
    orders.run(3, 60, "orders.fifo", groups="aaa")  # checks that the groups keep their order
    assert set(orders.runs.values()) == {1}
    assert len(orders.dead_letters) == len(lines(caplog, "process_ends")) == 3


@of_each_kind
def test_a_message_that_is_done_is_acknowledged_however_slow_the_redact_of_the_log_is(
    kind: str, caplog: Caplog
) -> None:  # SPEC K4, I7
    """The hook's time is that of the claim: no handler runs that could exceed its time."""
    caplog.set_level(logging.INFO)
    redact: Any = lambda fields: orders.sandbox.sleep(20) or fields  # noqa: E731
    orders = Orders(kind, SlowTable(0.1), max_attempts=2, log=LogOptions(redact=redact))
    orders.sandbox.faults.add("duplicate", seconds=10)
    report = orders.run(1, 3)
    orders.assert_each_ran_once()
    assert len(lines(caplog, "done_before")) == 1
    assert "WAITING_RETRY" not in [step.state for step in report.story(orders.sent[0])]


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

    work(sandbox, handle, "slow", "fast", queue="orders.fifo", max_receive_count=50, visibility_timeout=60, timeout=10)
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

    sandbox.faults.add("late", operation="GetQueueAttributes", seconds=20)
    work(sandbox, handle, "-", visibility_timeout=60, timeout=6)
    report = sandbox.run()
    assert (runs, report.count("COMMITTED")) == ([1, 2], 1)
