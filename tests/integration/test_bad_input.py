"""Input that SQS never sends: tarry raises a clear error or logs a line, and loses no message."""

import copy
import json
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tarry import InvalidEvent, Message, Reject, consumer
from tarry.record.attribute import body_sum
from tests.handlers import behave_async, plain
from tests.loglines import field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.wire import Queue, Wire, arn, client_error


def orders() -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")})


# an event that does not come from SQS


@pytest.mark.parametrize(
    ("not_an_event", "expected"),
    [
        (None, "NoneType"),
        ([], "list"),
        ("Records", "str"),
        (7, "int"),
        ({}, "Records"),
        ({"detail": {}, "source": "aws.s3"}, "source"),
        ({"Records": None}, "NoneType"),
        ({"Records": {}}, "dict"),
        ({"Records": "abc"}, "abc"),
        ({"Records": [None]}, "record 0"),
        ({"Records": [record(), "m2"]}, "record 1"),
        ({"Records": [{}]}, "messageId"),
        ({"Records": [record(), {**record(), "messageId": ""}]}, "record 1"),
        ({"Records": [{**record(), "messageId": None}]}, "None"),
        ({"Records": [{**record(), "messageId": 12}]}, "12"),
        ({"Records": [{**record(), "messageId": ["m1"]}]}, "m1"),
        ({"Records": [{"eventSource": "aws:s3", "s3": {"bucket": {"name": "b"}}}]}, "messageId"),
    ],
)
def test_an_event_without_readable_messages_raises_an_error_that_names_the_fault(
    not_an_event: Any, expected: str
) -> None:  # SPEC A3
    ran: list[Any] = []
    with orders() as wire, pytest.raises(InvalidEvent) as refusal:
        consumer(ran.append)(not_an_event, Context())
    assert expected in str(refusal.value)
    assert ran == []
    assert wire.requests == []


# garbage in a field

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)

FIELDS = [
    ("messageId",),
    ("receiptHandle",),
    ("body",),
    ("attributes",),
    ("attributes", "ApproximateReceiveCount"),
    ("attributes", "SentTimestamp"),
    ("attributes", "ApproximateFirstReceiveTimestamp"),
    ("attributes", "MessageGroupId"),
    ("attributes", "AWSTraceHeader"),
    ("messageAttributes",),
    ("messageAttributes", "Tarry"),
    ("messageAttributes", "Tarry", "stringValue"),
    ("messageAttributes", "tenant"),
    ("messageAttributes", "tenant", "stringValue"),
    ("messageAttributes", "tenant", "dataType"),
    ("messageAttributes", "raw", "binaryValue"),
    ("md5OfBody",),
    ("eventSource",),
    ("eventSourceARN",),
    ("awsRegion",),
]


def whole_record(name: str) -> dict[str, Any]:
    attributes = {
        "tenant": {"stringValue": "acme", "dataType": "String"},
        "raw": {"binaryValue": "AAECAw==", "dataType": "Binary"},
        "Tarry": {"stringValue": json.dumps(an_envelope()), "dataType": "String"},
    }
    return record("{}", name, attributes=attributes, system={"AWSTraceHeader": "Root=1-5759e988"})


def an_envelope(body: str = "{}", **more: Any) -> dict[str, Any]:
    """The `Tarry` attribute as tarry writes it to a dead letter."""
    failure = {
        "reason": "exhausted",
        "attempts": 5,
        "type": "ValueError",
        "message": "boom",
        "traceback": "",
        "fingerprint": "9f2c61d0a4be",
        "first_failed_at": "2026-01-01T00:00:00.000Z",
        "failed_at": "2026-01-01T00:10:00.000Z",
    }
    return {
        "v": 1,
        "sum": body_sum(body),
        "id": "the-first-id",
        "origin": arn("orders"),
        "sent": "2026-01-01T00:00:00.000Z",
        "failure": failure,
        "history": [{"attempt": 5, "at": "2026-01-01T00:10:00.000Z", "error": "ValueError: boom"}],
        **more,
    }


