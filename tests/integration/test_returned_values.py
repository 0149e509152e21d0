"""Return values of handlers: a verdict, a partial batch response, or a value without a meaning."""

from collections.abc import Callable
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
    Message,
    Reject,
    Retry,
    batch_consumer,
    consumer,
)
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire


def orders(queue: str = "orders") -> Wire:
    dead = queue.replace("orders", "orders-dlq")
    return Wire(queues={queue: Queue(dead_letter=dead), dead: Queue()})


def returning(value: Callable[[], Any], way: str, **settings: Any) -> Consumer[Any]:
    async def coroutine(_: Any) -> Any:
        return value()

    async def nested(_: Any) -> Any:
        return coroutine(None)

    function: Any = {
        "sync": lambda _: value(),
        "async": coroutine,
        "awaitable": lambda _: coroutine(None),
        "nested": nested,
    }[way]
    return consumer(**settings)(function)


WAYS = ["sync", "async", "awaitable", "nested"]


# verdicts


@pytest.mark.parametrize("way", WAYS)
def test_a_returned_verdict_counts_like_a_raised_one(way: str) -> None:  # SPEC A4
    def result(verdict: BaseException, **settings: Any) -> tuple[list[str], dict[str, int], list[str]]:
        with orders() as wire:
            response = returning(lambda: verdict, way, **settings)(event(record()), Context())
        reasons = [each["failure"]["reason"] for each in wire.envelopes()]
        return failed(response), wire.visibilities(), reasons

    assert result(Retry(30)) == (["m1"], {"handle-m1": 30}, [])
    assert result(Reject("declined")) == ([], {}, ["rejected"])
    assert result(Discard()) == ([], {}, [])
    assert result(ValueError("no stock"), backoff=Fixed(60)) == (["m1"], {"handle-m1": 60}, [])
    assert result(ValueError("no stock"), fatal=ValueError) == ([], {}, ["fatal"])


def test_a_returned_deferral_uses_no_attempt() -> None:  # SPEC A4, B2
    with orders() as wire:
        assert failed(consumer(lambda _: Defer(60))(event(record()), Context())) == []
    [sent] = wire.sent("SendMessageBatch")
    assert sent.entries[0]["DelaySeconds"] == 60


def test_a_returned_error_is_logged_like_a_raised_one(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A4, L2
    with orders():
        consumer(lambda _: ValueError("no stock"))(event(record()), Context())
    assert field(lines(caplog, "waiting_retry")[0], "error") == "ValueError: no stock"


def test_a_verdict_given_on_the_message_overrides_a_returned_one() -> None:  # SPEC A4, B5
    @consumer
    def handler(message: Message) -> Retry:
        message.ack()
        return Retry(30)

    with orders() as wire:
        assert failed(handler(event(record()), Context())) == []
    assert wire.visibilities() == {}


def test_a_verdict_that_a_batch_handler_returns_applies_to_each_message_without_a_verdict() -> None:  # SPEC A4, B5
    @batch_consumer
    def handler(batch: Batch) -> Retry:
        batch[0].ack()
        return Retry(30)

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 30, "handle-m2": 30}


def test_a_returned_batch_error_counts_like_a_raised_one() -> None:  # SPEC A4, B5
    with orders() as wire:
        handler = batch_consumer(backoff=Fixed(60))(lambda _: BatchError(index=1))
        assert failed(handler(batch_of(3), Context())) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 0}


