"""Packing a message for `Queue.send`: its body, attributes, ids and delay."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
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


def packed_message(body: Any = "body", *, fifo: bool = False, **more: Any) -> PackedMessage:
    return pack(Queue.entry(body, **more), World(clock=TestClock()), fifo=fifo)


def body_of(body: Any) -> str:
    text: str = packed_message(body).parameters["MessageBody"]
    return text


def attributes_of(**attributes: Any) -> Any:
    return packed_message(attributes=attributes).parameters["MessageAttributes"]


# bodies


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


def type_name(value: object) -> str:
    """Return the type's name as the id of a test's parameter: it is the same in every process."""
    return type(value).__name__


@pytest.mark.parametrize("body", ["text", "{not json", "é€😀", " ", "\t\n\r", '{"a": 1}'])
def test_a_str_is_sent_as_it_is(body: str) -> None:  # SPEC J1
    assert body_of(body) == body


@pytest.mark.parametrize(
    "body", [{}, [], {"id": 1}, [1, None, True, "é\x00\ud800"], {"deep": [{"x": (1, 2)}]}], ids=repr
)
def test_a_dict_or_list_becomes_json_without_a_character_that_sqs_refuses(body: Any) -> None:  # SPEC J1, J2
    text = body_of(body)
    assert json.loads(text) == json.loads(json.dumps(body))
    assert text.isascii()
    assert text.isprintable()


def test_a_dataclass_becomes_json_of_its_fields() -> None:  # SPEC J1
    order = OrderWithLines(1, [Line(sku="a", unitPrice=Decimal("1.50"))])
    assert json.loads(body_of(order)) == {"id": 1, "lines": [{"sku": "a", "unitPrice": "1.50"}]}


def test_a_pydantic_model_becomes_json_that_the_same_model_reads() -> None:  # SPEC J1
    line = Line(sku="é", unitPrice=Decimal("1.50"))
    assert Line.model_validate_json(body_of(line)) == line


def test_types_without_a_json_form_are_written_as_pydantic_writes_them() -> None:  # SPEC J1
    body = {
        "moment": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("1.50"),
        "id": UUID(int=1),
        "colour": Colour.RED,
    }
    assert json.loads(body_of(body)) == {
        "moment": "2026-01-02T03:04:05+00:00",
        "day": "2026-01-02",
        "price": "1.50",
        "id": "00000000-0000-0000-0000-000000000001",
        "colour": "red",
    }


@pytest.mark.parametrize(
    "body", [None, 1, 1.5, True, b"bytes", (1, 2), {1, 2}, object(), OrderWithLines], ids=type_name
)
def test_any_other_type_of_body_is_refused(body: Any) -> None:  # SPEC J1
    with pytest.raises(TypeError, match=rf"a body is a str, dict, list, .*, got {type(body).__name__}"):
        packed_message(body)


def test_a_body_with_a_type_that_json_cannot_represent_is_refused_with_the_type() -> None:  # SPEC J1
    with pytest.raises(TypeError, match="the body contains a bytes"):
        packed_message({"raw": b"x"})


def test_a_pydantic_model_with_a_character_that_sqs_refuses_is_refused() -> None:  # SPEC J2
    with pytest.raises(ValueError, match="U\\+FFFE"):
        body_of(Line(sku="\ufffe", unitPrice=Decimal(1)))


def test_a_number_that_json_cannot_represent_is_refused() -> None:  # SPEC J2
    with pytest.raises(ValueError, match="JSON"):
        packed_message({"price": float("nan")})


def test_an_empty_body_is_refused() -> None:  # SPEC J2
    with pytest.raises(ValueError, match="empty: SQS takes 1 character"):
        packed_message("")


@pytest.mark.parametrize("character", ["\x00", "\x0b", "\x1f", "\ud800", "\ufffe", "\uffff"], ids=ascii)
def test_a_character_that_sqs_refuses_is_refused_with_its_index(character: str) -> None:  # SPEC J2
    with pytest.raises(ValueError, match=rf"the body holds U\+{ord(character):04X} at index 2"):
        packed_message(f"ab{character}")
    with pytest.raises(ValueError, match=rf"attribute 'note' holds U\+{ord(character):04X} at index 0"):
        packed_message(attributes={"note": character})


@pytest.mark.parametrize(
    "character", ["\t", "\n", "\r", " ", "\x7f", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff"]
)
def test_all_other_characters_are_accepted(character: str) -> None:  # SPEC J2
    assert body_of(character) == character


# size


def test_a_message_may_have_1_mib_and_not_a_byte_more() -> None:  # SPEC J2
    assert packed_message("x" * MIB).size == MIB
    with pytest.raises(ValueError, match=r"1048577 bytes, .* at most 1048576"):
        packed_message("x" * (MIB + 1))


def test_the_size_is_counted_in_bytes_not_in_characters() -> None:  # SPEC J2
    with pytest.raises(ValueError, match="1048578 bytes"):
        packed_message("€" * (MIB // 3 + 1))


def test_the_size_includes_the_attributes() -> None:  # SPEC J2
    attribute = len("tenant") + len("String") + len("acme")
    assert packed_message("x" * (MIB - attribute), attributes={"tenant": "acme"}).size == MIB
    with pytest.raises(ValueError, match="1048577 bytes"):
        packed_message("x" * (MIB - attribute + 1), attributes={"tenant": "acme"})


# attributes


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("acme", {"DataType": "String", "StringValue": "acme"}),
        (7, {"DataType": "Number", "StringValue": "7"}),
        (1.5, {"DataType": "Number", "StringValue": "1.5"}),
        (Decimal("0.10"), {"DataType": "Number", "StringValue": "0.10"}),
        (b"\xff\x00", {"DataType": "Binary", "BinaryValue": b"\xff\x00"}),
    ],
    ids=repr,
)
def test_an_attribute_has_the_type_of_its_value(value: Any, sent: Any) -> None:  # SPEC J1
    assert attributes_of(it=value) == {"it": sent}


@pytest.mark.parametrize("value", [None, True, [1], {"a": 1}, object()], ids=type_name)
def test_an_attribute_of_another_type_is_refused(value: Any) -> None:  # SPEC J2
    with pytest.raises(TypeError, match="attribute 'it' must be a str, int, float, Decimal or bytes"):
        packed_message(attributes={"it": value})


@pytest.mark.parametrize("value", ["", b"", float("nan"), float("inf"), Decimal("NaN")], ids=repr)
def test_an_attribute_value_that_sqs_cannot_represent_is_refused(value: Any) -> None:  # SPEC J2
    with pytest.raises(ValueError, match="attribute 'it'"):
        packed_message(attributes={"it": value})


def test_ten_attributes_are_allowed_and_eleven_are_not() -> None:  # SPEC J2
    ten = {f"a{number}": number for number in range(10)}
    assert len(attributes_of(**ten)) == 10
    with pytest.raises(ValueError, match="at most 10 attributes, got 11"):
        packed_message(attributes={**ten, "more": 1})


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 256, "aws", "awsome.x", "Tarry", "größe", "attr.1øßä"])
def test_a_name_of_alphanumeric_characters_and_single_dots_is_accepted(name: str) -> None:  # SPEC J2
    assert name in packed_message(attributes={name: 1}).parameters["MessageAttributes"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "1 to 256 characters"),
        ("x" * 257, "has 257"),
        (".a", "single dots"),
        ("a.", "single dots"),
        ("a..b", "single dots"),
        ("a b", "single dots"),
        ("a!", "single dots"),
        ("§", "single dots"),
        ("٣", "digits 0-9"),
        ("a\n", "single dots"),
        ("AWS.x", "AWS's own"),
        ("aws.x", "AWS's own"),
        ("Amazon.x", "AWS's own"),
    ],
)
def test_any_other_name_is_refused(name: str, text: str) -> None:  # SPEC J2
    with pytest.raises(ValueError, match=text):
        packed_message(attributes={name: 1})


@pytest.mark.parametrize("attributes", [["a"], "a", 5], ids=repr)
def test_attributes_that_are_not_a_dict_are_refused(attributes: Any) -> None:  # SPEC J2
    with pytest.raises(TypeError, match="a dict of names and values"):
        packed_message(attributes=attributes)


# ids


@pytest.mark.parametrize("name", ["group_id", "deduplication_id"])
@pytest.mark.parametrize("value", ["a", "x" * 128, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"])
def test_ids_may_have_128_alphanumeric_characters_and_punctuation(name: str, value: str) -> None:  # SPEC J2
    assert getattr(packed_message(fifo=True, **{"group_id": "g", name: value}).entry, name) == value


@pytest.mark.parametrize("name", ["group_id", "deduplication_id"])
@pytest.mark.parametrize(("value", "text"), [("", "got 0"), ("x" * 129, "got 129"), ("a b", "ASCII"), ("é", "ASCII")])
def test_any_other_id_is_refused(name: str, value: str, text: str) -> None:  # SPEC J2
    with pytest.raises(ValueError, match=rf"{name} .*{text}"):
        packed_message(fifo=True, **{"group_id": "g", name: value})


def test_a_fifo_queue_needs_a_group_id() -> None:  # SPEC J2
    with pytest.raises(ValueError, match="needs a group_id"):
        packed_message(fifo=True)


def test_a_standard_queue_takes_a_group_id_and_no_deduplication_id() -> None:  # SPEC H3, J2
    assert packed_message(group_id="tenant-1").parameters["MessageGroupId"] == "tenant-1"
    with pytest.raises(ValueError, match="deduplication_id is for FIFO"):
        packed_message(deduplication_id="1")


def test_on_fifo_a_missing_deduplication_id_is_generated_for_each_message() -> None:  # SPEC J1
    ids = {packed_message(fifo=True, group_id="g").parameters["MessageDeduplicationId"] for _ in range(100)}
    assert len(ids) == 100
    assert (
        packed_message(fifo=True, group_id="g", deduplication_id="mine").parameters["MessageDeduplicationId"] == "mine"
    )


# delays


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (0, 0),
        (1, 1),
        (0.2, 1),
        (900, 900),
        (timedelta(minutes=2), 120),
        (901, 900),
        (43_200, 900),
        (timedelta(hours=12), 900),
    ],
    ids=str,
)
def test_sqs_parks_a_message_for_at_most_900_seconds(delay: Any, seconds: int) -> None:  # SPEC J3, J4, B6
    assert packed_message(delay=delay).parameters["DelaySeconds"] == seconds


def test_without_a_delay_that_of_the_queue_applies() -> None:  # SPEC J3
    assert "DelaySeconds" not in packed_message().parameters


@pytest.mark.parametrize("delay", [None, 0, 900])
def test_up_to_900_seconds_there_is_no_record(delay: Any) -> None:  # SPEC J4, K3
    packed = packed_message(delay=delay)
    assert (packed.stable_id, packed.parameters.get("MessageAttributes")) == (None, None)


@pytest.mark.parametrize("delay", [901, 43_200])
def test_beyond_900_seconds_the_record_has_the_time_at_which_the_message_is_due(delay: int) -> None:  # SPEC J4, K3
    packed = packed_message('{"id": 1}', delay=delay)
    record = json.loads(packed.parameters["MessageAttributes"]["Tarry"]["StringValue"])
    assert record == {
        "v": 1,
        "sum": body_sum('{"id": 1}'),
        "id": packed.stable_id,
        "sent": "2027-01-15T08:00:00.000Z",
        "due": 1_800_000_000 + delay,
    }


@pytest.mark.parametrize("delay", [43_201, 10**9, timedelta(days=1)], ids=str)
def test_beyond_12_hours_a_delay_is_refused_with_the_limit(delay: Any) -> None:  # SPEC J4
    with pytest.raises(DelayNotSupported, match=r"between 0 and 43200 seconds .* EventBridge Scheduler"):
        packed_message(delay=delay)


@pytest.mark.parametrize("delay", [0, 1, 900, 901, 43_200, 43_201])
def test_on_fifo_every_delay_is_refused(delay: int) -> None:  # SPEC J4
    with pytest.raises(DelayNotSupported, match="FIFO"):
        packed_message(fifo=True, group_id="g", delay=delay)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), True, "60"], ids=repr)
@pytest.mark.parametrize("fifo", [False, True])
def test_an_invalid_delay_is_refused(delay: Any, fifo: bool) -> None:  # SPEC B6
    with pytest.raises(ValueError, match="a delay"):
        packed_message(fifo=fifo, group_id="g", delay=delay)


def test_a_long_delay_leaves_room_for_nine_attributes() -> None:  # SPEC J4
    nine = {f"a{number}": number for number in range(9)}
    assert len(packed_message(delay=901, attributes=nine).parameters["MessageAttributes"]) == 10
    with pytest.raises(ValueError, match="send at most 9 others, got 10"):
        packed_message(delay=901, attributes={**nine, "more": 1})


def test_the_size_includes_the_record() -> None:  # SPEC J4
    record = packed_message("x", delay=901).size - 1
    assert 100 < record < 250
    assert packed_message("x" * (MIB - record), delay=901).size == MIB
    with pytest.raises(ValueError, match="1048577 bytes"):
        packed_message("x" * (MIB - record + 1), delay=901)


def test_with_a_long_delay_an_attribute_cannot_have_the_name_of_the_record() -> None:  # SPEC J4
    with pytest.raises(ValueError, match="'Tarry': rename your own attribute"):
        packed_message(delay=901, attributes={"Tarry": "mine"})


# the trace context


PARENT, STATE, BAGGAGE = "traceparent", "tracestate", "baggage"
TRACE = {STATE: "s=1", BAGGAGE: "b=22", PARENT: "00-aa-bb-01"}
BYTES = {name: len(name) + len("String") + len(value) for name, value in TRACE.items()}
ROOT = "Root=1-0123abcd-0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("room", "others", "added"),
    [
        (MIB, 0, [PARENT, STATE, BAGGAGE]),
        (sum(BYTES.values()), 0, [PARENT, STATE, BAGGAGE]),
        (sum(BYTES.values()) - 1, 0, [PARENT, STATE]),
        (BYTES[PARENT] + BYTES[BAGGAGE], 0, [PARENT]),  # the order is that of the application
        (BYTES[PARENT] + BYTES[STATE] - 1, 0, [PARENT]),
        (BYTES[PARENT] - 1, 0, []),
        (0, 0, []),
        (MIB, 8, [PARENT, STATE]),
        (MIB, 10, []),
    ],
)
def test_a_trace_context_is_added_as_far_as_there_is_room_traceparent_first(
    room: int, others: int, added: list[str]
) -> None:
    attributes: dict[str, Any] = {f"a{number}": {} for number in range(others)}
    size = add_trace(TRACE, {}, attributes, room)
    assert [name for name in attributes if name in TRACE] == added
    assert size == sum(BYTES[name] for name in added)
    assert all(attributes[name] == {"DataType": "String", "StringValue": TRACE[name]} for name in added)


@pytest.mark.parametrize(
    ("header", "sent"),
    [(ROOT, True), (f"{ROOT};Parent=0123456789abcdef;Sampled=1", True), (f"{ROOT} ", False), ("Self=1", False)],
)
def test_the_header_of_xray_is_a_system_attribute_if_it_is_valid(header: str, sent: bool) -> None:
    attributes: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    assert add_trace({"X-Amzn-Trace-Id": header}, parameters, attributes, 0) == 0
    value = {"AWSTraceHeader": {"DataType": "String", "StringValue": header}}
    assert (parameters, attributes) == ({"MessageSystemAttributes": value} if sent else {}, {})


def test_a_context_of_the_caller_and_values_that_cannot_be_sent_are_left_alone() -> None:
    its_own: dict[str, Any] = {PARENT: {}}
    with_header: dict[str, Any] = {"MessageSystemAttributes": {}}
    assert (add_trace(TRACE, {}, its_own, MIB), its_own) == (0, {PARENT: {}})
    assert (add_trace(TRACE, with_header, {}, MIB), with_header) == (0, {"MessageSystemAttributes": {}})
    given: dict[str, Any] = {BAGGAGE: {"StringValue": "mine"}}
    assert add_trace({**TRACE, "a b": "1", "empty": ""}, {}, given, MIB) == BYTES[PARENT] + BYTES[STATE]
    assert (given[BAGGAGE], [*given]) == ({"StringValue": "mine"}, [BAGGAGE, PARENT, STATE])


def test_the_size_includes_the_trace_context_which_is_left_out_before_the_message_is_too_large() -> None:  # SPEC J2
    for length in (1, MIB - BYTES[PARENT]):
        packed = pack(Queue.entry("x" * length), World(clock=TestClock()), fifo=False, trace={PARENT: TRACE[PARENT]})
        assert (packed.size, packed.body) == (length + BYTES[PARENT], "x" * length)
    packed = pack(Queue.entry("x" * (length + 1)), World(clock=TestClock()), fifo=False, trace=TRACE)
    assert (packed.size, [*packed.parameters]) == (length + 1, ["MessageBody"])
