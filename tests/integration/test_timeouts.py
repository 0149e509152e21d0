"""Handlers that take too long, and messages without time to run: timeouts, interruptions, and the deadline."""

import asyncio
import contextlib
import inspect
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tarry import (
    Batch,
    Consumer,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tarry.world import current
from tests.handlers import timed
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.sandboxes import work
from tests.settled import orders, settle
from tests.tables import SlowTable
from tests.wire import RunningClock, TestClock, Wire

LONG = 120
"""A number of seconds that no test really takes."""

# in real time, after fractions of a second


def interrupted(handler: Consumer[Any], count: int = 3) -> tuple[list[str], Wire]:
    """Invoke a consumer on a clock that runs; return the ids that it reports, and the wire."""
    return settle(handler, batch_of(count), orders(clock=RunningClock()))


def slow(does: Callable[[Message], Any], **settings: Any) -> Consumer[Any]:
    """Return a consumer whose handler ``does`` something for message m1 only."""
    settings = {"timeout": 0.2, "backoff": Fixed(60), **settings}
    if inspect.iscoroutinefunction(does):

        async def handler(message: Message) -> None:
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0  # the message before it has not cancelled the loop's next task
            if message.id == "m1":
                await does(message)

        return consumer(**settings)(handler)
    return consumer(**settings)(lambda message: does(message) if message.id == "m1" else None)


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


def returns_an_awaitable(message: Message) -> Any:
    return waits(message)


def invokes_another_consumer_first(message: Message) -> None:
    consumer(lambda message: None)(event(record("{}", "inner")), message.context)
    time.sleep(LONG)


WORKS = [
    sleeps, sleeps_after_any_exception, computes, suppresses_it_twice_and_returns, converts_it_to_a_verdict,
    acknowledges_after_it, exits, waits, waits_after_any_exception, suppresses_the_cancellation_twice,
    converts_the_cancellation_to_a_verdict, blocks_the_loop, blocks_the_loop_in_a_task, waits_in_a_group,
    returns_an_awaitable, invokes_another_consumer_first,
]  # fmt: skip
AT_ONCE = [waits, blocks_the_loop, blocks_the_loop_in_a_task]


@pytest.mark.parametrize(("does", "concurrency"), [*((each, 1) for each in WORKS), *((each, 3) for each in AT_ONCE)])
def test_a_handler_is_interrupted_at_its_timeout_and_has_failed(does: Any, concurrency: int, caplog: Caplog) -> None:
    # SPEC I3, A4, A5, A6
    reported, wire = interrupted(slow(does, concurrency=concurrency))
    assert (reported, wire.rounded_visibilities()) == (["m1"], {"handle-m1": 60})
    [line] = lines(caplog)  # nothing else: the timeout is not cut
    assert (field(line, "event"), field(line, "error_type")) == ("waiting_retry", "TimeoutError")


def test_the_timeout_error_names_the_setting_and_its_traceback_ends_where_the_handler_was_interrupted() -> None:
    # SPEC I3, F2
    _, wire = interrupted(slow(sleeps, max_attempts=1))
    [failure] = (envelope["failure"] for envelope in wire.envelopes())
    assert failure["type"] == "TimeoutError"
    assert failure["message"] == "the handler took longer than its timeout of 0.2 s: raise timeout=, or make it faster"
    assert [line.split()[-1] for line in failure["traceback"].splitlines() if "File" in line] == ["<lambda>", "sleeps"]


@pytest.mark.parametrize("verdict", ["ack", "reject", "discard"])
def test_a_verdict_given_before_the_timeout_holds(verdict: str) -> None:  # SPEC I3, B5
    reported, wire = interrupted(slow(lambda message: getattr(message, verdict)() or time.sleep(LONG)))
    assert (reported, len(wire.sent_entries())) == ([], verdict == "reject")


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


def acknowledges_all(batch: Batch) -> None:
    batch.ack_all()
    time.sleep(LONG)


VERDICTS = [gives_verdicts, gives_verdicts_async, blocks_after_a_verdict]


@pytest.mark.parametrize(("handle", "left"), [*((each, ["m1", "m2"]) for each in VERDICTS), (acknowledges_all, [])])
def test_an_interrupted_batch_handler_keeps_the_verdicts_it_has_given(handle: Any, left: list[str]) -> None:
    # SPEC I3, B5
    reported, wire = interrupted(batch_consumer(timeout=0.2, backoff=Fixed(60))(handle))
    assert (reported, wire.rounded_visibilities()) == (left, {f"handle-{each}": 60 for each in left})


# SIGALRM


@pytest.fixture
def _alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize(("timeout", "does"), [(None, None), (5, None), (0.2, sleeps)])
def test_between_invocations_sigalrm_is_the_users_and_no_timer_is_set(timeout: float | None, does: Any) -> None:
    """SPEC A6, I3. The process may be frozen, call exec, or use SIGALRM itself between invocations."""
    seen: list[Any] = []

    @consumer(timeout=timeout)
    def handler(message: Message) -> None:
        seen.append((signal.getitimer(signal.ITIMER_REAL)[0] > 0, signal.getsignal(signal.SIGALRM) is own))
        if does is not None:
            does(message)

    def own(*_: Any) -> None: ...

    signal.signal(signal.SIGALRM, own)
    for _ in range(2):
        assert interrupted(handler, 1)[0] == (["m0"] if does else [])
        assert signal.getsignal(signal.SIGALRM) is own
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert seen == [(True, False)] * 2


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize(("restores", "uses"), [(True, "m0"), (False, "m0"), (False, "m1")])
def test_a_message_is_interrupted_after_a_handler_has_used_sigalrm_itself(restores: bool, uses: str) -> None:
    """SPEC I3, I5. Also the one that has used it, when it runs again."""
    used: list[str] = []

    @consumer(timeout=0.4, backoff=Fixed(60), on_failure=[LocalRetry(1), RetryInPlace()])
    def handler(message: Message) -> None:
        if message.id == uses and not used:
            used.append(message.id)
            before = signal.signal(signal.SIGALRM, lambda *_: None)
            signal.alarm(LONG)
            time.sleep(0.005)
            signal.alarm(0)
            if restores:
                signal.signal(signal.SIGALRM, before)
            if uses == "m1":
                raise ValueError
        elif message.id == "m1":
            time.sleep(LONG)

    assert interrupted(handler, 2)[0] == ["m1"]


def test_outside_the_main_thread_no_sync_handler_is_interrupted_which_is_logged_once(caplog: Caplog) -> None:  # SPEC I3
    ran: list[Any] = []

    @consumer(timeout=0.05)
    def handler(message: Message) -> None:
        time.sleep(0.1)
        ran.append(message.id)

    wire = orders(clock=RunningClock())
    thread = threading.Thread(target=lambda: [settle(handler, batch_of(count), wire) for count in (2, 1)])
    thread.start()
    thread.join()
    assert ran == ["m0", "m1", "m0"]
    [line] = lines(caplog, "cannot_interrupt")
    assert "main thread" in field(line, "text")


# in virtual time


def delivered(sandbox: Sandbox, handler: Consumer[Any], count: int, timeout: int = 30) -> None:
    """Deliver messages with the bodies 0, 1, ... until all are done; none is dead-lettered."""
    work(sandbox, handler, *map(str, range(count)), batch_size=10, timeout=timeout)
    sandbox.run()
    assert sandbox.messages("orders") == sandbox.messages("orders-dlq") == []


def test_each_run_of_a_message_has_the_whole_timeout(sandbox: Sandbox) -> None:  # SPEC I3, I5
    ran: list[Any] = []

    def begin(message: Message) -> float:
        ran.append(message.body)
        return 3_600 if message.body == "1" and len(ran) < 6 else 4

    steps = [LocalRetry(1), RetryInPlace()]
    delivered(sandbox, timed("sync", begin, timeout=5, backoff=Fixed(60), on_failure=steps), 4)
    assert ran == ["0", "1", "2", "3", "1", "1"]
    assert sandbox.elapsed == pytest.approx(4 + 5 + 4 + 4 + 5 + 60 + 4, abs=1)


def test_validation_of_a_batch_does_not_count_towards_the_timeout(sandbox: Sandbox) -> None:  # SPEC I3
    @dataclass
    class SlowModel:
        number: int = 0

        def __post_init__(self) -> None:
            current().clock.sleep(2)

    @batch_consumer(timeout=5, model=SlowModel, fatal=Exception)
    def handler(batch: Batch[SlowModel]) -> None:
        current().clock.sleep(4)

    work(sandbox, handler, {}, {}, {}, {})
    assert sandbox.run().count("COMMITTED") == 4


@pytest.mark.parametrize("timeout", [None, 300])
@pytest.mark.parametrize("form", ["sync", "async", "async that blocks"])
def test_a_handler_is_interrupted_before_the_deadline_and_those_behind_it_are_released(
    form: str, timeout: int | None, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC I2, I3
    ran: list[Any] = []

    def begin(message: Message) -> float:
        ran.append((message.json(), message.receive_count))
        return 3_600 if ran[-1] == (1, 1) else 0

    delivered(sandbox, timed(form, begin, backoff=Fixed(60), timeout=timeout), 4)
    assert (ran[:2], sorted(ran[2:4]), ran[4:]) == ([(0, 1), (1, 1)], [(2, 2), (3, 2)], [(1, 2)])
    assert {event.fields["kind"] for event in sandbox.history.events if event.what == "answered"} == {"returned"}
    cut = [field(line, "text") for line in lines(caplog, "timeout_cut")]  # once, although it is cut for each message
    assert ["a Timeout of at least 301 s" in text for text in cut] == ([True] if timeout else [])


def test_a_batch_handler_is_interrupted_before_the_deadline(sandbox: Sandbox) -> None:  # SPEC I3
    at: list[Any] = []

    def begin(message: Message) -> float:
        at.append(sandbox.elapsed)
        return 3_600 if message.receive_count == 1 else 0

    delivered(sandbox, timed("batch", begin, backoff=Fixed(60)), 2, timeout=9)
    assert [moment - at[0] for moment in at[1:]] == [pytest.approx(68, abs=0.5)] * 2


def never_ends() -> tuple[Callable[[Message], Any], asyncio.Event]:
    """Return an async function that suppresses every cancellation, and the event that ends it."""
    over = asyncio.Event()

    async def never(_: Message) -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    return never, over


def test_a_task_that_never_ends_is_abandoned_and_the_process_ends(caplog: Caplog) -> None:
    """SPEC I3. In real time. All messages are settled first, so none is lost or runs twice."""
    never, over = never_ends()
    with orders(clock=RunningClock()) as wire, pytest.raises(SystemExit, match=r"^1$"):
        slow(never, timeout=None)(batch_of(4), Context(remaining=3))
    over.set()
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 0, "handle-m3": 0}
    assert [entry["ReceiptHandle"] for entry in wire.sent("DeleteMessageBatch")[0].entries] == ["handle-m0"]
    assert lines(caplog, "delete_failed") == []
    [line] = lines(caplog, "process_ends")
    assert "did not end" in field(line, "text")


def test_a_short_invocation_ends_in_time_although_its_task_never_does(sandbox: Sandbox, caplog: Caplog) -> None:
    # SPEC I2, I3
    never, _ = never_ends()

    @consumer
    async def handler(message: Message) -> None:
        if message.receive_count == 1:
            await never(message)

    delivered(sandbox, handler, 1, timeout=1)
    assert lines(caplog, "process_ends")


@pytest.mark.parametrize(("seconds", "answer"), [(0.75, "returned"), (1.25, "crash")])
def test_after_an_exit_the_handlers_that_still_run_have_a_second_to_end(
    seconds: float, answer: str, sandbox: Sandbox
) -> None:  # SPEC A5, I3
    async def leave() -> None:
        raise SystemExit

    @consumer(concurrency=2, backoff=Fixed(60))
    async def handler(message: Message) -> None:
        if message.receive_count == 1 and message.body == "0":
            await asyncio.create_task(leave())
        ends_at = sandbox.elapsed + (seconds if message.receive_count == 1 else 0)
        while sandbox.elapsed < ends_at:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    delivered(sandbox, handler, 2)
    answers = [event.fields["kind"] for event in sandbox.history.events if event.what == "answered"]
    assert answers[0] == answer


@pytest.mark.parametrize("on_outcome", [None, lambda *_: None], ids=["untimed", "timed"])
@pytest.mark.parametrize("form", ["sync", "batch", "threads", "async", "async that blocks"])
def test_a_handler_whose_end_is_noted_is_not_interrupted(form: str, on_outcome: Any, sandbox: Sandbox) -> None:
    # SPEC I3
    sandbox.queue("orders", dead_letter="orders-dlq")
    settings = {"timeout": 5, "on_outcome": on_outcome} | ({"concurrency": 2} if form == "threads" else {})
    handler = timed(form.replace("threads", "sync"), lambda message: message.json(), **settings)
    sandbox.connect(handler, "orders", batch_size=1)
    for seconds in (3.75, 4, 4.25, 4.5, 5, 5.1):  # one of them takes just 5 s, with the readings of the clock
        sandbox.faults.add("slow_cpu", seconds=0.5)
        sandbox.send("orders", str(seconds))
        sandbox.run()  # no message comes again after its handler has finished it


# messages that start before the deadline, and messages that are released


def taking(seconds: dict[str, float] | float, ran: list[str], **settings: Any) -> Consumer[Any]:
    """Return a consumer whose handler takes these seconds, by message id or for each message."""

    def begin(message: Message) -> float:
        ran.append(message.id)
        return seconds.get(message.id, 0) if isinstance(seconds, dict) else seconds

    return timed("sync", begin, backoff=Fixed(60), **settings)


GROUPS = event(*(record("{}", f"m{index}", "orders.fifo", group=f"g{index % 2}") for index in range(10)))


@pytest.mark.parametrize("batch", [batch_of(10), GROUPS], ids=["standard", "fifo"])
def test_messages_without_time_are_released_and_a_warning_names_the_batch_size_that_fits(
    batch: Any, caplog: Caplog
) -> None:  # SPEC H1, I2
    ran: list[Any] = []
    reported, wire = settle(taking(7, ran), batch)
    assert (ran, reported) == (["m0", "m1", "m2", "m3"], ["m4", "m5", "m6", "m7", "m8", "m9"])
    assert wire.visibilities() == {f"handle-{message_id}": 0 for message_id in reported}
    [line] = lines(caplog)
    assert (line.levelname, field(line, "event")) == ("WARNING", "out_of_time")
    assert "6 of 10 messages were not started" in field(line, "text")
    assert "BatchSize of 4 would have fitted" in field(line, "text")


NO_DEADLINE = [10**15, sys.maxsize, 10**400, math.inf, math.nan, None, "30000"]


@pytest.mark.parametrize("milliseconds", NO_DEADLINE, ids=lambda value: f"{value!s:.20}")
@pytest.mark.parametrize("way", [{}, {"concurrency": 2}], ids=["one by one", "threads"])
def test_a_remaining_time_beyond_any_timer_or_no_context_is_no_deadline(milliseconds: object, way: Any) -> None:
    """SPEC I2. A context of a test may say it; the signal handler of the alarm is not left behind."""

    class Context:
        def get_remaining_time_in_millis(self) -> object:
            return milliseconds

    before, ran = signal.getsignal(signal.SIGALRM), list[str]()
    with orders():
        handler = taking(3_600, ran, **way)
        assert failed(handler(batch_of(2), Context())) == failed(handler(batch_of(2))) == []
    assert sorted(ran) == ["m0", "m0", "m1", "m1"]  # threads start in any order
    assert signal.getsignal(signal.SIGALRM) is before


class SlowClock(TestClock):
    """A clock on which each reading takes 0.1 s from the 20th second on."""

    def monotonic(self) -> float:
        if self.now > 1_800_000_020:
            self.now += 0.1
        return super().monotonic()


def test_messages_that_there_is_no_time_to_release_are_only_reported(caplog: Caplog) -> None:
    """SPEC I2. Otherwise there would be no time left to settle those that were released."""
    ran: list[Any] = []
    reported, wire = settle(taking(24, ran), batch_of(100), orders(clock=SlowClock()))
    assert (ran, reported) == (["m0"], [f"m{number}" for number in range(1, 100)])
    assert 0 < len(wire.visibilities()) <= 20  # measuring a request reads the clock too
    assert "99 of 100 messages were not started" in field(lines(caplog, "out_of_time")[0], "text")
    assert "79 messages were not settled" in field(lines(caplog, "out_of_time")[1], "text")


@pytest.mark.parametrize(
    ("seconds", "count", "remaining", "last"),
    [
        pytest.param(0.15, 3, 0.3, 0, id="the first message starts however short the time is"),
        pytest.param({"m500": 28}, 600, 30, 500, id="many fast messages and a slow one: the clock is read rarely"),
        pytest.param(0.1, 400, 30, 289, id="fast messages run until only the margin is left"),
    ],
)
def test_no_message_starts_too_late(seconds: Any, count: int, remaining: float, last: int) -> None:
    # SPEC I2
    ran: list[Any] = []
    reported, _ = settle(taking(seconds, ran), batch_of(count), remaining=remaining)
    assert (ran[-1], reported) == (f"m{last}", [f"m{number}" for number in range(last + 1, count)])


def test_an_invocation_that_begins_too_late_runs_no_message(caplog: Caplog) -> None:  # SPEC I2
    ran: list[Any] = []
    for handler in (taking(0, ran), batch_consumer(lambda batch: ran.append("batch"))):
        reported, wire = settle(handler, batch_of(3), remaining=0.19)
        assert (reported, wire.requests) == (["m0", "m1", "m2"], [])
    assert ran == []
    assert [line.levelname for line in lines(caplog)] == ["WARNING", "WARNING"]
    assert "began with 0.19 s left" in field(lines(caplog, "out_of_time")[0], "text")
    settle(taking(0, ran), batch_of(3), remaining=0.2)
    assert ran[0] == "m0"


@pytest.mark.parametrize("is_claimed", [False, True])
def test_each_message_of_a_batch_handler_that_there_is_no_time_to_settle_is_counted_or_logged(
    is_claimed: bool, caplog: Caplog
) -> None:  # SPEC I2, K4
    idempotency = SlowTable() if is_claimed else None
    begin: Callable[[Message], float] = lambda message: 30 if message.id == "m0" else 0  # noqa: E731
    handler = timed("batch", begin, lambda _: 1 / 0, idempotency=idempotency)
    reported, wire = settle(handler, batch_of(25))
    assert (reported, wire.requests) == ([f"m{number}" for number in range(25)], [])
    [line] = lines(caplog, "out_of_time")
    counted, _, text = field(line, "text").partition(" messages ")
    assert text.startswith("were not settled")
    assert int(counted) + len(lines(caplog, "waiting_retry")) == 25
    assert len(lines(caplog, "claim_not_removed")) == (25 if is_claimed else 0)


def test_a_message_that_failed_before_time_ran_out_waits_for_its_delay() -> None:  # SPEC I2, G1
    handler = timed("sync", lambda _: 20, lambda _: 1 / 0, backoff=Fixed(60))
    reported, wire = settle(handler, batch_of(2))
    assert (reported, wire.visibilities()) == (["m0", "m1"], {"handle-m0": 60, "handle-m1": 0})


def test_a_local_retry_without_time_is_not_made() -> None:  # SPEC I2, I5
    """Two seconds are kept for the run and its settlement.

    There were enough when the step was asked, before the other message ran.
    """
    ran: list[str] = []

    def begin(message: Message) -> float:
        ran.append(message.id)
        return 5 if message.body == "fails" else 23.5

    def end(message: Message) -> None:
        if message.body == "fails":
            raise ValueError

    handler = timed("sync", begin, end, on_failure=[LocalRetry(5, delay=5), RetryInPlace()], backoff=Fixed(60))
    assert settle(handler, event(record("fails", "m0")))[0] == ["m0"]
    assert ran == ["m0"] * 3
    ran.clear()
    reported, wire = settle(handler, event(record("fails", "m0"), record("slow", "m1")), remaining=35)
    assert (reported, ran) == (["m0"], ["m0", "m1"])
    assert wire.visibilities() == {"handle-m0": 37}


@pytest.mark.parametrize(
    ("queue", "fails_after", "other_takes", "claims_take", "runs"),
    [
        *((queue, after, 0, 0, runs) for queue in ("orders", "orders.fifo") for after, runs in ((22.75, 2), (23, 1))),
        *(("orders", 0, 22.75, 0, 2), ("orders", 0, 23, 0, 1)),
        # the claim has taken a second, and its end is expected to take two
        *(("orders", 20.75, 0, 1, 2), ("orders", 21, 0, 1, 1)),
    ],
)
def test_a_message_runs_again_within_its_delivery_if_two_seconds_and_the_ends_of_claims_fit_behind_its_delay(
    queue: str, fails_after: float, other_takes: float, claims_take: float, runs: int, caplog: Caplog
) -> None:  # SPEC I2, I5, K4
    ran: list[str] = []
    table = SlowTable(lambda operation, _: claims_take if operation == "put" else 0)

    def begin(message: Message) -> float:
        ran.append(message.id)
        return 0 if message.id in ran[:-1] else {"m0": fails_after, "m1": other_takes}[message.id]

    def end(message: Message) -> None:
        if ran == ["m0"]:
            raise ValueError

    settings = {"idempotency": table} if claims_take else {}
    handler = timed("sync", begin, end, on_failure=[lambda *_: Outcome.again(5)], backoff=Fixed(60), **settings)
    reported, _ = settle(handler, batch_of(2 if other_takes else 1, queue))
    assert (ran.count("m0"), reported) == (runs, ["m0"] if runs == 1 else [])
    assert len(lines(caplog, "step_failed")) == (runs == 1 and not other_takes)  # else there was time when it was asked
