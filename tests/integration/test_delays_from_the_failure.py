"""A delay counts from the failure, even while the other messages of the batch still run (SPEC C11).

`tests/simulation/test_promises.py` has retries of batch handlers, FIFO queues and a process that crashes.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tarry import Batch, DeadLetter, Fixed, LocalRetry, Message, RetryInPlace, SendAgain, batch_consumer, consumer
from tarry.testing import Sandbox
from tarry.world import current
from tests.records import Context, batch_of
from tests.wire import Queue, Wire

LONG = 200
"""The seconds that the second message of the batch takes."""


def send_two(sandbox: Sandbox, handler: Any, timeout: int = 300, visibility_timeout: int = 1_800) -> None:
    sandbox.queue("orders", dead_letter="dead", visibility_timeout=visibility_timeout)
    sandbox.connect(handler, "orders", timeout=timeout)
    for body in ("first", "long"):
        sandbox.send("orders", body)


def fail(message: Message, _: Sandbox) -> None:
    raise ValueError(message.body)


def retry_at_a_time(message: Message, sandbox: Sandbox) -> None:
    message.retry(datetime.fromtimestamp(sandbox.now, UTC) + timedelta(seconds=10))


AGAIN = [SendAgain("again", delay=10), RetryInPlace()]
FAILURES: dict[str, tuple[Callable[[Message, Sandbox], None], list[Any]]] = {
    "a delay": (lambda message, _: message.retry(10), []),
    "a time": (retry_at_a_time, []),
    "a deferral": (lambda message, _: message.defer(10), []),
    "the backoff": (fail, []),
    "a copy with a short delay": (fail, AGAIN),
}


@pytest.mark.parametrize(("failure", "steps"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize(
    ("concurrency", "is_async"), [(1, False), (2, False), (2, True)], ids=["one at a time", "threads", "tasks"]
)
def test_a_message_runs_again_on_time_while_its_batch_still_runs(
    failure: Any, steps: list[Any], concurrency: int, is_async: bool, sandbox: Sandbox
) -> None:  # SPEC C11, E3
    attempts: list[str] = []

    def begin(message: Message) -> float:
        attempts.append(message.body)
        if message.body == "first" and attempts.count("first") == 1:
            failure(message, sandbox)
        return LONG if message.body == "long" else 0

    async def handle_async(message: Message) -> None:
        await current().clock.asleep(begin(message))

    handle = handle_async if is_async else lambda message: sandbox.sleep(begin(message))
    send_two(sandbox, consumer(backoff=Fixed(10), concurrency=concurrency, on_failure=steps)(handle))
    sandbox.run()
    runs = [event.at for event in sandbox.history.events if event.what == "run_started"]
    ends = [event.at for event in sandbox.history.events if event.what == "run_ended"]
    assert runs[2] - ends[0] == pytest.approx(10, abs=2)


def test_in_a_batch_handler_a_delay_counts_from_the_failure_of_the_message(sandbox: Sandbox) -> None:  # SPEC C11
    started: list[float] = []

    @batch_consumer(backoff=Fixed(10))
    def handler(batch: Batch) -> None:
        for message in batch:
            if message.body == "long":
                sandbox.sleep(LONG)
                continue
            started.append(sandbox.elapsed)
            if len(started) == 1:
                message.fail(ValueError("no"))

    send_two(sandbox, handler)
    sandbox.run()
    assert started[1] - started[0] == pytest.approx(10, abs=2)


def visibility_requests(sandbox: Sandbox) -> list[float]:
    """Return when visibility timeouts were requested."""
    requests = [event for event in sandbox.history.events if event.what == "request"]
    return [each.at for each in requests if each.fields["operation"] == "ChangeMessageVisibilityBatch"]


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
    assert len(visibility_requests(sandbox)) == 1


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

    @consumer(backoff=Fixed(10))
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(LONG)
        elif message.receive_count == 1:
            raise ValueError

    send_two(sandbox, handler)
    sandbox.faults.add("lost_answer", operation="ChangeMessageVisibilityBatch", times=2)  # botocore's own retry too
    sandbox.run()
    asked = visibility_requests(sandbox)
    assert max(asked) - min(asked) < LONG / 2


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

    send_two(sandbox, handler, timeout=60, visibility_timeout=60)
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


def test_a_retry_until_a_moment_waits_until_it_however_late_that_is_requested() -> None:  # SPEC C11, B6
    """A whole number of seconds from the verdict on would be up to a second too long."""
    with Wire(queues={"orders": Queue(dead_letter="dead")}) as wire:

        def handle(message: Message) -> None:
            if message.delivery_id == "m0":
                message.retry(datetime.fromtimestamp(wire.clock.time() + 300.4, UTC))
            else:
                wire.clock.sleep(10.5)

        consumer(handle)(batch_of(2), Context())
    assert wire.visibilities() == {"handle-m0": 290}
