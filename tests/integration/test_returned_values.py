"""Return values of handlers: a verdict, a partial batch response, or a value without a meaning."""

import json
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
    Reject,
    Retry,
    batch_consumer,
    consumer,
)
from tarry.record.attribute import body_sum
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire


def orders(queue: str = "orders") -> Wire:
    dead = queue.replace("orders", "orders-dlq")
    return Wire(queues={queue: Queue(dead_letter=dead), dead: Queue()})


def returning(value: Callable[[], Any], way: str, make: Any = consumer, **settings: Any) -> Consumer[Any]:
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
    made: Consumer[Any] = make(**{"backoff": Fixed(60), **settings})(function)
    return made


WAYS = pytest.mark.parametrize("way", ["sync", "async", "awaitable", "nested"])


# verdicts


@WAYS
def test_a_returned_verdict_or_error_counts_like_a_raised_one(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A4, A5, B2, L2
    def result(verdict: BaseException, **settings: Any) -> tuple[list[str], dict[str, int], list[str]]:
        with orders() as wire:
            response = returning(lambda: verdict, way, **settings)(batch_of(2), Context())
        reasons = [each["failure"]["reason"] for each in wire.envelopes() if "failure" in each]
        delays = {entry["ReceiptHandle"][-2:]: entry["VisibilityTimeout"] for request in
                  wire.sent("ChangeMessageVisibilityBatch") for entry in request.entries}  # fmt: skip
        return failed(response), delays, reasons

    assert result(Retry(30)) == (["m0", "m1"], {"m0": 30, "m1": 30}, [])
    assert result(Reject("declined")) == ([], {}, ["rejected"] * 2)
    assert result(Discard()) == ([], {}, [])
    assert result(ValueError("no stock")) == (["m0", "m1"], {"m0": 60, "m1": 60}, [])
    assert field(lines(caplog, "waiting_retry")[-1], "error") == "ValueError: no stock"
    assert result(ValueError("no stock"), fatal=ValueError) == ([], {}, ["fatal"] * 2)
    assert result(SystemExit(1)) == (["m0", "m1"], {"m0": 60, "m1": 0}, [])  # it ends the batch
    with orders() as wire:
        assert failed(returning(lambda: Defer(50), way)(event(record()), Context())) == []
    assert [entry["DelaySeconds"] for entry in wire.sent_entries()] == [50]


def test_a_verdict_given_on_the_message_overrides_a_returned_one() -> None:  # SPEC A4, B5
    with orders() as wire:
        assert failed(consumer(lambda message: message.ack() or Retry(30))(event(record()), Context())) == []
        handler = batch_consumer(lambda batch: batch[0].ack() or Retry(30))
        assert failed(handler(batch_of(3), Context())) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 30, "handle-m2": 30}


def test_a_returned_batch_error_counts_like_a_raised_one() -> None:  # SPEC A4, B5
    with orders() as wire:
        handler = batch_consumer(backoff=Fixed(60))(lambda _: BatchError(index=1))
        assert failed(handler(batch_of(3), Context())) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 0}


# partial batch responses


def response_with(*ids: Any) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": each} for each in ids]}


def answering(value: Any, way: str = "sync", **settings: Any) -> Consumer[Any]:
    return returning(lambda: value, way, batch_consumer, **settings)


