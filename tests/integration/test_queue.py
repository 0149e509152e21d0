"""`Queue`: its requests to SQS."""

import gc
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count, pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, ReadTimeoutError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tarry import ConfigurationError, DelayNotSupported, Message, Queue, SendError, consumer
from tarry.sqs.queue import Behind
from tarry.sqs.refusals import MAYBE_APPLIED, MAYBE_SENT
from tarry.testing import Sandbox
from tests.records import Context, event, record
from tests.wire import Request, Wire, arn, client_error, url

MIB = 1_048_576
ORDERS = url("orders")
LEDGER = url("ledger.fifo")
UNAVAILABLE = ("ServiceUnavailable", "try again")
INVALID = ("InvalidMessageContents", "odd")


def bodies(wire: Wire) -> list[str]:
    """Return the accepted bodies in order."""
    return [entry["MessageBody"] for _, entry in wire.accepted]


def refusing(*texts: str, times: int = 1, refusal: tuple[str, str] = UNAVAILABLE) -> Wire:
    """Return a wire that refuses each of these bodies ``times`` times."""
    left = dict.fromkeys(texts, times)

    def refuse(_: Request, entry: dict[str, Any]) -> tuple[str, str] | None:
        body = entry["MessageBody"]
        if left.get(body, 0) > 0:
            left[body] -= 1
            return refusal
        return None

    return Wire(refuses={"SendMessageBatch": refuse})


def string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


# the queue


def test_a_name_is_looked_up_once_in_each_world_an_arn_in_its_account_and_a_url_never() -> None:  # SPEC J1, A6
    """A `Queue` of a module also works in a sandbox, which is another world."""
    queue = Queue("orders")
    for _ in range(2):
        with Wire() as wire:
            queue.send("a")
            queue.send("b")
            queue.send_batch(["c"])
        assert wire.operations == ["GetQueueUrl", "SendMessage", "SendMessage", "SendMessageBatch"]
        assert {request.parameters["QueueUrl"] for request in wire.requests[1:]} == {ORDERS}
    with Wire() as wire:
        Queue(arn("orders")).send("a")
        Queue(ORDERS).send("a")
    assert wire.operations == ["GetQueueUrl", "SendMessage", "SendMessage"]
    assert wire.requests[0].parameters == {"QueueName": "orders", "QueueOwnerAWSAccountId": "123456789012"}
    del wire
    gc.collect()
    assert len(queue._urls) == 0  # it keeps no world alive


def test_a_queue_uses_the_client_that_the_user_passes() -> None:  # SPEC J1
    own = Wire()
    with Wire() as wire:
        Queue("orders", sqs=own._client()).send_batch(["a"])
    assert wire.requests == []
    assert own.operations == ["GetQueueUrl", "SendMessageBatch"]
    assert repr(Queue("orders", sqs=boto3.client("sqs", region_name="us-east-1"))) == "Queue('orders')"


def test_a_send_to_a_queue_that_does_not_exist_raises_the_error_of_sqs() -> None:  # SPEC J6
    with Wire(fails={"GetQueueUrl": client_error("QueueDoesNotExist")}) as wire:
        for send in (lambda: Queue("ordesr").send("a"), lambda: Queue("ordesr").send_batch(["a"])):
            with pytest.raises(ClientError, match="QueueDoesNotExist"):
                send()
    assert set(wire.operations) == {"GetQueueUrl"}


@pytest.mark.parametrize("queue", [None, "", 5, "arn:aws:sns:us-east-1:1:x", "https://", "a/b"], ids=repr)
def test_an_invalid_queue_is_refused_when_the_object_is_made(queue: Any) -> None:  # SPEC J1
    with pytest.raises(ConfigurationError, match=r"a queue's name, URL or ARN|is not the (ARN|URL) of an SQS queue"):
        Queue(queue)


def test_making_a_queue_loads_no_heavy_modules() -> None:  # DESIGN 5
    script = "import sys; from tarry import Queue; Queue('orders'); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    heavy = {"boto3", "botocore", "asyncio", "pydantic", "dataclasses", "logging", "uuid", "concurrent.futures"}
    assert heavy.isdisjoint(result.stdout.split())


# one message