@pytest.mark.parametrize("way", WAYS)
def test_a_returned_system_exit_ends_the_batch(way: str) -> None:  # SPEC A4, A5
    with orders() as wire:
        response = returning(lambda: SystemExit(1), way, backoff=Fixed(60))(batch_of(3), Context())
    assert failed(response) == ["m0", "m1", "m2"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m1": 0, "handle-m2": 0}


# partial batch responses


def response_with(*ids: Any) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": each} for each in ids]}


def answering(value: Any, way: str = "sync", **settings: Any) -> Consumer[Any]:
    async def coroutine(_: Batch) -> Any:
        return value

    functions: dict[str, Any] = {
        "sync": lambda _: value,
        "async": coroutine,
        "awaitable": lambda batch: [coroutine(batch)][0],
    }
    made: Consumer[Any] = batch_consumer(**{"backoff": Fixed(60), **settings})(functions[way])
    return made


@pytest.mark.parametrize("way", ["sync", "async", "awaitable"])
def test_a_batch_handler_fails_the_messages_that_its_response_lists(way: str) -> None:  # SPEC A4
    with orders() as wire:
        assert failed(answering(response_with("m3", "m1", "m3"), way)(batch_of(5), Context())) == ["m1", "m3"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m3": 60}


def test_a_returned_response_may_list_a_message_by_its_stable_id() -> None:  # SPEC A4, K3
    from tarry.record.attribute import body_sum, dump
    from tests.records import record as plain

    envelope = {"v": 1, "sum": body_sum("{}"), "id": "stable", "carried": 2}
    copy = plain(message_id="m1", attributes={"Tarry": {"stringValue": dump(envelope), "dataType": "String"}})
    with orders():
        assert failed(answering(response_with("stable"))(event(plain(message_id="m0"), copy), Context())) == ["m1"]


def test_a_listed_message_is_dead_lettered_at_its_last_attempt() -> None:  # SPEC A4, C8
    with orders() as wire:
        assert failed(answering(response_with("m1"), max_attempts=1, backoff=None)(batch_of(3), Context())) == []
    [envelope] = wire.envelopes()
    assert (envelope["failure"]["reason"], envelope["failure"]["type"]) == ("exhausted", "tarry.UnexplainedFailure")


@pytest.mark.parametrize("settings", [{"retry_on": KeyError}, {"fatal": ValueError}])
def test_a_listed_message_is_retried_whatever_errors_are_fatal(settings: Any) -> None:  # SPEC A4, D1
    with orders():
        assert failed(answering(response_with("m1"), **settings)(batch_of(2), Context())) == ["m1"]


def test_a_verdict_overrides_the_returned_response() -> None:  # SPEC A4, B4, B5
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> Any:
        batch[0].ack()
        batch[1].retry(7)
        return response_with("m0", "m1", "m2")

    with orders() as wire:
        assert failed(handler(batch_of(4), Context())) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 7, "handle-m2": 60}


def fifo(*groups: str) -> dict[str, Any]:
    return event(*(record(index, f"m{index}", "orders.fifo", group=group) for index, group in enumerate(groups)))


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_on_fifo_the_first_listed_message_of_each_group_has_failed_and_those_behind_it_are_released(
    max_attempts: int,
) -> None:  # SPEC A4, H1
    with orders("orders.fifo") as wire:
        handler = answering(response_with("m1", "m2", "m3"), max_attempts=max_attempts)
        response = handler(fifo("a", "a", "b", "a", "b"), Context())
    if max_attempts == 5:
        assert failed(response) == ["m1", "m2", "m3", "m4"]
        assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 60, "handle-m3": 0, "handle-m4": 0}
    else:
        assert failed(response) == ["m3"]
        assert [dead_letter["MessageBody"] for dead_letter in wire.sent_entries()] == ["1", "2"]
        assert wire.visibilities() == {"handle-m3": 0}


REJECTED = [
    response_with("m0", "unknown"),
    response_with("m0", ""),
    response_with("m0", None),
    response_with("m0", 7),
    {"batchItemFailures": [{}]},
    {"batchItemFailures": ["m0"]},
    {"batchItemFailures": [None]},
    {"batchItemFailures": "m0"},
    {"batchItemFailures": {"itemIdentifier": "m0"}},
    {"batchItemFailures": 1},
]


@pytest.mark.parametrize("value", REJECTED, ids=repr)
def test_a_response_that_lambda_would_refuse_fails_all_messages_without_a_verdict(value: Any) -> None:  # SPEC A4
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> Any:
        batch[1].ack()
        return value

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m0", "m2"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m2": 60}


@pytest.mark.parametrize(
    "value", [response_with(), {"batchItemFailures": None}, {}, {"failures": ["m0"]}, None], ids=repr
)
def test_a_response_that_lists_no_message_acknowledges_all(value: Any) -> None:  # SPEC A4
    with orders():
        assert failed(answering(value)(batch_of(3), Context())) == []


