"""Promises of SPEC C8, C11, E6 and of verdicts, each in the smallest scenario that can break it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakSet

import pytest

from tarry import (
    Batch,
    DeadLetter,
    Failure,
    Fixed,
    Message,
    Outcome,
    Queue,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.record.attribute import FailureRecord
from tarry.testing import Sandbox
from tarry.world import current
from tests.sandboxes import work

HOUR = 3_600
CHANGE_VISIBILITY, SEND = "ChangeMessageVisibilityBatch", "SendMessageBatch"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


def failure_of_the_dead_letter(sandbox: Sandbox, queue: str = "orders-dlq") -> FailureRecord:
    """Return the failure record of the only dead letter."""
    [found] = sandbox.messages(queue)
    assert found.failure is not None, "SQS moved it without a record"
    return found.failure


# SQS never moves a message whose failure tarry knows (SPEC C8)


class FailingStep:
    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        raise RuntimeError("a step that fails")


class UnhandledStep:
    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        return Outcome.unhandled()


class RetryingStep:
    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        return Outcome.retry(5)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([RetryInPlace()], id="a list without DeadLetter"),
        pytest.param([FailingStep()], id="a step that raises"),
        pytest.param([FailingStep(), DeadLetter()], id="a step that raises before DeadLetter"),
        pytest.param([UnhandledStep()], id="unhandled on purpose"),
        pytest.param([RetryingStep()], id="a step that retries past the last delivery"),
        pytest.param([SendAgain("again", queue="nowhere")], id="SendAgain to no queue"),
        pytest.param([SendAgain("again", queue="nowhere"), DeadLetter()], id="SendAgain to no queue, then DeadLetter"),
        pytest.param([DeadLetter(queue="nowhere")], id="DeadLetter to no queue"),
    ],
)
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_message_that_fails_at_its_last_delivery_is_dead_lettered_with_its_record(
    sandbox: Sandbox, steps: list[Any], queue: str
) -> None:
    @consumer(on_failure=steps)
    def handler(message: Message) -> None:
        raise ValueError("the handler's own error")

    work(sandbox, handler, "1", queue=queue, max_receive_count=3, batch_size=1)
    sandbox.run()
    failure = failure_of_the_dead_letter(sandbox, queue.replace("orders", "orders-dlq"))
    assert (str(failure.type).rpartition(".")[2], failure.message) == ("ValueError", "the handler's own error")


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_message_that_is_deferred_at_its_last_delivery_is_dead_lettered(sandbox: Sandbox, queue: str) -> None:
    @consumer
    def handler(message: Message) -> None:
        message.defer(60)

    work(sandbox, handler, "1", queue=queue, max_receive_count=3, batch_size=1)
    sandbox.faults.add("denied", operation=SEND, queue=queue, times=None, maybe=queue.endswith(".fifo"))
    sandbox.run()
    assert failure_of_the_dead_letter(sandbox, queue.replace("orders", "orders-dlq")).reason == "expiring"


def test_a_parked_message_whose_visibility_cannot_be_changed_is_copied_and_runs_when_due(
    sandbox: Sandbox,
) -> None:
    ran_at: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        ran_at.append(sandbox.elapsed)

    work(sandbox, handler)
    sandbox.faults.add("denied", operation=CHANGE_VISIBILITY, times=None)
    Queue("orders").send("1", delay=2 * HOUR)
    sandbox.run()
    assert sandbox.messages("orders-dlq") == []
    assert [2 * HOUR <= at < 2.5 * HOUR for at in ran_at] == [True]


def test_a_parked_message_that_can_neither_wait_nor_be_copied_is_dead_lettered(sandbox: Sandbox) -> None:
    @consumer
    def handler(message: Message) -> None: ...

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1", delay=2 * HOUR)
    sandbox.faults.add("denied", operation=CHANGE_VISIBILITY, times=None)
    sandbox.faults.add("denied", operation=SEND, queue="orders", times=None, maybe=True)
    sandbox.run()
    assert failure_of_the_dead_letter(sandbox).reason == "expiring"


def test_a_long_deferral_whose_visibility_cannot_be_changed_makes_no_hot_loop(sandbox: Sandbox) -> None:
    """The message runs when it is due or is dead-lettered; it is not received at every visibility timeout."""
    runs: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(sandbox.elapsed)
        if len(runs) == 1:
            message.defer(12 * HOUR)

    work(sandbox, handler, visibility_timeout=60)
    sandbox.faults.add("denied", operation=CHANGE_VISIBILITY, times=None)
    sandbox.send("orders", "1")
    report = sandbox.run()
    if sandbox.messages("orders-dlq"):
        assert failure_of_the_dead_letter(sandbox).reason == "expiring"
    else:
        assert 12 * HOUR <= runs[1] < 13 * HOUR
    assert sum(event.what == "received" for event in report.events) < 12 * HOUR / 60 / 2


# A delay counts from the failure (SPEC C11)


def run_among_slow_messages(
    sandbox: Sandbox, fail: Callable[[Message], None], seconds: float = 200, queue: str = "orders", **settings: Any
) -> list[float]:
    """Return when the message "first" ran; the other messages of its batch take ``seconds`` together."""
    ran_at: list[float] = []

    @consumer(**settings)
    def handler(message: Message) -> None:
        if message.body == "first":
            ran_at.append(sandbox.elapsed)
            if len(ran_at) == 1:
                fail(message)
        else:
            sandbox.sleep(seconds / 4)

    bodies = ("first", "2", "3", "4", "5")
    work(sandbox, handler, *bodies, queue=queue, groups="abcde", visibility_timeout=1_800, timeout=300)
    sandbox.run()
    return ran_at


def fails_at_once(message: Message) -> None:
    raise ValueError("at once")


def test_a_failed_message_is_redelivered_after_its_delay_while_its_batch_still_runs(sandbox: Sandbox) -> None:
    first, second = run_among_slow_messages(sandbox, fails_at_once, backoff=Fixed(10))
    assert 10 <= second - first < 13


@pytest.mark.parametrize("settings", [{"concurrency": 2}, {"ack": "eager"}, {"keepalive": 20}])
def test_a_failed_message_is_redelivered_after_its_delay_however_the_batch_runs(
    sandbox: Sandbox, settings: dict[str, Any]
) -> None:
    first, second = run_among_slow_messages(sandbox, fails_at_once, backoff=Fixed(10), **settings)
    assert 10 <= second - first < 13


def test_a_message_is_redelivered_at_the_time_of_its_retry(sandbox: Sandbox) -> None:
    def retries_at_a_time(message: Message) -> None:
        message.retry(datetime.fromtimestamp(sandbox.now, UTC) + timedelta(seconds=60))

    first, second = run_among_slow_messages(sandbox, retries_at_a_time, seconds=115)
    assert 60 <= second - first < 63


def test_a_delay_longer_than_the_remaining_batch_counts_from_the_failure(sandbox: Sandbox) -> None:
    first, second = run_among_slow_messages(sandbox, fails_at_once, backoff=Fixed(250))
    assert 250 <= second - first < 253


def test_on_fifo_a_message_is_redelivered_after_its_batch_and_its_delay(sandbox: Sandbox) -> None:
    first, second = run_among_slow_messages(sandbox, fails_at_once, queue="orders.fifo", backoff=Fixed(210))
    assert 210 <= second - first < 213


def test_a_delay_counts_from_the_verdict_in_a_batch_handler(sandbox: Sandbox) -> None:
    ran_at: list[float] = []

    @batch_consumer
    def handler(batch: Batch) -> None:
        for message in batch:
            if message.body == "first":
                ran_at.append(sandbox.elapsed)
                if len(ran_at) == 1:
                    message.retry(100)
            else:
                sandbox.sleep(20)

    work(sandbox, handler, "first", "2", "3", "4", dead_letter=None, visibility_timeout=600, timeout=300)
    sandbox.run()
    assert 100 <= ran_at[1] - ran_at[0] < 103


def test_a_requested_wait_survives_a_crash_of_the_process(sandbox: Sandbox) -> None:
    sandbox.faults.add("crash", seconds=40)
    first, second, *_ = run_among_slow_messages(sandbox, fails_at_once, backoff=Fixed(10))
    assert 10 <= second - first < 13


# A lease starts at the receive (SPEC E6)


def deliver_after_55_of_60_seconds(sandbox: Sandbox, queue: str, handle: Callable[[Message, int], None]) -> list[float]:
    """Return when a message ran; its first run takes 10 s, and its lease ends during that run."""
    ran_at: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        ran_at.append(sandbox.elapsed)
        run = len(ran_at)
        sandbox.sleep(10)
        handle(message, run)

    work(sandbox, handler, "1", queue=queue, visibility_timeout=60)
    sandbox.faults.add("held", seconds=55)
    sandbox.run()
    return ran_at


def rejects(message: Message, run: int) -> None:
    message.reject("not wanted")


def rejects_first(message: Message, run: int) -> None:
    if run == 1:
        message.reject("not wanted")


def retries_first(message: Message, run: int) -> None:
    if run == 1:
        message.retry(0)


@pytest.mark.parametrize(("handle", "dead_letters"), [(rejects, 1), (rejects_first, 0)])
def test_an_invocation_whose_lease_has_ended_sends_no_dead_letter(
    sandbox: Sandbox, handle: Callable[[Message, int], None], dead_letters: int
) -> None:
    assert len(deliver_after_55_of_60_seconds(sandbox, "orders", handle)) == 2
    assert len(sandbox.messages("orders-dlq")) == dead_letters


def test_an_invocation_whose_lease_has_ended_does_not_release_a_message_that_another_one_runs(
    sandbox: Sandbox,
) -> None:
    assert len(deliver_after_55_of_60_seconds(sandbox, "orders", retries_first)) == 2


def test_a_lease_that_keepalive_has_extended_is_not_lost(sandbox: Sandbox) -> None:
    @consumer(keepalive=2)
    def handler(message: Message) -> None:
        sandbox.sleep(10)
        message.reject("not wanted")

    [order] = work(sandbox, handler, "1", visibility_timeout=60)
    sandbox.faults.add("held", seconds=55)
    assert sum(step.state == "IN_FLIGHT" for step in sandbox.run().story(order)) == 1
    assert len(sandbox.messages("orders-dlq")) == 1


# A verdict after the end of its handler is ignored


@pytest.mark.parametrize("ack", ["eager", "on_return"])
def test_an_ack_by_a_leftover_thread_does_not_delete_a_message_that_failed(sandbox: Sandbox, ack: Any) -> None:
    runs: list[str] = []

    @consumer(ack=ack, backoff=Fixed(30))
    def handler(message: Message) -> None:
        runs.append(message.body)
        if message.body == "slow":
            sandbox.sleep(5)
        elif runs.count("fails") == 1:

            def acks_after_the_failure() -> None:
                sandbox.sleep(1)
                message.ack()

            current().threads.start(acks_after_the_failure)
            raise ValueError("it has failed")

    work(sandbox, handler, "fails")
    sandbox.send("orders", "slow")
    sandbox.run()
    assert runs.count("fails") == 2


def test_an_ack_by_a_leftover_thread_does_not_delete_a_message_whose_dead_letter_cannot_be_sent(
    sandbox: Sandbox,
) -> None:
    @consumer(ack="eager")
    def handler(message: Message) -> None:
        if message.body == "slow":
            sandbox.sleep(5)
            return

        def acks_after_the_failure() -> None:
            sandbox.sleep(1)
            message.ack()

        current().threads.start(acks_after_the_failure)
        message.reject("it is not wanted")

    work(sandbox, handler)
    sandbox.faults.add("denied", operation=SEND)
    order = sandbox.send("orders", "rejected")
    sandbox.send("orders", "slow")
    assert sandbox.run().state(order) == "DEAD_LETTERED"
    assert failure_of_the_dead_letter(sandbox).message == "it is not wanted"


def test_a_verdict_of_a_leftover_thread_in_a_batch_handler_changes_nothing(sandbox: Sandbox) -> None:
    runs: list[str] = []

    @batch_consumer(ack="eager", backoff=Fixed(30), max_attempts=3)
    def handler(batch: Batch) -> None:
        runs.extend(message.body for message in batch)
        if runs.count("1") == 1:

            def acks_after_the_failure() -> None:
                sandbox.sleep(0.005)
                for message in batch:
                    message.ack()

            current().threads.start(acks_after_the_failure)
            raise ValueError("all have failed")

    work(sandbox, handler, "1")
    sandbox.send("orders", "2")
    sandbox.run()
    assert sorted(runs) == ["1", "1", "2", "2"]


# Requests of an async batch do not block its event loop (SPEC G6, H1)


@pytest.mark.parametrize("operation", [SEND, "GetQueueAttributes"])
def test_on_fifo_a_slow_request_does_not_make_the_handler_of_another_group_time_out(
    sandbox: Sandbox, operation: str
) -> None:
    """Sending the dead letter takes three seconds; the handler of the other group has two."""
    took: list[float] = []

    @consumer(concurrency=2, timeout=2)
    async def handler(message: Message) -> None:
        if message.group_id == "a":
            message.reject("it is not wanted")
            return
        began = sandbox.elapsed
        for _ in range(10):
            await current().clock.asleep(0.1)
        took.append(sandbox.elapsed - began)

    work(sandbox, handler, queue="orders.fifo", timeout=30)
    for group in ("a", "b", "a"):
        sandbox.send("orders.fifo", "1", group_id=group)
    sandbox.faults.add("late", operation=operation, seconds=3)
    sandbox.run()
    assert took == [pytest.approx(1, abs=0.1)]
    assert len(sandbox.messages("orders-dlq.fifo")) == 2


# The objects of failed handlers are freed (SPEC A6, I2)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_local_variables_of_failed_handlers_are_freed(sandbox: Sandbox, concurrency: int) -> None:
    """An error references the frames it was raised through; of 200 failures, only a few keep theirs at a time."""
    alive: WeakSet[Any] = WeakSet()
    most = 0

    class Blob: ...

    @consumer(backoff=Fixed(10_000), concurrency=concurrency)
    def handler(message: Message) -> None:
        nonlocal most
        blob = Blob()
        alive.add(blob)
        most = max(most, len(alive))
        raise ValueError(message.body)

    work(sandbox, handler, *map(str, range(200)), batch_size=200, window=5)
    sandbox.run(for_=60)
    assert most <= 30
