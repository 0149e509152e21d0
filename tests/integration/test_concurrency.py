"""Several messages at once: the bound, the order of groups, and that nothing depends on which of them ends first."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Any

import pytest

from tarry import (
    ConfigurationError,
    Consumer,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    Reject,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tarry.execution.event_loop import event_loop
from tarry.execution.threads import WorkerPool
from tarry.testing import Sandbox
from tarry.world import current
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, RunningClock, Wire

KINDS = ["sync", "async"]
tenant: ContextVar[str] = ContextVar("tenant", default="nobody's")


def orders(**more: Any) -> Wire:
    return Wire(queues={name: Queue(dead_letter="dead") for name in ("orders", "orders.fifo")}, **more)


def consumer_of(work: Callable[[Message], Any], kind: str, **settings: Any) -> Consumer[Any]:
    """A consumer of a sync function as it is, or in an ``async def``."""
    if kind == "sync":
        return consumer(**settings)(work)

    @consumer(**settings)
    async def handler(message: Message) -> None:
        await asyncio.sleep(0)
        work(message)

    return handler


class Together:
    """How many run at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


# in virtual time: one thread at a time, in an order that the seed alone decides


def sandbox_of(handler: Consumer[Any], bodies: list[Any], sandbox: Sandbox, **settings: Any) -> None:
    fifo = settings.pop("fifo", False)
    queue = "orders.fifo" if fifo else "orders"
    sandbox.queue(queue, dead_letter="dead.fifo" if fifo else "dead")
    sandbox.connect(handler, queue, **{"batch_size": 10, "timeout": 30, **settings})
    for number, body in enumerate(bodies):
        group = body["group"] if fifo else None
        sandbox.send(queue, body, group_id=group, deduplication_id=f"{number}" if fifo else None)


async def asleep(seconds: float) -> None:
    await current().clock.asleep(seconds)


def working(seconds: Callable[[Message], float], kind: str, together: Together, **settings: Any) -> Consumer[Any]:
    """A consumer whose handler takes virtual time."""
    if kind == "sync":

        @consumer(**settings)
        def handler(message: Message) -> None:
            with together:
                current().clock.sleep(seconds(message))

        return handler

    @consumer(**settings)
    async def async_handler(message: Message) -> None:
        with together:
            await asleep(seconds(message))

    return async_handler


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("concurrency", "seconds"), [(1, 50), (3, 20), (5, 10), (10, 5), (100, 5)])
def test_so_many_messages_run_at_once_and_no_more(
    kind: str, concurrency: int, seconds: float, sandbox: Sandbox
) -> None:  # SPEC I1
    together = Together()
    sandbox.queue("orders", visibility_timeout=360)
    sandbox.connect(working(lambda _: 5, kind, together, concurrency=concurrency), "orders", timeout=60)
    with_one_receive = [sandbox.send("orders", {"id": number}) for number in range(10)]
    sandbox.run()
    assert together.most == min(concurrency, 10)
    assert sandbox.elapsed == pytest.approx(seconds, abs=2)
    assert len(with_one_receive) == 10
    assert sandbox.messages("orders") == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("concurrency", [2, 16, 100])
def test_the_bound_holds_for_ten_thousand_messages(kind: str, concurrency: int) -> None:  # SPEC I1
    together, ran = Together(), set[str]()

    def work(message: Message) -> None:
        with together:
            ran.add(message.id)
            if message.delivery_id.endswith("7"):
                raise ValueError

    with orders():
        answer = consumer_of(work, kind, concurrency=concurrency, on_failure=[Drop()])(batch_of(10_000))
    assert failed(answer) == []
    assert len(ran) == 10_000
    assert 1 <= together.most <= concurrency


