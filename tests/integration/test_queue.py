"""`Queue`: its requests to SQS."""

import gc
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count, pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tarry import ConfigurationError, DelayNotSupported, Message, Queue, SendError, consumer
from tarry.errors import Unsent
from tarry.testing import Sandbox
from tarry.world import RealThreads
from tests.records import Context, event, record
from tests.wire import NoThreads, Request, Wire, arn, client_error, http_answer, url

MIB = 1_048_576
ORDERS, LEDGER = url("orders"), url("ledger.fifo")
UNAVAILABLE, INVALID = ("ServiceUnavailable", "try again"), ("InvalidMessageContents", "odd")
THROTTLED = client_error("ThrottlingException", "slow down")
MAYBE_SENT = "SQS may have the message all the same: sent again to a standard queue, it may arrive twice"


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def bodies(wire: Wire) -> list[str]:
    return [entry["MessageBody"] for _, entry in wire.accepted]


def refusing(*texts: str, times: int = 1, refusal: tuple[str, str] = UNAVAILABLE) -> Wire:
    """Return a wire that refuses each of these bodies ``times`` times."""
    left = dict.fromkeys(texts, times)

    def refuse(_: Request, entry: dict[str, Any]) -> tuple[str, str] | None:
        body = entry["MessageBody"]
        left[body] = left.get(body, 0) - 1
        return refusal if left[body] >= 0 else None

    return Wire(refuses={"SendMessageBatch": refuse})


def failing(*errors: Exception) -> Wire:
    """Return a wire whose first sends fail with these errors, one each."""
    left = list(errors)
    return Wire(fails={"SendMessageBatch": lambda _: left.pop(0) if left else None})


def error_of(wire: Wire, messages: Iterable[Any], queue: str = ORDERS, **more: Any) -> SendError:
    """Send messages of which some are refused; return the error."""
    with wire, pytest.raises(SendError) as raised:
        Queue(queue).send_batch(messages, **more)
    return raised.value


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


def test_a_queue_uses_the_client_that_the_user_passes_and_shows_its_default_delay() -> None:  # SPEC J1, J3
    own = Wire()
    with Wire() as wire:
        Queue("orders", sqs=own._client()).send_batch(["a"])
    assert (wire.requests, own.operations) == ([], ["GetQueueUrl", "SendMessageBatch"])
    queues = [Queue("orders", sqs=boto3.client("sqs", region_name="us-east-1")), Queue("orders", delay=timedelta(0, 9))]
    assert [(repr(queue), queue.delay) for queue in queues] == [
        ("Queue('orders')", None),
        ("Queue('orders', delay=9)", 9),
    ]


@pytest.mark.parametrize("queue", [None, "", 5, "arn:aws:sns:us-east-1:1:x", "https://", "a/b"], ids=repr)
def test_an_invalid_queue_is_refused_when_the_object_is_made(queue: Any) -> None:  # SPEC J1
    with pytest.raises(ConfigurationError, match=r"a queue's name, URL or ARN|is not the (ARN|URL) of an SQS queue"):
        Queue(queue)


@pytest.mark.parametrize(
    "delay", [-1, float("nan"), "60", True, [60], datetime.now(UTC), 43_201, 5, 0], ids=lambda delay: str(delay)[:4]
)
def test_an_invalid_default_delay_and_any_of_a_fifo_queue_is_refused_when_the_object_is_made(delay: Any) -> None:
    with pytest.raises((ConfigurationError, DelayNotSupported)) as caught:  # SPEC J3, C5
        Queue("orders.fifo" if delay in (5, 0) else "orders", delay=delay)
    if isinstance(caught.value, DelayNotSupported):
        assert delay in (43_201, 5, 0)
    else:
        assert str(caught.value).startswith("the delay of a Queue")
        assert repr(delay) in str(caught.value)


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
    own = {"MessageAttributes": {"tenant": string("acme")}, "MessageGroupId": "t1"}
    assert [request.parameters for request in wire.requests] == [
        {"QueueUrl": ORDERS, "MessageBody": '{"id":1}', "DelaySeconds": 60, **own},
        {"QueueUrl": ORDERS, "MessageBody": "a"},
    ]


