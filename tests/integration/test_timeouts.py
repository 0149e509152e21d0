"""Handlers that take too long, interrupted in real time after fractions of a second."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tarry import (
    Batch,
    ConfigurationError,
    Consumer,
    Fixed,
    LocalRetry,
    Message,
    Reject,
    Retry,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tarry.world import current
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, RunningClock, Wire

LONG = 120
"""A number of seconds that no test really takes."""


def orders() -> Wire:
    queues = {name: Queue(dead_letter="dead") for name in ("orders", "orders.fifo")}
    return Wire(queues=queues, clock=RunningClock())


def slow(work: Callable[[Message], Any], **settings: Any) -> Consumer[Any]:
    """Return a consumer that does ``work`` for message m1 only."""

    @consumer(**{"timeout": 0.2, "backoff": Fixed(60), **settings})
    def handler(message: Message) -> None:
        if message.id == "m1":
            work(message)

    return handler


def sleeps(_: Message) -> None:
    time.sleep(LONG)


def sleeps_after_any_exception(_: Message) -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(LONG)


def computes(_: Message) -> None:
    while True:
        sum(range(1_000))


def suppresses_it_twice_and_returns(_: Message) -> None:
    for _ in range(2):
        with contextlib.suppress(BaseException):
            time.sleep(LONG)


def converts_it_to_a_verdict(_: Message) -> None:
    try:
        time.sleep(LONG)
    except BaseException as error:
        raise Reject("too slow") from error


def acknowledges_after_it(message: Message) -> None:
    try:
        time.sleep(LONG)
    except BaseException:  # noqa: BLE001
        message.ack()


def exits(_: Message) -> None:
    try:
        time.sleep(LONG)
    except BaseException as error:
        raise SystemExit from error


WORKS = [
    sleeps,
    sleeps_after_any_exception,
    computes,
    suppresses_it_twice_and_returns,
    converts_it_to_a_verdict,
    acknowledges_after_it,
    exits,
]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_a_sync_handler_is_interrupted_at_its_timeout_and_has_failed(
    work: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I3
    with orders() as wire:
        assert failed(slow(work)(batch_of(3), Context())) == ["m1"]
    assert wire.rounded_visibilities() == {"handle-m1": 60}
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type") == "TimeoutError"


def test_the_timeout_error_names_the_setting_and_its_traceback_ends_where_the_handler_was_interrupted() -> None:
    with orders() as wire:  # SPEC I3, F2
        slow(sleeps, max_attempts=1)(batch_of(2), Context())
    [failure] = (envelope["failure"] for envelope in wire.envelopes())
    assert failure["type"] == "TimeoutError"
    assert failure["message"] == "the handler took longer than its timeout of 0.2 s: raise timeout=, or make it faster"
    frames = [line for line in failure["traceback"].splitlines() if "File" in line]
    assert "in handler" in frames[0]
    assert "in sleeps" in frames[-1]


@pytest.mark.parametrize("verdict", ["ack", "reject", "discard"])
def test_a_verdict_given_before_the_timeout_holds(verdict: str) -> None:  # SPEC I3, B5
    def work(message: Message) -> None:
        getattr(message, verdict)()
        time.sleep(LONG)

    with orders() as wire:
        assert failed(slow(work)(batch_of(3), Context())) == []
    assert len(wire.sent_entries()) == (verdict == "reject")


def gives_verdicts(batch: Batch) -> None:
    batch[0].ack()
    with contextlib.suppress(BaseException):
        time.sleep(LONG)
    batch[1].ack()
    batch.ack_all()


async def gives_verdicts_async(batch: Batch) -> None:
    batch[0].ack()
    await suppresses_the_cancellation_twice(batch[1])
    batch[1].ack()


async def blocks_after_a_verdict(batch: Batch) -> None:
    batch[0].ack()
    await blocks_the_loop(batch[1])


@pytest.mark.parametrize("handle", [gives_verdicts, gives_verdicts_async, blocks_after_a_verdict])
def test_an_interrupted_batch_handler_keeps_the_verdicts_it_has_given(handle: Any) -> None:  # SPEC I3, B5
    handler = batch_consumer(timeout=0.2, backoff=Fixed(60))(handle)
    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m1", "m2"]
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 60}


@pytest.mark.parametrize(("timeout", "work"), [(None, None), (5, None), (0.2, sleeps)])
def test_between_invocations_the_users_handler_for_sigalrm_stands_and_no_timer_is_set(
    timeout: float | None, work: Any
) -> None:  # SPEC A6, I3
    """The process may be frozen, call exec, or use SIGALRM itself between invocations."""
    seen: list[bool] = []

    @consumer(timeout=timeout)
    def handler(message: Message) -> None:
        is_armed = signal.getitimer(signal.ITIMER_REAL)[0] > 0
        seen.append(is_armed and signal.getsignal(signal.SIGALRM) is not own)
        if work is not None:
            work(message)

    def own(*_: Any) -> None: ...

    before = signal.signal(signal.SIGALRM, own)
    try:
        for _ in range(2):
            with orders():
                assert failed(handler(batch_of(1), Context())) == (["m0"] if work else [])
            assert signal.getsignal(signal.SIGALRM) is own
            assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [True, True]


@pytest.mark.parametrize("restores", [True, False])
def test_a_message_is_interrupted_after_a_handler_has_used_sigalrm_itself(restores: bool) -> None:  # SPEC I3
    @consumer(timeout=0.4, backoff=Fixed(60))
    def handler(message: Message) -> None:
        if message.id == "m0":
            before = signal.signal(signal.SIGALRM, lambda *_: None)
            signal.alarm(LONG)
            time.sleep(0.005)
            signal.alarm(0)
            if restores:
                signal.signal(signal.SIGALRM, before)
        else:
            time.sleep(LONG)

    before = signal.getsignal(signal.SIGALRM)
    try:
        with orders():
            assert failed(handler(batch_of(2), Context())) == ["m1"]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_sync_handler_outside_the_main_thread_is_not_interrupted_which_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC I3
    ran: list[str] = []

    @consumer(timeout=0.05)
    def handler(message: Message) -> None:
        time.sleep(0.1)
        ran.append(message.id)

    wire = orders()

    def invoke() -> None:
        with wire:
            handler(batch_of(2), Context())
            handler(batch_of(1), Context())

    thread = threading.Thread(target=invoke)
    thread.start()
    thread.join()
    assert ran == ["m0", "m1", "m0"]
    [line] = lines(caplog, "cannot_interrupt")
    assert "main thread" in field(line, "text")


def test_a_handler_that_invokes_another_consumer_is_interrupted() -> None:  # SPEC I3, A6
    inner = consumer(lambda message: None)

    def work(message: Message) -> None:
        inner(event(record("{}", "inner")), message.context)
        time.sleep(LONG)

    with orders():
        assert failed(slow(work)(batch_of(2), Context())) == ["m1"]


# async handlers


def slow_async(work: Callable[[Message], Any], **settings: Any) -> Consumer[Any]:
    @consumer(**{"timeout": 0.2, "backoff": Fixed(60), **settings})
    async def handler(message: Message) -> None:
        if message.id == "m1":
            await work(message)

    return handler


async def waits(_: Message) -> None:
    await asyncio.sleep(LONG)


async def waits_after_any_exception(_: Message) -> None:
    while True:
        with contextlib.suppress(Exception):
            await asyncio.sleep(LONG)


async def suppresses_the_cancellation_twice(_: Message) -> None:
    for _ in range(2):
        with contextlib.suppress(BaseException):
            await asyncio.sleep(LONG)


async def converts_the_cancellation_to_a_verdict(_: Message) -> None:
    try:
        await asyncio.sleep(LONG)
    except BaseException as error:
        raise Retry(7) from error


async def blocks_the_loop(_: Message) -> None:
    time.sleep(LONG)  # noqa: ASYNC251 blocking is the point


async def blocks_the_loop_in_a_task(_: Message) -> None:
    await asyncio.create_task(blocks_the_loop(_))


async def waits_in_a_group(message: Message) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(waits(message))
        group.create_task(waits(message))


ASYNC_WORKS = [
    waits,
    waits_after_any_exception,
    suppresses_the_cancellation_twice,
    converts_the_cancellation_to_a_verdict,
    blocks_the_loop,
    blocks_the_loop_in_a_task,
    waits_in_a_group,
]


@pytest.mark.parametrize(
    ("work", "concurrency"),
    [
        *((work, 1) for work in ASYNC_WORKS),
        *((work, 3) for work in (waits, blocks_the_loop, blocks_the_loop_in_a_task)),
    ],
)
def test_an_async_handler_is_cancelled_at_its_timeout_and_has_failed(
    work: Any, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I3
    with orders() as wire:
        assert failed(slow_async(work, concurrency=concurrency)(batch_of(3), Context())) == ["m1"]
    assert wire.rounded_visibilities() == {"handle-m1": 60}
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type") == "TimeoutError"


def test_an_awaitable_that_a_sync_handler_returns_is_cancelled_at_the_timeout() -> None:  # SPEC I3, A4
    @consumer(timeout=0.2, backoff=Fixed(60))
    def handler(message: Message) -> Any:
        return waits(message)

    with orders() as wire:
        assert failed(handler(batch_of(1), Context())) == ["m0"]
    assert wire.rounded_visibilities() == {"handle-m0": 60}


def test_the_cancellation_by_a_timeout_does_not_affect_the_next_message() -> None:  # SPEC I3, A5
    """The next message runs on the same event loop."""
    seen: list[int] = []

    @consumer(timeout=0.2)
    async def handler(message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())
        await asyncio.sleep(LONG if message.id == "m0" else 0)

    with orders():
        assert failed(handler(batch_of(3), Context())) == ["m0"]
    assert seen == [0, 0, 0]


# in virtual time


FORMS = ["sync", "batch", "threads", "async", "async that blocks"]


def in_form(form: str, work: Callable[[Message], float], **settings: Any) -> Consumer[Any]:
    """Return a consumer that takes as many seconds for a message as ``work`` says."""

    def handle(message: Message) -> None:
        current().clock.sleep(work(message))

    async def handle_async(message: Message) -> None:
        if form == "async":
            await current().clock.asleep(work(message))
        else:
            handle(message)

    def handle_all(batch: Batch) -> None:
        for message in batch:
            handle(message)

    if form == "batch":
        return batch_consumer(handle_all, **settings)
    if form == "threads":
        return consumer(handle, concurrency=2, **settings)
    return consumer(handle if form == "sync" else handle_async, **settings)


def delivered(sandbox: Sandbox, handler: Consumer[Any], count: int, timeout: int = 30) -> None:
    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders", batch_size=10, timeout=timeout)
    for number in range(count):
        sandbox.send("orders", str(number))
    sandbox.run()
    assert sandbox.messages("orders") == sandbox.messages("dead") == []


def test_each_run_of_a_message_has_the_whole_timeout(sandbox: Sandbox) -> None:  # SPEC I3, I5
    """So have local retries."""
    ran: list[str] = []

    @consumer(timeout=5, backoff=Fixed(60), on_failure=[LocalRetry(1), RetryInPlace()])
    def handler(message: Message) -> None:
        ran.append(message.body)
        current().clock.sleep(3_600 if message.body == "1" and len(ran) < 6 else 4)

    delivered(sandbox, handler, 4)
    assert ran == ["0", "1", "2", "3", "1", "1"]
    assert sandbox.elapsed == pytest.approx(4 + 5 + 4 + 4 + 5 + 60 + 4, abs=1)


def test_validation_of_a_batch_does_not_count_towards_the_timeout(sandbox: Sandbox) -> None:  # SPEC I3
    @dataclass
    class SlowModel:
        number: int = 0

        def __post_init__(self) -> None:
            current().clock.sleep(2)

    @batch_consumer(timeout=5, model=SlowModel)
    def handler(batch: Batch[SlowModel]) -> None:
        current().clock.sleep(4)

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders")
    for _ in range(4):
        sandbox.send("orders", {})
    report = sandbox.run()
    assert (report.count("COMMITTED"), report.count("WAITING_RETRY")) == (4, 0)


@pytest.mark.parametrize("timeout", [None, 300])
@pytest.mark.parametrize("form", ["sync", "async", "async that blocks"])
def test_a_handler_is_interrupted_before_the_deadline_and_those_behind_it_are_released(
    form: str, timeout: int | None, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I2, I3
    ran: list[tuple[int, int]] = []

    def work(message: Message) -> float:
        ran.append((message.json(), message.receive_count))
        return 3_600 if ran[-1] == (1, 1) else 0

    delivered(sandbox, in_form(form, work, backoff=Fixed(60), timeout=timeout), 4)
    assert (ran[:2], sorted(ran[2:4]), ran[4:]) == ([(0, 1), (1, 1)], [(2, 2), (3, 2)], [(1, 2)])
    answers = [event.fields["kind"] for event in sandbox.history.events if event.what == "answered"]
    assert set(answers) == {"returned"}
    cut = [field(line, "text") for line in lines(caplog, "timeout_cut")]  # once, although it is cut for each message
    assert ["a Timeout of at least 301 s" in text for text in cut] == ([True] if timeout else [])


def test_a_batch_handler_is_interrupted_before_the_deadline(sandbox: Sandbox) -> None:  # SPEC I3
    at: list[float] = []

    def work(message: Message) -> float:
        at.append(sandbox.elapsed)
        return 3_600 if message.receive_count == 1 else 0

    delivered(sandbox, in_form("batch", work, backoff=Fixed(60)), 2, timeout=9)
    first, *others = at
    assert [moment - first for moment in others] == [pytest.approx(68, abs=0.5)] * 2


def never_ends() -> tuple[Callable[[Message], Any], asyncio.Event]:
    over = asyncio.Event()

    async def work(_: Message) -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    return work, over


def test_a_task_that_never_ends_is_abandoned_and_the_process_ends(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC I3. In real time. All messages are settled first, so none is lost or runs twice."""
    work, over = never_ends()
    with orders() as wire, pytest.raises(SystemExit):
        slow_async(work, timeout=None)(batch_of(4), Context(remaining=3))
    over.set()
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 0, "handle-m3": 0}
    assert [entry["ReceiptHandle"] for entry in wire.sent("DeleteMessageBatch")[0].entries] == ["handle-m0"]
    assert lines(caplog, "delete_failed") == []
    [line] = lines(caplog, "process_ends")
    assert "did not end" in field(line, "text")


