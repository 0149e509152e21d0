"""Promises about settlement, each in the smallest scenario that can break it, in virtual time."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest

from tarry import (
    Batch,
    DeadLetter,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
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
Next = Callable[[Failure], Outcome]
queues = pytest.mark.parametrize("queue", ["orders", "orders.fifo"])


def failure_of_the_dead_letter(sandbox: Sandbox, queue: str = "orders") -> FailureRecord:
    """Return the failure record of the only dead letter of a queue."""
    [found] = sandbox.messages(queue.replace("orders", "orders-dlq"))
    assert found.failure is not None, "SQS moved it without a record"
    return found.failure


def slow(seconds: float) -> Callable[[Failure, Next], Outcome]:
    """Return a failure step that takes some seconds."""

    def step(failure: Failure, next_step: Next) -> Outcome:
        current().clock.sleep(seconds)
        return next_step(failure)

    return step


# SQS never moves a message whose failure tarry knows (SPEC C8)


def raises(failure: Failure, next_step: Next) -> Outcome:
    raise RuntimeError("a step that fails")


STEPS: dict[str, list[Any]] = {
    "a list without DeadLetter": [RetryInPlace()],
    "a step that raises": [raises],
    "a step that raises before DeadLetter": [raises, DeadLetter()],
    "unhandled on purpose": [lambda failure, next_step: Outcome.unhandled()],
    "a step that retries past the last delivery": [lambda failure, next_step: Outcome.retry(5)],
    "SendAgain to no queue": [SendAgain("again", queue="nowhere")],
    "SendAgain to no queue, then DeadLetter": [SendAgain("again", queue="nowhere"), DeadLetter()],
    "DeadLetter to no queue": [DeadLetter(queue="nowhere")],
}


@queues
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_a_message_that_fails_at_its_last_delivery_is_dead_lettered_with_its_record(
    sandbox: Sandbox, steps: list[Any], queue: str
) -> None:
    @consumer(on_failure=steps)
    def handler(message: Message) -> None:
        raise ValueError("the handler's own error")

    work(sandbox, handler, "1", queue=queue, max_receive_count=3, batch_size=1)
    sandbox.run()
    failure = failure_of_the_dead_letter(sandbox, queue)
    assert (str(failure.type).rpartition(".")[2], failure.message) == ("ValueError", "the handler's own error")


@pytest.mark.parametrize("can_be_copied", [True, False])
def test_a_parked_message_whose_visibility_cannot_be_changed_is_copied_and_runs_when_due_or_is_dead_lettered(
    sandbox: Sandbox, can_be_copied: bool
) -> None:
    ran_at: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        ran_at.append(sandbox.elapsed)

    work(sandbox, handler, "1", send={"delay": 2 * HOUR})
    sandbox.faults.add("denied", operation=CHANGE_VISIBILITY, times=None)
    if not can_be_copied:
        sandbox.faults.add("denied", operation=SEND, queue="orders", times=None, maybe=True)
    sandbox.run()
    if can_be_copied:
        assert sandbox.messages("orders-dlq") == []
        assert [2 * HOUR <= at < 2.5 * HOUR for at in ran_at] == [True]
    else:
        assert (failure_of_the_dead_letter(sandbox).reason, ran_at) == ("expiring", [])


def test_a_long_deferral_whose_visibility_cannot_be_changed_makes_no_hot_loop(sandbox: Sandbox) -> None:
    """The message runs when it is due or is dead-lettered; it is not received at every visibility timeout."""
    runs: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(sandbox.elapsed)
        if len(runs) == 1:
            message.defer(12 * HOUR)

    work(sandbox, handler, "1", visibility_timeout=60)
    sandbox.faults.add("denied", operation=CHANGE_VISIBILITY, times=None)
    report = sandbox.run()
    if sandbox.messages("orders-dlq"):
        assert failure_of_the_dead_letter(sandbox).reason == "expiring"
    else:
        assert 12 * HOUR <= runs[1] < 13 * HOUR
    assert sum(event.what == "received" for event in report.events) < 12 * HOUR / 60 / 2


# A delay counts from the failure (SPEC C11)


@pytest.mark.parametrize("beside", ["a local retry", "a hook"])
def test_a_short_delay_is_set_while_another_message_waits_for_its_local_retry_or_a_hook(
    sandbox: Sandbox, beside: str
) -> None:  # SPEC C11, I5, I7
    ran: list[tuple[str, float]] = []

    def handle(message: Message) -> None:
        ran.append((message.body, sandbox.elapsed))
        if message.body == "slow" and len(ran) < 3:
            if beside == "a local retry":
                raise ValueError
            message.reject("no")
        elif message.body == "short" and message.attempt == 1:
            message.retry(2)

    async def handle_async(message: Message) -> None:
        handle(message)

    def enrich(failure: Failure) -> dict[str, Any]:
        current().clock.sleep(15)
        return {}

    local = [LocalRetry(1, delay=15), RetryInPlace()]
    made = consumer(on_failure=local)(handle)
    if beside == "a hook":
        made = consumer(on_failure=[RetryInPlace(), DeadLetter(enrich=enrich)])(handle_async)
    bodies = ("slow", "short") if beside == "a local retry" else ("short", "slow")
    work(sandbox, made, *bodies, visibility_timeout=180, timeout=30, batch_size=2, window=1)
    sandbox.run()
    short = [at for body, at in ran if body == "short"]
    assert (len(short), short[1] - short[0] < 5) == (2, True)
    assert [body for body, _ in ran].count("slow") == (2 if beside == "a local retry" else 1)


# A lease starts at the receive (SPEC E6)


@pytest.mark.parametrize(
    ("settings", "verdicts", "runs", "dead_letters"),
    [
        ({}, ["reject", "reject"], 2, 1),
        ({}, ["reject"], 2, 0),  # the invocation whose lease has ended sends no dead letter
        ({}, ["retry"], 2, 0),  # and does not release a message that another one runs
        ({"keepalive": 2}, ["reject", "reject"], 1, 1),  # extended, it is not lost
    ],
)
def test_an_invocation_whose_lease_has_ended_neither_dead_letters_nor_releases_its_message(
    sandbox: Sandbox, settings: dict[str, Any], verdicts: list[str], runs: int, dead_letters: int
) -> None:
    """The message is delivered after 55 of 60 seconds; its first run takes ten more."""
    left = iter(verdicts)
    ran: list[str] = []

    @consumer(**settings)
    def handler(message: Message) -> None:
        ran.append(verdict := next(left, ""))
        sandbox.sleep(10)
        if verdict:
            message.retry(0) if verdict == "retry" else message.reject("not wanted")

    work(sandbox, handler, "1", visibility_timeout=60)
    sandbox.faults.add("held", seconds=55)
    sandbox.run()
    assert (len(ran), len(sandbox.messages("orders-dlq"))) == (runs, dead_letters)


# A verdict after the end of its handler is ignored


def later(messages: Any, seconds: float = 1) -> None:
    """Acknowledge messages in a thread that outlives the handler."""

    def acks() -> None:
        current().clock.sleep(seconds)
        for message in messages:
            message.ack()

    current().threads.start(acks)


@pytest.mark.parametrize("ack", ["eager", "on_return"])
def test_an_ack_by_a_leftover_thread_does_not_delete_a_message_that_failed(sandbox: Sandbox, ack: Any) -> None:
    runs: list[str] = []

    @consumer(ack=ack, backoff=Fixed(30))
    def handler(message: Message) -> None:
        runs.append(message.body)
        if message.body == "slow":
            sandbox.sleep(5)
        elif runs.count("fails") == 1:
            later([message])
            raise ValueError("it has failed")

    work(sandbox, handler, "fails", "slow")
    sandbox.run()
    assert runs.count("fails") == 2


def test_a_verdict_of_a_leftover_thread_in_a_batch_handler_changes_nothing(sandbox: Sandbox) -> None:
    runs: list[str] = []

    @batch_consumer(ack="eager", backoff=Fixed(30), max_attempts=3)
    def handler(batch: Batch) -> None:
        runs.extend(message.body for message in batch)
        if runs.count("1") == 1:
            later(batch, 0.005)
            raise ValueError("all have failed")

    work(sandbox, handler, "1", "2")
    sandbox.run()
    assert sorted(runs) == ["1", "1", "2", "2"]


# Slow requests, steps and hooks


@pytest.mark.parametrize("operation", [SEND, "GetQueueAttributes"])
def test_on_fifo_a_slow_request_does_not_make_the_handler_of_another_group_time_out(
    sandbox: Sandbox, operation: str
) -> None:  # SPEC G6, H1
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

    work(sandbox, handler, "1", "1", "1", queue="orders.fifo", groups="aba", timeout=30)
    sandbox.faults.add("late", operation=operation, seconds=3)
    sandbox.run()
    assert took == [pytest.approx(1, abs=0.1)]
    assert len(sandbox.messages("orders-dlq.fifo")) == 2


@queues
def test_a_local_retry_after_a_slow_step_leaves_time_to_settle(queue: str, sandbox: Sandbox) -> None:  # SPEC E2, I2
    """`LocalRetry` uses the time left when it is called, not when the first step was called."""
    runs: list[str] = []

    @consumer(on_failure=[slow(14), LocalRetry(1, delay=5), RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        runs.append(message.body)
        if message.body == "bad":
            raise ValueError

    mapping: dict[str, Any] = {"timeout": 20, "batch_size": 10, "window": 0 if queue.endswith(".fifo") else 1}
    work(sandbox, handler, "good", "bad", queue=queue, groups="ab", visibility_timeout=120, **mapping)
    sandbox.run()
    assert runs.count("good") == 1


def test_a_message_whose_handler_ended_while_a_hook_ran_has_not_failed(sandbox: Sandbox) -> None:  # SPEC I7
    """The hook takes the time of the thread that would have noticed the end."""

    @consumer(concurrency=4, timeout=2, on_failure=[slow(7), RetryInPlace()])
    def handler(message: Message) -> None:
        if message.body == "bad" and message.attempt == 1:
            raise ValueError
        current().clock.sleep(1)

    work(sandbox, handler, "bad", "bad", "bad", "good", visibility_timeout=60, timeout=9, batch_size=4, window=1)
    sandbox.run()
    runs = [event for event in sandbox.history.events if event.what == "run_started"]
    assert len(runs) == 3 + 3 + 1


def test_the_hooks_of_an_async_consumer_run_on_its_event_loop(sandbox: Sandbox) -> None:  # SPEC A3
    """The dead-letter queue is looked up in a background thread; deciding continues on the event loop."""
    loops: list[bool] = []
    threads: set[int] = set()

    def enrich(failure: Failure) -> dict[str, Any]:
        loops.append(asyncio._get_running_loop() is not None)
        threads.add(threading.get_ident())
        return {}

    @consumer(concurrency=5, max_attempts=1, on_failure=[RetryInPlace(), DeadLetter(enrich=enrich)])
    async def handler(message: Message) -> None:
        threads.add(threading.get_ident())
        if message.body == "bad":
            raise ValueError
        await current().clock.asleep(20)

    work(sandbox, handler, "bad", "bad", "good", visibility_timeout=180, timeout=60, batch_size=10, window=1)
    sandbox.faults.add("late", operation="GetQueueAttributes", queue="orders-dlq", seconds=3)
    sandbox.run()
    assert (loops, len(threads)) == ([True, True], 1)
    assert len(sandbox.messages("orders-dlq")) == 2


# Records, log lines and the history


def test_a_step_that_makes_a_new_failure_loses_no_log_line_of_the_steps_after_it(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E3
    def translate(failure: Failure, next_step: Next) -> Outcome:
        return next_step(Failure(failure.message, KeyError("x"), failure.reason))

    @consumer(on_failure=[translate, SendAgain("again"), RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError

    work(sandbox, handler, "1", queue="orders.fifo")
    sandbox.run()
    assert [line for line in caplog.records if line.__dict__.get("event") == "step_passed_on"]


def test_a_verdict_with_an_error_is_recorded_as_a_failure(sandbox: Sandbox) -> None:
    @batch_consumer(max_attempts=1)
    def handler(batch: Batch) -> None:
        batch[0].fail(ValueError("no"))

    work(sandbox, handler, "1")
    sandbox.run()
    assert [event.fields["verdict"] for event in sandbox.history.events if event.what == "verdict"] == ["fail"]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_local_variables_of_failed_handlers_are_freed(sandbox: Sandbox, concurrency: int) -> None:  # SPEC A6, I2
    """An error references the frames it was raised through; of 200 failures, only a few keep theirs at a time."""
    alive: WeakSet[Any] = WeakSet()
    counts: list[int] = []

    class Blob: ...

    @consumer(backoff=Fixed(10_000), concurrency=concurrency)
    def handler(message: Message) -> None:
        blob = Blob()
        alive.add(blob)
        counts.append(len(alive))
        raise ValueError(message.body)

    work(sandbox, handler, *map(str, range(200)), batch_size=200, window=5)
    sandbox.run(for_=60)
    assert max(counts) <= 30