def test_send_returns_the_stable_id_of_a_message_with_a_tarry_attribute() -> None:  # SPEC K3, J3, J4
    """The random source of the world makes it."""
    sent, seen = [], list[str]()
    handler = consumer(lambda message: seen.append(message.id))
    for _ in range(2):
        with Wire(random=Random(7)) as wire:
            sent.append(Queue(ORDERS, delay=3_600).send("a"))
            assert wire.requests[0].parameters["DelaySeconds"] == 900
            attribute = wire.requests[0].parameters["MessageAttributes"]["Tarry"]
            delivered = {"Tarry": {"stringValue": attribute["StringValue"], "dataType": "String"}}
            wire.clock.now += 3_600
            handler(event(record("a", receives=2, attributes=delivered)), Context())
    assert seen == sent == [sent[0]] * 2


def test_attributes_of_a_received_message_can_be_copied() -> None:  # SPEC K1
    received = {
        "tenant": {"dataType": "String", "stringValue": "acme"},
        "count": {"dataType": "Number.int", "stringValue": "7"},
        "price": {"dataType": "Number", "stringValue": "1.50"},
        "raw": {"dataType": "Binary", "binaryValue": "/wA="},
    }
    handler = consumer(lambda message: Queue(ORDERS).send(message.body, attributes=message.attributes) and None)
    with Wire() as wire:
        assert handler(event(record(attributes=received)), Context()) == {"batchItemFailures": []}
    assert wire.requests[0].parameters["MessageAttributes"] == {
        "tenant": string("acme"),
        "count": {"DataType": "Number", "StringValue": "7"},
        "price": {"DataType": "Number", "StringValue": str(Decimal("1.50"))},
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
    }


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("SendMessage", client_error("AccessDenied")),
        ("SendMessage", client_error("RequestThrottled")),
        ("SendMessage", TimeoutError("no answer")),
        ("GetQueueUrl", client_error("QueueDoesNotExist")),
    ],
    ids=repr,
)
def test_an_error_of_sqs_is_raised(operation: str, error: Exception) -> None:  # SPEC J6
    queue, sends = Queue("orders"), ["send", "send_batch"] if operation == "GetQueueUrl" else ["send"]
    for send in sends:
        with Wire(fails={operation: error}) as wire, pytest.raises(type(error)) as raised:
            getattr(queue, send)("a" if send == "send" else ["a"])
        assert raised.value is error
        assert wire.operations == ["GetQueueUrl", *([operation] if operation != "GetQueueUrl" else [])]