class Drop:
    """A failure step that takes everything, at no request's cost."""

    def handle(self, failure: Failure, _: Any) -> Outcome:
        return Outcome.discard("dropped")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_depends_on_who_ends_first(kind: str, sandbox: Sandbox) -> None:  # SPEC I1
    """The same batch, its handlers in every order: the answer and what is said of each message are alike."""
    seen = set[str]()
    for order in range(8):
        seconds = [index * 3 % 10 for index in range(10)]
        Random(order).shuffle(seconds)

        def work(message: Message, seconds: list[int] = seconds) -> float:
            if message.receive_count > 1:
                return 0
            number = message.json()["id"]
            if number == 4:
                message.reject("no")
            return seconds[number]

        with Sandbox(seed=1) as one:
            one.queue("orders", dead_letter="dead", visibility_timeout=60)
            one.connect(failing_when_odd(work, kind), "orders", timeout=30)
            for number in range(10):
                one.send("orders", {"id": number})
            report = one.run(for_=30)
            told = [
                (each.fields["message_id"], each.fields["event"], each.fields["reason"])
                for each in one.history.events
                if each.what == "transition_logged"
            ]
            answers = [each.fields["failed"] for each in one.history.events if each.what == "answered"]
            seen.add(repr((told, answers)))
            assert report is not None
    assert len(seen) == 1


def failing_when_odd(work: Callable[[Message], float], kind: str) -> Consumer[Any]:
    settings: dict[str, Any] = {"concurrency": 10, "max_attempts": 2, "backoff": Fixed(40)}
    if kind == "sync":

        @consumer(**settings)
        def handler(message: Message) -> None:
            current().clock.sleep(work(message))
            if message.json()["id"] % 2:
                raise ValueError

        return handler

    @consumer(**settings)
    async def async_handler(message: Message) -> None:
        await asleep(work(message))
        if message.json()["id"] % 2:
            raise ValueError

    return async_handler


@pytest.mark.parametrize("kind", KINDS)
def test_on_fifo_groups_run_beside_each_other_and_never_two_of_one(kind: str, sandbox: Sandbox) -> None:  # SPEC I1, H1
    together, of_group = Together(), {group: Together() for group in "abc"}
    order: list[tuple[str, int]] = []

    def seconds(message: Message) -> float:
        body = message.json()
        order.append((body["group"], body["number"]))
        return 3.0 + len(order) % 3

    def in_group(message: Message) -> Together:
        return of_group[message.json()["group"]]

    handler = grouped(seconds, in_group, together, kind)
    bodies = [{"group": group, "number": number} for number in range(3) for group in "abc"]
    sandbox_of(handler, bodies, sandbox, fifo=True)
    sandbox.run()
    assert {group: each.most for group, each in of_group.items()} == {"a": 1, "b": 1, "c": 1}
    assert together.most == 3
    for group in "abc":
        assert [number for of, number in order if of == group] == [0, 1, 2]


def grouped(
    seconds: Callable[[Message], float], in_group: Callable[[Message], Together], together: Together, kind: str
) -> Consumer[Any]:
    if kind == "sync":

        @consumer(concurrency=5)
        def handler(message: Message) -> None:
            with together, in_group(message):
                current().clock.sleep(seconds(message))

        return handler

    @consumer(concurrency=5)
    async def async_handler(message: Message) -> None:
        with together, in_group(message):
            await asleep(seconds(message))

    return async_handler


