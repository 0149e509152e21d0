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

    @consumer(**{"timeout": 0.4, "backoff": Fixed(60), **settings})
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
    began = time.monotonic()
    with orders() as wire:
        assert failed(slow(work)(batch_of(3), Context())) == ["m1"]
    assert wire.rounded_visibilities() == {"handle-m1": 60}
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type") == "TimeoutError"
    assert time.monotonic() - began < LONG / 2


def test_the_timeout_error_names_the_timeout_and_the_setting() -> None:  # SPEC I3
    with orders() as wire:
        slow(sleeps, max_attempts=1)(batch_of(2), Context())
    [envelope] = wire.envelopes()
    assert envelope["failure"]["type"] == "TimeoutError"
    assert envelope["failure"]["message"] == (
        "the handler took longer than its timeout of 0.4 s: raise timeout=, or make it faster"
    )


def test_the_traceback_of_a_timeout_ends_where_the_handler_was_interrupted() -> None:  # SPEC I3, F2
    with orders() as wire:
        slow(sleeps, max_attempts=1)(batch_of(2), Context())
    frames = [line for line in wire.envelopes()[0]["failure"]["traceback"].splitlines() if "File" in line]
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


def test_a_handler_without_a_timeout_is_interrupted_before_the_deadline() -> None:  # SPEC I3
    with orders() as wire:
        answer = slow(sleeps, timeout=None)(batch_of(4), Context(remaining=3))
    assert failed(answer) == ["m1", "m2", "m3"]
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 0, "handle-m3": 0}


def test_the_timeout_counts_for_each_message() -> None:  # SPEC I3
    ran: list[str] = []

    @consumer(timeout=0.6)
    def handler(message: Message) -> None:
        time.sleep(0.15)
        ran.append(message.id)

    with orders():
        assert failed(handler(batch_of(6), Context())) == []
    assert len(ran) == 6


def test_an_interrupted_batch_handler_keeps_the_verdicts_it_has_given() -> None:  # SPEC I3, B5
    @batch_consumer(timeout=0.4, backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        batch[0].ack()
        with contextlib.suppress(BaseException):
            time.sleep(LONG)
        batch[1].ack()
        batch.ack_all()

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m1", "m2"]
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 60}


def test_a_batch_handler_is_interrupted_before_the_deadline() -> None:  # SPEC I3
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        time.sleep(LONG)

    with orders() as wire:
        assert failed(handler(batch_of(2), Context(remaining=3))) == ["m0", "m1"]
    assert wire.rounded_visibilities() == {"handle-m0": 60, "handle-m1": 60}


def test_the_users_handler_for_sigalrm_is_restored() -> None:  # SPEC I3
    def own(*_: Any) -> None: ...

    before = signal.signal(signal.SIGALRM, own)
    try:
        with orders():
            slow(sleeps)(batch_of(3), Context())
        assert signal.getsignal(signal.SIGALRM) is own
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("timeout", [None, 5])
def test_between_invocations_no_timer_or_signal_handler_of_tarry_is_set(timeout: float | None) -> None:
    """SPEC A6, I3. The process may be frozen, call exec, or use SIGALRM itself between invocations."""
    seen: list[tuple[object, bool]] = []

    @consumer(timeout=timeout)
    def handler(message: Message) -> None:
        seen.append((signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0))

    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        for _ in range(2):
            with orders():
                assert failed(handler(batch_of(1), Context())) == []
            assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
            assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [(set_by_tarry is not signal.SIG_DFL, is_armed) for set_by_tarry, is_armed in seen] == [(True, True)] * 2


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


def test_validation_of_a_batch_does_not_count_towards_the_timeout() -> None:  # SPEC I3
    @dataclass
    class SlowModel:
        def __post_init__(self) -> None:
            time.sleep(0.2)

    @batch_consumer(timeout=0.4, model=SlowModel)
    def handler(batch: Batch[SlowModel]) -> None: ...

    records = [record({}, f"m{index}") for index in range(3)]
    with orders() as wire:
        assert failed(handler(event(*records), Context())) == []
    assert wire.requests == []


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


def test_a_timeout_above_the_remaining_time_is_cut_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:  # SPEC I3
    with orders() as wire:
        handler = slow(sleeps, timeout=300)
        assert failed(handler(batch_of(3), Context(remaining=3))) == ["m1", "m2"]
        assert failed(handler(batch_of(1), Context(remaining=3))) == []
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 0}
    [line] = lines(caplog, "timeout_cut")
    assert "a Timeout of at least 301 s" in field(line, "text")


def test_each_local_retry_has_the_whole_timeout() -> None:  # SPEC I3, I5
    ran: list[str] = []

    @consumer(timeout=0.4, on_failure=[LocalRetry(2), RetryInPlace()])
    def handler(message: Message) -> None:
        ran.append(message.id)
        if len(ran) < 3:
            time.sleep(LONG)

    with orders():
        assert failed(handler(batch_of(1), Context())) == []
    assert ran == ["m0"] * 3


def test_a_handler_that_invokes_another_consumer_is_interrupted() -> None:  # SPEC I3, A6
    inner = consumer(lambda message: None)

    def work(message: Message) -> None:
        inner(event(record("{}", "inner")), message.context)
        time.sleep(LONG)

    with orders():
        assert failed(slow(work)(batch_of(2), Context())) == ["m1"]


# async handlers