def test_a_short_invocation_ends_in_time_although_its_task_never_ends(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I2, I3
    work, _ = never_ends()

    @consumer
    async def handler(message: Message) -> None:
        if message.receive_count == 1:
            await work(message)

    delivered(sandbox, handler, 1, timeout=1)
    assert lines(caplog, "process_ends")


@pytest.mark.parametrize("on_outcome", [None, lambda *_: None], ids=["untimed", "timed"])
@pytest.mark.parametrize("form", FORMS)
def test_a_handler_that_has_ended_is_not_interrupted_while_that_is_noted(
    form: str, on_outcome: Any, sandbox: Sandbox
) -> None:  # SPEC I3
    sandbox.queue("orders", dead_letter="dead")
    handler = in_form(form, lambda message: message.json(), timeout=5, on_outcome=on_outcome)
    sandbox.connect(handler, "orders", batch_size=1)
    for seconds in (3.75, 4, 4.25, 4.5, 5, 5.1):  # one of them takes just 5 s, with the readings of the clock
        sandbox.faults.add("slow_cpu", seconds=0.5)
        sandbox.send("orders", str(seconds))
        sandbox.run()  # no message comes again after its handler has finished it


# settings


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "5"], ids=repr)
def test_an_invalid_timeout_is_refused_when_the_consumer_is_made(timeout: Any) -> None:  # SPEC I3, C5
    with pytest.raises(ConfigurationError, match="timeout must be a number of seconds above 0"):
        consumer(timeout=timeout)(lambda message: None)