def spoiled(name: str, path: tuple[str, ...], garbage: Any) -> dict[str, Any]:
    odd = copy.deepcopy(whole_record(name))
    inner: Any = odd
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = garbage
    return odd


ids_of_fields = [".".join(path) for path in FIELDS]


@pytest.mark.parametrize("path", FIELDS, ids=ids_of_fields)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_garbage_in_a_field_never_loses_a_message(path: tuple[str, ...], data: st.DataObject) -> None:  # SPEC A2, A3
    garbage = data.draw(JSON)
    name = data.draw(st.sampled_from(["retry-1", "dead-1"]))
    given_event = event(record("{}", "ok-1"), spoiled(name, path, garbage), record("{}", "retry-2"))
    handler = data.draw(st.sampled_from([plain(), consumer(behave_async)]))
    with orders() as wire:
        try:
            response = handler(given_event, Context())
        except InvalidEvent:
            assert path == ("messageId",)
            return
    if path == ("messageId",):
        return  # the generated id decides how the handler behaves
    sent_bodies = {entry["MessageBody"] for _, entry in wire.accepted if "MessageBody" in entry}
    assert name in failed(response) or sent_bodies
    assert "retry-2" in failed(response)


GARBAGE: dict[str, Any] = {
    "null": None,
    "true": True,
    "a number": -7,
    "a fraction": 1.5,
    "infinity": float("inf"),
    "a huge number": 10**30,
    "a huge number as text": "9" * 20,
    "endless digits": "9" * 5_000,
    "empty text": "",
    "text": "Tarry",
    "a list": ["x"],
    "an object": {"x": {}},
}
GARBAGE_CASES = [
    pytest.param(path, garbage, id=f"{'.'.join(path)}: {name}")
    for path in FIELDS
    if path != ("messageId",)
    for name, garbage in GARBAGE.items()
]


@pytest.mark.parametrize(("path", "garbage"), GARBAGE_CASES)
def test_garbage_in_a_field_does_not_affect_the_other_messages(path: tuple[str, ...], garbage: Any) -> None:  # SPEC A2
    """For a message that fails and for one that succeeds."""
    given_event = event(
        record("{}", "retry-1"), spoiled("retry-0", path, garbage), record("{}", "ok-2"), record("{}", "dead-3")
    )
    if path not in (("eventSourceARN",), ("attributes", "ApproximateReceiveCount")):
        given_event["Records"].append(
            spoiled("ok-0", path, garbage)
        )  # these two fields are not read if the message succeeds
    with orders() as wire:
        response = plain()(given_event, Context())
    assert [each for each in failed(response) if each not in ("retry-0", "ok-0")] == ["retry-1"]
    assert wire.visibilities()["handle-retry-1"] == 60


def fields_that_a_dead_letter_does_not_need() -> list[Any]:
    """The cases of garbage in fields that a dead letter can do without."""
    keep = {
        ("attributes", "ApproximateReceiveCount"),
        ("attributes", "SentTimestamp"),
        ("attributes", "ApproximateFirstReceiveTimestamp"),
        ("attributes", "MessageGroupId"),
        ("attributes", "AWSTraceHeader"),
        ("messageAttributes", "Tarry", "stringValue"),
        ("md5OfBody",),
        ("eventSource",),
        ("awsRegion",),
        ("attributes",),
    }
    return [case for case in GARBAGE_CASES if case.values[0] in keep]


@pytest.mark.parametrize(("path", "garbage"), fields_that_a_dead_letter_does_not_need())
def test_garbage_in_a_field_does_not_prevent_dead_lettering(path: tuple[str, ...], garbage: Any) -> None:  # SPEC F3
    with orders() as wire:
        assert failed(plain()(event(spoiled("dead-1", path, garbage)), Context())) == []
    assert wire.sent_entries()[0]["MessageBody"] == "{}"


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "soon",
        "-1",
        "9" * 15,
        "9" * 20,
        "9" * 5_000,
    ],
    ids=lambda text: text[:20],
)
def test_a_garbage_sent_timestamp_counts_as_unknown(garbage: str) -> None:  # SPEC K1, F3
    seen: list[Any] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(message.sent_at)
        raise Reject("no")

    with orders() as wire:
        assert failed(handler(event(record(system={"SentTimestamp": garbage})), Context())) == []
    assert len(wire.sent_entries()) == 1
    assert seen == [None] or garbage == "-1"


