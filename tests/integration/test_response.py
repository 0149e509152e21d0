"""The Lambda contract: the response of a consumer, whatever its handler or tarry itself does."""

import asyncio
import functools
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from tarry import (
    Batch,
    DeadLetter,
    Failure,
    FailureStep,
    Fixed,
    InvalidEvent,
    Message,
    Outcome,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tarry.world import World, use
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire, client_error

DONE: dict[str, list[dict[str, str]]] = {"batchItemFailures": []}


def orders(**more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, **more)


def failing_on(*bad: str) -> Callable[[Message], None]:
    """Return a handler that fails on the messages with these ids."""

    def handler(message: Message) -> None:
        if message.id in bad:
            raise ValueError(message.id)

    return handler


# the shape of the response


@pytest.mark.parametrize(
    ("bad", "reported"),
    [
        pytest.param([], [], id="none fails"),
        pytest.param(["m1"], ["m1"], id="one in the middle"),
        pytest.param(["m2", "m0"], ["m0", "m2"], id="in the order of the batch"),
        pytest.param(["m0", "m1", "m2"], ["m0", "m1", "m2"], id="all"),
    ],
)
def test_the_response_lists_the_failed_messages_in_the_order_of_the_batch(
    bad: list[str], reported: list[str]
) -> None:  # SPEC A1
    with orders():
        response = consumer(failing_on(*bad))(batch_of(3), Context())
    assert response == {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in reported]}


def test_the_order_of_verdicts_does_not_change_the_order_of_the_response() -> None:  # SPEC A1
    @batch_consumer
    def handler(batch: Batch) -> None:
        for message in reversed(batch):
            message.retry()

    with orders():
        assert failed(handler(batch_of(4), Context())) == ["m0", "m1", "m2", "m3"]


def test_the_response_to_an_empty_batch_is_empty() -> None:  # SPEC A3
    with orders() as wire:
        assert consumer(failing_on())({"Records": []}, Context()) == DONE
    assert wire.requests == []


@pytest.mark.parametrize("context", [None, object(), Context()], ids=["none", "any object", "lambda"])
def test_the_context_may_be_any_object(context: object) -> None:  # SPEC A1
    with orders():
        assert failed(consumer(failing_on("m0"))(batch_of(2), context)) == ["m0"]


# duplicates


@pytest.mark.parametrize(
    ("counts", "handle"),
    [
        pytest.param([1, 2], "handle-of-2", id="the later receive comes second"),
        pytest.param([2, 1], "handle-of-2", id="the later receive comes first"),
        pytest.param(["x", 2], "handle-of-2", id="an unreadable count is 1"),
        pytest.param([2, "x"], "handle-of-2", id="a readable count beats an unreadable one"),
    ],
)
def test_two_records_with_one_id_are_one_message_with_the_handle_of_the_higher_receive_count(
    counts: list[object], handle: str
) -> None:  # SPEC A7
    runs: list[str] = []

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        runs.append(message.id)
        raise ValueError

    duplicates = [record("{}", "m1", receives=count) | {"receiptHandle": f"handle-of-{count}"} for count in counts]
    with orders() as wire:
        response = handler(event(duplicates[0], record("{}", "m2"), duplicates[1]), Context())
    assert sorted(runs) == ["m1", "m2"]
    assert failed(response) == ["m1", "m2"]
    assert wire.visibilities() == {handle: 60, "handle-m2": 60}


def test_a_batch_handler_gets_a_duplicated_message_once() -> None:  # SPEC A7
    seen: list[str] = []

    @batch_consumer
    def handler(batch: Batch) -> None:
        seen.extend(message.id for message in batch)

    with orders():
        assert handler(event(record(), record(receives=2)), Context()) == DONE
    assert seen == ["m1"]


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(float("inf"), id="Infinity"),
        pytest.param(float("nan"), id="NaN"),
        pytest.param(None, id="null"),
        pytest.param([2], id="a list"),
        pytest.param("9" * 5000, id="more digits than Python reads"),
    ],
)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice in the batch"])
def test_a_receive_count_that_is_not_a_number_counts_as_1(count: object, times: int) -> None:  # SPEC A3, C2
    odd = record("{}", "m1")
    odd["attributes"]["ApproximateReceiveCount"] = count
    attempts: list[int] = []
    with orders():
        assert consumer(lambda message: attempts.append(message.attempt))(event(*[odd] * times), Context()) == DONE
    assert attempts == [1]


