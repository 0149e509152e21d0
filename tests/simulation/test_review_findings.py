"""Defects that a review found, each in the smallest scenario that shows it."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tarry import (
    Batch,
    Consumer,
    DeadLetter,
    DropMessage,
    Failure,
    Fixed,
    Message,
    Outcome,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tarry.world import current
from tests.loglines import Caplog, field, lines
from tests.sandboxes import work
from tests.simulation.campaign import judge_quietly

LONG: dict[str, Any] = {"visibility_timeout": 1_800, "timeout": 300, "window": 1}
CHANGE_VISIBILITY, SEND = "ChangeMessageVisibilityBatch", "SendMessageBatch"


def long_or_failing(sandbox: Sandbox, seconds: float, at: list[float] | None = None, **settings: Any) -> Consumer[Any]:
    """Return a consumer that fails on a message at its first delivery, unless it is a long one; ``at`` has all runs."""

    @consumer(**settings)
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(seconds)
            return
        if at is not None:
            at.append(sandbox.elapsed)
        if message.attempt == 1:
            raise ValueError

    return handler


def requests(sandbox: Sandbox, operation: str) -> list[float]:
    """Return when requests of this operation were made, in epoch seconds."""
    made = (event for event in sandbox.history.events if event.what == "request")
    return [event.at for event in made if event.fields["operation"] == operation]


def test_a_copy_whose_early_send_is_in_progress_is_not_sent_twice(sandbox: Sandbox) -> None:  # SPEC C11, E6
    handler = long_or_failing(sandbox, 2, on_failure=[SendAgain("again", delay=10), RetryInPlace()])
    work(sandbox, handler, "first", "long", visibility_timeout=1_800, timeout=300)
    sandbox.faults.add("late", operation=SEND, seconds=4)
    sandbox.run()
    assert len(requests(sandbox, SEND)) == 1


@pytest.mark.parametrize("delay", [5, 30])
def test_keepalive_does_not_extend_messages_settled_while_the_batch_runs(
    delay: int, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC C11, I4
    at: list[float] = []
    handler = long_or_failing(sandbox, 100, at, backoff=Fixed(delay), keepalive=20)
    work(sandbox, handler, *map(str, range(100)), "long", batch_size=200, **LONG)
    sandbox.run()
    assert len(at) == 200
    assert max(at) < delay + 10
    assert not lines(caplog, "lease_lost")


def test_messages_that_are_not_settled_in_time_are_counted_once(sandbox: Sandbox, caplog: Caplog) -> None:  # SPEC I2
    count = 99

    @batch_consumer
    def handler(batch: Batch) -> None:
        sandbox.sleep(28.8)
        for message in batch:
            message.reject("no")

    work(sandbox, handler, *map(str, range(count)), visibility_timeout=1_800, timeout=30, batch_size=count, window=1)
    sandbox.faults.add("late", operation="GetQueueAttributes", seconds=0.25, times=2)
    sandbox.faults.add("late", operation=SEND, seconds=1, times=None)
    sandbox.run(for_=60)
    [line] = lines(caplog, "out_of_time")
    settled = {field(line, "message_id") for line in caplog.records if field(line, "state")}
    assert int(field(line, "text").split()[0]) + len(settled) == count


@pytest.mark.parametrize(
    ("count", "late", "times"),
    [
        pytest.param(1, "GetQueueAttributes", 1, id="a verdict"),
        pytest.param(101, CHANGE_VISIBILITY, 10, id="a slice"),
    ],
)
def test_a_timeout_while_tarry_settles_a_verdict_or_a_slice_leaves_nothing_unsettled(
    count: int, late: str, times: int, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC I3, C11
    """The handler is interrupted after tarry has settled its verdict, not meanwhile."""

    @batch_consumer(timeout=2)
    def handler(batch: Batch) -> None:
        if batch[0].receive_count == 1:
            sandbox.sleep(1.5)
            for message in batch:
                message.retry(20)

    work(sandbox, handler, *map(str, range(count)), batch_size=200, **LONG)
    sandbox.faults.add("late", operation=late, seconds=3, times=times)
    sandbox.run()
    waits = lines(caplog, "waiting_retry")
    assert len(waits) == count
    assert count > 1 or field(waits[0], "delay") in (17, 18, 19, 20)
    assert sandbox.elapsed < 60


class Load:
    """An object that a handler creates for each message; counts the living objects."""

    alive = peak = 0

    def __init__(self) -> None:
        Load.alive += 1
        Load.peak = max(Load.peak, Load.alive)

    def __del__(self) -> None:
        Load.alive -= 1


def fails() -> None:
    load = Load()
    raise ValueError(type(load))


VERDICTS: dict[str, Callable[[Message, Exception], None]] = {
    "fail": lambda message, error: message.fail(error),
    "retry": lambda message, _: message.retry(),
    "retry with a delay": lambda message, _: message.retry(1_000),
    "reject": lambda message, _: message.reject("no"),
    "defer": lambda message, _: message.defer(1_000),
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_batch_handler_keeps_only_the_frames_of_its_last_failure(verdict: str, sandbox: Sandbox) -> None:
    """400 failures of 2 MB would take 800 MB. In its `except` block the handler still sees the traceback."""
    Load.alive = Load.peak = 0
    tracebacks: list[str] = []

    @batch_consumer(backoff=Fixed(1_000))
    def handler(batch: Batch) -> None:
        for message in batch:
            try:
                fails()
            except ValueError as error:
                VERDICTS[verdict](message, error)
                tracebacks.append("".join(traceback.format_exception(error)))

    work(sandbox, handler, *map(str, range(60)), batch_size=60, **LONG)
    sandbox.run(for_=30)
    assert len(tracebacks) == 60
    assert all("in fails" in each for each in tracebacks)
    assert Load.peak <= 3


def test_failure_steps_see_the_tracebacks_of_ten_failures_that_waited_for_a_slow_look_up(sandbox: Sandbox) -> None:
    """The tracebacks of thousands of failures would keep the local variables of as many runs."""
    seen: list[bool] = []

    def note(failure: Failure, next_step: Any) -> Outcome:
        seen.append(failure.error is not None and failure.error.__traceback__ is not None)
        return next_step(failure)  # type: ignore[no-any-return]

    @consumer(on_failure=[note, DropMessage()])
    def handler(message: Message) -> None:
        raise ValueError

    sandbox.faults.add("late", operation="GetQueueAttributes", seconds=5)
    work(sandbox, handler, *map(str, range(12)), batch_size=12, window=1, timeout=60)
    sandbox.run()
    assert seen == [True] * 10 + [False] * 2


def test_a_fifo_group_goes_on_when_a_slow_look_up_has_ended_for_its_failed_message(sandbox: Sandbox) -> None:
    """SPEC H1. An async handler does not block its loop by the look-up."""
    happened: list[object] = []

    def drop(failure: Failure, _: Any) -> Outcome:
        happened.append("dropped")
        return Outcome.ack()

    @consumer(on_failure=[drop], concurrency=2)
    async def handler(message: Message) -> None:
        happened.append(f"{message.body} at {message.receive_count}")
        if message.body == "fails":
            raise ValueError
        if message.body == "long":
            await current().clock.asleep(20)
            happened.append("long ended")

    sandbox.faults.add("late", operation="GetQueueAttributes", seconds=3)
    work(sandbox, handler, "fails", "long", "next", queue="orders.fifo", groups="aba", timeout=60)
    sandbox.run()
    assert happened == ["fails at 1", "long at 1", "dropped", "next at 1", "long ended"]


def test_a_failure_is_settled_as_soon_as_a_slow_look_up_has_ended(sandbox: Sandbox) -> None:  # SPEC C11
    """Messages that succeed meanwhile give no verdict that would continue the settlement."""
    at: list[float] = []
    handler = long_or_failing(sandbox, 5, at, backoff=Fixed(10))
    work(sandbox, handler, "first", *["long"] * 19, batch_size=20, **LONG)
    sandbox.faults.add("late", operation="GetQueueAttributes", seconds=3)
    sandbox.run()
    assert at[1] - at[0] == pytest.approx(10, abs=3)


def test_extend_skips_messages_that_were_dead_lettered_before_the_batch_ran(
    sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC I6, H1
    """SQS refuses the handle of a deleted message, which would end the lease of its group."""

    @dataclass
    class FifoOrder:
        number: int

    runs: list[list[str]] = []

    @batch_consumer(model=FifoOrder, backoff=Fixed(5))
    def handler(batch: Batch[FifoOrder]) -> None:
        runs.append([message.body for message in batch])
        batch[0].extend(60)
        if len(runs) == 1:
            batch[1].retry(0)

    bodies = ('{"number": 1}', "no order", '{"number": 3}', '{"number": 4}')
    work(sandbox, handler, *bodies, queue="orders.fifo", visibility_timeout=600, timeout=300)
    sandbox.run()
    assert runs == [['{"number": 1}', '{"number": 3}', '{"number": 4}'], ['{"number": 3}', '{"number": 4}']]
    assert sandbox.elapsed < 60


def test_a_slow_look_up_of_the_dead_letter_queue_delays_no_async_handler(sandbox: Sandbox) -> None:  # SPEC I1, I3
    runs: list[str] = []

    @consumer(concurrency=2, timeout=2, max_attempts=1, on_failure=[RetryInPlace(), DeadLetter()])
    async def handler(message: Message) -> None:
        runs.append(message.body)
        if message.body == "bad":
            await current().clock.asleep(0.5)
            raise ValueError
        await current().clock.asleep(1)

    work(sandbox, handler, "bad", "good", **LONG)
    sandbox.faults.add("late", operation="GetQueueAttributes", queue="orders-dlq", seconds=4)
    sandbox.run()
    assert [message.body for message in sandbox.messages("orders-dlq")] == ["bad"]


def test_an_async_batch_handler_waits_for_the_slice_in_progress(sandbox: Sandbox) -> None:  # SPEC A6, E6
    """If SQS accepts a copy after the response, the message is doubled: its original is reported as failed."""

    @batch_consumer(fatal=ValueError)
    async def handler(batch: Batch) -> None:
        batch[0].fail(ValueError("no"))
        await current().clock.asleep(1)  # its queue is looked up
        for message in batch:
            message.fail(ValueError("no"))
        await current().clock.asleep(0.5)

    work(sandbox, handler, *map(str, range(105)), batch_size=200, **LONG)
    sandbox.faults.add("late", operation=SEND, seconds=3, times=10)
    sandbox.run()
    assert len(sandbox.messages("orders-dlq")) == 105


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(11_823, id="the delay of an abandoned handler counts from its timeout"),  # SPEC C11
        pytest.param(5_747, id="a message whose claim has not begun in time is released"),  # SPEC C9, K4
        pytest.param(14_631, id="no local retry begins without time for it before the settlement"),  # SPEC I5
    ],
)
def test_a_seed_that_found_a_defect_breaks_no_rule(seed: int) -> None:
    """A slow CPU settles seconds after a timeout; a slow redaction takes the time of a claim, and so do open claims."""
    assert judge_quietly(seed).text == ""


def test_a_step_that_raises_on_an_expiring_fifo_message_is_overruled_at_once(sandbox: Sandbox) -> None:  # SPEC C10
    """It would wait for 15 minutes, and run again, though its retry cannot be carried out."""

    def raises(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        raise RuntimeError(failure.reason)

    @consumer(on_failure=[raises, DeadLetter()])
    def handler(message: Message) -> None:
        message.retry(3_600)

    sandbox.queue("dlq.fifo")
    work(sandbox, handler, "1", queue="orders.fifo", max_receive_count=9, retention=3_600)
    sandbox.run()
    failures = [each.failure for each in sandbox.messages("orders-dlq.fifo")]
    assert [(each.reason, each.attempts) for each in failures if each] == [("expiring", 1)]