@pytest.mark.parametrize(
    "damaged",
    [{"MD5OfMessageBody": "0" * 32}, {"MD5OfMessageBody": None}, {"MessageId": ""}, None],
    ids=["another MD5", "no MD5", "no id", "not in the answer"],
)
def test_a_message_that_the_answer_does_not_confirm_raises_an_error_and_is_not_repeated(damaged: Any) -> None:
    def receipt(entry: dict[str, Any], receipt: dict[str, Any]) -> dict[str, Any] | None:  # SPEC J1, J6, E6
        return receipt if entry["MessageBody"] != "1" else damaged and {**receipt, **damaged}

    with Wire(receipts=receipt) as wire, pytest.raises(SendError, match="message 0: SQS") as raised:
        Queue(LEDGER).send("1", group_id="g")
    [unsent] = raised.value.failed
    assert (unsent.message, unsent.reason.__notes__) == ("1", [MAYBE_SENT])
    assert unsent.entry.deduplication_id == wire.requests[0].parameters["MessageDeduplicationId"]
    error = error_of(wire := Wire(receipts=receipt), ["0", "1", "2"])
    assert "message 1: SQS answered with" in str(error)
    assert error.failed[0].reason.__notes__ == [MAYBE_SENT]
    assert [message_id is None for message_id in error.message_ids] == [False, True, False]
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("odd", "error", "text"),
    [
        ({"body": None}, TypeError, "a body is a str"),
        ({"body": ""}, ValueError, "the body is empty"),
        ({"body": "x" * (MIB + 1)}, ValueError, "1048577 bytes"),
        ({"body": "a", "attributes": {"a b": 1}}, ValueError, "single dots"),
        ({"body": "a", "attributes": 5}, TypeError, "not a mapping|a dict of names"),
        ({"body": "a", "delay": 43_201}, DelayNotSupported, "between 0 and 43200"),
        ({"body": "a", "deduplication_id": "x"}, ValueError, "deduplication_id is for FIFO"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_message_makes_no_request_and_does_not_affect_the_others(odd: Any, error: Any, text: str) -> None:
    with Wire() as wire, pytest.raises(error, match=text):  # SPEC J1, J2, J4
        Queue("orders").send(**odd)
    assert wire.requests == []
    given = Queue.entry(**odd) if len(odd) > 1 else odd["body"]
    error = error_of(wire, ["0", given, "2"])
    [unsent] = error.failed
    assert (unsent.message is given, unsent.entry) == (True, None)
    assert bodies(wire) == ["0", "2"]


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
    attributes = {"tenant": string("b"), "mine": {"DataType": "Number", "StringValue": "1"}}
    entry_of_b = {"MessageBody": "b", "DelaySeconds": 0, "MessageAttributes": attributes, "MessageGroupId": "b"}
    of_all = {"MessageAttributes": {"tenant": string("all")}, "MessageGroupId": "all"}
    assert [[{**entry, "Id": ""} for entry in request.entries] for request in wire.requests] == [
        [{"Id": "", "MessageBody": "a", "DelaySeconds": 5, **of_all}, {"Id": "", **entry_of_b}],
        [
            {"Id": "", "MessageBody": "a", "DelaySeconds": 60},
            {"Id": "", **entry_of_b},
            {"Id": "", "MessageBody": "c", "DelaySeconds": 60},
        ],
    ]


# many messages


def test_a_request_is_filled_up_to_1_mib() -> None:  # SPEC J1
    with Wire() as wire:
        Queue(ORDERS).send_batch(["x" * (MIB // 2)] * 5)
    assert sorted(len(request.entries) for request in wire.requests) == [1, 2, 2]


class ThreadsInTurn(RealThreads):
    """Threads of which the last one started runs, when the sender waits for one to end. It is their event, too."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.most, self._is_set = 0, False

    def start(self, work: Any) -> Any:
        self.waiting.append(work)
        self.most = max(self.most, len(self.waiting))

    def event(self) -> Any:
        return self

    def wait(self) -> None:
        assert not self._is_set
        self.waiting.pop()()

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False


@pytest.mark.parametrize(
    ("queue", "count", "groups", "at_once"),
    [
        (ORDERS, 10, "a", 0), (ORDERS, 11, "a", 2), (ORDERS, 305, "a", 10),
        (LEDGER, 305, "abcdefghijklmnopqrstuvwxyz01234", 10), (LEDGER, 40, "a", 1), (LEDGER, 40, "aabb", 2),
    ],
)  # fmt: skip
def test_up_to_ten_requests_are_sent_at_once_but_one_of_a_group_on_fifo_and_a_single_one_without_a_thread(
    queue: str, count: int, groups: str, at_once: int
) -> None:  # SPEC J1
    """The ids are in the order of the messages."""
    threads = ThreadsInTurn()
    wire = Wire(receipts=lambda entry, receipt: {**receipt, "MessageId": entry["MessageBody"]})
    wire.world.threads = threads
    with wire:
        entries = (Queue.entry(str(number), group_id=groups[number // 10 % len(groups)]) for number in range(count))
        assert Queue(queue).send_batch(entries) == numbers(count)
    assert (threads.most, threads.waiting, len(wire.requests)) == (at_once, [], -(-count // 10))


def test_requests_that_get_no_thread_are_sent_without_one() -> None:  # SPEC J1
    wire = Wire()
    wire.world.threads = NoThreads()
    with wire:
        assert len(Queue(ORDERS).send_batch(numbers(25))) == 25
    assert bodies(wire) == numbers(25)


def test_messages_are_read_in_the_callers_thread_and_only_as_fast_as_they_are_sent() -> None:  # SPEC J1
    """A cursor of sqlite3 works only in its own thread."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE orders (id TEXT)")
    database.executemany("INSERT INTO orders VALUES (?)", [(number,) for number in numbers(1_000)])
    read, ahead = count(), list[int]()

    def rows() -> Iterator[str]:
        for (row,) in database.execute("SELECT id FROM orders"):
            ahead.append(next(read) - len(wire.accepted))
            yield row

    with Wire() as wire:
        Queue(ORDERS).send_batch(rows())
    assert len(wire.accepted) == 1_000
    assert max(ahead) <= 150  # ten requests in progress, and the next one


@pytest.mark.parametrize(
    ("messages", "more", "error"),
    [
        *((one, {}, TypeError) for one in ("abc", b"abc", {"id": 1}, 5)),
        (None, {"delay": 43_201}, DelayNotSupported),
        (None, {"queue": LEDGER, "delay": 1, "group_id": "a"}, DelayNotSupported),
        (None, {"attributes": {"a b": 1}}, ValueError),
        (None, {"attributes": {"a": None}}, TypeError),
    ],
    ids=str,
)
def test_a_single_body_and_invalid_settings_of_the_batch_are_refused_before_a_message_is_read(
    messages: Any, more: dict[str, Any], error: type[Exception]
) -> None:  # SPEC J1, J2, J4
    left = iter(["a"])
    with Wire() as wire, pytest.raises(error):
        Queue(more.pop("queue", ORDERS)).send_batch(left if messages is None else messages, **more)
    assert (wire.requests, next(left)) == ([], "a")


def test_an_exception_of_the_iterable_is_raised_after_the_messages_before_it_are_sent() -> None:  # SPEC J6
    def messages() -> Iterator[str]:
        yield from ["refused", "", *numbers(32)]
        raise OSError("the file ends here")

    with refusing("refused", refusal=INVALID) as wire, pytest.raises(OSError, match="the file ends here") as raised:
        Queue(ORDERS).send_batch(messages())
    assert len(wire.accepted) == 32
    assert raised.value.__notes__ == ["of the 34 messages read before, 32 were sent to orders"]


# refused entries and requests


@pytest.mark.parametrize("refusal", [UNAVAILABLE, ("ThrottlingException", "slow down")], ids=lambda each: each[0])
@pytest.mark.parametrize(("draw", "seconds"), [(min, 0.1 + 0.4 + 1.6), (max, 0.2 + 0.8 + 3.2)], ids=["least", "most"])
def test_a_refused_entry_is_sent_again_after_growing_delays_on_the_clock_of_the_world(
    refusal: tuple[str, str], draw: Any, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC J1
    monkeypatch.setattr(Random, "uniform", lambda _, *bounds: draw(bounds))
    with refusing("3", "7", times=3, refusal=refusal) as wire:
        assert len(Queue(ORDERS).send_batch(numbers(10))) == 10
    assert [len(request.entries) for request in wire.requests] == [10, 2, 2, 2]
    assert sorted(bodies(wire)) == numbers(10)
    assert wire.clock.now - 1_800_000_000 == pytest.approx(seconds, abs=1e-5)


@pytest.mark.parametrize(("refusal", "tries"), [(UNAVAILABLE, 4), (INVALID, 1)])
def test_a_message_that_is_not_sent_is_reported_with_its_reason(refusal: tuple[str, str], tries: int) -> None:
    reason = ": ".join(refusal)  # SPEC J1
    error = error_of(wire := refusing("1", times=99, refusal=refusal), ["0", "1", "2"])
    [unsent] = error.failed
    assert (unsent.index, unsent.message, str(unsent.reason)) == (1, "1", reason)
    assert str(error) == f"1 of 3 messages were not sent: message 1: {reason}"
    assert [message_id is None for message_id in error.message_ids] == [False, True, False]
    assert len(wire.requests) == tries


def test_the_text_of_an_error_has_five_reasons_and_says_if_a_message_may_have_been_sent() -> None:  # SPEC J1
    unsent = [Unsent(index=number, message="m", reason=ValueError(f"no {number}")) for number in range(7)]
    texts = [str(SendError(unsent[:count], [None] * 9)) for count in (1, 5, 6, 7)]
    five = "; ".join(f"message {number}: no {number}" for number in range(5))
    assert texts == [
        "1 of 9 messages were not sent: message 0: no 0",
        f"5 of 9 messages were not sent: {five}",
        f"6 of 9 messages were not sent: {five}; and 1 more",
        f"7 of 9 messages were not sent: {five}; and 2 more",
    ]
    unsent[0].reason.add_note("it may be there")
    text = "1 of 2 messages were not sent, or not for certain: message 0: no 0 (it may be there)"
    assert str(SendError(unsent[:1], [None, "id"])) == text


@pytest.mark.parametrize("queue", [ORDERS, LEDGER])
def test_a_throttled_request_is_sent_again_after_three_waits_and_then_reported(queue: str) -> None:  # SPEC J1
    with failing(*[THROTTLED] * 3) as wire:
        assert len(Queue(queue).send_batch(["0", "1"], group_id="a")) == 2
    assert bodies(wire) == ["0", "1"]
    assert 2.1 <= wire.clock.now - 1_800_000_000 <= 4.2
    error = error_of(wire := failing(*[THROTTLED] * 9), ["0", "1"], queue, group_id="a")
    assert "2 of 2 messages were not sent: message 0" in str(error)
    assert len(wire.requests) == 4


@pytest.mark.parametrize(
    ("queue", "faults", "may_be_there", "of_batch"),
    [
        ("bills", ("lost_answer", "denied"), True, SendError),
        ("bills", ("throttle", "denied"), False, SendError),
        ("bills", ("lost_answer", "throttle"), True, SendError),  # a throttled request is not sent again then
        ("bills.fifo", ("lost_answer", "throttle"), True, list),  # SQS drops the message if it has it
    ],
)
def test_the_error_of_a_send_says_if_the_message_may_be_in_the_queue(
    queue: str, faults: tuple[str, ...], may_be_there: bool, of_batch: type, sandbox: Sandbox
) -> None:  # SPEC J1, J6
    found: list[Any] = []
    fifo = ".fifo" in queue
    bills = Queue(queue)

    @consumer
    def handler(message: Message) -> None:
        sends = (bills.send, lambda body, group_id: bills.send_batch([body], group_id=group_id))
        for send in sends:
            try:
                found.append(send(message.body, group_id="g"))
            except Exception as error:  # noqa: BLE001 what is tested
                found.append(error)

    sandbox.queue(queue, dead_letter=f"dead{'.fifo' if fifo else ''}", fifo=fifo)
    sandbox.queue("orders", dead_letter="orders-dead")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "a")
    for operation in ("SendMessage", "SendMessageBatch"):
        for fault in faults:
            sandbox.faults.add(fault, operation=operation, queue=queue)
    sandbox.run()
    one, several = found
    assert len(sandbox.messages(queue)) == (2 if may_be_there else 0)
    assert isinstance(one, ClientError)
    assert getattr(one, "__notes__", []) == ([MAYBE_SENT] if may_be_there else [])
    assert isinstance(several, of_batch)
    if of_batch is SendError:
        assert (MAYBE_SENT in str(several), "not for certain" in str(several)) == (may_be_there, may_be_there)


def test_the_tries_of_a_client_of_the_caller_count_too(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC J6
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    client = boto3.client("sqs", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    tries = iter([http_answer(500, {"__type": "InternalFailure"}), http_answer(403, {"__type": "AccessDenied"})])
    client.meta.events.register("before-send.sqs", lambda **_: next(tries))
    with pytest.raises(ClientError) as raised:
        Queue(ORDERS, sqs=client).send("a")
    assert raised.value.__notes__ == [MAYBE_SENT]


def test_a_failed_request_does_not_affect_the_others() -> None:  # SPEC J1, J6
    error = client_error("InternalError", status=500)
    wire = Wire(
        fails={"SendMessageBatch": lambda request: error if request.entries[0]["MessageBody"] == "10" else None}
    )
    raised = error_of(wire, numbers(30))
    assert [unsent.message for unsent in raised.failed] == numbers(30)[10:20]
    assert {unsent.reason for unsent in raised.failed} == {error}
    assert raised.__cause__ is error
    assert len(wire.accepted) == 20


def refusing_requests_with(body: str, code: str = "InvalidMessageContents") -> Any:
    return lambda request: client_error(code) if body in [entry["MessageBody"] for entry in request.entries] else None


@pytest.mark.parametrize("count", [2, 10])
def test_a_request_refused_for_one_of_its_entries_is_sent_entry_by_entry(count: int) -> None:  # SPEC J1
    wire = Wire(fails={"SendMessageBatch": refusing_requests_with("1")})
    assert [unsent.message for unsent in error_of(wire, numbers(count)).failed] == ["1"]
    assert (len(wire.accepted), len(wire.requests)) == (count - 1, count + 1)


def test_the_text_of_a_send_error_is_short_and_contains_no_bodies() -> None:  # SPEC L2
    error = error_of(failing(*[client_error("AccessDenied", "no")] * 10), (f"secret {number}" for number in range(100)))
    assert all(text in str(error) for text in ("100 of 100", "and 95 more"))
    assert "secret" not in str(error)


# FIFO


def test_every_try_of_a_message_has_the_same_deduplication_id_also_when_the_caller_sends_it_again() -> None:
    wire = refusing("a", times=4)  # SPEC J1
    error = error_of(wire, ["a"], LEDGER, group_id="g")
    with wire:
        Queue(LEDGER).send_batch(unsent.entry for unsent in error.failed)
    assert len({entry["MessageDeduplicationId"] for entry in wire.sent_entries()}) == 1
    assert len(wire.requests) == 5


@pytest.mark.parametrize("refusal", [UNAVAILABLE, INVALID], ids=["passing", "final"])
def test_messages_behind_one_of_their_group_that_could_not_be_sent_are_not_sent(refusal: tuple[str, str]) -> None:
    messages = [Queue.entry(f"{group}{number}", group_id=group) for number in range(20) for group in "ab"]  # SPEC J1
    failed = error_of(wire := refusing("a4", times=99, refusal=refusal), messages, LEDGER).failed
    assert groups(wire) == {"a": ["a0", "a1", "a2", "a3"], "b": [f"b{number}" for number in range(20)]}
    assert [type(unsent.reason).__name__ for unsent in failed] == ["Refused", *["Behind"] * 15]
    behind = {str(unsent.reason) for unsent in failed[1:]}
    assert behind == {"message 8, which comes before it in group 'a', was not sent"}


@pytest.mark.parametrize(
    ("messages", "wire", "requests", "sent", "failed"),
    [
        ("a:0 a:1", Wire(refuses={"SendMessageBatch": lambda _, entry: INVALID if entry["Id"] == "0" else UNAVAILABLE}),
         1, "", "0 Refused, 1 Behind"),
        ("a:0 a: b:2 a:3", Wire(), 1, "0 2", "1 ValueError, 3 Behind"),
        ("a: a:1", Wire(), 0, "", "0 ValueError, 1 Behind"),
    ],
    ids=["one is refused for good, and one behind it for now", "an invalid one", "an invalid one at the beginning"],
)  # fmt: skip
def test_a_message_that_is_not_sent_stops_its_group(
    messages: str, wire: Wire, requests: int, sent: str, failed: str
) -> None:  # SPEC J1
    entries = [
        Queue.entry(body, group_id=group) for group, _, body in (each.partition(":") for each in messages.split())
    ]
    error = error_of(wire, entries, LEDGER)
    assert (len(wire.requests), bodies(wire)) == (requests, sent.split())
    assert ", ".join(f"{unsent.index} {type(unsent.reason).__name__}" for unsent in error.failed) == failed
    assert error.__cause__ is error.failed[0].reason


def test_messages_behind_a_throttled_one_are_sent_with_it() -> None:  # SPEC J1
    """A request refused as a whole is sent entry by entry, and then the first entry is throttled once."""
    wire = refusing("0")
    wire.fails["SendMessageBatch"] = refusing_requests_with("2")
    error = error_of(wire, [Queue.entry(body, group_id=group) for body, group in ("0a", "1a", "2b")], LEDGER)
    assert bodies(wire) == ["0", "1"]
    assert [unsent.message.body for unsent in error.failed] == ["2"]


# properties


def groups(wire: Wire) -> dict[str, list[str]]:
    accepted: dict[str, list[str]] = {}
    for _, entry in wire.accepted:
        accepted.setdefault(entry["MessageGroupId"], []).append(entry["MessageBody"])
    return accepted


fates = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, 0, 0, 0, 1, 3, 4, -1])), max_size=60)


@settings(max_examples=40)
@given(fates)
@example([("a", 0)] * 200)  # one group in tens
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
    assert sorted([*bodies(wire), *unsent], key=int) == numbers(len(plan))
    for accepted in groups(wire).values():
        for earlier, later in pairwise(accepted):
            assert int(earlier) < int(later) or first_request[earlier] == first_request[later]
    assert not unsent or any(times in (4, -1) for _, times in plan)
    assert any(times for _, times in plan) or len(wire.requests) == -(-len(plan) // 10)