@pytest.mark.parametrize("kind", KINDS)
def test_on_fifo_a_failure_stops_its_own_group_alone(kind: str) -> None:  # SPEC I1, H1
    ran: list[str] = []

    def work(message: Message) -> None:
        ran.append(message.id)
        if message.id == "a0":
            raise ValueError

    names = ["a0", "b0", "a1", "b1", "a2"]
    records = [record("{}", name, "orders.fifo", group=name[0]) for name in names]
    with orders() as wire:
        answer = consumer_of(work, kind, concurrency=4, backoff=Fixed(60))(event(*records), Context())
    assert failed(answer) == ["a0", "a1", "a2"]
    assert sorted(ran) == ["a0", "b0", "b1"]
    assert wire.visibilities() == {"handle-a0": 60, "handle-a1": 0, "handle-a2": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_on_fifo_a_dead_letter_lets_its_group_go_on(kind: str) -> None:  # SPEC I1, H1
    ran: list[str] = []

    def work(message: Message) -> None:
        ran.append(message.id)
        if message.id == "a0":
            raise Reject("no")

    records = [record("{}", name, "orders.fifo", group="a") for name in ("a0", "a1")]
    with orders() as wire:
        assert failed(consumer_of(work, kind, concurrency=4)(event(*records), Context())) == []
    assert ran == ["a0", "a1"]
    assert [kept["id"] for kept in wire.records()] == ["a0"]


# what messages see of each other


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_context_variable_is_not_seen_by_other_messages_nor_afterwards(
    kind: str, concurrency: int
) -> None:  # SPEC I1, A6
    seen: list[str] = []

    def work(message: Message) -> None:
        seen.append(tenant.get())
        tenant.set(message.id)
        assert tenant.get() == message.id

    handler = consumer_of(work, kind, concurrency=concurrency)
    with orders():
        token = tenant.set("the caller's")
        try:
            assert failed(handler(batch_of(5), Context())) == []
            assert failed(handler(batch_of(2), Context())) == []
            assert tenant.get() == "the caller's"
        finally:
            tenant.reset(token)
    assert seen == ["the caller's"] * 7


def test_what_a_message_leaves_in_the_context_is_not_compared_with_what_was_there() -> None:  # SPEC I1
    class Table:
        """As an array is: comparing two of them has no answer that is true or false."""

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    table: ContextVar[Table] = ContextVar("table")
    token, the_callers = table.set(Table()), table.get()
    seen: list[bool] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(table.get() is the_callers)
        table.set(Table())

    with orders():
        assert failed(handler(batch_of(3), Context())) == []
    table.reset(token)
    assert seen == [True, True, True]


def test_a_coroutine_runs_in_the_context_of_the_function_that_made_it() -> None:  # SPEC I1, A4
    seen: list[str] = []

    async def rest(message: Message) -> None:
        seen.append(tenant.get())

    @consumer
    def handler(message: Message) -> Any:
        tenant.set(message.id)
        return rest(message)

    with orders():
        handler(batch_of(2), Context())
    assert seen == ["m0", "m1"]


def test_powertools_logger_keys_do_not_leak() -> None:  # SPEC I1
    from aws_lambda_powertools import Logger

    logger = Logger("orders", stream=None)
    seen: list[set[str]] = []

    @consumer(concurrency=3)
    def handler(message: Message) -> None:
        seen.append(set(logger.thread_safe_get_current_keys()))
        logger.thread_safe_append_keys(order=message.id)

    with orders():
        handler(batch_of(6), Context())
    assert seen == [set()] * 6


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_loop_and_threads_are_kept_between_invocations(kind: str) -> None:  # SPEC I1
    kept = set[int]()

    def work(message: Message) -> None:
        kept.add(id(asyncio.get_running_loop()) if kind == "async" else threading.get_ident())

    handler = consumer_of(work, kind, concurrency=2)
    with orders():
        for _ in range(20):
            assert failed(handler(batch_of(4), Context())) == []
    assert len(kept) <= (1 if kind == "async" else 2)


def test_a_task_that_a_handler_leaves_behind_goes_on_in_the_next_invocation() -> None:
    """As what a client keeps for its connections does: the loop is one for the process."""
    steps: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def work() -> None:
        for step in range(3):
            steps.append(step)
            await asyncio.sleep(0)

    @consumer
    async def handler(message: Message) -> None:
        if not tasks:
            tasks.append(asyncio.create_task(work()))
        else:
            await tasks[0]

    with orders():
        handler(batch_of(1), Context())
        handler(batch_of(1), Context())
    assert steps == [0, 1, 2]


# what ends a batch


@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_a_batch_lets_what_runs_beside_it_end(kind: str) -> None:  # SPEC A5, I1
    both_run = threading.Barrier(2, timeout=10)
    exited = threading.Event()

    def work(message: Message) -> None:
        if kind == "sync":
            both_run.wait()
        if message.id == "m0":
            exited.set()
            raise SystemExit
        exited.wait(60)

    with orders() as wire:
        answer = consumer_of(work, kind, concurrency=2, backoff=Fixed(60))(batch_of(4), Context())
    assert failed(answer) == ["m0", "m2", "m3"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m2": 0, "handle-m3": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_that_ends_the_batch_lets_what_runs_beside_it_end(kind: str) -> None:  # SPEC A5, A6
    ended: list[str] = []
    exited = threading.Event()

    def exits(_: Failure) -> None:
        exited.set()
        raise SystemExit

    async def beside(message: Message) -> None:
        if message.group_id == "g0":
            raise RuntimeError
        await asyncio.to_thread(exited.wait, 10)
        await asyncio.sleep(0.01)
        ended.append(message.id)

    def run(message: Message) -> None:
        asyncio.run(beside(message))

    handler = consumer(concurrency=2, retry_when=exits)(beside if kind == "async" else run)
    records = [record(index, f"m{index}", "orders.fifo", group=f"g{index}") for index in range(2)]
    with orders():
        assert failed(handler(event(*records), Context())) == ["m0"]
    assert ended == ["m1"]


def test_a_task_that_a_handler_cancels_before_it_has_begun_has_failed() -> None:  # SPEC A5
    @consumer(concurrency=3, backoff=Fixed(60))
    async def handler(message: Message) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    with orders() as wire:
        assert failed(handler(batch_of(3), None)) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 60}


def test_a_task_factory_that_a_handler_sets_runs_no_other_message() -> None:  # SPEC A6, I1
    made: list[object] = []

    def factory(loop: asyncio.AbstractEventLoop, steps: Any, **_: Any) -> asyncio.Future[Any]:
        made.append(steps)
        return asyncio.Task(steps, loop=loop)

    @consumer
    async def handler(message: Message) -> None:
        asyncio.get_running_loop().set_task_factory(factory)

    try:
        with orders():
            handler(batch_of(2), Context())
            handler(batch_of(2), Context())
    finally:
        event_loop().set_task_factory(None)
    assert made == []


# time


@pytest.mark.parametrize("kind", KINDS)
def test_what_there_is_no_time_for_is_given_back(
    kind: str, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I2
    handler = working(lambda _: 9, kind, Together(), concurrency=2)
    sandbox_of(handler, [{"id": number} for number in range(10)], sandbox, timeout=30, max_concurrency=2)
    sandbox.run(for_=29)
    [line] = lines(caplog, "out_of_time")
    assert "BatchSize of 6 would have fitted" in field(line, "text")
    sandbox.run()
    assert sandbox.messages("orders") == sandbox.messages("dead") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_message_among_others_has_failed_alone(kind: str, sandbox: Sandbox) -> None:  # SPEC I3
    tries: list[int] = []

    def seconds(message: Message) -> float:
        number = message.json()["id"]
        tries.append(number)
        return 3_600 if number == 3 and tries.count(3) < 3 else 1

    handler = working(seconds, kind, Together(), concurrency=4, timeout=5, backoff=Fixed(60))
    sandbox_of(handler, [{"id": number} for number in range(10)], sandbox)
    sandbox.run()
    assert sorted(tries) == sorted([*range(10), 3, 3])
    assert sandbox.messages("orders") == sandbox.messages("dead") == []


class Stuck:
    """Handlers that do not end before they are let go."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids
        self.gate = threading.Event()
        self.ran: list[str] = []
        self.returned: list[str] = []
        self.ended: list[str] = []

    def clock(self, handlers: int) -> RunningClock:
        """A clock that begins to run when so many handlers have run and only stuck ones are left."""
        return RunningClock(lambda: len(self.ran) == handlers and len(self.returned) == handlers - len(self.ids))

    def __call__(self, message: Message) -> None:
        self.ran.append(message.id)
        if message.id in self.ids:
            self.gate.wait(30)
            message.ack()
            self.ended.append(message.id)
        else:
            self.returned.append(message.id)


def test_a_thread_that_does_not_end_is_left_behind_and_its_words_count_no_more() -> None:  # SPEC I3
    stuck = Stuck("m1")
    handler = consumer(concurrency=3, timeout=0.6, backoff=Fixed(60))(stuck)
    with orders(clock=stuck.clock(6)) as wire:
        assert failed(handler(batch_of(6), Context())) == ["m1"]
        assert wire.rounded_visibilities() == {"handle-m1": 60}
        wire.requests.clear()
        stuck.gate.set()
        wait_until(lambda: stuck.ended == ["m1"])
        assert failed(handler(event(record("{}", "m9")), Context())) == []
    assert wire.requests == []


def test_a_step_cannot_have_a_message_run_beside_the_thread_that_still_runs_it() -> None:  # SPEC I3, I5
    class Insists:
        def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
            return Outcome.again(0)

    stuck = Stuck("m1")
    handler = consumer(concurrency=3, timeout=0.6, on_failure=[Insists()])(stuck)
    with orders(clock=stuck.clock(3)) as wire:
        assert failed(handler(batch_of(3), Context())) == ["m1"]
    stuck.gate.set()
    wait_until(lambda: stuck.ended == ["m1"])
    assert wire.rounded_visibilities() == {"handle-m1": 900}


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never was so")


def test_the_log_says_where_a_thread_stands_that_was_left_behind(caplog: pytest.LogCaptureFixture) -> None:  # SPEC I3
    stuck = Stuck("m1")
    with orders(clock=stuck.clock(2)):
        consumer(concurrency=3, timeout=0.6)(stuck)(batch_of(2), Context())
    stuck.gate.set()
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type") == "TimeoutError"
    assert line.exc_text is not None
    assert "self.gate.wait(30)" in caplog.text


def test_a_thread_that_was_left_behind_keeps_its_place_until_it_ends() -> None:  # SPEC I3
    stuck, together, places = Stuck("m1"), Together(), 2

    def work(message: Message) -> None:
        if message.id.startswith("n"):
            with together:
                wait_until(lambda: together.most == places)
        stuck(message)

    handler = consumer(concurrency=3, timeout=0.6, backoff=Fixed(60))(work)
    with orders(clock=stuck.clock(4)) as wire:
        handler(batch_of(4), Context())
        handler, eight = handler.replace(timeout=None), event(*(record("{}", f"n{index}") for index in range(8)))
        assert failed(handler(eight, Context())) == []
        assert together.most == 2
        stuck.gate.set()
        pool = wire.world.keep(WorkerPool)
        wait_until(lambda: pool.lost == 0)
        places = 3
        assert failed(handler(eight, Context())) == []
        assert together.most == 3


def test_when_no_place_is_free_the_process_ends_and_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC I3. What is done is deleted before, since a function error gives Lambda no answer."""
    stuck = Stuck("m1", "m2")
    handler = consumer(concurrency=2, timeout=0.6, backoff=Fixed(60))(stuck)
    with orders(clock=stuck.clock(3)) as wire, pytest.raises(SystemExit):
        handler(batch_of(5), Context())
    stuck.gate.set()
    assert [entry["ReceiptHandle"] for entry in wire.sent("DeleteMessageBatch")[0].entries] == ["handle-m0"]
    assert wire.rounded_visibilities() == {"handle-m1": 60, "handle-m2": 60, "handle-m3": 0, "handle-m4": 0}
    [line] = lines(caplog, "process_ends")
    assert "take all places" in field(line, "text")


def test_on_fifo_the_process_ends_at_once_and_the_group_of_the_stuck_one_stands_still() -> None:  # SPEC I3, H1
    stuck = Stuck("a0")
    records = [record("{}", name, "orders.fifo", group=name[0]) for name in ("a0", "b0", "a1", "b1")]
    handler = consumer(concurrency=4, timeout=0.6, backoff=Fixed(60))(stuck)
    with orders(clock=stuck.clock(3)) as wire, pytest.raises(SystemExit):
        handler(event(*records), Context())
    stuck.gate.set()
    assert sorted(stuck.ran) == ["a0", "b0", "b1"]
    assert wire.rounded_visibilities() == {"handle-a0": 60, "handle-a1": 0}
    deleted = [entry["ReceiptHandle"] for request in wire.sent("DeleteMessageBatch") for entry in request.entries]
    assert deleted == ["handle-b0", "handle-b1"]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_stuck_handlers_cost_no_other_message_anything(fifo: bool, sandbox: Sandbox) -> None:  # SPEC I3
    """Two of twenty hang for an hour the first time. Each message is done once, and SQS moves none of them."""
    done: list[int] = []
    hung = set[int]()

    @consumer(concurrency=2, timeout=5, backoff=Fixed(60))
    def handler(message: Message) -> None:
        number = message.json()["id"]
        if number in (3, 4) and number not in hung:
            hung.add(number)
            current().clock.sleep(3_600)
        current().clock.sleep(1)
        done.append(number)

    bodies = [{"id": number, "group": str(number % 5)} for number in range(20)]
    sandbox_of(handler, bodies, sandbox, fifo=fifo, max_concurrency=2)
    sandbox.run()
    assert sorted(done) == list(range(20))
    assert hung == {3, 4}
    queue, dead = ("orders.fifo", "dead.fifo") if fifo else ("orders", "dead")
    assert sandbox.messages(queue) == sandbox.messages(dead) == []
    kinds = {each.fields["kind"] for each in sandbox.history.events if each.what == "answered"}
    assert kinds == {"returned", "crash"}


# tries within the delivery


@pytest.mark.parametrize("kind", KINDS)
def test_local_retries_run_beside_each_other_too(kind: str, sandbox: Sandbox) -> None:  # SPEC I1, I5
    together = Together()
    failed_once = set[str]()

    def seconds(message: Message) -> float:
        if message.id not in failed_once:
            failed_once.add(message.id)
            raise ConnectionError("busy")
        return 5

    settings: dict[str, Any] = {"concurrency": 5, "on_failure": [LocalRetry(1, 2), RetryInPlace()]}
    handler = working(seconds, kind, together, **settings)
    sandbox_of(handler, [{"id": number} for number in range(5)], sandbox, max_concurrency=2)
    sandbox.run()
    assert together.most == 5
    assert sandbox.elapsed == pytest.approx(2 + 5, abs=1)
    assert sandbox.messages("orders") == []


# settings


@pytest.mark.parametrize("concurrency", [0, -1, 1_001, 2.0, True, "3", None], ids=repr)
def test_a_concurrency_that_is_none_is_refused_when_the_consumer_is_made(concurrency: Any) -> None:  # SPEC I1, C5
    with pytest.raises(ConfigurationError, match="concurrency must be a whole number from 1 to 1000"):
        consumer(concurrency=concurrency)(lambda message: None)


def test_concurrency_with_a_batch_handler_is_refused_when_the_consumer_is_made() -> None:  # SPEC I1, C5
    with pytest.raises(ConfigurationError, match="concurrency=3 has no effect with @batch_consumer"):
        batch_consumer(concurrency=3)(lambda batch: None)


def test_without_a_thread_to_be_had_messages_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    @consumer(concurrency=5)
    def handler(message: Message) -> None:
        ran.append(message.id)

    with orders() as wire:
        monkeypatch.setattr(wire.world.threads, "start", refuse, raising=False)
        assert failed(handler(batch_of(3), Context())) == []
    assert ran == ["m0", "m1", "m2"]


def refuse(_: Any) -> Any:
    raise RuntimeError("can't start new thread")