@pytest.mark.parametrize("garbage", ["9" * 20, "99999999999999999", "-99999999999999999"])
def test_a_garbage_first_receive_time_does_not_prevent_dead_lettering(garbage: str) -> None:  # SPEC F3
    odd = record("{}", "dead-1", receives=2, system={"ApproximateFirstReceiveTimestamp": garbage})
    with orders():
        assert failed(plain()(event(odd), Context())) == []


@pytest.mark.parametrize("count", [None, "", "many", "-3", "0", "1.5", "NaN", [], {}, "x1"], ids=repr)
def test_a_garbage_receive_count_counts_as_the_first_attempt(count: Any) -> None:  # SPEC C2
    seen: list[tuple[int, int]] = []
    odd = record("{}", "ok-1")
    odd["attributes"]["ApproximateReceiveCount"] = count
    with orders():
        consumer(lambda message: seen.append((message.attempt, message.receive_count)))(event(odd), Context())
    assert seen == [(1, 1)]


def test_a_missing_receive_count_counts_as_the_first_attempt() -> None:  # SPEC C2
    seen: list[int] = []
    odd = record()
    del odd["attributes"]["ApproximateReceiveCount"]
    with orders():
        consumer(lambda message: seen.append(message.attempt))(event(odd), Context())
    assert seen == [1]


def test_an_infinite_receive_count_of_a_message_that_the_batch_contains_twice_raises_no_error() -> None:  # SPEC A3, A7
    odd = record("{}", "retry-1")
    odd["attributes"]["ApproximateReceiveCount"] = float("inf")
    with orders():
        assert failed(plain()(event(record("{}", "retry-1"), odd), Context())) == ["retry-1"]


# bodies

BODIES = [
    "",
    " ",
    "\x00",
    "\ud800",
    "\ufffe\uffff",
    "😀" * 10,
    "\x1b[31mred",
    "%s %d {} {0}",
    '{"a": NaN}',
    "[" * 100_000,
    "\u202e\u200b",
    "x" * 1_000_000,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: ascii(body)[:30])
def test_a_body_with_any_characters_reaches_the_handler_and_the_dead_letter_queue_unchanged(
    body: str,
) -> None:  # SPEC F2
    seen: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(message.body)
        raise Reject("no")

    with orders() as wire:
        assert failed(handler(event(record(body)), Context())) == []
    assert seen == [body]
    assert wire.sent_entries()[0]["MessageBody"] == body


@pytest.mark.parametrize("body", ["", "{", "\x00", "[" * 100_000, "nul", "\ud800"], ids=lambda body: ascii(body)[:20])
def test_a_body_that_is_not_json_is_dead_lettered_byte_for_byte(body: str) -> None:  # SPEC D4
    with orders() as wire:
        assert failed(consumer(lambda message: message.json())(event(record(body)), Context())) == []
    assert wire.sent_entries()[0]["MessageBody"] == body
    assert wire.envelopes()[0]["failure"]["reason"] == "undecodable"


@settings(max_examples=100)
@given(body=st.text(st.characters(), max_size=200), text=st.text(st.characters(), max_size=200))
def test_a_dead_letter_keeps_any_body_and_any_error_message(body: str, text: str) -> None:  # SPEC F2, F3
    @consumer
    def handler(message: Message) -> None:
        raise Reject("no") from ValueError(text)

    with orders() as wire:
        assert failed(handler(event(record(body)), Context())) == []
    assert wire.sent_entries()[0]["MessageBody"] == body
    assert wire.envelopes()[0]["failure"].get("message", "") == text


