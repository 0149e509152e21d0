"""The Lambda contract: the response of a consumer, whatever its handler returns, raises, or ends with."""

import asyncio
import functools
import json
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tarry import (
    Batch,
    BatchError,
    ConfigurationError,
    Consumer,
    Defer,
    Discard,
    Fixed,
    InvalidEvent,
    Message,
    Reject,
    Retry,
    batch_consumer,
    consumer,
)
from tarry.message.delivery import Delivery
from tarry.record.attribute import body_sum
from tarry.run.verdicts import Verdicts
from tarry.world import World, use
from tests import handlers
from tests.handlers import awaiting
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, batch_of, event, failed, record
from tests.settled import orders, settle
from tests.wire import RunningClock, Wire

DONE: dict[str, list[dict[str, str]]] = {"batchItemFailures": []}
MAKERS = pytest.mark.parametrize("make", [consumer, batch_consumer], ids=["message by message", "batch"])


def waits(wire: Wire) -> dict[str, int]:
    """Return the visibility timeout that was last requested for each message."""
    return {handle.removeprefix("handle-"): seconds for handle, seconds in wire.visibilities().items()}


def of_groups(*groups: str) -> dict[str, Any]:
    return event(*(record(index, f"m{index}", "orders.fifo", group=group) for index, group in enumerate(groups)))


def failing_on(*bad: str, runs: list[str] | None = None) -> Callable[[Message], None]:

    def handler(message: Message) -> None:
        if runs is not None:
            runs.append(message.id)
        if message.id in bad:
            raise ValueError(message.id)

    return handler


# the shape of the response, and the event


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


@pytest.mark.parametrize(
    "counts",
    [[1, 2], [2, 1], *([odd, 2] for odd in ("x", float("inf"), float("nan"), None, [2], "9" * 5000)), [2, "x"]],
    ids=lambda counts: str(counts)[:20],
)
def test_of_two_records_with_one_id_the_one_with_the_higher_receive_count_counts(counts: list[object]) -> None:
    # SPEC A7, A3, C2
    attempts: list[tuple[str, int]] = []

    def note(message: Message) -> None:
        attempts.append((message.id, message.attempt))
        raise ValueError

    def note_all(batch: Batch) -> None:
        attempts.extend((message.id, message.attempt) for message in batch)
        raise ValueError

    duplicates = [record("{}", "m1") | {"receiptHandle": f"handle-of-{count}"} for count in counts]
    for each, count in zip(duplicates, counts, strict=True):
        each["attributes"]["ApproximateReceiveCount"] = count
    for handler in (consumer(backoff=Fixed(60))(note), batch_consumer(backoff=Fixed(60))(note_all)):
        attempts.clear()
        reported, wire = settle(handler, event(duplicates[0], record("{}", "m2"), duplicates[1]))
        assert (sorted(attempts), reported) == ([("m1", 2), ("m2", 1)], ["m1", "m2"])
        assert wire.visibilities() == {"handle-of-2": 60, "handle-m2": 60}