def slow_async(work: Callable[[Message], Any], **settings: Any) -> Consumer[Any]:
    @consumer(**{"timeout": 0.4, "backoff": Fixed(60), **settings})
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


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("work", ASYNC_WORKS, ids=lambda work: work.__name__)
def test_an_async_handler_is_cancelled_at_its_timeout_and_has_failed(
    work: Any, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I3
    began = time.monotonic()
    with orders() as wire:
        assert failed(slow_async(work, concurrency=concurrency)(batch_of(3), Context())) == ["m1"]
    assert wire.rounded_visibilities() == {"handle-m1": 60}
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type") == "TimeoutError"
    assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize("work", [waits, blocks_the_loop])
def test_an_async_handler_without_a_timeout_is_cancelled_before_the_deadline(work: Any) -> None:  # SPEC I3
    with orders() as wire:
        answer = slow_async(work, timeout=None)(batch_of(3), Context(remaining=3))
    assert failed(answer) == ["m1", "m2"]
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 0}


@pytest.mark.parametrize("work", [waits, suppresses_the_cancellation_twice, blocks_the_loop])
def test_a_cancelled_async_batch_handler_keeps_the_verdicts_it_has_given(work: Any) -> None:  # SPEC I3
    @batch_consumer(timeout=0.4, backoff=Fixed(60))
    async def handler(batch: Batch) -> None:
        batch[0].ack()
        await work(batch[1])
        batch[1].ack()

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m1", "m2"]
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 60}


def test_an_awaitable_that_a_sync_handler_returns_is_cancelled_at_the_timeout() -> None:  # SPEC I3, A4
    @consumer(timeout=0.4, backoff=Fixed(60))
    def handler(message: Message) -> Any:
        return waits(message)

    with orders() as wire:
        assert failed(handler(batch_of(1), Context())) == ["m0"]
    assert wire.rounded_visibilities() == {"handle-m0": 60}


def test_the_cancellation_by_a_timeout_does_not_affect_the_next_message() -> None:  # SPEC I3, A5
    """The next message runs on the same event loop."""
    seen: list[int] = []

    @consumer(timeout=0.4)
    async def handler(message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())
        await asyncio.sleep(LONG if message.id == "m0" else 0)

    with orders():
        assert failed(handler(batch_of(3), Context())) == ["m0"]
    assert seen == [0, 0, 0]


def never_ends() -> tuple[Callable[[Message], Any], asyncio.Event]:
    over = asyncio.Event()

    async def work(_: Message) -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    return work, over


def test_a_task_that_never_ends_is_abandoned_and_the_process_ends(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC I3. All messages are settled first, so none is lost or runs twice."""
    work, over = never_ends()
    with orders() as wire, pytest.raises(SystemExit):
        slow_async(work, timeout=None)(batch_of(4), Context(remaining=4))
    over.set()
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 0, "handle-m3": 0}
    assert [entry["ReceiptHandle"] for entry in wire.sent("DeleteMessageBatch")[0].entries] == ["handle-m0"]
    [line] = lines(caplog, "process_ends")
    assert "did not end" in field(line, "text")


# in virtual time


def test_a_long_sleep_is_interrupted_in_virtual_time(sandbox: Sandbox) -> None:  # SPEC I3
    tries = 3

    @consumer(timeout=5, backoff=Fixed(60))
    def handler(message: Message) -> None:
        nonlocal tries
        tries -= 1
        current().clock.sleep(3_600 if tries else 1)

    sandbox.queue("orders")
    sandbox.connect(handler, "orders", timeout=30)
    sandbox.send("orders", {})
    sandbox.run()
    assert sandbox.messages("orders") == []
    assert sandbox.elapsed == pytest.approx(5 + 60 + 5 + 60 + 1, abs=1)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_function_returns_its_response_before_the_deadline(is_async: bool, sandbox: Sandbox) -> None:  # SPEC I2, I3
    def work(message: Message) -> None:
        if message.json() == 3 and message.receive_count == 1:
            current().clock.sleep(3_600)

    async def work_async(message: Message) -> None:
        work(message)

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(consumer(work_async if is_async else work), "orders", batch_size=10, timeout=30)
    for number in range(6):
        sandbox.send("orders", str(number))
    sandbox.run()
    answers = [event.fields["kind"] for event in sandbox.history.events if event.what == "answered"]
    assert set(answers) == {"returned"}
    assert sandbox.messages("orders") == sandbox.messages("dead") == []


@pytest.mark.parametrize("on_outcome", [None, lambda *_: None], ids=["untimed", "timed"])
@pytest.mark.parametrize("form", ["sync", "batch", "threads", "async", "async that blocks"])
def test_a_handler_that_has_ended_is_not_interrupted_while_that_is_noted(
    form: str, on_outcome: Any, sandbox: Sandbox
) -> None:  # SPEC I3
    def work(message: Message) -> None:
        current().clock.sleep(message.json())

    async def work_async(message: Message) -> None:
        if form == "async":
            await current().clock.asleep(message.json())
        else:
            work(message)

    settings: dict[str, Any] = {"timeout": 5, "on_outcome": on_outcome}
    handlers: dict[str, Callable[[], Consumer[Any]]] = {
        "sync": lambda: consumer(work, **settings),
        "batch": lambda: batch_consumer(lambda batch: work(batch[0]), **settings),
        "threads": lambda: consumer(work, concurrency=2, **settings),
    }
    handler = handlers.get(form, lambda: consumer(work_async, **settings))()
    sandbox.queue("orders", dead_letter="dead")
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
