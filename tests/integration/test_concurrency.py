"""Several messages at once: the bound, FIFO groups, and results that do not depend on which message ends first."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tarry import (
    ConfigurationError,
    Consumer,
    DeadLetter,
    DropMessage,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tarry.run import tasks
from tarry.run.tasks import event_loop
from tarry.run.threads import HandlerWorkers
from tarry.support.guards import exit_if_forked
from tarry.testing import Sandbox
from tarry.world import Interrupted, RealThreads, hook_limit
from tests.handlers import timed
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.sandboxes import work
from tests.settled import orders, settle
from tests.wire import NoThreads, RunningClock

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


class RunningHandlers:
    def __init__(self) -> None:
        self.now = self.most = 0
        self.lock = threading.Lock()

    def begin(self, seconds: float = 0) -> float:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        return seconds

    def end(self, _: Message) -> None:
        with self.lock:
            self.now -= 1


def of_groups(*names: str) -> dict[str, Any]:
    return event(*(record("{}", name, "orders.fifo", group=name[0]) for name in names))


# in virtual time: one thread at a time, in an order that only the seed decides


def run_in(
    sandbox: Sandbox, handler: Consumer[Any], bodies: Iterable[Any], *, fifo: bool = False, **settings: Any
) -> list[Message]:
    """Send the bodies, on FIFO each to the group that it names, and run; return what is left and dead-lettered."""
    name, groups = ("orders.fifo" if fifo else "orders"), "".join(each["group"] for each in bodies if fifo)
    work(sandbox, handler, *bodies, queue=name, groups=groups, **{"batch_size": 10, "timeout": 30, **settings})
    sandbox.run()
    return [*sandbox.messages(name), *sandbox.messages(name.replace("orders", "orders-dlq"))]


@KINDS
@pytest.mark.parametrize(("concurrency", "seconds"), [(1, 20), (3, 8), (100, 2)])
def test_at_most_concurrency_run_at_once(kind: str, concurrency: int, seconds: float, sandbox: Sandbox) -> None:
    # SPEC I1
    running = RunningHandlers()
    handler = timed(kind, lambda _: running.begin(2), running.end, concurrency=concurrency)
    assert run_in(sandbox, handler, "0123456789") == []
    assert running.most == min(concurrency, 10)
    assert sandbox.elapsed == pytest.approx(seconds, abs=1)


@KINDS
def test_the_bound_holds_for_many_messages_in_real_threads(kind: str) -> None:  # SPEC I1
    running, ran = RunningHandlers(), set[str]()

    def handle(message: Message) -> None:
        running.begin()
        ran.add(message.id)
        running.end(message)
        if message.delivery_id.endswith("7"):
            raise ValueError

    handler = timed(kind, handle, concurrency=16, on_failure=[DropMessage()])
    reported, _ = settle(handler, batch_of(1_000, attributes={"tenant": {"stringValue": "a", "dataType": "String"}}))
    assert (reported, len(ran)) == ([], 1_000)
    assert 1 <= running.most <= 16


@KINDS
@pytest.mark.parametrize("unit", [1, 0.001], ids=["seconds", "during the look-up of the queue"])
def test_the_response_and_the_lines_do_not_depend_on_which_handler_ends_first(unit: float, kind: str) -> None:
    # SPEC I1
    seen, asked = set[str](), list[str]()

    def note(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        asked.append(failure.message.body)
        return next_step(failure)

    for order in range(4):
        asked.clear()
        seconds = [index * 3 % 10 for index in range(10)]
        Random(order).shuffle(seconds)

        def begin(message: Message, seconds: list[int] = seconds) -> float:
            if message.receive_count > 1:
                return 0
            if message.json() == 4:
                message.reject("no")
            return seconds[message.json()] * unit

        def end(message: Message) -> None:
            if message.json() % 2:
                raise ValueError

        with Sandbox(seed=1) as one:
            steps = [note, RetryInPlace(), DeadLetter()]
            handler = timed(kind, begin, end, concurrency=10, max_attempts=2, backoff=Fixed(40), on_failure=steps)
            work(one, handler, *map(str, range(10)), visibility_timeout=60, timeout=30)
            events = one.run(for_=30).events
        keys = {"transition_logged": ("message_id", "event", "reason"), "answered": ("failed",)}
        found = [[each.fields[key] for key in keys[each.what]] for each in events if each.what in keys]
        assert len(found) == 7  # six lines, and the answer
        seen.add(repr((found, unit < 1 and asked)))
    assert len(seen) == 1


def test_messages_of_a_known_queue_are_settled_in_their_order_whichever_handler_ends_first() -> None:  # SPEC I1
    wire, ended = orders(), list[str]()

    @consumer(concurrency=3, backoff=Fixed(60))
    async def handler(message: Message) -> None:
        for _ in range(3 - int(message.body)):
            await asyncio.sleep(0)
        ended.append(message.id)
        raise ValueError("no")

    for _ in range(2):  # at first, the queue is looked up
        settle(handler, batch_of(3), wire)
    assert ended[-3:] == ["m2", "m1", "m0"]
    entries = wire.sent("ChangeMessageVisibilityBatch")[-1].entries
    assert [each["ReceiptHandle"] for each in entries] == ["handle-m0", "handle-m1", "handle-m2"]


@KINDS
def test_on_fifo_groups_run_concurrently_but_never_two_messages_of_one_group(kind: str, sandbox: Sandbox) -> None:
    # SPEC I1, H1
    running, of_group = RunningHandlers(), {group: RunningHandlers() for group in "abc"}
    order: dict[str, list[int]] = {group: [] for group in "abc"}

    def begin(message: Message) -> float:
        body = message.json()
        order[body["group"]].append(body["number"])
        of_group[body["group"]].begin()
        return running.begin(3.0 + sum(map(len, order.values())) % 3)

    def end(message: Message) -> None:
        for each in (running, of_group[message.json()["group"]]):
            each.end(message)

    bodies = [{"group": group, "number": number} for number in range(3) for group in "abc"]
    run_in(sandbox, timed(kind, begin, end, concurrency=5), bodies, fifo=True)
    assert {group: each.most for group, each in of_group.items()} == {"a": 1, "b": 1, "c": 1}
    assert running.most == 3
    assert order == {group: [0, 1, 2] for group in "abc"}


# isolation of one message from another


class Tenant:
    """A value that cannot be compared, like an array."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None


