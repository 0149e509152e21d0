"""A delay counts from the failure, whatever else its batch does (SPEC C11)."""

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
"""Seconds that the second message of the batch takes."""


def at_end(sandbox: Sandbox) -> datetime:
    return datetime.fromtimestamp(sandbox.now, UTC)


FAILURES: dict[str, Callable[[Message, Sandbox], None]] = {
    "a delay": lambda message, _: message.retry(10),
    "a moment": lambda message, sandbox: message.retry(at_end(sandbox) + timedelta(seconds=10)),
    "a deferral": lambda message, _: message.defer(10),
}


def returns_after(sandbox: Sandbox, handler: Any) -> float:
    """How long after its failure the first message ran again, in seconds."""
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
def test_a_message_comes_back_in_time_though_its_batch_still_runs(
    how: str, concurrency: int, sandbox: Sandbox
) -> None:  # SPEC C11
    tried: list[str] = []

    @consumer(backoff=Fixed(10), concurrency=concurrency)
    def handler(message: Message) -> None:
        tried.append(message.body)
        if message.body == "long":
            sandbox.sleep(LONG)
        elif tried.count("first") == 1:
            FAILURES.get(how, fail)(message, sandbox)

    assert returns_after(sandbox, handler) == pytest.approx(10, abs=2)


def fail(message: Message, _: Sandbox) -> None:
    raise ValueError(message.body)


def test_the_same_for_async_handlers(sandbox: Sandbox) -> None:  # SPEC C11
    tried: list[str] = []

    @consumer(backoff=Fixed(10), concurrency=2)
    async def handler(message: Message) -> None:
        tried.append(message.body)
        if message.body == "long":
            from tarry.world import current

            await current().clock.asleep(LONG)
        elif tried.count("first") == 1:
            raise ValueError

    assert returns_after(sandbox, handler) == pytest.approx(10, abs=2)


def test_a_copy_with_a_short_delay_is_sent_in_time_too(sandbox: Sandbox) -> None:  # SPEC C11, E3
    tried: list[str] = []

    @consumer(on_failure=[SendAgain("again", delay=10), RetryInPlace()])
    def handler(message: Message) -> None:
        tried.append(message.body)
        if message.body == "long":
            sandbox.sleep(LONG)
        elif tried.count("first") == 1:
            raise ValueError

    assert returns_after(sandbox, handler) == pytest.approx(10, abs=2)


@pytest.mark.parametrize("said", ["retry", "fail"])
def test_in_a_batch_handler_it_counts_from_the_messages_own_verdict(said: str, sandbox: Sandbox) -> None:  # SPEC C11
    when: list[tuple[str, float]] = []

    @batch_consumer(backoff=Fixed(10))
    def handler(batch: Batch) -> None:
        for message in batch:
            when.append((message.body, sandbox.elapsed))
            if message.body == "first" and len(when) < 3:
                message.retry(10) if said == "retry" else message.fail(ValueError("no"))
            elif message.body == "long":
                sandbox.sleep(LONG)

    sandbox.queue("orders", dead_letter="dead", visibility_timeout=1_800)
    sandbox.connect(handler, "orders", timeout=300)
    for body in ("first", "long"):
        sandbox.send("orders", body)
    sandbox.run()
    first, again = [at for body, at in when if body == "first"]
    assert again - first == pytest.approx(10, abs=2)


def test_a_wait_that_ends_after_the_invocation_is_asked_for_in_tens_at_the_end(
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


def test_an_early_wait_survives_a_crash_of_the_process(sandbox: Sandbox) -> None:  # SPEC C11
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


def test_a_request_that_was_not_confirmed_is_not_repeated_once_the_wait_is_over(sandbox: Sandbox) -> None:  # SPEC C11
    """It may have been applied: another delivery may have begun, and the old handle would act on it."""
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


def test_a_deferral_takes_a_second_at_least(sandbox: Sandbox) -> None:  # SPEC J5
    when: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        when.append(sandbox.elapsed)
        if len(when) == 1:
            raise Defer(0)

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "{}")
    sandbox.run()
    assert when[1] - when[0] >= 1


def test_a_message_whose_lease_ends_before_the_batch_does_is_settled_while_it_holds(
    sandbox: Sandbox,
) -> None:  # SPEC E6
    """The visibility timeout is the function's timeout, and the poller held the batch for a while."""

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
    assert [letter.body for letter in sandbox.messages("dead")] == ["first"]


def test_a_local_retry_that_there_is_no_time_for_any_more_goes_to_the_next_step(sandbox: Sandbox) -> None:  # SPEC I5
    """There was time when the step was asked; the other message of the batch has taken it."""

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
    [letter] = sandbox.messages("dead")
    assert letter.failure is not None
    assert letter.failure.type == "LookupError"