def test_a_send_has_the_arguments_that_are_given_and_returns_the_message_id_of_sqs() -> None:  # SPEC J1, J3
    with Wire() as wire:
        assert Queue(ORDERS).send({"id": 1}, delay=60, attributes={"tenant": "acme"}, group_id="t1") == "sent-1"
        Queue(ORDERS).send("a")
    everything, least = (request.parameters for request in wire.requests)
    assert everything == {
        "QueueUrl": ORDERS,
        "MessageBody": '{"id":1}',
        "DelaySeconds": 60,
        "MessageAttributes": {"tenant": string("acme")},
        "MessageGroupId": "t1",
    }
    assert least == {"QueueUrl": ORDERS, "MessageBody": "a"}


def test_send_returns_the_stable_id_of_a_message_with_a_tarry_attribute() -> None:  # SPEC K3, J3, J4
    """The random source of the world makes it."""
    sent, seen = [], list[str]()
    for _ in range(2):
        with Wire(random=Random(7)) as wire:
            sent.append(Queue(ORDERS, delay=3_600).send("a"))
            assert wire.requests[0].parameters["DelaySeconds"] == 900
            attribute = wire.requests[0].parameters["MessageAttributes"]["Tarry"]
            delivered = {"Tarry": {"stringValue": attribute["StringValue"], "dataType": "String"}}
            wire.clock.now += 3_600
            consumer(lambda message: seen.append(message.id))(
                event(record("a", receives=2, attributes=delivered)), Context()
            )
    assert seen == sent
    assert sent[0] == sent[1]


def test_attributes_of_a_received_message_can_be_copied() -> None:  # SPEC K1
    received = {
        "tenant": {"dataType": "String", "stringValue": "acme"},
        "count": {"dataType": "Number.int", "stringValue": "7"},
        "price": {"dataType": "Number", "stringValue": "1.50"},
        "raw": {"dataType": "Binary", "binaryValue": "/wA="},
    }

    @consumer
    def handler(message: Message) -> None:
        Queue(ORDERS).send(message.body, attributes=message.attributes)

    with Wire() as wire:
        assert handler(event(record(attributes=received)), Context()) == {"batchItemFailures": []}
    assert wire.requests[0].parameters["MessageAttributes"] == {
        "tenant": string("acme"),
        "count": {"DataType": "Number", "StringValue": "7"},
        "price": {"DataType": "Number", "StringValue": str(Decimal("1.50"))},
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
    }


@pytest.mark.parametrize(
    "error", [client_error("AccessDenied"), client_error("RequestThrottled"), TimeoutError("no answer")], ids=repr
)
def test_an_error_of_sqs_is_raised_by_send(error: Exception) -> None:  # SPEC J6
    with Wire(fails={"SendMessage": error}), pytest.raises(type(error)) as raised:
        Queue(ORDERS).send("a")
    assert raised.value is error


@pytest.mark.parametrize(
    "damaged",
    [{"MD5OfMessageBody": "0" * 32}, {"MD5OfMessageBody": None}, {"MessageId": ""}, None],
    ids=["another MD5", "no MD5", "no id", "not in the answer"],
)
def test_a_message_that_the_answer_does_not_confirm_raises_an_error_and_is_not_repeated(
    damaged: dict[str, Any] | None,
) -> None:  # SPEC J1, J6, E6
    def receipt(entry: dict[str, Any], receipt: dict[str, Any]) -> dict[str, Any] | None:
        return receipt if entry["MessageBody"] != "1" else damaged and {**receipt, **damaged}

    with Wire(receipts=receipt) as wire, pytest.raises(SendError, match="message 0: SQS") as raised:
        Queue(LEDGER).send("1", group_id="g")
    [unsent] = raised.value.failed
    assert unsent.message == "1"
    assert unsent.entry.deduplication_id == wire.requests[0].parameters["MessageDeduplicationId"]
    with Wire(receipts=receipt) as wire, pytest.raises(SendError, match="message 1: SQS answered with") as raised:
        Queue(ORDERS).send_batch(["0", "1", "2"])
    assert [message_id is None for message_id in raised.value.message_ids] == [False, True, False]
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"body": "x" * (MIB + 1)}, ValueError),
        ({"body": None}, TypeError),
        ({"body": "a", "attributes": {"": 1}}, ValueError),
        ({"body": "a", "delay": 43_201}, DelayNotSupported),
        ({"body": "a", "delay": -1}, ValueError),
        ({"body": "a", "deduplication_id": "x"}, ValueError),
    ],
)
def test_an_invalid_message_makes_no_request(arguments: Any, error: type[Exception]) -> None:  # SPEC J2, J4
    with Wire() as wire, pytest.raises(error):
        Queue("orders").send(**arguments)
    assert wire.requests == []