@pytest.mark.parametrize("body", [{"id": 1}, 7, None, ["x"]], ids=repr)
def test_a_message_whose_body_is_not_text_is_not_copied_and_stays_in_its_queue(body: Any) -> None:  # SPEC F2, A2
    """As in a sample event written by hand. A copy would lack the content."""
    odd = {**record("{}", "dead-1"), "body": body}
    with orders() as wire:
        response = plain()(event(odd), Context())
    assert wire.sent_entries() == []
    assert failed(response) == ["dead-1"]


# a `Tarry` attribute that is damaged, forged, or copied from another message


def with_tarry(value: str, **more: Any) -> dict[str, Any]:
    return record("{}", "m9", attributes={"Tarry": {"stringValue": value, "dataType": "String"}}, **more)


def forged(**changes: Any) -> str:
    return json.dumps(an_envelope(**changes))


DAMAGED = {
    "another version": forged(v=2),
    "a version that is not a number": forged(v="1"),
    "another body": forged(sum="0123456789abcdef"),
    "a sum that is not text": forged(sum=7),
    "no id": forged(id=""),
    "an id that is not text": forged(id=7),
    "carried below 0": forged(carried=-1),
    "carried above 1,000": forged(carried=1_001),
    "carried as a fraction": forged(carried=1.5),
    "carried as text": forged(carried="3"),
    "carried as a bool": forged(carried=True),
    "hops below 0": forged(hops=-1),
    "due as NaN": forged(due=float("nan")),
    "due as infinity": forged(due=float("inf")),
    "due two years ahead": forged(due=RECEIVED_AT + 2 * 366 * 86_400),
    "due below 0": forged(due=-1),
    "due as text": forged(due="soon"),
    "a step counter out of range": forged(steps={"slow": 1_001}),
    "a step counter that is not a number": forged(steps={"slow": "2"}),
    "steps that are a list": forged(steps=[1]),
    "a failure that is a list": forged(failure=["x"]),
    "a failure with negative attempts": forged(failure={"attempts": -5}),
    "a failure whose message is not text": forged(failure={"message": {"x": 1}}),
    "a history that is text": forged(history="long ago"),
    "an origin that is not text": forged(origin=["orders"]),
}
FOREIGN = {
    "truncated": forged()[:80],
    "not JSON": "certainly not",
    "a list": "[1, 2]",
    "a number": "7",
    "another object": '{"id": "x"}',
    "nested without end": "[" * 100_000,
    "one space": " ",
}


