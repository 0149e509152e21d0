"""The Lambda contract: the response of a consumer, whatever its handler or tarry itself does."""

import asyncio
import functools
import logging
import sys
import threading
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from tarry import Batch, Failure, Fixed, InvalidEvent, Message, Outcome, batch_consumer, consumer
from tarry.world import World, use
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire

DONE: dict[str, list[dict[str, str]]] = {"batchItemFailures": []}


def orders(**more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, **more)


def failing_on(*bad: str, runs: list[str] | None = None) -> Callable[[Message], None]:
    """Return a handler that fails on the messages with these ids."""

    def handler(message: Message) -> None:
        if runs is not None:
            runs.append(message.id)
        if message.id in bad:
            raise ValueError(message.id)

    return handler


# the shape of the response


@pytest.mark.parametrize("bad", [[], ["m1"], ["m2", "m0"], ["m0", "m1", "m2"]])
def test_the_response_lists_the_failed_messages_in_the_order_of_the_batch(bad: list[str]) -> None:  # SPEC A1
    """The context may be any object, and verdicts have any order."""

    @batch_consumer
    def handler(batch: Batch) -> None:
        for message in reversed(batch):
            failing_on(*bad)(message) if message.id not in bad else message.retry()

    expected = {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in sorted(bad)]}
    with orders():
        for context in (Context(), None, object()):
            assert consumer(failing_on(*bad))(batch_of(3), context) == expected
        assert handler(batch_of(3), Context()) == expected


# duplicates


@pytest.mark.parametrize(
    ("counts", "handle"),
    [
        pytest.param([1, 2], "handle-of-2", id="the later receive comes second"),
        pytest.param([2, 1], "handle-of-2", id="the later receive comes first"),
        *(
            pytest.param([count, 2], "handle-of-2", id=f"unreadable: {str(count)[:9]}")
            for count in ("x", float("inf"), float("nan"), None, [2], "9" * 5000)
        ),
        pytest.param([2, "x"], "handle-of-2", id="a readable count beats an unreadable one"),
    ],
)
def test_two_records_with_one_id_are_one_message_with_the_handle_of_the_higher_receive_count(
    counts: list[object], handle: str
) -> None:  # SPEC A7, A3, C2
    attempts: list[tuple[str, int]] = []

    def note(message: Message) -> None:
        attempts.append((message.id, message.attempt))
        raise ValueError

    def note_all(batch: Batch) -> None:
        attempts.extend((message.id, message.attempt) for message in batch)
        raise ValueError

    duplicates = [record("{}", "m1", receives=count) | {"receiptHandle": f"handle-of-{count}"} for count in counts]
    for each, count in zip(duplicates, counts, strict=True):
        each["attributes"]["ApproximateReceiveCount"] = count
    for handler in (consumer(backoff=Fixed(60))(note), batch_consumer(backoff=Fixed(60))(note_all)):
        attempts.clear()
        with orders() as wire:
            response = handler(event(duplicates[0], record("{}", "m2"), duplicates[1]), Context())
        assert sorted(attempts) == [("m1", 2), ("m2", 1)]
        assert failed(response) == ["m1", "m2"]
        assert wire.visibilities() == {handle: 60, "handle-m2": 60}


# events that do not come from SQS