# the delay


@pytest.mark.parametrize(
    ("default", "explicit", "seconds"),
    [(60, None, 60), (60, 0, 0), (60, 5, 5), (0, None, 0), (0, 5, 5), (None, None, None), (None, 0, 0), (1.2, None, 2)],
)
def test_the_delay_of_a_send_overrides_that_of_the_queue_even_if_it_is_0(
    default: Any, explicit: Any, seconds: Any
) -> None:  # SPEC J3
    queue = Queue(ORDERS, delay=default)
    with Wire() as wire:
        queue.send("a", delay=explicit)
        queue.send_batch(["a"], delay=explicit)
    assert [entry.get("DelaySeconds") for _, entry in wire.accepted] == [seconds, seconds]


def test_the_arguments_of_an_entry_override_those_of_the_batch_and_of_the_queue() -> None:  # SPEC J1, J3
    queue = Queue(ORDERS, delay=timedelta(minutes=1))
    own = queue.entry("b", delay=0, attributes={"tenant": "b", "mine": 1}, group_id="b")
    with Wire() as wire:
        queue.send_batch(["a", own], delay=5, attributes={"tenant": "all"}, group_id="all")
        queue.send_batch(["a", own, queue.entry("c")])
    (first, second), others = (request.entries for request in wire.requests)
    assert {**first, "Id": None} == {
        "Id": None,
        "MessageBody": "a",
        "DelaySeconds": 5,
        "MessageAttributes": {"tenant": string("all")},
        "MessageGroupId": "all",
    }
    assert (second["DelaySeconds"], second["MessageGroupId"]) == (0, "b")
    assert second["MessageAttributes"]["tenant"]["StringValue"] == "b"
    assert second["MessageAttributes"]["mine"]["StringValue"] == "1"
    assert [entry["DelaySeconds"] for entry in others] == [60, 0, 60]


def test_a_queue_shows_its_default_delay() -> None:  # SPEC J3
    assert Queue("orders", delay=timedelta(minutes=1)).delay == 60
    assert Queue("orders").delay is None
    assert repr(Queue("orders", delay=60)) == "Queue('orders', delay=60)"


@pytest.mark.parametrize(("queue", "delay"), [("orders", 43_201), ("orders.fifo", 5), ("orders.fifo", 0)])
def test_a_default_that_sqs_cannot_keep_is_refused_when_the_queue_is_made(queue: str, delay: int) -> None:  # SPEC J3
    with pytest.raises(DelayNotSupported):
        Queue(queue, delay=delay)


@pytest.mark.parametrize("delay", [-1, float("nan"), "60", True, [60], datetime.now(UTC)])
def test_an_invalid_default_is_refused_with_its_value(delay: Any) -> None:  # SPEC J3, C5
    text = "the delay of a Queue: a delay |the delay of a Queue is a number of seconds or a timedelta"
    with pytest.raises(ConfigurationError, match=text) as caught:
        Queue("orders", delay=delay)
    assert repr(delay) in str(caught.value)


# many messages


def test_many_messages_are_sent_in_tens_and_their_ids_are_in_the_order_of_the_messages() -> None:  # SPEC J1
    def receipt(entry: dict[str, Any], receipt: dict[str, Any]) -> dict[str, Any]:
        return {**receipt, "MessageId": f"id of {entry['MessageBody']}"}

    with Wire(receipts=receipt) as wire:
        ids = Queue(ORDERS).send_batch(str(number) for number in range(1_005))
    assert len(wire.requests) == 101
    assert ids == [f"id of {number}" for number in range(1_005)]
    assert sorted(bodies(wire), key=int) == [str(number) for number in range(1_005)]


@pytest.mark.parametrize("queue", [ORDERS, LEDGER], ids=["standard", "groups"])
def test_several_requests_are_sent_concurrently(queue: str) -> None:  # SPEC J1
    barrier = threading.Barrier(3)

    def meet(_: Request) -> None:
        barrier.wait(timeout=60)

    groups = [None if queue == ORDERS else f"g{number // 10}" for number in range(30)]
    with Wire(fails={"SendMessageBatch": meet}):
        Queue(queue).send_batch(Queue.entry(str(number), group_id=group) for number, group in enumerate(groups))
    assert not barrier.broken