tenant: ContextVar[Tenant] = ContextVar("tenant")


@pytest.mark.parametrize(("kind", "concurrency"), [(kind, n) for kind in ("sync", "async", "nested") for n in (1, 3)])
def test_a_context_variable_is_not_visible_to_other_messages_or_the_caller(kind: str, concurrency: int) -> None:
    """SPEC I1, A4, A6. A coroutine runs in the context of the handler that returned it."""
    the_callers, seen = Tenant(), list[bool]()

    def handle(message: Message) -> None:
        seen.append(tenant.get() is the_callers)
        tenant.set(own := Tenant())
        assert tenant.get() is own

    async def check(own: Tenant) -> None:
        assert tenant.get() is own

    def nested(message: Message) -> Any:
        handle(message)
        return check(tenant.get())

    settings = {"concurrency": concurrency}
    handler = consumer(**settings)(nested) if kind == "nested" else timed(kind, handle, **settings)
    token = tenant.set(the_callers)
    try:
        assert [settle(handler, batch_of(count))[0] for count in (5, 2)] == [[], []]
        assert tenant.get() is the_callers
    finally:
        tenant.reset(token)
    assert seen == [True] * 7


def test_threads_and_an_event_loop_are_kept_between_invocations() -> None:  # SPEC I1
    """Clients keep tasks for their connections, which continue in the next invocation."""
    threads, steps, tasks = set[int](), list[int](), list[asyncio.Task[None]]()

    async def steps_of_a_task() -> None:
        for step in range(3):
            steps.append(step)
            await asyncio.sleep(0)

    @consumer
    async def handler(message: Message) -> None:
        if not tasks:
            tasks.append(asyncio.create_task(steps_of_a_task()))
        else:
            await tasks[0]

    wire, in_threads = orders(), consumer(concurrency=2)(lambda message: threads.add(threading.get_ident()))
    for _ in range(20):
        assert settle(in_threads, batch_of(4), wire)[0] == settle(handler, batch_of(1), wire)[0] == []
    assert len(threads) <= 2
    assert steps == [0, 1, 2]


