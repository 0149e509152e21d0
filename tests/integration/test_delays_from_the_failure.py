"""A delay counts from the failure, even while the other messages of the batch still run (SPEC C11)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tarry import (
    Batch,
    DeadLetter,
    Defer,
    Fixed,
    LocalRetry,
    Message,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox

LONG = 200
"""The seconds that the second message of the batch takes."""


def virtual_now(sandbox: Sandbox) -> datetime:
    return datetime.fromtimestamp(sandbox.now, UTC)


FAILURES: dict[str, Callable[[Message, Sandbox], None]] = {
    "a delay": lambda message, _: message.retry(10),
    "a time": lambda message, sandbox: message.retry(virtual_now(sandbox) + timedelta(seconds=10)),
    "a deferral": lambda message, _: message.defer(10),
}


def seconds_until_the_next_run(sandbox: Sandbox, handler: Any) -> float:
    """Run two messages; return the seconds from the failure of the first one to its next run."""
    sandbox.queue("orders", dead_letter="dead", visibility_timeout=1_800)
    sandbox.connect(handler, "orders", timeout=300)
    for body in ("first", "long"):
        sandbox.send("orders", body)
    sandbox.run()
    runs = [event.at for event in sandbox.history.events if event.what == "run_started"]
    ends = [event.at for event in sandbox.history.events if event.what == "run_ended"]
    return runs[2] - ends[0]


@pytest.mark.parametrize("how", [*FAILURES, "the backoff"])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_retried_message_runs_again_on_time_while_its_batch_still_runs(
    how: str, concurrency: int, sandbox: Sandbox
) -> None:  # SPEC C11
    attempts: list[str] = []

    @consumer(backoff=Fixed(10), concurrency=concurrency)
    def handler(message: Message) -> None:
        attempts.append(message.body)
        if message.body == "long":
            sandbox.sleep(LONG)
        elif attempts.count("first") == 1:
            FAILURES.get(how, fail)(message, sandbox)

    assert seconds_until_the_next_run(sandbox, handler) == pytest.approx(10, abs=2)


def fail(message: Message, _: Sandbox) -> None:
    raise ValueError(message.body)


def test_a_retried_message_of_an_async_handler_runs_again_on_time_while_its_batch_still_runs(
    sandbox: Sandbox,
) -> None:  # SPEC C11
    attempts: list[str] = []

    @consumer(backoff=Fixed(10), concurrency=2)
    async def handler(message: Message) -> None:
        attempts.append(message.body)
        if message.body == "long":
            from tarry.world import current

            await current().clock.asleep(LONG)
        elif attempts.count("first") == 1:
            raise ValueError

    assert seconds_until_the_next_run(sandbox, handler) == pytest.approx(10, abs=2)


def test_a_copy_with_a_short_delay_runs_on_time_while_its_batch_still_runs(sandbox: Sandbox) -> None:  # SPEC C11, E3
    attempts: list[str] = []

    @consumer(on_failure=[SendAgain("again", delay=10), RetryInPlace()])
    def handler(message: Message) -> None:
        attempts.append(message.body)
        if message.body == "long":
            sandbox.sleep(LONG)
        elif attempts.count("first") == 1:
            raise ValueError

    assert seconds_until_the_next_run(sandbox, handler) == pytest.approx(10, abs=2)


@pytest.mark.parametrize("verdict", ["retry", "fail"])
def test_in_a_batch_handler_a_delay_counts_from_the_verdict_on_the_message(
    verdict: str, sandbox: Sandbox
) -> None:  # SPEC C11
    started: list[tuple[str, float]] = []

    @batch_consumer(backoff=Fixed(10))
    def handler(batch: Batch) -> None:
        for message in batch:
            started.append((message.body, sandbox.elapsed))
            if message.body == "first" and len(started) < 3:
                message.retry(10) if verdict == "retry" else message.fail(ValueError("no"))
            elif message.body == "long":
                sandbox.sleep(LONG)

    sandbox.queue("orders", dead_letter="dead", visibility_timeout=1_800)
    sandbox.connect(handler, "orders", timeout=300)
    for body in ("first", "long"):
        sandbox.send("orders", body)
    sandbox.run()
    first, second = [at for body, at in started if body == "first"]
    assert second - first == pytest.approx(10, abs=2)


def test_delays_that_end_after_the_invocation_are_requested_at_its_end_in_batches_of_ten(
    sandbox: Sandbox,
) -> None:  # SPEC C11, G1
    @consumer(backoff=Fixed(1_000))
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep(2)
            raise ValueError

    sandbox.queue("orders", dead_letter="dead", visibility_timeout=1_800)
    sandbox.connect(handler, "orders", timeout=300, batch_size=10)
    for _ in range(10):
        sandbox.send("orders", "{}")
    sandbox.run(for_=60)
    requests = [event for event in sandbox.history.events if event.what == "request"]
    assert [each.fields["operation"] for each in requests].count("ChangeMessageVisibilityBatch") == 1


def test_a_delay_set_while_the_batch_runs_survives_a_crash(sandbox: Sandbox) -> None:  # SPEC C11
    runs: list[float] = []

    @consumer(backoff=Fixed(30))
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(LONG)
            return
        runs.append(sandbox.elapsed)
        if len(runs) == 1:
            raise ValueError

    sandbox.queue("orders", dead_letter="dead", visibility_timeout=1_800)
    sandbox.connect(handler, "orders", timeout=300)
    for body in ("first", "long"):
        sandbox.send("orders", body)
    sandbox.faults.add("crash", seconds=20)
    sandbox.run()
    assert runs[1] - runs[0] == pytest.approx(30, abs=2)


def test_in_a_cold_process_a_delay_is_set_before_a_redelivered_message_runs_long(sandbox: Sandbox) -> None:  # SPEC C11
    """The fresh message waits for the look-up that was begun for the redelivered one."""
    runs: list[tuple[str, float]] = []

    @consumer(backoff=Fixed(10))
    def handler(message: Message) -> None:
        runs.append((message.body, sandbox.elapsed))
        if message.body == "long":
            sandbox.sleep(LONG)
        elif message.attempt == 1:
            raise ValueError

    sandbox.queue("orders", dead_letter="dead", visibility_timeout=400)
    sandbox.connect(handler, "orders", timeout=300, window=20)
    sandbox.faults.add("crash", seconds=20, times=1)
    sandbox.send("orders", "long")
    sandbox.send("orders", "first", delay=410)
    sandbox.run()
    assert [body for body, _ in runs] == ["long", "first", "long", "first"]
    assert runs[3][1] - runs[1][1] <= 10 + 20 + 2  # 20: the batching window


def test_an_unconfirmed_visibility_change_is_not_repeated_after_its_delay_has_passed(
    sandbox: Sandbox,
) -> None:  # SPEC C11
    """SQS may have applied it, so the old receipt handle could change a newer delivery."""
    asked: list[float] = []

    @consumer(backoff=Fixed(10))
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(LONG)
        elif message.receive_count == 1:
            raise ValueError

    sandbox.queue("orders", dead_letter="dead", visibility_timeout=1_800)
    sandbox.connect(handler, "orders", timeout=300)
    for body in ("first", "long"):
        sandbox.send("orders", body)
    sandbox.faults.add("lost_answer", operation="ChangeMessageVisibilityBatch", times=2)  # botocore's own retry too
    sandbox.run()
    asked = [
        event.at
        for event in sandbox.history.events
        if event.what == "request" and event.fields["operation"] == "ChangeMessageVisibilityBatch"
    ]
    assert max(asked) - min(asked) < LONG / 2


def test_a_deferral_takes_at_least_one_second(sandbox: Sandbox) -> None:  # SPEC J5
    started: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        started.append(sandbox.elapsed)
        if len(started) == 1:
            raise Defer(0)

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "{}")
    sandbox.run()
    assert started[1] - started[0] >= 1


def test_a_message_whose_lease_ends_before_the_batch_is_settled_before_the_lease_ends(
    sandbox: Sandbox,
) -> None:  # SPEC E6
    """The visibility timeout equals the timeout of the function, and the poller delivers the batch 20 seconds late."""

    @consumer(max_attempts=1)
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(50)
        else:
            raise ValueError

    sandbox.queue("orders", dead_letter="dead", visibility_timeout=60)
    sandbox.connect(handler, "orders", timeout=60)
    for body in ("first", "long"):
        sandbox.send("orders", body)
    sandbox.faults.add("held", seconds=20)
    sandbox.run(for_=65)
    assert [dead_letter.body for dead_letter in sandbox.messages("dead")] == ["first"]


def test_a_local_retry_without_time_left_goes_to_the_next_failure_step(sandbox: Sandbox) -> None:  # SPEC I5
    """The other message of the batch uses up the time that was left when the step was asked."""

    @consumer(on_failure=[LocalRetry(2, delay=5), DeadLetter()])
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(25)
        else:
            raise LookupError("no customer 7")

    sandbox.queue("orders", dead_letter="dead", visibility_timeout=180)
    sandbox.connect(handler, "orders", timeout=30)
    for body in ("first", "long"):
        sandbox.send("orders", body)
    sandbox.run(for_=60)
    [dead_letter] = sandbox.messages("dead")
    assert dead_letter.failure is not None
    assert dead_letter.failure.type == "LookupError"