@pytest.mark.parametrize(
    "value", [response_with("m0"), response_with("unknown"), {"batchItemFailures": ["x"]}], ids=repr
)
@pytest.mark.parametrize("way", WAYS)
def test_a_response_returned_by_a_handler_of_one_message_fails_the_message(way: str, value: Any) -> None:  # SPEC A4
    with orders() as wire:
        assert failed(returning(lambda: value, way, backoff=Fixed(60))(event(record()), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}


class RefusingDict(dict[str, Any]):
    def get(self, *_: object) -> Any:
        raise KeyError

    def __bool__(self) -> bool:
        raise KeyError


def test_a_response_of_a_hostile_dict_class_is_read_like_a_plain_dict() -> None:  # SPEC A4, A2
    with orders():
        assert failed(answering(RefusingDict(response_with("m1")))(batch_of(3), Context())) == ["m1"]


# unsaid=


def acknowledging(*ids: str) -> Callable[[Batch], None]:
    def handler(batch: Batch) -> None:
        for message in batch:
            if message.delivery_id in ids:
                message.ack()

    return handler


def test_with_unsaid_fail_messages_without_a_verdict_fail() -> None:  # SPEC B8
    with orders() as wire:
        handler = batch_consumer(unsaid="fail", backoff=Fixed(60))(acknowledging("m0", "m2"))
        assert failed(handler(batch_of(4), Context())) == ["m1", "m3"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m3": 60}


@pytest.mark.parametrize("settings", [{}, {"unsaid": "ack"}])
def test_by_default_messages_without_a_verdict_are_acknowledged(settings: Any) -> None:  # SPEC B1, B8
    with orders():
        assert failed(batch_consumer(**settings)(acknowledging("m0"))(batch_of(3), Context())) == []


def test_with_unsaid_fail_an_async_batch_handler_without_verdicts_fails_all_messages() -> None:  # SPEC B8
    @batch_consumer(unsaid="fail", backoff=Fixed(60))
    async def handler(batch: Batch) -> None:
        return None

    with orders():
        assert failed(handler(batch_of(3), Context())) == ["m0", "m1", "m2"]


@pytest.mark.parametrize("ack_each", [Batch.ack_all, lambda batch: [message.ack() for message in batch]])
def test_with_unsaid_fail_explicitly_acknowledged_messages_are_done(ack_each: Any) -> None:  # SPEC B8
    with orders() as wire:
        handler = batch_consumer(unsaid="fail")(lambda batch: ack_each(batch) and None)
        assert failed(handler(batch_of(3), Context())) == []
    assert wire.requests == []


def test_with_unsaid_fail_a_batch_error_acknowledges_the_messages_before_it() -> None:  # SPEC B8, B5
    @batch_consumer(unsaid="fail", backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        raise BatchError(index=1)

    with orders():
        assert failed(handler(batch_of(3), Context())) == ["m1", "m2"]


def test_with_unsaid_fail_messages_that_the_response_does_not_list_fail() -> None:  # SPEC A4, B8
    @batch_consumer(unsaid="fail", backoff=Fixed(60))
    def handler(batch: Batch) -> Any:
        batch[0].ack()
        return response_with("m1")

    with orders():
        assert failed(handler(batch_of(3), Context())) == ["m1", "m2"]


def test_with_unsaid_fail_messages_behind_a_failed_one_of_their_group_are_released(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with orders("orders.fifo") as wire:  # SPEC B8, H2
        handler = batch_consumer(unsaid="fail", backoff=Fixed(60))(acknowledging("m0"))
        assert failed(handler(fifo("a", "a", "a", "b"), Context())) == ["m1", "m2", "m3"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 0, "handle-m3": 60}


def test_unsaid_is_refused_for_a_handler_of_one_message() -> None:  # SPEC B8
    with pytest.raises(ConfigurationError, match="unsaid='fail' is for @batch_consumer"):
        consumer(unsaid="fail")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="is for @batch_consumer"):
        consumer(lambda _: None).replace(unsaid="ack")


@pytest.mark.parametrize("value", ["nack", "", None, True, 1])
def test_an_unknown_value_of_unsaid_is_refused(value: Any) -> None:  # SPEC B8
    with pytest.raises(ConfigurationError, match='unsaid takes "ack" or "fail", got'):
        batch_consumer(unsaid=value)