def test_a_wait_for_threads_ends_once_for_each_that_has_ended() -> None:
    """Otherwise the main thread would take the CPU from the handlers."""
    waits: list[float | None] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(timeout)

    class Threads(RealThreads):
        def event(self) -> Any:
            return Event()

    wire = orders()
    wire.world.threads = Threads()
    settle(consumer(concurrency=2)(lambda message: time.sleep(0.02 * int(message.body))), batch_of(2), wire)
    assert len(waits) <= 8  # of the two threads, too


# errors that end a batch


@KINDS
def test_a_handler_that_ends_the_batch_lets_the_running_handlers_end(kind: str) -> None:  # SPEC A5, I1
    both_running, exited = threading.Barrier(2, timeout=10), threading.Event()

    def handle(message: Message) -> None:
        if kind == "sync":
            both_running.wait()
        if message.id == "m0":
            exited.set()
            raise SystemExit
        exited.wait(60)

    reported, wire = settle(timed(kind, handle, concurrency=2, backoff=Fixed(60)), batch_of(4))
    assert reported == ["m0", "m2", "m3"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m2": 0, "handle-m3": 0}


# tasks, and the event loop


def cancel_others() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("seconds", [0, 0.001])
def test_a_message_whose_task_is_cancelled_before_its_first_turn_has_failed(seconds: float) -> None:  # SPEC A5
    @consumer(concurrency=3, backoff=Fixed(60))
    async def handler(message: Message) -> None:
        cancel_others()
        await asyncio.sleep(seconds)

    cancelled = ["m0", "m1"]  # a task begins when it is made, so each handler cancels the ones before it
    with orders() as wire:
        assert failed(handler(batch_of(3), None)) == cancelled
    assert wire.visibilities() == {f"handle-{each}": 60 for each in cancelled}


def test_several_handlers_may_wait_for_the_same_future() -> None:  # SPEC I1
    futures: list[asyncio.Future[None]] = []

    @consumer(concurrency=3)
    async def handler(message: Message) -> None:
        if not futures:
            futures.append(asyncio.get_running_loop().create_future())
        if message.id == "m2":
            futures[0].set_result(None)
        await futures[0]

    assert settle(handler, batch_of(3))[0] == []


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("concurrency", [1, 10])
def test_async_handlers_that_never_wait_take_no_turn_of_the_loop(
    concurrency: int, cancels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler may cancel tasks that have already ended: it raises no error."""
    calls, errors = list[object](), list[object]()

    @consumer(concurrency=concurrency)
    async def handler(message: Message) -> None:
        if cancels and message.id == "m50":
            cancel_others()

    with orders():
        call_soon = event_loop().call_soon

        def counted(callback: Any, *args: Any, **options: Any) -> Any:
            calls.append(callback)
            return call_soon(callback, *args, **options)

        monkeypatch.setattr(event_loop(), "call_soon", counted)
        monkeypatch.setattr(event_loop(), "call_exception_handler", errors.append)
        counts = []
        for size in (1, 100):
            handler(batch_of(size), Context())
            counts.append(len(calls))
            calls.clear()
    gc.collect()
    assert errors == []
    assert counts[0] <= 4
    assert counts[1] == counts[0] or cancels


def test_while_async_handlers_run_a_hook_has_half_of_the_time_that_is_left() -> None:  # SPEC I7
    found: list[tuple[Any, float]] = []

    @consumer
    async def handler(message: Message) -> None:
        limit: Any = hook_limit.get()
        found.append((limit, limit.hook_share))

    settle(handler)
    [(limit, share)] = found
    assert (share, limit.hook_share) == (0.5, 1)


@pytest.mark.parametrize("waits", [False, True])
def test_an_async_handler_that_has_ended_is_not_interrupted(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes after its last step, in a function that tarry calls to note its end."""
    noting = exit_if_forked

    class Signals(RealThreads):
        def interrupt(self, seconds: float, fire: Any) -> None:
            self.seconds, self.fire = seconds, fire

    def interrupted(*arguments: Any) -> None:
        wire.clock.now += 2
        if isinstance(error := threads.fire(sys._getframe()), BaseException):
            raise error
        noting(*arguments)

    @consumer(concurrency=2, timeout=1)
    async def handler(message: Message) -> None:
        if waits:
            await asyncio.sleep(0)

    with orders(clock=RunningClock()) as wire:
        wire.world.threads = threads = Signals()
        monkeypatch.setattr(tasks, "exit_if_forked", interrupted)
        assert failed(handler(batch_of(1), Context(5))) == []
    assert threads.seconds == pytest.approx(1.1, abs=0.01)  # a moment after it could have been stopped


@pytest.mark.parametrize("size", [1, 3])
def test_a_task_that_a_handler_makes_runs_even_if_no_handler_waits(size: int) -> None:
    """It runs before the next message once a millisecond has passed, and in any case before the response."""
    ran: list[str] = []

    async def run_later() -> None:
        ran.append("task")

    with orders() as wire:

        @consumer
        async def handler(message: Message) -> None:
            ran.append(message.id)
            if message.id == "m0":
                message.context.task = asyncio.get_running_loop().create_task(run_later())
            if size > 1:
                wire.clock.now += 0.002

        handler(batch_of(size), Context())
    assert ran == ["m0", "task", "m1", "m2"][: size + 1]


@pytest.mark.parametrize("waits", [False, True])
def test_a_task_that_a_handler_leaves_behind_is_interrupted_if_it_blocks_the_event_loop(waits: bool) -> None:
    """Otherwise the function times out, and messages that are done are delivered again."""
    tasks, has_begun = list[asyncio.Task[None]](), list[bool]()

    async def block() -> None:
        has_begun.append(True)
        while wire.clock.monotonic() < began + 5:
            pass

    @consumer
    async def handler(message: Message) -> None:
        tasks.append(asyncio.get_running_loop().create_task(block()))
        if waits:
            await asyncio.sleep(0)

    with orders(clock=RunningClock(lambda: bool(tasks))) as wire:
        began = wire.clock.monotonic()
        handler(batch_of(1), Context(0.5))
    never_began = not waits and not has_begun  # since Python 3.12, the event loop may end before it takes a turn
    assert never_began or isinstance(tasks[0].exception(), Interrupted)


def test_a_task_factory_set_by_a_handler_is_not_used_for_other_messages() -> None:  # SPEC A6, I1
    tasks_made: list[object] = []

    def factory(loop: asyncio.AbstractEventLoop, steps: Any, **_: Any) -> asyncio.Future[Any]:
        tasks_made.append(steps)
        return asyncio.Task(steps, loop=loop)

    @consumer
    async def handler(message: Message) -> None:
        asyncio.get_running_loop().set_task_factory(factory)

    try:
        for _ in range(2):
            settle(handler, batch_of(2))
    finally:
        event_loop().set_task_factory(None)
    assert tasks_made == []


# handlers that do not end


class StuckHandlers:
    """A handler that blocks for the given messages until its gate is opened."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids
        self.gate = threading.Event()
        self.ran: list[str] = []
        self.returned: list[str] = []
        self.ended: list[str] = []

    def clock(self, handlers: int) -> RunningClock:
        """A clock that begins to run when all handlers have started and only the blocked ones have not returned."""
        return RunningClock(lambda: len(self.ran) == handlers and len(self.returned) == handlers - len(self.ids))

    def __call__(self, message: Message) -> None:
        self.ran.append(message.id)
        if message.id in self.ids:
            self.gate.wait(30)
            message.ack()
            self.ended.append(message.id)
        else:
            self.returned.append(message.id)

    def release(self) -> None:
        self.gate.set()
        wait_until(lambda: sorted(self.ended) == sorted(self.ids))


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("the condition never became true")


def test_an_abandoned_thread_is_ignored_shows_its_stack_and_occupies_its_worker_until_it_ends(caplog: Caplog) -> None:
    # SPEC I3
    stuck, running, places = StuckHandlers("m1"), RunningHandlers(), 2

    def handle(message: Message) -> None:
        if message.id.startswith("n"):
            running.begin()
            wait_until(lambda: running.most == places)
            running.end(message)
        stuck(message)

    handler = consumer(concurrency=3, timeout=0.4, backoff=Fixed(60))(handle)
    with orders(clock=stuck.clock(6)) as wire:
        assert failed(handler(batch_of(6), Context())) == ["m1"]
        assert wire.rounded_visibilities() == {"handle-m1": 60}
        [line] = lines(caplog, "waiting_retry")
        assert field(line, "error_type") == "TimeoutError"
        assert line.exc_text is not None
        assert "self.gate.wait(30)" in caplog.text
        wire.requests.clear()
        handler, eight = handler.replace(timeout=None), event(*(record("{}", f"n{index}") for index in range(8)))
        assert failed(handler(eight, Context())) == []
        assert running.most == 2
        stuck.release()
        pool = wire.world.keep(HandlerWorkers)
        wait_until(lambda: not pool.abandoned)
        places = 3
        assert failed(handler(eight, Context())) == []
        assert running.most == 3
    assert wire.requests == []


def test_a_failure_step_cannot_rerun_a_message_whose_thread_still_runs() -> None:  # SPEC I3, I5
    stuck = StuckHandlers("m1")
    handler = consumer(concurrency=3, timeout=0.4, on_failure=[lambda failure, next_step: Outcome.again(0)])(stuck)
    reported, wire = settle(handler, batch_of(3), orders(clock=stuck.clock(3)))
    stuck.release()
    assert (reported, wire.rounded_visibilities()) == (["m1"], {"handle-m1": 900})


@pytest.mark.parametrize(
    ("batch", "stuck", "started", "deleted", "waits"),
    [
        (batch_of(5), ("m1", "m2"), 3, ["m0"], {"m1": 60, "m2": 60, "m3": 0, "m4": 0}),
        (of_groups("a0", "b0", "a1", "b1"), ("a0",), 3, ["b0", "b1"], {"a0": 60, "a1": 0}),
    ],
    ids=["standard", "fifo"],
)
def test_if_all_places_or_a_fifo_group_are_taken_the_process_ends_after_the_messages_are_settled(
    batch: Any, stuck: Any, started: int, deleted: list[str], waits: dict[str, int], caplog: Caplog
) -> None:
    """SPEC A6, I3, H1. Finished messages are deleted first, because after a function error Lambda gets no response.

    Another consumer of the process, as on a machine for development, still has all its places.
    """
    handlers, ran = StuckHandlers(*stuck), list[str]()
    handler = consumer(concurrency=2 if len(stuck) == 2 else 4, timeout=0.4, backoff=Fixed(60))(handlers)
    other = consumer(concurrency=2)(lambda message: ran.append(message.id))
    with orders(clock=handlers.clock(started)) as wire:
        with pytest.raises(SystemExit):
            handler(batch, Context())
        assert failed(other(batch_of(2), Context())) == []
    handlers.release()
    assert sorted(ran) == ["m0", "m1"]
    assert len(handlers.ran) == started
    entries = [entry for request in wire.sent("DeleteMessageBatch") for entry in request.entries]
    assert [entry["ReceiptHandle"] for entry in entries] == [f"handle-{each}" for each in deleted]
    assert wire.rounded_visibilities() == {f"handle-{name}": seconds for name, seconds in waits.items()}
    [line] = lines(caplog, "process_ends")
    assert len(stuck) == 1 or "take all places" in field(line, "text")


@pytest.mark.parametrize(
    ("kind", "fifo", "answers"),
    [
        ("sync", False, {"returned", "crash"}),
        ("sync", True, {"returned", "crash"}),
        ("async", False, {"returned"}),
        ("async", True, {"returned"}),
    ],
)
def test_handlers_that_take_too_long_affect_no_others(
    kind: str, fifo: bool, answers: set[str], sandbox: Sandbox
) -> None:  # SPEC I3
    """Two of twenty messages hang for an hour at first. Each message succeeds once; SQS dead-letters none of them."""
    done, hung = list[int](), set[int]()

    def begin(message: Message) -> float:
        number = message.json()["id"]
        if number in (3, 4) and number not in hung:
            hung.add(number)
            return 3_600
        return 1

    handler = timed(
        kind, begin, lambda message: done.append(message.json()["id"]), concurrency=2, timeout=5, backoff=Fixed(60)
    )
    bodies = [{"id": number, "group": str(number % 5)} for number in range(20)]
    assert run_in(sandbox, handler, bodies, fifo=fifo, max_concurrency=2) == []
    assert (sorted(done), hung) == ([*range(20)], {3, 4})
    assert {each.fields["kind"] for each in sandbox.history.events if each.what == "answered"} == answers


# local retries, settings, and look-ups in the background


@KINDS
def test_local_retries_run_concurrently(kind: str, sandbox: Sandbox) -> None:  # SPEC I1, I5
    running, failed_once = RunningHandlers(), set[str]()

    def begin(message: Message) -> float:
        if message.id not in failed_once:
            failed_once.add(message.id)
            raise ConnectionError("busy")
        return running.begin(5)

    handler = timed(kind, begin, running.end, concurrency=5, on_failure=[LocalRetry(1, 2), RetryInPlace()])
    assert run_in(sandbox, handler, "01234", max_concurrency=2) == []
    assert running.most == 5
    assert sandbox.elapsed == pytest.approx(2 + 5, abs=1)


def test_a_batch_handler_takes_no_concurrency() -> None:  # SPEC I1, C5
    with pytest.raises(ConfigurationError, match="concurrency=3 has no effect with @batch_consumer"):
        batch_consumer(concurrency=3)(lambda batch: None)


def test_messages_run_one_after_the_other_if_no_thread_can_be_started() -> None:
    ran, wire = list[str](), orders()
    wire.world.threads = NoThreads()
    reported, _ = settle(consumer(concurrency=5)(lambda message: ran.append(message.id)), batch_of(3), wire)
    assert (reported, ran) == ([], ["m0", "m1", "m2"])


@KINDS
def test_the_next_message_starts_although_the_queue_of_a_failed_one_is_being_looked_up(
    kind: str, sandbox: Sandbox
) -> None:  # SPEC I1, F1
    began: list[float] = []

    def begin(message: Message) -> float:
        began.append(sandbox.elapsed)
        if message.receive_count == 1 and message.json() == 0:
            raise ValueError
        return 0.25

    sandbox.faults.add("hang", operation="GetQueueAttributes", times=1)
    assert run_in(sandbox, timed(kind, begin, concurrency=2, backoff=Fixed(60)), "0123") == []
    assert began[3] - began[0] < 0.9  # a message alone would wait for a second


@pytest.mark.parametrize(("queue", "times"), [("orders", 4), ("orders-dlq", 2)])
def test_a_look_up_does_not_block_other_handlers_nor_when_it_is_due_again(
    queue: str, times: int, sandbox: Sandbox
) -> None:  # SPEC I1, F1
    """A failed look-up is kept for 30 s. SQS hangs again when the next message fails after that."""
    ticks: list[float] = []

    @consumer(concurrency=3, max_attempts=1)
    async def handler(message: Message) -> None:
        if message.body == "ticks":
            for _ in range(60):
                await asyncio.sleep(1)
                ticks.append(sandbox.elapsed)
        else:
            await asyncio.sleep(float(message.body))
            raise ValueError("no")

    work(sandbox, handler, "1", "45", "ticks", visibility_timeout=600, timeout=100)
    sandbox.faults.add("hang", "GetQueueAttributes", queue, times=times)
    sandbox.run()
    assert max(later - earlier for earlier, later in pairwise(ticks)) < 2


@pytest.mark.parametrize("slow", ["look-up", "enrich"])
def test_on_fifo_no_invocation_waits_for_its_background_beyond_its_deadline(slow: str, sandbox: Sandbox) -> None:
    # SPEC I2, G6
    def enrich(failure: Failure) -> dict[str, Any]:
        if slow == "enrich" and failure.attempt == 1:
            sandbox.sleep(30)
        return {}

    handler = timed("async", lambda _: 1 / 0, concurrency=2, on_failure=[DeadLetter(enrich=enrich)])
    if slow == "look-up":
        sandbox.faults.add("hang", operation="GetQueueAttributes", times=2)
    [dead_letter] = run_in(sandbox, handler, [{"group": "a"}], fifo=True, timeout=6)
    assert dead_letter.queue == "orders-dlq.fifo"
    events = [event.what for event in sandbox.history.events]
    assert events.count("handler_called") == events.count("handler_returned")


def test_on_fifo_a_group_waits_while_the_queue_of_its_failed_message_is_looked_up(sandbox: Sandbox) -> None:
    ran: list[str] = []  # SPEC H1, G6

    @consumer(concurrency=2, backoff=Fixed(5))
    async def handler(message: Message) -> None:
        ran.append(message.body)
        if len(ran) == 1:
            raise ValueError("no")

    sandbox.faults.add("hang", operation="GetQueueAttributes", times=1)
    run_in(sandbox, handler, [{"group": "a", "id": number} for number in (1, 2)], fifo=True)
    assert [body[-2] for body in ran] == ["1", "1", "2"]