@pytest.mark.parametrize(
    ("not_an_event", "expected"),
    [
        *((None, "NoneType"), ([], "list"), ("{}", "str"), (7, "int"), ({}, "Records"), ("x" * 100_000, "xxx")),
        ({"detail-type": "Scheduled Event", "detail": {}}, "detail-type"),
        *(
            ({"Records": odd}, shown)
            for odd, shown in ((None, "NoneType"), ({"messageId": "m1"}, "dict"), ("abc", "abc"))
        ),
        *(({"Records": [odd]}, "record 0") for odd in ("m1", None)),
        *(
            ({"Records": [odd]}, "messageId")
            for odd in ({}, {"Sns": {"Message": "hi"}}, {"eventID": "1", "kinesis": {}})
        ),
        *(({"Records": [record(), odd]}, "record 1") for odd in ("m2", {**record(), "messageId": ""})),
        *((event({**record(), "messageId": odd}), str(odd)) for odd in (None, 7, ["m1"])),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_an_event_that_is_not_from_sqs_raises_a_short_error_that_names_the_fault(
    not_an_event: Any, expected: str
) -> None:  # SPEC A3
    runs: list[Message] = []
    with orders() as wire, pytest.raises(InvalidEvent) as caught:
        consumer(runs.append)(not_an_event, Context())
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 500
    assert (runs, wire.requests) == ([], [])


# errors


@MAKERS
@pytest.mark.parametrize(
    "error", [ValueError("no"), RecursionError(), MemoryError(), AssertionError(), StopIteration(1), ImportError("x")]
)
def test_an_exception_of_a_handler_does_not_leave_the_function(make: Any, error: Exception) -> None:  # SPEC A3
    def handler(_: Any) -> None:
        raise error

    assert settle(make(handler), batch_of(3))[0] == ["m0", "m1", "m2"]


def gives_a_verdict_on_each(message: Message) -> None:
    match message.body:
        case "0":
            raise ValueError
        case "1":
            message.reject("bad")
        case "2":
            message.defer(5)
        case "3":
            message.discard("old")


def test_without_botocore_every_unfinished_message_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC A2
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with use(World()):
        assert failed(consumer(gives_a_verdict_on_each)(batch_of(5), Context())) == ["m0", "m1", "m2"]


OPERATIONS = ["GetQueueAttributes", "SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("error", [KeyError("a bug"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_request_that_ends_with_anything_never_makes_a_message_done(operation: str, error: BaseException) -> None:
    """SPEC A2, A3. For errors of SQS, see test_failing_sqs.py. With much time left, this thread makes the requests."""

    def fail(_: Any) -> None:
        raise error

    wire = orders()
    wire.fails[operation] = fail
    batch = event(*(record(index, f"m{index}") for index in (0, 1, 4)))
    reported, _ = settle(consumer(gives_a_verdict_on_each), batch, wire, remaining=60)
    assert "m0" in reported
    assert "m4" not in reported or not isinstance(error, Exception)  # an exit releases the other messages
    is_dead_lettered = bool(wire.sent_entries()) and operation != "SendMessageBatch"
    assert ("m1" in reported) or is_dead_lettered


@pytest.mark.parametrize(
    ("step", "settings"),
    [
        ("settle.eager_acks.Acks.close", {"ack": "eager"}),
        ("run.outcomes.Outcomes.stop", {}),
        ("observe.reports.Observer.call", {"on_outcome": lambda message, outcome: None}),
        ("message.invocation.Invocation.clear", {}),
    ],
)
def test_a_fault_of_tarry_after_the_settlement_fails_no_message_that_is_settled(
    step: str, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:  # SPEC A2, A3
    def fails(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(f"tarry.{step}", fails)
    assert settle(consumer(backoff=Fixed(60), **settings)(failing_on("m1")), batch_of(3))[0] == ["m1"]
    [line] = lines(caplog, "runtime_failed")
    assert field(line, "error") == "MemoryError"


ON_MESSAGE, MAY_START = "verdicts.Verdicts.on_message", "deadline.Deadline.may_start"


@pytest.mark.parametrize(
    ("way", "step", "first"),
    [("one by one", ON_MESSAGE, 1), ("async", ON_MESSAGE, 1), ("tasks", ON_MESSAGE, 3), ("async", MAY_START, 2)],
)
def test_after_a_fault_of_tarry_the_messages_that_have_not_started_are_released(
    way: str, step: str, first: int, monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:  # SPEC A2, A3
    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(f"tarry.run.{step}", fails)
    reported, wire = settle(handlers.WAYS[way](failing_on("m0" if step == ON_MESSAGE else "")), batch_of(5))
    released = [f"m{index}" for index in range(first, 5)]
    assert (reported, waits(wire)) == (["m0" if step == ON_MESSAGE else "m1", *released], dict.fromkeys(released, 0))
    [line] = lines(caplog, "runtime_failed")
    assert "Messages that were not started are released" in field(line, "text")


@pytest.mark.parametrize("way", ["threads", "tasks"])
def test_after_a_fault_of_tarry_a_process_whose_handlers_may_still_run_ends(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:  # SPEC A6, I3
    monkeypatch.setattr(f"tarry.run.{MAY_START}", None)
    with pytest.raises(SystemExit):
        settle(handlers.WAYS[way](failing_on()), batch_of(5))
    assert "these must not meet another batch" in field(lines(caplog, "process_ends")[0], "text")


# awaitables and generators that a handler returns


class AsyncHandlers:
    def __init__(self, runs: list[str]) -> None:
        self.runs = runs

    async def __call__(self, message: Message) -> None:
        await asyncio.sleep(0)
        failing_on("m1", runs=self.runs)(message)

    async def method(self, message: Message) -> None:
        await self(message)

    def returns_awaitable(self, message: Message) -> Any:
        class CustomAwaitable:
            def __await__(_) -> Iterator[Any]:  # noqa: N805 it has no use of its own
                return self(message).__await__()

        return CustomAwaitable()

    @types.coroutine
    def of_types(self, message: Message) -> Any:
        yield from self(message).__await__()


@pytest.mark.parametrize(
    ("make", "is_async"),
    [
        pytest.param(lambda it: it, True, id="object with async __call__"),
        pytest.param(functools.partial, True, id="partial of such an object"),
        pytest.param(lambda it: functools.partial(AsyncHandlers.method, it), True, id="partial of async def"),
        pytest.param(lambda it: it.method, True, id="async method"),
        pytest.param(lambda it: functools.partial(it.method), True, id="partial of a method"),
        pytest.param(
            lambda it: functools.wraps(it.method)(lambda m, *_: it.method(m)), False, id="async in a sync one"
        ),
        pytest.param(lambda it: it.returns_awaitable, False, id="returns an awaitable"),
        pytest.param(lambda it: lambda message, /: it(message), False, id="lambda around async"),
        pytest.param(lambda it: it.of_types, True, id="types.coroutine"),
    ],
)
def test_an_awaitable_that_a_handler_returns_is_awaited(make: Callable[[Any], Any], is_async: bool) -> None:  # SPEC A4
    runs: list[str] = []
    handler = consumer(make(AsyncHandlers(runs)))
    assert (settle(handler, batch_of(3))[0], runs) == (["m1"], ["m0", "m1", "m2"])
    assert handler.is_async is is_async  # known when the consumer is made


def _generator(message: Message) -> Iterator[None]:
    yield None


async def _async_generator(message: Message) -> AsyncIterator[None]:
    yield None


@MAKERS
@pytest.mark.parametrize("generator", [_generator, _async_generator, lambda m: (x for x in [m])])
def test_a_handler_that_returns_a_generator_has_failed(make: Any, generator: Any) -> None:  # SPEC A4
    def handler(argument: Any) -> Any:  # a function that contains yield itself is refused when the consumer is made
        return generator(argument)

    assert settle(make(handler), batch_of(2))[0] == ["m0", "m1"]


# verdicts, responses, and values without a meaning that a handler returns


def returning(value: Any, way: str = "sync", make: Any = consumer, **settings: Any) -> Consumer[Any]:
    """Return a consumer whose handler returns a value; of a message, or with ``make`` of the batch."""

    async def coroutine(_: Any) -> Any:
        return value

    async def nested(_: Any) -> Any:
        return coroutine(None)

    functions = {"sync": lambda _: value, "async": coroutine, "awaitable": lambda _: coroutine(None), "nested": nested}
    made: Consumer[Any] = make(**{"backoff": Fixed(60), **settings})(functions[way])
    return made


def response_with(*ids: Any) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": each} for each in ids]}


WAYS = ("sync", "async", "awaitable", "nested")


@pytest.mark.parametrize(
    ("verdict", "settings", "delays", "sent"),
    [
        (Retry(30), {}, [30, 30], []),
        (Reject("declined"), {}, [], ["rejected"] * 2),
        (Discard(), {}, [], []),
        (ValueError("no stock"), {}, [60, 60], []),
        (ValueError("no stock"), {"fatal": ValueError}, [], ["fatal"] * 2),
        (Defer(50), {}, [], [50, 50]),
        (SystemExit(1), {}, [60, 0], []),  # it ends the batch
        (response_with("m0"), {}, [60, 60], []),  # the responses of a batch handler
        (response_with("unknown"), {}, [60, 60], []),
        ({"batchItemFailures": ["x"]}, {}, [60, 60], []),
    ],
    ids=repr,
)
def test_a_returned_verdict_or_error_counts_like_a_raised_one_and_a_returned_response_is_an_error(
    verdict: Any, settings: Any, delays: list[int], sent: list[Any], caplog: Caplog
) -> None:  # SPEC A4, A5, B2, L2
    for way in WAYS:
        reported, wire = settle(returning(verdict, way, **settings), batch_of(2))
        expected = dict(zip(["m0", "m1"], delays, strict=False))
        entries = zip(wire.sent_entries(), wire.envelopes(), strict=True)
        found = [each["failure"]["reason"] if "failure" in each else entry["DelaySeconds"] for entry, each in entries]
        assert (way, reported, waits(wire), found) == (way, [*expected], expected, sent)
    if isinstance(verdict, ValueError) and delays:
        shown = [field(line, "error") for line in lines(caplog, "waiting_retry")]
        assert shown == ["ValueError: no stock"] * 2 * len(WAYS)


@pytest.mark.parametrize("value", [False, 0, "failed", {}, {"batchItemFailures": None}, ValueError, [ValueError()], ()])
def test_any_other_return_value_is_ignored(value: object) -> None:  # SPEC A4
    for way in ("sync", "async"):
        with orders():
            assert returning(value, way)(batch_of(1), Context()) == DONE


def test_a_verdict_given_on_the_message_overrides_a_returned_one_or_a_response() -> None:  # SPEC A4, B4, B5
    assert settle(consumer(lambda message: message.ack() or Retry(30)))[0] == []
    reported, wire = settle(batch_consumer(lambda batch: batch[0].ack() or Retry(30)), batch_of(3))
    assert (reported, waits(wire)) == (["m1", "m2"], {"m1": 30, "m2": 30})
    handler = batch_consumer(backoff=Fixed(60))(
        lambda batch: batch[0].ack() or batch[1].retry(7) or response_with("m0", "m1", "m2")
    )
    reported, wire = settle(handler, batch_of(4))
    assert (reported, waits(wire)) == (["m1", "m2"], {"m1": 7, "m2": 60})


def test_a_batch_handler_fails_the_messages_that_its_response_lists() -> None:  # SPEC A4
    for way in WAYS:
        reported, wire = settle(returning(response_with("m3", "m1", "m3"), way, batch_consumer), batch_of(5))
        assert (way, reported, waits(wire)) == (way, ["m1", "m3"], {"m1": 60, "m3": 60})


def test_a_returned_response_may_list_a_message_by_its_stable_id() -> None:  # SPEC A4, K3
    text = json.dumps({"v": 1, "sum": body_sum("{}"), "id": "stable", "carried": 2})
    copy = record(attributes={"Tarry": {"stringValue": text, "dataType": "String"}})
    handler = returning(response_with("stable"), make=batch_consumer)
    assert settle(handler, event(record(message_id="m0"), copy))[0] == ["m1"]


def test_a_listed_message_is_retried_whatever_errors_are_fatal_and_dead_lettered_at_its_last_attempt() -> None:
    # SPEC A4, C8, D1
    for settings in ({"retry_on": KeyError}, {"fatal": ValueError}):
        assert settle(returning(response_with("m1"), make=batch_consumer, **settings), batch_of(2))[0] == ["m1"]
    reported, wire = settle(returning(response_with("m1"), make=batch_consumer, max_attempts=1), batch_of(3))
    [failure] = [envelope["failure"] for envelope in wire.envelopes()]
    assert (reported, failure["reason"], failure["type"]) == ([], "exhausted", "tarry.UnexplainedFailure")


def test_on_fifo_the_first_listed_message_of_each_group_has_failed_and_those_behind_it_are_released() -> None:
    listed, batch = response_with("m1", "m2", "m3"), of_groups("a", "a", "b", "a", "b")  # SPEC A4, H1
    reported, wire = settle(returning(listed, make=batch_consumer), batch)
    assert reported == ["m1", "m2", "m3", "m4"]
    assert waits(wire) == {"m1": 60, "m2": 60, "m3": 0, "m4": 0}
    reported, wire = settle(returning(listed, make=batch_consumer, max_attempts=1), batch)
    assert (reported, waits(wire)) == (["m3"], {"m3": 0})
    assert [dead_letter["MessageBody"] for dead_letter in wire.sent_entries()] == ["1", "2"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (response_with("m0", "unknown"), "an itemIdentifier in batchItemFailures is not the id of a message"),
        *((response_with("m0", odd), "an entry of batchItemFailures has no") for odd in ("", None, 7, [])),
        *(({"batchItemFailures": [odd]}, "an entry of batchItemFailures has no") for odd in ({}, "m0", None)),
        *(({"batchItemFailures": odd}, "not a list") for odd in ("m0", {"itemIdentifier": "m0"}, 1)),
    ],
    ids=repr,
)
def test_a_response_that_lambda_would_refuse_fails_all_messages_without_a_verdict(
    value: Any, why: str, caplog: Caplog
) -> None:  # SPEC A4
    reported, wire = settle(batch_consumer(backoff=Fixed(60))(lambda batch: batch[1].ack() or value), batch_of(3))
    assert (reported, waits(wire)) == (["m0", "m2"], {"m0": 60, "m2": 60})
    assert why in field(lines(caplog, "waiting_retry")[0], "error")


class RefusingDict(dict[str, Any]):
    def get(self, *_: object) -> Any:
        raise KeyError

    def __bool__(self) -> bool:
        raise KeyError


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        *((value, []) for value in (response_with(), {"batchItemFailures": None}, {}, {"failures": ["m0"]}, None)),
        (RefusingDict(response_with("m1")), ["m1"]),  # read like a plain dict
    ],
)
def test_a_response_that_lists_no_message_acknowledges_all(value: Any, reported: list[str]) -> None:  # SPEC A4, A2
    assert settle(returning(value, make=batch_consumer), batch_of(3))[0] == reported


# unsaid=


def acknowledging(*ids: str, then: Any = None) -> Callable[[Batch], Any]:
    def handler(batch: Batch) -> Any:
        for message in batch:
            if message.delivery_id in ids:
                message.ack()
        return then

    return handler


async def says_nothing(batch: Batch) -> None: ...


FOUR, GROUPS = batch_of(4), of_groups("a", "a", "a", "b")


@pytest.mark.parametrize(
    ("settings", "batch", "handle", "delays"),
    [
        ({"unsaid": "fail"}, FOUR, acknowledging("m0", "m2"), {"m1": 60, "m3": 60}),
        ({"unsaid": "fail"}, FOUR, says_nothing, {"m0": 60, "m1": 60, "m2": 60, "m3": 60}),
        ({"unsaid": "fail"}, FOUR, lambda batch: batch.ack_all(), {}),
        ({"unsaid": "fail"}, FOUR, acknowledging("m0", "m1", "m2", "m3"), {}),
        ({"unsaid": "fail"}, FOUR, lambda _: BatchError(index=2), {"m2": 60, "m3": 0}),  # those before it are done
        ({"unsaid": "fail"}, FOUR, acknowledging("m0", then=response_with("m1")), {"m1": 60, "m2": 60, "m3": 60}),
        ({"unsaid": "fail"}, GROUPS, acknowledging("m0"), {"m1": 60, "m2": 0, "m3": 60}),
        ({"unsaid": "ack"}, FOUR, acknowledging("m0"), {}),
        ({}, FOUR, acknowledging("m0"), {}),
        ({}, FOUR, lambda _: BatchError(index=1), {"m1": 60, "m2": 0, "m3": 0}),
    ],
)
def test_messages_without_a_verdict_are_acknowledged_unless_unsaid_is_fail(
    settings: Any, batch: Any, handle: Any, delays: dict[str, int]
) -> None:  # SPEC A4, B1, B5, B8, H2
    reported, wire = settle(batch_consumer(backoff=Fixed(60), **settings)(handle), batch)
    assert (reported, waits(wire)) == ([*delays], delays)


def test_unsaid_is_ack_or_fail_and_refused_for_a_handler_of_one_message() -> None:  # SPEC B8
    with pytest.raises(ConfigurationError, match="unsaid='fail' is for @batch_consumer"):
        consumer(unsaid="fail")
    with pytest.raises(ConfigurationError, match="is for @batch_consumer"):
        consumer(lambda _: None).replace(unsaid="ack")
    for value in ("nack", "", None, True, 1):
        with pytest.raises(ConfigurationError, match='unsaid takes "ack" or "fail", got'):
            batch_consumer(unsaid=value)


def acknowledge_all(batch: Batch) -> None:
    batch.ack_all()


WITH_ATTRIBUTES = {"source": {"stringValue": "shop", "dataType": "String"}}


@pytest.mark.parametrize(
    "handler",
    [
        consumer(lambda _: None),
        batch_consumer(lambda _: None),
        batch_consumer(acknowledge_all),
        batch_consumer(unsaid="fail")(acknowledge_all),
    ],
    ids=["message by message", "batch", "acknowledged", "acknowledged although unsaid fails"],
)
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("attributes", [None, WITH_ATTRIBUTES], ids=["plain", "with attributes"])
def test_a_batch_that_succeeds_needs_no_order_and_no_decisions(
    attributes: Any, queue: str, handler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC G2, H4
    """Nor does a plain message need an object of its delivery, on FIFO if it was received within 10 seconds."""
    needless = ["tarry.run.verdicts.Verdicts", "tarry.run.order.fresh_first", "tarry.run.batch_verdicts.BatchVerdicts"]
    for each in [*needless, *([] if attributes else ["tarry.message.delivery.Delivery"])]:
        monkeypatch.setattr(each, None)
    received_at = RECEIVED_AT - (10 if queue == "orders.fifo" else 60)
    batch = batch_of(3, queue, group="a", received_at=received_at, attributes=attributes)
    reported, wire = settle(handler, batch)
    assert (reported, wire.requests) == ([], [])


@pytest.mark.parametrize("handle", [failing_on("m0"), awaiting(failing_on("m0"))], ids=["sync", "async"])
def test_beside_a_failed_message_those_that_succeed_need_no_object(
    handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class CountedDelivery(Delivery):
        def __init__(self, record: Any, delivery_id: str, invocation: Any) -> None:
            made.append(delivery_id)
            super().__init__(record, delivery_id, invocation)

    monkeypatch.setattr("tarry.message.delivery.Delivery", CountedDelivery)
    assert settle(consumer(handle), batch_of(4))[0] == made == ["m0"]


@pytest.mark.parametrize("way", handlers.WAYS)
@pytest.mark.parametrize(
    "handle", [lambda message: message.ack(), lambda message: message.attempt], ids=["acknowledged", "read"]
)
def test_a_message_that_was_acknowledged_or_only_read_needs_no_decision(
    handle: Callable[[Message], object], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.run.verdicts.Verdicts", None)
    assert settle(handlers.WAYS[way](handle), batch_of(3))[0] == []


def test_explicit_acknowledgements_of_all_messages_need_no_decisions_although_unsaid_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC B8
    monkeypatch.setattr("tarry.run.batch_verdicts.BatchVerdicts.on_end", None)
    handler = batch_consumer(unsaid="fail")(acknowledging("m0", "m1"))
    assert settle(handler, batch_of(2))[0] == []


# threads of a batch handler


def test_a_verdict_in_progress_in_a_thread_of_a_batch_handler_is_completed_after_the_handler_returns() -> None:
    """SPEC A6, E6.

    Otherwise, a hundred dead letters would be sent while their originals are reported as failed and not deleted.
    """
    wire = orders(clock=RunningClock())
    wire.fails["SendMessageBatch"] = lambda _: time.sleep(0.2)
    begun = threading.Event()

    @batch_consumer(fatal=ValueError)
    def handler(batch: Batch) -> None:
        def work() -> None:
            for message in batch:
                message.fail(ValueError("no"))
                if message.delivery_id == "m90":
                    begun.set()

        threading.Thread(target=work).start()
        begun.wait(60)

    assert settle(handler, batch_of(105), wire)[0] == []


def test_a_defect_of_tarry_does_not_reach_a_handler_that_gives_a_verdict(
    monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:  # SPEC A2
    def fails_once(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise TypeError

    monkeypatch.setattr(Verdicts, "_take", fails_once)

    @batch_consumer
    def handler(batch: Batch) -> None:
        batch[0].retry(60)
        batch[1].ack()

    assert settle(handler, batch_of(2))[0] == ["m0"]
    [line] = lines(caplog, "runtime_failed")
    assert (field(line, "message_id"), field(line, "error_type")) == ("m0", "TypeError")
    assert "failed to decide on the message early" in field(line, "text")


def test_several_threads_may_give_the_first_verdicts_of_a_batch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC A6, C11. Both threads find that the decisions of the batch do not exist yet."""
    original, both = Verdicts.__init__, threading.Barrier(2)

    def wait_for_the_other(*arguments: Any, **more: Any) -> None:
        both.wait(10)
        original(*arguments, **more)

    monkeypatch.setattr(Verdicts, "__init__", wait_for_the_other)

    @batch_consumer
    def handler(batch: Batch) -> None:
        threads = [threading.Thread(target=message.retry, args=(60,)) for message in batch]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    reported, wire = settle(handler, batch_of(2))
    assert (len(reported), [len(each.entries) for each in wire.sent("ChangeMessageVisibilityBatch")]) == (2, [2])


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

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        if message.id == "m1":
            raise error

    @consumer(backoff=Fixed(60))
    async def async_handler(message: Message) -> None:
        if message.id == "m1":
            await how(error())

    return handler if how is None else async_handler


ENDS = [None, _raise, _raise_in_task]


@pytest.mark.parametrize(
    ("error", "how"),
    [
        *((error, how) for error in (SystemExit, KeyboardInterrupt) for how in (*ENDS, _raise_in_group)),
        *((error, how) for error in (BatchEnd, asyncio.CancelledError) for how in ENDS),
    ],
    ids=lambda value: getattr(value, "__name__", "sync"),
)
def test_an_exit_fails_its_message_and_releases_those_behind_it(error: Any, how: Any, caplog: Caplog) -> None:
    """SPEC A5, A6, L2. A cancellation releases none. The next invocation runs."""
    handler = _ending(error, how)
    released = [] if error is asyncio.CancelledError else ["m2", "m3"]
    reported, wire = settle(handler, batch_of(4))
    assert (reported, waits(wire)) == (["m1", *released], {"m1": 60, **dict.fromkeys(released, 0)})
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type").rpartition(".")[2] == error.__name__
    assert not lines(caplog, "runtime_failed")
    assert settle(handler, batch_of(1), wire)[0] == []


def test_a_message_whose_task_ended_the_batch_has_failed_although_its_handler_suppresses_the_error() -> None:  # SPEC A5
    @consumer(backoff=Fixed(60))
    async def handler(message: Message) -> None:
        try:
            await asyncio.create_task(_raise(SystemExit(1)))
        except BaseException:  # noqa: BLE001
            return

    reported, wire = settle(handler, batch_of(2))
    assert (reported, waits(wire)) == (["m0", "m1"], {"m0": 60, "m1": 0})


def test_a_verdict_given_before_an_exit_holds() -> None:  # SPEC A5, B5
    @consumer
    def handler(message: Message) -> None:
        message.ack()
        raise SystemExit

    @batch_consumer(backoff=Fixed(60))
    def batch_handler(batch: Batch) -> None:
        batch[1].ack()
        raise SystemExit

    reported, wire = settle(handler, batch_of(2))
    assert (reported, waits(wire)) == (["m1"], {"m1": 0})
    reported, wire = settle(batch_handler, batch_of(3))
    assert (reported, waits(wire)) == (["m0", "m2"], {"m0": 60, "m2": 60})


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
    wire, answers = orders(), dict[str, list[str]]()

    def invoke(*bodies: str) -> None:
        with use(wire.world):
            batch = event(*(record(body, f"m{index}") for index, body in enumerate(bodies)))
            answers[bodies[0]] = failed(handler(batch, Context()))

    sides = ("bad", "good", "bad"), ("good", "bad", "good")
    threads = [threading.Thread(target=invoke, args=bodies) for bodies in sides]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert answers == {"bad": ["m0", "m2"], "good": ["m1"]}


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

    wire = orders()
    assert [settle(handler, event(record(body)), wire)[0] for body in ("bad", "bad", "good")] == [["m1"], ["m1"], []]
    assert wire.sent_entries() == []
    assert [len(request.entries) for request in wire.sent("ChangeMessageVisibilityBatch")] == [1, 1]


def test_a_consumer_can_be_called_in_an_event_loop_and_by_the_handler_of_another_consumer() -> None:
    """SPEC A4, A5, A6. An exit ends the batch and not the loop; one that is made beside it is closed."""
    inner_runs, loops = list[str](), list[asyncio.AbstractEventLoop]()

    @consumer
    async def inner(message: Message) -> None:
        await asyncio.sleep(0)
        inner_runs.append(message.id)
        loops.append(asyncio.get_running_loop())

    @consumer
    async def outer(message: Message) -> None:
        assert inner(event(record("{}", f"of-{message.id}")), message.context) == DONE

    async def main() -> list[list[str]]:
        handlers = [consumer(AsyncHandlers([])), _ending(SystemExit, _raise_in_task), consumer(failing_on()), outer]
        return [failed(handler(batch_of(3), Context())) for handler in handlers]

    with orders():
        assert asyncio.run(main()) == [["m1"], ["m1", "m2"], [], []]
        assert outer(batch_of(1), Context()) == DONE
    assert inner_runs == ["of-m0", "of-m1", "of-m2", "of-m0"]
    assert all(loop.is_closed() for loop in loops)


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
        assert leaves_a_task(batch_of(1), Context()) == other(batch_of(3), Context()) == DONE
    assert tasks[0].done()
