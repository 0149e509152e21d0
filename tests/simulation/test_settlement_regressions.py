"""Regressions of a redesign of the settlement that a review found: hooks, clocks and log lines (SPEC E)."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tarry import (
    Batch,
    DeadLetter,
    Failure,
    LocalRetry,
    Message,
    Outcome,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tarry.world import current
from tests.sandboxes import work


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_local_retry_after_a_slow_step_leaves_time_to_settle(queue: str, sandbox: Sandbox) -> None:  # SPEC E2, I2
    """`LocalRetry` uses the time left when it is called, not when the first step was called."""
    runs: list[str] = []

    def slow(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        current().clock.sleep(14)
        return next_step(failure)

    @consumer(on_failure=[slow, LocalRetry(1, delay=5), RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        runs.append(message.body)
        if message.body == "bad":
            raise ValueError

    window = 0 if queue.endswith(".fifo") else 1
    mapping: dict[str, Any] = {"timeout": 20, "batch_size": 10, "window": window}
    work(sandbox, handler, "good", "bad", queue=queue, groups="ab", visibility_timeout=120, **mapping)
    sandbox.run()
    assert runs.count("good") == 1


def test_redact_sees_each_record_once(sandbox: Sandbox) -> None:  # SPEC F3
    """Planning needs the size limit of the source queue; tarry looks it up before it calls a hook."""
    seen: list[str] = []

    def redact(record: dict[str, Any]) -> dict[str, Any]:
        seen.append(record["id"])
        return record

    @consumer(on_failure=[RetryInPlace(), DeadLetter(redact=redact)])
    def handler(message: Message) -> None:
        if message.attempt == 1:
            message.retry(43_200)  # longer than the visibility timeout can still be: a copy waits instead

    work(sandbox, handler, *map(str, range(3)))
    sandbox.run()
    assert len(seen) == len(set(seen)) == 3


def test_a_step_that_makes_a_new_failure_loses_no_log_line_of_the_steps_after_it(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E3
    def translate(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        return next_step(Failure(failure.message, KeyError("x"), failure.reason))

    @consumer(on_failure=[translate, SendAgain("again"), RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError

    work(sandbox, handler, "1", queue="orders.fifo")
    sandbox.run()
    assert [line for line in caplog.records if line.__dict__.get("event") == "step_passed_on"]


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


def test_a_verdict_with_an_error_is_recorded_as_a_failure(sandbox: Sandbox) -> None:
    @batch_consumer(max_attempts=1)
    def handler(batch: Batch) -> None:
        batch[0].fail(ValueError("no"))

    work(sandbox, handler, "1")
    sandbox.run()
    assert [event.fields["verdict"] for event in sandbox.history.events if event.what == "verdict"] == ["fail"]


def test_a_short_delay_is_set_while_another_message_waits_for_its_local_retry(sandbox: Sandbox) -> None:  # SPEC C11, I5
    ran: list[tuple[str, int]] = []

    @consumer(on_failure=[LocalRetry(1, delay=15), RetryInPlace()])
    def handler(message: Message) -> None:
        ran.append((message.body, round(current().clock.time() - began)))
        if message.attempt > 1 or len(ran) > 2:
            return
        if message.body == "local":
            raise ValueError
        message.retry(3)

    began = sandbox.now
    work(sandbox, handler, "local", "short", visibility_timeout=180, timeout=30, batch_size=2, window=1)
    sandbox.run()
    assert [body for body, _ in ran] == ["local", "short", "short", "local"]
    assert ran[2][1] < 10


def test_a_message_whose_handler_ended_while_a_hook_ran_has_not_failed(sandbox: Sandbox) -> None:  # SPEC I7
    """The hook takes the time of the thread that would have noticed the end."""

    def slow(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        current().clock.sleep(7)
        return next_step(failure)

    @consumer(concurrency=4, timeout=2, on_failure=[slow, RetryInPlace()])
    def handler(message: Message) -> None:
        if message.body == "bad" and message.attempt == 1:
            raise ValueError
        current().clock.sleep(1)

    work(sandbox, handler, "bad", "bad", "bad", "good", visibility_timeout=60, timeout=9, batch_size=4, window=1)
    sandbox.run()
    runs = [event for event in sandbox.history.events if event.what == "run_started"]
    assert len(runs) == 3 + 3 + 1


def test_a_short_delay_is_set_while_the_hook_of_another_message_runs(sandbox: Sandbox) -> None:  # SPEC C11, I7
    def slow(failure: Failure) -> dict[str, Any]:
        current().clock.sleep(15)
        return {}

    ran: list[tuple[str, float]] = []

    @consumer(on_failure=[RetryInPlace(), DeadLetter(enrich=slow)])
    async def handler(message: Message) -> None:
        ran.append((message.body, current().clock.time()))
        if message.body == "bad":
            message.reject("no")
        if message.attempt == 1:
            message.retry(2)

    work(sandbox, handler, "short", "bad", visibility_timeout=180, timeout=30, batch_size=2, window=1)
    sandbox.run()
    short = [at for body, at in ran if body == "short"]
    assert short[1] - short[0] < 5


def test_a_message_is_done_as_soon_as_its_copy_is_confirmed(sandbox: Sandbox) -> None:  # SPEC C8
    """The answer comes while the delete still waits for its own: the message is not reported as failed."""

    @consumer(max_attempts=1)
    async def handler(message: Message) -> None:
        raise ValueError

    sandbox.faults.add("late", operation="DeleteMessageBatch", seconds=4, times=None)
    work(sandbox, handler, "1", "2", queue="orders.fifo", groups="12", visibility_timeout=30, timeout=3, batch_size=2)
    sandbox.run()
    answers = [event.fields["failed"] for event in sandbox.history.events if event.what == "answered"]
    assert answers[0] == []
    assert len(sandbox.messages("orders-dlq.fifo")) == 2