# events that do not come from SQS


NOT_EVENTS = [
    pytest.param(None, "NoneType", id="nothing"),
    pytest.param([], "list", id="a list"),
    pytest.param("{}", "str", id="a text"),
    pytest.param({}, "Records", id="an empty dict"),
    pytest.param({"detail-type": "Scheduled Event", "detail": {}}, "detail-type", id="a schedule"),
    pytest.param({"Records": None}, "NoneType", id="no list of records"),
    pytest.param({"Records": {"messageId": "m1"}}, "dict", id="a dict of records"),
    pytest.param({"Records": ["m1"]}, "record 0", id="a text among the records"),
    pytest.param({"Records": [None]}, "record 0", id="nothing among the records"),
    pytest.param({"Records": [{"Sns": {"Message": "hi"}}]}, "messageId", id="an SNS event"),
    pytest.param({"Records": [{"eventID": "1", "kinesis": {}}]}, "messageId", id="a Kinesis event"),
    pytest.param(event(record(), {**record(), "messageId": ""}), "record 1", id="an empty messageId"),
    pytest.param(event({**record(), "messageId": None}), "None", id="a null messageId"),
    pytest.param(event({**record(), "messageId": 7}), "7", id="a messageId that is a number"),
    pytest.param(event({**record(), "messageId": ["m1"]}), "['m1']", id="a messageId that is a list"),
]


@pytest.mark.parametrize(("not_an_event", "expected"), NOT_EVENTS)
def test_an_event_that_does_not_come_from_sqs_raises_an_error_that_names_the_fault(
    not_an_event: Any, expected: str
) -> None:  # SPEC A3
    runs: list[Message] = []
    with orders() as wire, pytest.raises(InvalidEvent) as caught:
        consumer(runs.append)(not_an_event, Context())
    assert expected in str(caught.value)
    assert (runs, wire.requests) == ([], [])


def test_the_text_of_an_invalid_event_stays_short() -> None:  # SPEC A3
    with pytest.raises(InvalidEvent) as caught:
        consumer(failing_on())("x" * 100_000, Context())
    assert len(str(caught.value)) < 500


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


