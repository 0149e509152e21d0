"""Packing a message for `Queue.send`: its body, attributes, ids, delay, and trace context."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from math import inf, nan
from typing import Any, ClassVar
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from tarry import DelayNotSupported, Queue
from tarry.record.attribute import body_sum
from tarry.sqs.outgoing import PackedMessage, add_trace, pack
from tarry.world import World
from tests.wire import TestClock

MIB = 1_048_576
ACCEPTED = "\t\n\r \x7f\ud7ff\ue000\ufffd\U00010000\U0010ffff"
REFUSED = "\x00\x0b\x1f\ud800\ufffe\uffff"
TEN = {f"a{number}": number for number in range(10)}
NINE = {name: number for name, number in TEN.items() if number}


def packed(body: Any = "body", *, fifo: bool = False, trace: Any = None, **more: Any) -> PackedMessage:
    return pack(Queue.entry(body, **more), World(clock=TestClock()), fifo=fifo, trace=trace)


def sent(body: Any = "body", **more: Any) -> dict[str, Any]:
    return packed(body, **more).parameters


class Line(BaseModel):
    sku: str
    unit_price: Decimal = Field(alias="unitPrice")


class Colour(Enum):
    RED = "red"


@dataclass
class OrderWithLines:
    id: int
    lines: list[Line] = field(default_factory=list)
    kind: ClassVar[str] = "order"


LINE, LINE_JSON = Line(sku="é", unitPrice=Decimal("1.50")), {"sku": "é", "unitPrice": "1.50"}  # the same model reads it
TIMES = {"moment": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "day": date(2026, 1, 2)}
TIMES_JSON = {"moment": "2026-01-02T03:04:05+00:00", "day": "2026-01-02"}
VALUES = {"price": Decimal("1.50"), "id": UUID(int=1), "colour": Colour.RED}
VALUES_JSON = {"price": "1.50", "id": "00000000-0000-0000-0000-000000000001", "colour": "red"}


@pytest.mark.parametrize("body", ["text", "{not json", "é€😀", "\t\n\r", '{"a": 1}', *ACCEPTED])
def test_a_str_is_sent_as_it_is(body: str) -> None:  # SPEC J1, J2
    assert sent(body) == {"MessageBody": body}


@pytest.mark.parametrize(
    ("body", "loaded"),
    [
        ({}, {}),
        ([1, None, True, "é\x00\ud800"], [1, None, True, "é\x00\ud800"]),
        ({"deep": [{"x": (1, 2)}]}, {"deep": [{"x": [1, 2]}]}),
        (OrderWithLines(1, [LINE]), {"id": 1, "lines": [LINE_JSON]}),
        (LINE, LINE_JSON),
        (TIMES, TIMES_JSON),
        (VALUES, VALUES_JSON),
    ],
)
def test_any_other_body_becomes_json_without_a_character_that_sqs_refuses(
    body: Any, loaded: Any
) -> None:  # SPEC J1, J2
    text = sent(body)["MessageBody"]
    assert json.loads(text) == loaded
    assert text.isprintable()
    assert text.isascii() or isinstance(body, BaseModel)


@pytest.mark.parametrize(
    ("value", "attribute"),
    [
        ("acme", {"DataType": "String", "StringValue": "acme"}),
        (7, {"DataType": "Number", "StringValue": "7"}),
        (1.5, {"DataType": "Number", "StringValue": "1.5"}),
        (Decimal("0.10"), {"DataType": "Number", "StringValue": "0.10"}),
        (b"\xff\x00", {"DataType": "Binary", "BinaryValue": b"\xff\x00"}),
    ],
)
def test_an_attribute_has_the_type_of_its_value(value: Any, attribute: Any) -> None:  # SPEC J1
    assert sent(attributes={"it": value})["MessageAttributes"] == {"it": attribute}


def test_names_of_attributes_have_alphanumeric_characters_and_single_dots() -> None:  # SPEC J2
    names = ("a", "A-b_c.9", "x" * 256, "aws", "awsome.x", "Tarry", "größe", "attr.1øßä")
    assert [*sent(attributes=dict.fromkeys(names, 1))["MessageAttributes"]] == [*names]
    assert len(sent(attributes=TEN)["MessageAttributes"]) == 10


@pytest.mark.parametrize("value", ["a", "x" * 128, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"])
def test_ids_may_have_128_alphanumeric_characters_and_punctuation(value: str) -> None:  # SPEC J2
    parameters = sent(fifo=True, group_id=value, deduplication_id=value)
    assert parameters == {"MessageBody": "body", "MessageGroupId": value, "MessageDeduplicationId": value}
    assert sent(group_id=value) == {"MessageBody": "body", "MessageGroupId": value}  # SPEC H3


def test_on_fifo_a_missing_deduplication_id_is_generated_for_each_message() -> None:  # SPEC J1
    assert len({sent(fifo=True, group_id="g")["MessageDeduplicationId"] for _ in range(100)}) == 100


NAMES = {
    "": "1 to 256 characters", "x" * 257: "has 257", "٣": "digits 0-9", "AWS.x": "AWS's own", "aws.x": "AWS's own",
    "Amazon.x": "AWS's own", **dict.fromkeys([".a", "a.", "a..b", "a b", "a!", "§", "a\n"], "single dots"),
}  # fmt: skip
IDS = {"": "got 0", "x" * 129: "got 129", "a b": "ASCII", "é": "ASCII"}
FIFO: dict[str, Any] = {"fifo": True, "group_id": "g"}


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        *(
            ({"body": body}, TypeError, rf"a body is a str, dict, list, .*, got {type(body).__name__}$")
            for body in (None, 1, 1.5, True, b"bytes", (1, 2), {1, 2}, object(), OrderWithLines)
        ),
        ({"body": {"raw": b"x"}}, TypeError, "the body contains a bytes"),
        ({"body": Line(sku="\ufffe", unitPrice=Decimal(1))}, ValueError, r"U\+FFFE"),
        ({"body": {"price": nan}}, ValueError, "JSON"),
        ({"body": ""}, ValueError, "empty: SQS takes 1 character"),
        *(({"body": f"ab{it}"}, ValueError, rf"the body holds U\+{ord(it):04X} at index 2") for it in REFUSED),
        *(
            ({"attributes": {"note": it}}, ValueError, rf"attribute 'note' holds U\+{ord(it):04X} at index 0")
            for it in REFUSED
        ),
        *(
            ({"attributes": {"it": value}}, TypeError, "attribute 'it' must be a str, int, float, Decimal or bytes")
            for value in (None, True, [1], {"a": 1}, object())
        ),
        *(
            ({"attributes": {"it": value}}, ValueError, "attribute 'it'")
            for value in ("", b"", nan, inf, Decimal("NaN"))
        ),
        *(({"attributes": {name: 1}}, ValueError, text) for name, text in NAMES.items()),
        ({"attributes": {5: 1}}, TypeError, "the name of an attribute is a str, got 5"),
        *(({"attributes": odd}, TypeError, "a dict of names and values") for odd in (["a"], "a", 5)),
        ({"attributes": {**TEN, "more": 1}}, ValueError, "at most 10 attributes, got 11"),
        ({"attributes": TEN, "delay": 901}, ValueError, "send at most 9 others, got 10"),
        ({"attributes": {"Tarry": "mine"}, "delay": 901}, ValueError, "'Tarry': rename your own attribute"),
        *(
            ({**FIFO, name: value}, ValueError, rf"{name} .*{text}")
            for name in ("group_id", "deduplication_id")
            for value, text in IDS.items()
        ),
        ({"group_id": 5}, TypeError, "group_id is a str, got 5"),
        ({"fifo": True}, ValueError, "needs a group_id"),
        ({"deduplication_id": "1"}, ValueError, "deduplication_id is for FIFO"),
        *(
            ({"delay": delay}, DelayNotSupported, r"between 0 and 43200 seconds .* EventBridge Scheduler")
            for delay in (43_201, 10**9, timedelta(days=1))
        ),
        *(({**FIFO, "delay": delay}, DelayNotSupported, "FIFO") for delay in (0, 1, 900, 901, 43_200, 43_201)),
        *(
            ({**queue, "delay": delay}, ValueError, "a delay")
            for queue in ({}, FIFO)
            for delay in (-1, nan, inf, True, "60")
        ),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_with_the_value_or_the_limit(
    given: Any, error: type[Exception], text: str
) -> None:  # SPEC B6, H3, J1, J2, J4
    with pytest.raises(error, match=text):
        packed(**given)


@pytest.mark.parametrize("more", [{}, {"attributes": {"tenant": "acme"}}, {"delay": 901}], ids=str)
def test_a_message_may_have_1_mib_with_its_attributes_and_record_and_not_a_byte_more(more: Any) -> None:  # SPEC J2, J4
    own = packed("x", **more).size - 1
    assert (own == len("tenantStringacme" if more else "")) or 100 < own < 250
    assert packed("x" * (MIB - own), **more).size == MIB
    for body in ("x" * (MIB - own + 1), "€" + "x" * (MIB - own - 2)):
        with pytest.raises(ValueError, match=r"1048577 bytes, .* at most 1048576"):
            packed(body, **more)


# delays


@pytest.mark.parametrize(
    ("delay", "seconds", "due"),
    [
        (0, 0, None), (1, 1, None), (0.2, 1, None), (900, 900, None), (timedelta(minutes=2), 120, None),
        (901, 900, 901), (43_200, 900, 43_200), (timedelta(hours=12), 900, 43_200),
    ],
    ids=str,
)  # fmt: skip
def test_sqs_parks_a_message_for_at_most_900_seconds_and_a_record_says_when_it_is_due(
    delay: Any, seconds: int, due: int | None
) -> None:  # SPEC B6, J3, J4, K3
    message = packed('{"id": 1}', delay=delay, attributes=NINE)
    attributes = message.parameters["MessageAttributes"]
    assert message.parameters["DelaySeconds"] == seconds
    assert (message.stable_id is None, len(attributes)) == (due is None, 10 if due else 9)
    if due:
        assert json.loads(attributes["Tarry"]["StringValue"]) == {
            "v": 1,
            "sum": body_sum('{"id": 1}'),
            "id": message.stable_id,
            "sent": "2027-01-15T08:00:00.000Z",
            "due": 1_800_000_000 + due,
        }


# the trace context

PARENT, STATE, BAGGAGE = "traceparent", "tracestate", "baggage"
TRACE = {STATE: "s=1", BAGGAGE: "b=22", PARENT: "00-aa-bb-01"}
BYTES = {name: len(name) + len("String") + len(value) for name, value in TRACE.items()}
ROOT = "Root=1-0123abcd-0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("room", "others", "added"),
    [
        (sum(BYTES.values()), 0, [PARENT, STATE, BAGGAGE]),
        (sum(BYTES.values()) - 1, 0, [PARENT, STATE]),
        (BYTES[PARENT] + BYTES[BAGGAGE], 0, [PARENT]),  # the order is that of the application
        (BYTES[PARENT] + BYTES[STATE] - 1, 0, [PARENT]),
        (BYTES[PARENT] - 1, 0, []),
        (MIB, 8, [PARENT, STATE]),
        (MIB, 10, []),
    ],
)
def test_a_trace_context_is_added_as_far_as_there_is_room_traceparent_first(
    room: int, others: int, added: list[str]
) -> None:
    attributes: dict[str, Any] = {f"a{number}": {} for number in range(others)}
    assert add_trace(TRACE, {}, attributes, room) == sum(BYTES[name] for name in added)
    assert [*attributes.items()][others:] == [
        (name, {"DataType": "String", "StringValue": TRACE[name]}) for name in added
    ]


@pytest.mark.parametrize(
    ("header", "is_valid"),
    [(ROOT, True), (f"{ROOT};Parent=0123456789abcdef;Sampled=1", True), (f"{ROOT} ", False), ("Self=1", False)],
)
def test_the_header_of_xray_is_a_system_attribute_if_it_is_valid(header: str, is_valid: bool) -> None:
    attributes, parameters = dict[str, Any](), dict[str, Any]()
    assert add_trace({"X-Amzn-Trace-Id": header}, parameters, attributes, 0) == 0
    value = {"AWSTraceHeader": {"DataType": "String", "StringValue": header}}
    assert (parameters, attributes) == ({"MessageSystemAttributes": value} if is_valid else {}, {})


def test_a_context_of_the_caller_and_values_that_cannot_be_sent_are_left_alone() -> None:
    its_own, with_header = {PARENT: {}}, {"MessageSystemAttributes": {}}
    assert (add_trace(TRACE, {}, its_own, MIB), its_own) == (0, {PARENT: {}})
    assert (add_trace(TRACE, with_header, {}, MIB), with_header) == (0, {"MessageSystemAttributes": {}})
    given: dict[str, Any] = {BAGGAGE: {"StringValue": "mine"}}
    assert add_trace({"a b": "1", "empty": "", **TRACE}, {}, given, MIB) == BYTES[PARENT] + BYTES[STATE]
    assert (given[BAGGAGE], [*given]) == ({"StringValue": "mine"}, [BAGGAGE, PARENT, STATE])


def test_a_trace_context_counts_in_the_size_and_is_left_out_before_the_message_is_too_large() -> None:  # SPEC J2
    for length in (1, MIB - BYTES[PARENT]):
        message = packed("x" * length, trace={PARENT: TRACE[PARENT]})
        assert (message.size, message.body) == (length + BYTES[PARENT], "x" * length)
    message = packed("x" * (length + 1), trace=TRACE)
    assert (message.size, [*message.parameters]) == (length + 1, ["MessageBody"])