@WAYS
def test_a_batch_handler_fails_the_messages_that_its_response_lists(way: str) -> None:  # SPEC A4
    with orders() as wire:
        assert failed(answering(response_with("m3", "m1", "m3"), way)(batch_of(5), Context())) == ["m1", "m3"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m3": 60}


def test_a_returned_response_may_list_a_message_by_its_stable_id() -> None:  # SPEC A4, K3
    text = json.dumps({"v": 1, "sum": body_sum("{}"), "id": "stable", "carried": 2})
    copy = record(attributes={"Tarry": {"stringValue": text, "dataType": "String"}})
    with orders():
        assert failed(answering(response_with("stable"))(event(record(message_id="m0"), copy), Context())) == ["m1"]


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


def test_on_fifo_the_first_listed_message_of_each_group_has_failed_and_those_behind_it_are_released() -> None:
    listed = response_with("m1", "m2", "m3")  # SPEC A4, H1
    with orders("orders.fifo") as wire:
        response = answering(listed)(fifo("a", "a", "b", "a", "b"), Context())
    assert failed(response) == ["m1", "m2", "m3", "m4"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 60, "handle-m3": 0, "handle-m4": 0}
    with orders("orders.fifo") as wire:
        response = answering(listed, max_attempts=1)(fifo("a", "a", "b", "a", "b"), Context())
    assert failed(response) == ["m3"]
    assert [dead_letter["MessageBody"] for dead_letter in wire.sent_entries()] == ["1", "2"]
    assert wire.visibilities() == {"handle-m3": 0}


@pytest.mark.parametrize(
    "value",
    [
        *(response_with("m0", odd) for odd in ("unknown", "", None, 7)),
        *({"batchItemFailures": odd} for odd in ([{}], ["m0"], [None], "m0", {"itemIdentifier": "m0"}, 1)),
    ],
    ids=repr,
)
def test_a_response_that_lambda_would_refuse_fails_all_messages_without_a_verdict(value: Any) -> None:  # SPEC A4
    with orders() as wire:
        handler = batch_consumer(backoff=Fixed(60))(lambda batch: batch[1].ack() or value)
        assert failed(handler(batch_of(3), Context())) == ["m0", "m2"]
    assert wire.visibilities() == {"handle-m0": 60, "handle-m2": 60}


@pytest.mark.parametrize(
    "value", [response_with(), {"batchItemFailures": None}, {}, {"failures": ["m0"]}, None], ids=repr
)
def test_a_response_that_lists_no_message_acknowledges_all(value: Any) -> None:  # SPEC A4
    with orders():
        assert failed(answering(value)(batch_of(3), Context())) == []


@WAYS
def test_a_response_returned_by_a_handler_of_one_message_fails_the_message(way: str) -> None:  # SPEC A4
    for value in (response_with("m0"), response_with("unknown"), {"batchItemFailures": ["x"]}):
        with orders() as wire:
            assert failed(returning(lambda value=value: value, way)(event(record()), Context())) == ["m1"]
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


def acknowledging(*ids: str, then: Any = None) -> Callable[[Batch], Any]:
    def handler(batch: Batch) -> Any:
        for message in batch:
            if message.delivery_id in ids:
                message.ack()
        return then

    return handler


async def says_nothing(batch: Batch) -> None: ...


@pytest.mark.parametrize(
    ("handle", "reported"),
    [
        (acknowledging("m0", "m2"), ["m1", "m3"]),
        (says_nothing, ["m0", "m1", "m2", "m3"]),
        (lambda batch: batch.ack_all(), []),
        (acknowledging("m0", "m1", "m2", "m3"), []),
        (lambda _: BatchError(index=2), ["m2", "m3"]),  # those before it are acknowledged
        (acknowledging("m0", then=response_with("m1")), ["m1", "m2", "m3"]),
    ],
)
def test_with_unsaid_fail_messages_without_a_verdict_fail(handle: Any, reported: list[str]) -> None:  # SPEC A4, B5, B8
    with orders() as wire:
        assert failed(batch_consumer(unsaid="fail", backoff=Fixed(60))(handle)(batch_of(4), Context())) == reported
    assert {*wire.visibilities()} == {f"handle-{name}" for name in reported}


@pytest.mark.parametrize("settings", [{}, {"unsaid": "ack"}])
def test_by_default_messages_without_a_verdict_are_acknowledged(settings: Any) -> None:  # SPEC B1, B8
    with orders():
        assert failed(batch_consumer(**settings)(acknowledging("m0"))(batch_of(3), Context())) == []


def test_with_unsaid_fail_messages_behind_a_failed_one_of_their_group_are_released() -> None:  # SPEC B8, H2
    with orders("orders.fifo") as wire:
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