@pytest.mark.parametrize(
    ("not_an_event", "expected"),
    [
        (None, "NoneType"),
        ([], "list"),
        ("{}", "str"),
        (7, "int"),
        ({}, "Records"),
        ({"detail-type": "Scheduled Event", "detail": {}}, "detail-type"),
        ({"Records": None}, "NoneType"),
        ({"Records": {"messageId": "m1"}}, "dict"),
        ({"Records": "abc"}, "abc"),
        ({"Records": ["m1"]}, "record 0"),
        ({"Records": [None]}, "record 0"),
        (event(record(), "m2"), "record 1"),  # type: ignore[arg-type]
        ({"Records": [{}]}, "messageId"),
        ({"Records": [{"Sns": {"Message": "hi"}}]}, "messageId"),
        ({"Records": [{"eventID": "1", "kinesis": {}}]}, "messageId"),
        (event(record(), {**record(), "messageId": ""}), "record 1"),
        (event({**record(), "messageId": None}), "None"),
        (event({**record(), "messageId": 7}), "7"),
        (event({**record(), "messageId": ["m1"]}), "['m1']"),
        ("x" * 100_000, "xxx"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_an_event_that_does_not_come_from_sqs_raises_a_short_error_that_names_the_fault(
    not_an_event: Any, expected: str
) -> None:  # SPEC A3
    runs: list[Message] = []
    with orders() as wire, pytest.raises(InvalidEvent) as caught:
        consumer(runs.append)(not_an_event, Context())
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 500
    assert (runs, wire.requests) == ([], [])


# errors


@pytest.mark.parametrize("make", [consumer, batch_consumer], ids=["message by message", "batch"])
@pytest.mark.parametrize(
    "error", [ValueError("no"), RecursionError(), MemoryError(), AssertionError(), StopIteration(1), ImportError("x")]
)
def test_an_exception_of_a_handler_does_not_leave_the_function(make: Any, error: Exception) -> None:  # SPEC A3
    def handler(_: Any) -> None:
        raise error

    with orders():
        assert failed(make(handler)(batch_of(3), Context())) == ["m0", "m1", "m2"]


def test_a_log_handler_that_raises_does_not_affect_settlement() -> None:  # SPEC A2
    class FullLogHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the log is full")

    @consumer(backoff=Fixed(7))
    def handler(message: Message) -> None:
        if message.body == "0":
            message.discard("old")
        if message.body == "1":
            raise ValueError
        if message.body == "2":
            message.reject("bad")

    logger, log_handler = logging.getLogger("tarry"), FullLogHandler()
    logger.addHandler(log_handler)
    try:
        with orders() as wire:
            assert failed(handler(batch_of(4), Context())) == ["m1"]
    finally:
        logger.removeHandler(log_handler)
    assert wire.visibilities() == {"handle-m1": 7}
    assert len(wire.sent_entries()) == 1


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(1)], ids=["exception", "SystemExit"])
def test_only_its_message_has_failed_if_a_failure_step_raises_an_exception(error: BaseException) -> None:
    # SPEC A2, E5
    class RaisingStep:
        def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
            raise error

    runs: list[str] = []
    with orders():
        reported = failed(consumer(failing_on("m0", runs=runs), on_failure=[RaisingStep()])(batch_of(3), Context()))
    assert (runs, reported) == (["m0", "m1", "m2"], ["m0"])


@pytest.mark.parametrize("lacks", ["client", "boto3"])
def test_without_a_client_every_unfinished_message_is_reported(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_client() -> Any:
        raise RuntimeError("no region")

    @consumer
    def handler(message: Message) -> None:  # SPEC A2
        if message.body == "0":
            raise ValueError
        if message.body == "1":
            message.reject()
        if message.body == "2":
            message.defer(5)

    monkeypatch.setitem(sys.modules, "boto3", None) if lacks == "boto3" else None
    with use(World(client_factory=no_client if lacks == "client" else None)):
        assert failed(handler(batch_of(4), Context())) == ["m0", "m1", "m2"]


OPERATIONS = ["GetQueueAttributes", "SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("error", [KeyError("a bug"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_request_that_ends_with_anything_never_makes_a_message_done(operation: str, error: BaseException) -> None:
    """SPEC A2, A3. For errors of SQS, see test_failing_sqs.py."""

    def fail(_: Any) -> None:
        raise error

    @consumer
    def handler(message: Message) -> None:
        if message.id == "m0":
            raise ValueError
        if message.id == "m1":
            message.reject()

    with orders(fails={operation: fail}) as wire:
        reported = failed(handler(batch_of(3), Context(60)))  # with much time left, this thread makes the requests
    assert "m0" in reported
    assert "m2" not in reported or not isinstance(error, Exception)  # an exit releases the other messages
    is_dead_lettered = bool(wire.sent_entries()) and operation != "SendMessageBatch"
    assert ("m1" in reported) or is_dead_lettered


def test_a_handler_that_changes_the_event_does_not_affect_another_message() -> None:  # SPEC A2
    @consumer
    def handler(message: Message) -> None:
        if message.body == "0":
            message.record.raw_event["messageId"] = "m1"
        else:
            raise ValueError

    with orders():
        assert "m1" in failed(handler(batch_of(2), Context()))


# values that a handler returns


class AsyncHandlers:
    """Handlers that fail on message m1."""

    def __init__(self, runs: list[str]) -> None:
        self.runs = runs

    async def __call__(self, message: Message) -> None:
        await asyncio.sleep(0)
        failing_on("m1", runs=self.runs)(message)

    async def method(self, message: Message) -> None:
        await self(message)

    def returns_coroutine(self, message: Message) -> Awaitable[None]:
        return self(message)

    def returns_awaitable(self, message: Message) -> Awaitable[None]:
        class CustomAwaitable:
            def __await__(_) -> Iterator[Any]:  # noqa: N805 it has no use of its own
                return self(message).__await__()

        return CustomAwaitable()  # type: ignore[return-value]

    @types.coroutine
    def of_types(self, message: Message) -> Any:
        yield from self(message).__await__()


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("make", "is_async"),
    [
        pytest.param(lambda it: it, True, id="object with async __call__"),
        pytest.param(functools.partial, True, id="partial of such an object"),
        pytest.param(lambda it: functools.partial(AsyncHandlers.method, it), True, id="partial of async def"),
        pytest.param(lambda it: it.method, True, id="async method"),
        pytest.param(lambda it: functools.partial(it.method), True, id="partial of a method"),
        pytest.param(lambda it: _wrapped(it.method), False, id="async method in a sync wrapper"),
        pytest.param(lambda it: it.returns_coroutine, False, id="returns a coroutine"),
        pytest.param(lambda it: it.returns_awaitable, False, id="returns an awaitable"),
        pytest.param(lambda it: lambda message, /: it(message), False, id="lambda around async"),
        pytest.param(lambda it: it.of_types, True, id="types.coroutine"),
    ],
)
def test_an_awaitable_that_a_handler_returns_is_awaited(make: Callable[[Any], Any], is_async: bool) -> None:  # SPEC A4
    runs: list[str] = []
    handler = consumer(make(AsyncHandlers(runs)))
    with orders():
        assert failed(handler(batch_of(3), Context())) == ["m1"]
    assert runs == ["m0", "m1", "m2"]
    assert handler.is_async is is_async  # known when the consumer is made


def _generator(message: Message) -> Iterator[None]:
    yield None


async def _async_generator(message: Message) -> AsyncIterator[None]:
    yield None


@pytest.mark.parametrize("generator", [_generator, _async_generator, lambda m: (x for x in [m])])
@pytest.mark.parametrize("make", [consumer, batch_consumer], ids=["message by message", "batch"])
def test_a_handler_that_returns_a_generator_has_failed(make: Any, generator: Any) -> None:  # SPEC A4
    def handler(argument: Any) -> Any:  # a function that contains yield itself is refused when the consumer is made
        return generator(argument)

    with orders():
        assert failed(make(handler)(batch_of(2), Context())) == ["m0", "m1"]


@pytest.mark.parametrize(
    "value",
    [False, 0, "failed", {}, {"batchItemFailures": []}, {"batchItemFailures": None}, ValueError, [ValueError()], ()],
    ids=repr,
)
def test_any_other_return_value_is_ignored(value: object) -> None:  # SPEC A4
    async def async_handler(_: Message) -> object:
        return value

    with orders():
        assert consumer(lambda _: value)(batch_of(1), Context()) == DONE
        assert consumer(async_handler)(batch_of(1), Context()) == DONE


# errors that end a batch


class BatchEnd(BaseException):
    pass


async def _raise(error: BaseException) -> None:
    raise error


async def _raise_in_task(error: BaseException) -> None:
    await asyncio.create_task(_raise(error))


async def _raise_in_group(error: BaseException) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(error))
        group.create_task(asyncio.sleep(60))


def _ending(error: type[BaseException], how: Any) -> Any:
    """Return a consumer that ends the batch at message m1."""

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        if message.id == "m1":
            raise error

    @consumer(backoff=Fixed(60))
    async def async_handler(message: Message) -> None:
        if message.id == "m1":
            await how(error())

    return handler if how is None else async_handler


WAYS = [None, _raise, _raise_in_task]


@pytest.mark.parametrize(
    ("error", "how"),
    [
        *((error, how) for error in (SystemExit, KeyboardInterrupt) for how in (*WAYS, _raise_in_group)),
        *((error, how) for error in (BatchEnd, asyncio.CancelledError) for how in WAYS),
    ],
    ids=lambda value: getattr(value, "__name__", "sync"),
)
def test_an_exit_fails_its_own_message_and_releases_those_that_have_not_started(
    error: Any, how: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A5, A6, L2
    """A cancellation releases none. The next invocation runs."""
    handler = _ending(error, how)
    released = [] if error is asyncio.CancelledError else ["m2", "m3"]
    with orders() as wire:
        assert failed(handler(batch_of(4), Context())) == ["m1", *released]
        assert wire.visibilities() == {"handle-m1": 60, **{f"handle-{name}": 0 for name in released}}
        [line] = [line for line in caplog.records if getattr(line, "event", "") == "waiting_retry"]
        assert line.error_type.rpartition(".")[2] == error.__name__  # type: ignore[attr-defined]
        assert handler(event(record("{}", "m7")), Context()) == DONE


def test_a_message_whose_task_ended_the_batch_has_failed_although_its_handler_suppresses_the_error() -> None:  # SPEC A5
    @consumer(backoff=Fixed(60))
    async def handler(message: Message) -> None:
        try:
            await asyncio.create_task(_raise(SystemExit(1)))
        except BaseException:  # noqa: BLE001
            return

    with orders() as wire:
        assert failed(handler(batch_of(2), Context())) == ["m0", "m1"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m1": 0}


def test_a_verdict_given_before_an_exit_holds() -> None:  # SPEC A5, B5
    @consumer
    def handler(message: Message) -> None:
        message.ack()
        raise SystemExit

    @batch_consumer(backoff=Fixed(60))
    def batch_handler(batch: Batch) -> None:
        batch[1].ack()
        raise SystemExit

    with orders() as wire:
        assert failed(handler(batch_of(2), Context())) == ["m1"]
        assert wire.visibilities() == {"handle-m1": 0}
    with orders() as wire:
        assert failed(batch_handler(batch_of(3), Context())) == ["m0", "m2"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m2": 60}


def test_a_handler_that_cancels_its_own_task_does_not_affect_other_messages() -> None:  # SPEC A5
    runs: list[str] = []

    @consumer
    async def handler(message: Message) -> None:
        task = asyncio.current_task()
        if message.id == "m0" and task is not None:
            task.cancel()
            return
        await asyncio.sleep(0)
        runs.append(message.id)

    with orders():
        assert "m1" not in failed(handler(batch_of(3), Context()))
    assert runs == ["m1", "m2"]


# concurrent and successive invocations


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_concurrent_invocations_do_not_affect_each_other(is_async: bool) -> None:  # SPEC A6
    both_running = threading.Barrier(2, timeout=10)

    def work(message: Message) -> None:
        both_running.wait()  # the two threads take turns, message by message
        if message.body == "bad":
            raise ValueError

    async def work_async(message: Message) -> None:
        work(message)

    handler = consumer(backoff=Fixed(60))(work_async if is_async else work)
    wire = orders()
    events = {
        "left": event(record("bad", "m0"), record("good", "m1"), record("bad", "m2")),
        "right": event(record("good", "m0"), record("bad", "m1"), record("good", "m2")),
    }
    answers: dict[str, list[str]] = {}

    def invoke(side: str) -> None:
        with use(wire.world):
            answers[side] = failed(handler(events[side], Context()))

    threads = [threading.Thread(target=invoke, args=(side,)) for side in events]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {"left": ["m0", "m2"], "right": ["m1"]}


@pytest.mark.parametrize("verdict", ["ack", "retry", "reject", "discard"])
def test_a_verdict_on_a_message_of_an_earlier_invocation_is_ignored(verdict: str) -> None:  # SPEC A6
    """No invocation leaves a message to the next."""
    kept: list[Message] = []

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        if kept:
            getattr(kept[0], verdict)()
        kept.append(message)
        if message.body == "bad":
            raise ValueError

    with orders() as wire:
        handler(event(record("bad")), Context())
        assert failed(handler(event(record("bad")), Context())) == ["m1"]
        assert handler(event(record("good")), Context()) == DONE
    assert wire.sent_entries() == []
    assert [len(request.entries) for request in wire.sent("ChangeMessageVisibilityBatch")] == [1, 1]


def test_a_consumer_can_be_called_in_an_event_loop() -> None:  # SPEC A4, A5
    """An exit ends the batch and not the loop."""
    handlers = [
        consumer(AsyncHandlers([])),
        consumer(AsyncHandlers([]).returns_coroutine),
        _ending(SystemExit, _raise_in_task),
        consumer(failing_on()),
    ]

    async def main() -> list[list[str]]:
        return [failed(handler(batch_of(3), Context())) for handler in handlers]

    with orders():
        assert asyncio.run(main()) == [["m1"], ["m1"], ["m1", "m2"], []]


def test_a_handler_can_invoke_another_consumer() -> None:  # SPEC A6
    inner_runs: list[str] = []

    @consumer
    async def inner(message: Message) -> None:
        await asyncio.sleep(0)
        inner_runs.append(message.id)

    @consumer
    async def outer(message: Message) -> None:
        assert inner(event(record("{}", f"of-{message.id}")), message.context) == DONE

    with orders():
        assert outer(batch_of(2), Context()) == DONE
    assert inner_runs == ["of-m0", "of-m1"]


def test_a_task_that_outlives_its_invocation_cannot_end_the_next() -> None:  # SPEC A6
    tasks: list[asyncio.Task[None]] = []

    async def exits_after_a_while() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        raise SystemExit

    @consumer
    async def leaves_a_task(message: Message) -> None:
        tasks.append(asyncio.create_task(exits_after_a_while()))

    @consumer
    async def other(message: Message) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    with orders():
        assert leaves_a_task(batch_of(1), Context()) == DONE
        assert other(batch_of(3), Context()) == DONE
    assert tasks[0].done()