@pytest.mark.parametrize("value", [*DAMAGED.values(), *FOREIGN.values()], ids=[*DAMAGED, *FOREIGN])
def test_an_unreadable_tarry_attribute_is_ignored_and_logged(
    value: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C2, K3
    seen: list[Any] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append((message.id, message.attempt, message.failure))

    with orders():
        assert failed(handler(event(with_tarry(value, receives=2)), Context())) == []
    assert seen == [("m9", 2, None)]
    [line] = lines(caplog, "record_unreadable")
    assert field(line, "delivery_id") == "m9"
    assert line.levelno >= logging.WARNING


@pytest.mark.parametrize("value", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_dead_letter_gets_a_new_tarry_attribute_in_place_of_a_damaged_one(value: str) -> None:  # SPEC F2, F3
    with orders() as wire:
        assert failed(consumer(fatal=ValueError)(fail)(event(with_tarry(value)), Context())) == []
    envelope = wire.envelopes()[0]
    assert envelope["id"] == "m9"
    assert envelope["failure"]["attempts"] == 1


def fail(message: Message) -> None:
    raise ValueError("again")


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_dead_letter_keeps_a_tarry_attribute_that_tarry_did_not_write(value: str) -> None:  # SPEC F3
    with orders() as wire:
        assert failed(consumer(fatal=ValueError)(fail)(event(with_tarry(value)), Context())) == []
    assert wire.sent_entries()[0]["MessageAttributes"]["Tarry"]["StringValue"] == value


def test_a_tarry_attribute_copied_to_a_message_with_another_body_is_ignored() -> None:  # SPEC K1, K3
    seen: list[str] = []
    copied = with_tarry(json.dumps(an_envelope(body='{"id": 1}', carried=4)))
    with orders():
        consumer(lambda message: seen.append(f"{message.id} {message.attempt}"))(event(copied), Context())
    assert seen == ["m9 1"]


def test_message_attributes_do_not_contain_the_tarry_attribute() -> None:  # SPEC K1
    seen: list[Any] = []
    with orders():
        for value in (forged(), forged(sum="0123456789abcdef")):
            consumer(lambda message: seen.append(message.attributes))(event(with_tarry(value)), Context())
    assert seen == [{}, {}]


READABLE_BUT_ODD = {
    "a history with NaN": forged(history=[{"attempt": float("nan")}]),
    "a history with invalid entries": forged(history=["x", 7, None, {"attempt": 1}]),
    "a very long history": forged(history=[{"attempt": n, "error": "x" * 1_000} for n in range(500)]),
    "sent in the year 1": forged(sent="0001-01-01T00:00:00+23:59"),
    "sent without a zone": forged(sent="0001-01-01T00:00:00"),
    "sent never": forged(sent="never"),
    "a failure without anything": forged(failure={}),
    "no failure": forged(failure=None),
    "a million attempts": forged(failure={"attempts": 1_000_000}),
    "a very long id": forged(id="x" * 5_000),
    "an id with odd characters": forged(id="\ud800\x00"),
    "an origin that is not an ARN": forged(origin="somewhere"),
    "a first failure that is not a time": forged(failure={"first_failed_at": "x" * 10_000}),
}
ODD_ENVELOPES = pytest.mark.parametrize("value", READABLE_BUT_ODD.values(), ids=READABLE_BUT_ODD.keys())


@ODD_ENVELOPES
def test_an_odd_tarry_attribute_does_not_prevent_dead_lettering(value: str) -> None:  # SPEC F3
    with orders() as wire:
        assert failed(consumer(fatal=ValueError)(fail)(event(with_tarry(value)), Context())) == []
    assert wire.envelopes()[0]["failure"]["reason"] == "fatal"


@ODD_ENVELOPES
def test_the_failure_written_after_an_odd_tarry_attribute_is_readable(value: str) -> None:  # SPEC K3, F2
    seen: list[Any] = []
    with orders() as wire:
        consumer(fatal=ValueError)(fail)(event(with_tarry(value)), Context())
        written = json.dumps(wire.envelopes()[0])
        consumer(lambda message: seen.append(message.failure))(event(with_tarry(written)), Context())
    assert seen
    assert seen[0] is not None
    assert seen[0].reason == "fatal"


# a queue that does not exist; test_failing_sqs.py tests missing permissions and throttling for each request


@pytest.mark.parametrize(
    "error",
    [client_error("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist."),
     client_error("QueueDoesNotExist", "The specified queue does not exist.")],
    ids=["query", "json"],
)  # fmt: skip
def test_a_message_whose_dead_letter_queue_does_not_exist_waits_in_its_queue_and_the_error_is_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F4, F5
    wire = orders()
    wire.fails["GetQueueAttributes"] = lambda request: error if request.queue == "orders-dlq" else None
    wire.fails["SendMessageBatch"] = error
    with wire:
        assert failed(plain()(event(record("{}", "dead-1")), Context())) == ["dead-1"]
    assert wire.visibilities() == {"handle-dead-1": 900}
    [line] = lines(caplog, level=logging.ERROR)
    assert "does not exist" in line.getMessage()


def test_the_log_names_a_dead_letter_queue_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F5
    wire = orders()
    wire.fails["SendMessageBatch"] = client_error("QueueDoesNotExist", "The specified queue does not exist.")
    with wire:
        plain()(event(record("{}", "dead-1")), Context())
    assert any("orders-dlq" in line.getMessage() for line in lines(caplog, level=logging.ERROR))