def test_messages_are_read_only_as_fast_as_they_are_sent() -> None:  # SPEC J1
    read = furthest = 0

    def numbers() -> Iterator[str]:
        nonlocal read
        for number in range(1_000):
            read += 1
            yield str(number)

    def measure(_: Request) -> None:
        nonlocal furthest
        furthest = max(furthest, read - len(wire.accepted))

    with Wire(fails={"SendMessageBatch": measure}) as wire:
        Queue(ORDERS).send_batch(numbers())
    assert furthest <= 150  # ten requests in progress, and the next one


def test_messages_are_read_in_the_callers_thread() -> None:  # SPEC J1
    """A cursor of sqlite3 works only in its own thread."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE orders (id TEXT)")
    database.executemany("INSERT INTO orders VALUES (?)", [(str(number),) for number in range(55)])
    with Wire() as wire:
        Queue(ORDERS).send_batch(row for (row,) in database.execute("SELECT id FROM orders"))
    assert len(wire.accepted) == 55


@pytest.mark.parametrize("messages", ["abc", b"abc", {"id": 1}, 5], ids=repr)
def test_a_single_body_in_place_of_a_list_is_refused(messages: Any) -> None:  # SPEC J1
    with Wire() as wire, pytest.raises(TypeError):
        Queue(ORDERS).send_batch(messages)
    assert wire.requests == []


@pytest.mark.parametrize(
    ("queue", "batch_settings", "error"),
    [
        (ORDERS, {"delay": 43_201}, DelayNotSupported),
        (LEDGER, {"delay": 1, "group_id": "a"}, DelayNotSupported),
        (ORDERS, {"attributes": {"a b": 1}}, ValueError),
        (ORDERS, {"attributes": {"a": None}}, TypeError),
    ],
)
def test_settings_of_the_whole_batch_are_checked_before_a_message_is_read(
    queue: str, batch_settings: Any, error: type[Exception]
) -> None:  # SPEC J2, J4
    messages = iter(["a"])
    with Wire() as wire, pytest.raises(error):
        Queue(queue).send_batch(messages, **batch_settings)
    assert wire.requests == []
    assert next(messages) == "a"


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (None, "a body is a str"),
        ("", "the body is empty"),
        ("x" * (MIB + 1), "1048577 bytes"),
        (Queue.entry("a", delay=43_201), "between 0 and 43200"),
        (Queue.entry("a", attributes={"a b": 1}), "single dots"),
        (Queue.entry("a", attributes=5), "not a mapping"),  # type: ignore[arg-type]
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_invalid_message_does_not_affect_the_others(odd: Any, text: str) -> None:  # SPEC J1, J2
    with Wire() as wire, pytest.raises(SendError, match=text) as raised:
        Queue(ORDERS).send_batch(["0", odd, "2"])
    [unsent] = raised.value.failed
    assert unsent.message is odd
    assert unsent.entry is None
    assert bodies(wire) == ["0", "2"]


def test_an_exception_of_the_iterable_is_raised_after_the_messages_before_it_are_sent() -> None:  # SPEC J6
    def numbers() -> Iterator[str]:
        yield from ["refused", ""]
        yield from map(str, range(32))
        raise OSError("the file ends here")

    with refusing("refused", refusal=INVALID) as wire, pytest.raises(OSError, match="the file ends here") as raised:
        Queue(ORDERS).send_batch(numbers())
    assert len(wire.accepted) == 32
    assert raised.value.__notes__ == ["of the 34 messages read before, 32 were sent to orders"]


# refused entries and requests


@pytest.mark.parametrize("refusal", [UNAVAILABLE, ("ThrottlingException", "slow down")], ids=lambda each: each[0])
def test_a_refused_entry_is_sent_again_after_growing_delays_on_the_clock_of_the_world(
    refusal: tuple[str, str],
) -> None:  # SPEC J1
    with refusing("3", "7", times=3, refusal=refusal) as wire:
        ids = Queue(ORDERS).send_batch(str(number) for number in range(10))
    assert [len(request.entries) for request in wire.requests] == [10, 2, 2, 2]
    assert len(ids) == 10
    assert sorted(bodies(wire)) == [str(number) for number in range(10)]
    assert 2.1 <= wire.clock.now - 1_800_000_000 <= 4.2


@pytest.mark.parametrize(("refusal", "tries"), [(UNAVAILABLE, 4), (INVALID, 1)])
def test_a_message_that_is_not_sent_is_reported_with_its_reason(refusal: tuple[str, str], tries: int) -> None:
    reason = ": ".join(refusal)  # SPEC J1
    with refusing("1", times=99, refusal=refusal) as wire, pytest.raises(SendError) as raised:
        Queue(ORDERS).send_batch(["0", "1", "2"])
    [unsent] = raised.value.failed
    assert (unsent.index, unsent.message, str(unsent.reason)) == (1, "1", reason)
    assert str(raised.value) == f"1 of 3 messages were not sent: message 1: {reason}"
    assert [message_id is None for message_id in raised.value.message_ids] == [False, True, False]
    assert len(wire.requests) == tries


def failing(*errors: Exception) -> Wire:
    """Return a wire whose first sends fail with these errors, one each."""
    left = list(errors)
    return Wire(fails={"SendMessageBatch": lambda _: left.pop(0) if left else None})


@pytest.mark.parametrize("queue", [ORDERS, LEDGER])
def test_a_throttled_request_is_sent_again_after_three_waits_and_then_reported(queue: str) -> None:  # SPEC J1
    throttled = client_error("ThrottlingException", "slow down")
    with failing(throttled, throttled, throttled) as wire:
        began = wire.clock.now
        assert len(Queue(queue).send_batch(["0", "1"], group_id="a")) == 2
    assert bodies(wire) == ["0", "1"]
    assert 2.1 <= wire.clock.now - began <= 4.2
    with failing(*[throttled] * 9) as wire, pytest.raises(SendError, match="2 of 2 messages were not sent: message 0"):
        Queue(queue).send_batch(["0", "1"], group_id="a")
    assert len(wire.requests) == 4


def test_on_a_standard_queue_a_request_that_may_be_applied_is_not_sent_again() -> None:  # SPEC J1, J6
    answer: Any = client_error("ThrottlingException", "slow down")
    answer.response["ResponseMetadata"][MAYBE_APPLIED] = True  # the answer to an earlier try was lost
    with failing(answer) as wire, pytest.raises(SendError, match="not sent, or not for certain") as raised:
        Queue(ORDERS).send_batch(["0", "1"])
    assert len(wire.requests) == 1
    assert raised.value.failed[0].reason.__notes__ == [MAYBE_SENT]
    assert f"slow down ({MAYBE_SENT}); message 1" in str(raised.value)

    with failing(answer) as wire:
        assert len(Queue(LEDGER).send_batch(["0"], group_id="a")) == 1
    assert len(wire.requests) == 2


@pytest.mark.parametrize(("first", "may_be_there"), [("lost_answer", True), ("throttle", False)])
def test_the_error_of_a_send_says_if_the_message_may_be_in_the_queue(
    sandbox: Sandbox, first: str, *, may_be_there: bool
) -> None:  # SPEC J6
    errors: list[Exception] = []

    @consumer
    def handler(message: Message) -> None:
        for send in (Queue("bills").send, lambda body: Queue("bills").send_batch([body])):
            try:
                send(message.body)
            except Exception as error:  # noqa: BLE001 what is tested
                errors.append(error)

    for queue in ("orders", "bills"):
        sandbox.queue(queue, dead_letter=f"{queue}-dead")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "a")
    for operation in ("SendMessage", "SendMessageBatch"):
        for fault in (first, "denied"):
            sandbox.faults.add(fault, operation=operation, queue="bills")
    sandbox.run()
    one, of_batch = errors
    assert len(sandbox.messages("bills")) == (2 if may_be_there else 0)
    assert isinstance(one, ClientError)
    assert getattr(one, "__notes__", []) == ([MAYBE_SENT] if may_be_there else [])
    assert isinstance(of_batch, SendError)
    assert (MAYBE_SENT in str(of_batch)) == may_be_there


def test_the_tries_of_a_client_of_the_caller_count_too(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC J6
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    client = boto3.client("sqs", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    tries = count()

    def answer(**_: Any) -> AWSResponse:
        if next(tries) == 0:
            raise ReadTimeoutError(endpoint_url=ORDERS)
        return AWSResponse(ORDERS, 403, {}, SimpleNamespace(stream=lambda: [b'{"__type": "AccessDenied"}']))

    client.meta.events.register("before-send.sqs", answer)
    with pytest.raises(ClientError) as raised:
        Queue(ORDERS, sqs=client).send("a")
    assert raised.value.__notes__ == [MAYBE_SENT]


def test_a_failed_request_does_not_affect_the_others() -> None:  # SPEC J1, J6
    error = client_error("InternalError", status=500)

    def fail(request: Request) -> Exception | None:
        return error if request.entries[0]["MessageBody"] == "10" else None

    with Wire(fails={"SendMessageBatch": fail}) as wire, pytest.raises(SendError) as raised:
        Queue(ORDERS).send_batch(str(number) for number in range(30))
    assert [unsent.message for unsent in raised.value.failed] == [str(number) for number in range(10, 20)]
    assert {unsent.reason for unsent in raised.value.failed} == {error}
    assert raised.value.__cause__ is error
    assert len(wire.accepted) == 20


def test_a_request_refused_for_one_of_its_entries_is_sent_entry_by_entry() -> None:  # SPEC J1
    def fail(request: Request) -> Exception | None:
        odd = any(entry["MessageBody"] == "3" for entry in request.entries)
        return client_error("InvalidMessageContents") if odd else None

    with Wire(fails={"SendMessageBatch": fail}) as wire, pytest.raises(SendError) as raised:
        Queue(ORDERS).send_batch(str(number) for number in range(10))
    assert [unsent.message for unsent in raised.value.failed] == ["3"]
    assert len(wire.accepted) == 9


def test_the_text_of_a_send_error_is_short_and_contains_no_bodies() -> None:  # SPEC L2
    with Wire(fails={"SendMessageBatch": client_error("AccessDenied", "no")}), pytest.raises(SendError) as raised:
        Queue(ORDERS).send_batch(f"secret {number}" for number in range(100))
    assert "100 of 100" in str(raised.value)
    assert "and 95 more" in str(raised.value)
    assert "secret" not in str(raised.value)


# FIFO


def groups(wire: Wire) -> dict[str, list[str]]:
    accepted: dict[str, list[str]] = {}
    for _, entry in wire.accepted:
        accepted.setdefault(entry["MessageGroupId"], []).append(entry["MessageBody"])
    return accepted


def test_requests_of_one_group_are_sent_one_after_the_other_in_tens() -> None:  # SPEC J1
    with Wire() as wire:
        Queue(LEDGER).send_batch((str(number) for number in range(200)), group_id="a")
    assert len(wire.requests) == 20
    assert bodies(wire) == [str(number) for number in range(200)]


def test_every_try_of_a_message_has_the_same_deduplication_id_also_when_the_caller_sends_it_again() -> None:
    queue = Queue(LEDGER)  # SPEC J1
    with refusing("a", times=4) as wire:
        with pytest.raises(SendError) as raised:
            queue.send_batch(["a"], group_id="g")
        queue.send_batch(unsent.entry for unsent in raised.value.failed)
    ids = [entry["MessageDeduplicationId"] for entry in wire.sent_entries()]
    assert ids == [ids[0]] * 5


@pytest.mark.parametrize("refusal", [UNAVAILABLE, INVALID], ids=["passing", "final"])
def test_messages_behind_one_of_their_group_that_could_not_be_sent_are_not_sent(
    refusal: tuple[str, str],
) -> None:  # SPEC J1
    queue = Queue(LEDGER)
    messages = [queue.entry(f"{group}{number}", group_id=group) for number in range(20) for group in "ab"]
    with refusing("a4", times=99, refusal=refusal) as wire, pytest.raises(SendError) as raised:
        queue.send_batch(messages)
    assert groups(wire)["a"] == ["a0", "a1", "a2", "a3"]
    assert groups(wire)["b"] == [f"b{number}" for number in range(20)]
    reasons = [unsent.reason for unsent in raised.value.failed]
    assert [type(reason) for reason in reasons[1:]] == [Behind] * 15
    assert "message 8, which comes before it in group 'a', was not sent" in str(reasons[1])


def test_messages_behind_an_invalid_one_of_their_request_are_not_sent_again() -> None:  # SPEC J1
    refusals = {"a0": INVALID, "a1": UNAVAILABLE}
    wire = Wire(refuses={"SendMessageBatch": lambda _, entry: refusals.get(entry["MessageBody"])})
    with wire, pytest.raises(SendError) as raised:
        Queue(LEDGER).send_batch(["a0", "a1"], group_id="a")
    assert len(wire.requests) == 1
    assert [type(unsent.reason).__name__ for unsent in raised.value.failed] == ["Refused", "Behind"]


def test_an_invalid_message_stops_its_group() -> None:  # SPEC J1
    queue = Queue(LEDGER)
    messages = [queue.entry(body, group_id=group) for body, group in [("a1", "a"), ("", "a"), ("b1", "b"), ("a3", "a")]]
    with Wire() as wire, pytest.raises(SendError) as raised:
        queue.send_batch(messages)
    assert bodies(wire) == ["a1", "b1"]
    assert [unsent.index for unsent in raised.value.failed] == [1, 3]
    with Wire() as wire, pytest.raises(SendError) as raised:
        queue.send_batch(["", "behind it"], group_id="a")
    assert wire.requests == []
    assert [type(unsent.reason) for unsent in raised.value.failed] == [ValueError, Behind]


def test_messages_behind_a_throttled_one_are_sent_with_it() -> None:  # SPEC J1
    """A request refused as a whole is sent entry by entry, and then the first entry is throttled once."""
    wire = refusing("0")
    wire.fails["SendMessageBatch"] = lambda request: (
        client_error("InvalidParameterValue") if "2" in {entry["MessageBody"] for entry in request.entries} else None
    )
    with wire, pytest.raises(SendError) as raised:
        Queue(LEDGER).send_batch(Queue.entry(body, group_id=group) for body, group in zip("012", "aab", strict=True))
    assert bodies(wire) == ["0", "1"]
    assert [unsent.message.body for unsent in raised.value.failed] == ["2"]


# properties

sizes = st.lists(st.sampled_from([1, 1_000, 100_000, 300_000, 700_000, MIB]), max_size=40)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(sizes)
@example([])
@example([500_000] * 5)
def test_requests_are_within_the_limits_of_sqs_and_as_few_as_possible(lengths: list[int]) -> None:  # SPEC J1
    with Wire() as wire:
        assert len(Queue(ORDERS).send_batch("x" * length for length in lengths)) == len(lengths)
    lengths_by_request = [[len(entry["MessageBody"]) for entry in request.entries] for request in wire.requests]
    assert sorted(length for request in lengths_by_request for length in request) == sorted(lengths)
    assert all(1 <= len(request) <= 10 and sum(request) <= MIB for request in lengths_by_request)
    assert len(lengths_by_request) == requests_needed(lengths)


def requests_needed(lengths: list[int]) -> int:
    """Return the number of requests if each is filled up in order."""
    requests, count, total = 0, 10, 0
    for length in lengths:
        if count == 10 or total + length > MIB:
            requests, count, total = requests + 1, 0, 0
        count, total = count + 1, total + length
    return requests


fates = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, 0, 0, 0, 1, 3, 4, -1])), max_size=60)


@settings(max_examples=60)
@given(fates)
@example([("a", 3 if number == 9 else 0) for number in range(30)])  # those behind a failed one wait until it is sent
def test_on_fifo_every_message_is_sent_once_or_reported_and_no_later_request_overtakes(
    plan: list[tuple[str, int]],
) -> None:  # SPEC J1
    """Each message fails by a fault of SQS the given number of times; -1 means that it is invalid."""
    left = {str(index): times for index, (_, times) in enumerate(plan)}
    first_request: dict[str, int] = {}

    def refuse(request: Request, entry: dict[str, Any]) -> tuple[str, str] | None:
        body = entry["MessageBody"]
        first_request.setdefault(body, wire.requests.index(request))
        if left[body] == 0:
            return None
        left[body] -= 1
        return UNAVAILABLE if left[body] >= 0 else INVALID

    wire = Wire(refuses={"SendMessageBatch": refuse})
    unsent: set[str] = set()
    with wire:
        try:
            Queue(LEDGER).send_batch(Queue.entry(str(index), group_id=group) for index, (group, _) in enumerate(plan))
        except SendError as error:
            unsent = {failed.message.body for failed in error.failed}
    assert sorted([*bodies(wire), *unsent], key=int) == [str(index) for index in range(len(plan))]
    for accepted in groups(wire).values():
        for earlier, later in pairwise(accepted):
            assert int(earlier) < int(later) or first_request[earlier] == first_request[later]
    if not any(times in (4, -1) for _, times in plan):
        assert unsent == set()