class IndescribableError(Exception):
    """An error that cannot be converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_an_error_that_cannot_be_described_is_a_failure_like_any_other() -> None:  # SPEC A2, A3
    @consumer(backoff=Fixed(7))
    def handler(message: Message) -> None:
        if message.id == "m0":
            raise IndescribableError

    with orders() as wire:
        assert failed(handler(batch_of(2), Context())) == ["m0"]
    assert wire.visibilities() == {"handle-m0": 7}


class FullLogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log is full")


@pytest.fixture
def _full_log() -> Iterator[None]:
    logger, handler = logging.getLogger("tarry"), FullLogHandler()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.mark.usefixtures("_full_log")
def test_a_log_handler_that_raises_does_not_affect_settlement() -> None:  # SPEC A2
    @consumer(backoff=Fixed(7))
    def handler(message: Message) -> None:
        if message.body == "0":
            message.discard("old")
        if message.body == "1":
            raise ValueError
        if message.body == "2":
            message.reject("bad")

    with orders() as wire:
        response = handler(batch_of(4), Context())
    assert failed(response) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 7}
    assert len(wire.sent_entries()) == 1


class RaisingStep:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        raise self.error


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(1)], ids=["exception", "SystemExit"])
def test_a_message_has_failed_if_its_failure_step_raises_an_exception(error: BaseException) -> None:  # SPEC A2, E5
    handler = consumer(on_failure=[RaisingStep(error)])(failing_on("m0"))
    with orders():
        assert "m0" in failed(handler(batch_of(3), Context()))


def test_the_other_messages_run_after_a_failure_step_raises_an_exception() -> None:  # SPEC E5
    runs: list[str] = []

    @consumer(on_failure=[RaisingStep(KeyError("x"))])
    def handler(message: Message) -> None:
        runs.append(message.id)
        failing_on("m0")(message)

    with orders():
        assert failed(handler(batch_of(3), Context())) == ["m0"]
    assert runs == ["m0", "m1", "m2"]


def test_without_a_client_every_unfinished_message_is_reported() -> None:  # SPEC A2
    def no_client() -> Any:
        raise RuntimeError("no region")

    @consumer
    def handler(message: Message) -> None:
        if message.body == "0":
            raise ValueError
        if message.body == "1":
            message.reject()
        if message.body == "2":
            message.defer(5)

    wire = orders()
    wire.world.client_factory = no_client
    with wire:
        assert failed(handler(batch_of(4), Context())) == ["m0", "m1", "m2"]


def test_without_boto3_every_unfinished_message_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC A2
    monkeypatch.setitem(sys.modules, "boto3", None)
    with use(World()):
        assert failed(consumer(failing_on("m1"))(batch_of(3), Context())) == ["m1"]


OPERATIONS = ["GetQueueAttributes", "SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "error",
    [
        client_error("InternalError", status=500),
        client_error("AccessDenied", status=403),
        client_error("ThrottlingException"),
        ConnectionError("reset"),
        KeyError("a bug of tarry"),
        SystemExit(3),
        KeyboardInterrupt(),
    ],
    ids=lambda error: getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__),
)
def test_a_failed_request_never_makes_a_message_done(operation: str, error: BaseException) -> None:  # SPEC A2, A3
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


def test_a_confirmation_with_the_md5_of_another_body_does_not_count() -> None:  # SPEC A2, E6
    with orders(wrong_md5=True) as wire:
        assert failed(consumer(lambda message: message.reject())(batch_of(1), Context())) == ["m0"]
    assert wire.sent("DeleteMessageBatch") == []


def test_an_invalid_redrive_policy_does_not_stop_the_other_messages() -> None:  # SPEC A2, G1
    runs: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(message.id)
        failing_on("m0")(message)

    wire = orders()
    wire.queues["orders"].attributes = lambda names: {"RedrivePolicy": "{not json"}  # type: ignore[method-assign]
    with wire:
        assert failed(handler(batch_of(3), Context())) == ["m0"]
    assert runs == ["m0", "m1", "m2"]


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


async def _nap() -> None:
    await asyncio.sleep(0)


class AsyncHandlers:
    def __init__(self, runs: list[str]) -> None:
        self.runs = runs

    async def __call__(self, message: Message) -> None:
        await _nap()
        self.runs.append(message.id)

    async def method(self, message: Message) -> None:
        await self(message)

    def returns_coroutine(self, message: Message) -> Awaitable[None]:
        return self(message)

    def returns_future(self, message: Message) -> Awaitable[None]:
        return asyncio.ensure_future(self(message))

    def returns_awaitable(self, message: Message) -> Awaitable[None]:
        runs = self.runs

        class CustomAwaitable:
            def __await__(self) -> Iterator[Any]:
                yield from asyncio.sleep(0).__await__()
                runs.append(message.id)

        return CustomAwaitable()  # type: ignore[return-value]

    @staticmethod
    async def _with(runs: list[str], message: Message) -> None:
        await _nap()
        runs.append(message.id)


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


ASYNC_HANDLERS: list[Any] = [
    pytest.param(lambda runs: functools.partial(AsyncHandlers._with, runs), id="partial of async def"),
    pytest.param(AsyncHandlers, id="object with async __call__"),
    pytest.param(lambda runs: functools.partial(AsyncHandlers(runs)), id="partial of such an object"),
    pytest.param(lambda runs: AsyncHandlers(runs).method, id="async method"),
    pytest.param(lambda runs: AsyncHandlers(runs).returns_coroutine, id="returns a coroutine"),
    pytest.param(lambda runs: AsyncHandlers(runs).returns_awaitable, id="returns an awaitable"),
    pytest.param(lambda runs: _wrapped(AsyncHandlers(runs).method), id="async method in a sync wrapper"),
    pytest.param(lambda runs: lambda message, /: AsyncHandlers(runs)(message), id="lambda around async"),
]


@pytest.mark.parametrize("make", ASYNC_HANDLERS)
def test_an_awaitable_that_a_handler_returns_is_awaited(make: Callable[[list[str]], Any]) -> None:  # SPEC A4
    runs: list[str] = []
    with orders():
        assert consumer(make(runs))(batch_of(2), Context()) == DONE
    assert runs == ["m0", "m1"]


@pytest.mark.parametrize("make", ASYNC_HANDLERS)
def test_an_exception_of_an_awaited_handler_fails_its_message(make: Callable[[list[str]], Any]) -> None:  # SPEC A4
    class RefusingList(list[str]):
        def append(self, item: str) -> None:
            raise ValueError(item)

    with orders():
        assert failed(consumer(make(RefusingList()))(batch_of(2), Context())) == ["m0", "m1"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(AsyncHandlers([]), True, id="object"),
        pytest.param(AsyncHandlers([]).method, True, id="method"),
        pytest.param(functools.partial(AsyncHandlers([]).method), True, id="partial"),
        pytest.param(AsyncHandlers([]).returns_coroutine, False, id="only its result is awaitable"),
        pytest.param(print, False, id="builtin"),
    ],
)
def test_async_def_is_detected_when_the_consumer_is_made(function: Any, expected: bool) -> None:  # SPEC A4
    assert consumer(function).is_async is expected


def test_a_coroutine_made_by_types_coroutine_is_awaited() -> None:  # SPEC A4
    import types

    runs: list[str] = []

    @types.coroutine
    def handler(message: Message) -> Any:
        yield from asyncio.sleep(0).__await__()
        runs.append(message.id)

    with orders():
        assert consumer(handler)(batch_of(1), Context()) == DONE
    assert runs == ["m0"]


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
    if how is None:

        @consumer(backoff=Fixed(60))
        def handler(message: Message) -> None:
            if message.id == "m1":
                raise error

        return handler

    @consumer(backoff=Fixed(60))
    async def async_handler(message: Message) -> None:
        if message.id == "m1":
            await how(error())

    return async_handler


WAYS = [
    pytest.param(None, id="sync"),
    pytest.param(_raise, id="async"),
    pytest.param(_raise_in_task, id="in a task"),
    pytest.param(_raise_in_group, id="in a task group"),
]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_fails_its_own_message_and_releases_those_that_have_not_started(
    error: Any, how: Any
) -> None:  # SPEC A5
    with orders() as wire:
        response = _ending(error, how)(batch_of(4), Context())
    assert failed(response) == ["m1", "m2", "m3"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 0, "handle-m3": 0}


@pytest.mark.parametrize("how", [WAYS[0], WAYS[1], WAYS[2]])
def test_any_other_base_exception_ends_the_batch_too(how: Any) -> None:  # SPEC A5
    with orders() as wire:
        response = _ending(BatchEnd, how)(batch_of(3), Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 0}


@pytest.mark.parametrize("how", WAYS)
def test_the_error_that_ended_the_batch_is_logged(how: Any, caplog: pytest.LogCaptureFixture) -> None:  # SPEC A5, L2
    with orders():
        _ending(SystemExit, how)(batch_of(2), Context())
    [line] = [line for line in caplog.records if getattr(line, "event", "") == "waiting_retry"]
    assert line.error_type == "SystemExit"  # type: ignore[attr-defined]


def test_a_message_whose_task_ended_the_batch_has_failed_although_its_handler_suppresses_the_error() -> None:  # SPEC A5
    @consumer(backoff=Fixed(60))
    async def handler(message: Message) -> None:
        task = asyncio.create_task(_raise(SystemExit(1)))
        try:
            await task
        except BaseException:  # noqa: BLE001
            return

    with orders() as wire:
        assert failed(handler(batch_of(2), Context())) == ["m0", "m1"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m1": 0}


def test_an_invocation_runs_after_one_that_ended_early() -> None:  # SPEC A5, A6
    handler = _ending(SystemExit, _raise_in_task)
    with orders():
        handler(batch_of(3), Context())
        assert handler(event(record("{}", "m7")), Context()) == DONE


def test_an_exit_of_a_batch_handler_fails_the_messages_without_a_verdict() -> None:  # SPEC A5, B5
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        batch[1].ack()
        raise SystemExit

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m0", "m2"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m2": 60}


def test_a_verdict_given_before_an_exit_holds() -> None:  # SPEC A5, B5
    @consumer
    def handler(message: Message) -> None:
        message.ack()
        raise SystemExit

    with orders() as wire:
        assert failed(handler(batch_of(2), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 0}


@pytest.mark.parametrize("how", WAYS[:3])
def test_a_cancelled_error_fails_only_its_own_message(how: Any) -> None:  # SPEC A5
    with orders() as wire:
        response = _ending(asyncio.CancelledError, how)(batch_of(4), Context())
    assert failed(response) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}


def test_a_handler_that_cancels_its_own_task_does_not_affect_other_messages() -> None:  # SPEC A5
    runs: list[str] = []

    @consumer
    async def handler(message: Message) -> None:
        if message.id == "m0":
            task = asyncio.current_task()
            assert task is not None
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


def test_an_invocation_leaves_no_messages_to_the_next() -> None:  # SPEC A6
    handler = consumer(failing_on("m0", "m1"))
    with orders() as wire:
        first = handler(batch_of(3), Context())
        second = handler(batch_of(1), Context())
    assert (failed(first), failed(second)) == (["m0", "m1"], ["m0"])
    assert [len(request.entries) for request in wire.sent("ChangeMessageVisibilityBatch")] == [2, 1]


@pytest.mark.parametrize("bad", ["m1", ""], ids=["one fails", "all succeed"])
def test_an_async_consumer_can_be_called_in_an_event_loop(bad: str) -> None:  # SPEC A4
    @consumer
    async def handler(message: Message) -> None:
        await asyncio.sleep(0)
        failing_on(bad)(message)

    async def main() -> list[str]:
        return failed(handler(batch_of(3), Context()))

    with orders():
        assert asyncio.run(main()) == ([bad] if bad else [])


def test_a_sync_handler_that_returns_a_coroutine_works_in_an_event_loop() -> None:  # SPEC A4
    runs: list[str] = []

    async def main() -> Any:
        return consumer(AsyncHandlers(runs).returns_coroutine)(batch_of(2), Context())

    with orders():
        assert asyncio.run(main()) == DONE
    assert runs == ["m0", "m1"]


def test_a_system_exit_in_an_event_loop_ends_the_batch_and_not_the_loop() -> None:  # SPEC A5
    async def main() -> list[str]:
        return failed(_ending(SystemExit, _raise_in_task)(batch_of(3), Context()))

    with orders():
        assert asyncio.run(main()) == ["m1", "m2"]


def test_two_consumers_can_share_a_list_of_failure_steps() -> None:  # SPEC A6
    steps: list[FailureStep] = [RetryInPlace(), DeadLetter()]
    first, second = (consumer(on_failure=steps, max_attempts=limit)(failing_on("m1")) for limit in (1, 2))
    with orders() as wire:
        assert first(event(record()), Context()) == DONE
        assert failed(second(event(record()), Context())) == ["m1"]
    assert len(wire.sent_entries()) == 1


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


def test_an_async_batch_handler_settles_like_a_sync_one() -> None:  # SPEC A4, B1
    @batch_consumer(backoff=Fixed(60))
    async def handler(batch: Batch) -> None:
        await asyncio.sleep(0)
        batch[1].retry()
        batch[2].reject()

    with orders() as wire:
        assert failed(handler(batch_of(4), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert [envelope["id"] for envelope in wire.envelopes()] == ["m2"]


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
