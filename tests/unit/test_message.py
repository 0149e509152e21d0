"""The public attributes of messages and batches, as a handler sees them."""

import json
import math
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from tarry import Batch, Fixed, Message, Outcome, Undecodable, batch_consumer, consumer
from tarry.message.invocation import Invocation, message_of
from tarry.observe.logs import Log, LogOptions
from tarry.record.attribute import body_sum
from tests.records import RECEIVED_AT, Context, batch_of, event, record
from tests.wire import Wire


def delivered(one: dict[str, Any], context: Any = None) -> Message:
    seen: list[Message] = []
    with Wire():
        consumer(seen.append)(event(one), context)
    return seen[0]


def text(value: str, data_type: str = "String") -> dict[str, str]:
    return {"stringValue": value, "dataType": data_type}


def tarry_attribute(body: str = "{}", **fields: Any) -> dict[str, Any]:
    return {"Tarry": text(json.dumps({"v": 1, "sum": body_sum(body), "id": "stable", **fields}))}


@pytest.mark.parametrize("body", ["", "text", '{"a": 1}', "\u00fc \U0001f600", "a\x00b", "\n", "\udcff"], ids=ascii)
def test_the_body_is_as_it_was_sent(body: str) -> None:  # SPEC K1
    assert delivered(record(body)).body == body


@pytest.mark.parametrize(
    ("body", "value"),
    [('{"id": 7}', {"id": 7}), ("null", None), ('"x"', "x"), ("1.5", 1.5), (' {"a": ["\u00fc"]} ', {"a": ["\u00fc"]})],
)
def test_json_decodes_the_body_into_a_new_value_at_each_call(body: str, value: Any) -> None:  # SPEC K1
    message = delivered(record(body))
    if isinstance(first := message.json(), dict):
        first.clear()
    assert message.json() == value


@pytest.mark.parametrize("body", [None, 7, {"a": 1}], ids=repr)
def test_a_body_that_is_not_a_text_is_undecodable(body: Any) -> None:  # SPEC D4
    with pytest.raises(Undecodable):
        delivered({**record(), "body": body}).json()


LARGE = 12345678901234567890123456789
ATTRIBUTES: dict[str, tuple[Any, Any]] = {
    "String": (text("x"), "x"),
    "String with a label": (text("x", "String.uuid"), "x"),
    "Number": (text("7", "Number"), 7),
    "Number with a label": (text("-7", "Number.int"), -7),
    "Number with a fraction": (text("1.50", "Number.float"), Decimal("1.50")),
    "Number with an exponent": (text("1e3", "Number"), Decimal(1000)),
    "a large Number": (text(str(LARGE), "Number"), LARGE),
    "a Number that is not a number": (text("many", "Number"), "many"),
    "Binary": ({"binaryValue": "AP8=", "dataType": "Binary"}, b"\x00\xff"),
    "Binary without a value": ({"dataType": "Binary"}, b""),
    "Number without a value": ({"dataType": "Number"}, None),
    "without a type": ({"stringValue": "7"}, "7"),
    "Binary with a label": ({"binaryValue": "AP8=", "dataType": "Binary.png"}, b"\x00\xff"),
    "with the empty lists of a Lambda event": ({**text("x"), "stringListValues": [], "binaryListValues": []}, "x"),
}


@pytest.mark.parametrize(("attribute", "value"), ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_attributes_are_python_values(attribute: dict[str, str], value: Any) -> None:  # SPEC K1
    found = delivered(record(attributes={"one": attribute})).attributes
    assert found == {"one": value}
    assert type(found["one"]) is type(value)


@pytest.mark.parametrize(
    ("attributes", "seen"),
    [
        *((odd, {}) for odd in (None, [], "x", {"one": None})),
        ({**tarry_attribute(), "mine": text("x")}, {"mine": "x"}),
        ({"Tarry": text("mine")}, {"Tarry": "mine"}),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_only_malformed_attributes_and_that_of_tarry_are_left_out(attributes: Any, seen: Any) -> None:  # SPEC K1
    assert delivered({**record(), "messageAttributes": attributes}).attributes == seen


def test_the_record_is_powertools_class_with_a_copy_of_the_record_of_the_event() -> None:  # SPEC K1, F2
    one = record('{"id": 7}')
    message = delivered(one)
    found = message.record
    assert isinstance(found, SQSRecord)
    assert (found.message_id, found.json_body, found.queue_url.rpartition("/")[2]) == ("m1", {"id": 7}, "orders")
    assert found.raw_event == one
    found.raw_event["body"] = "changed"
    found.raw_event["attributes"]["ApproximateReceiveCount"] = "9"
    assert (message.body, message.receive_count) == ('{"id": 7}', 1)


def test_without_powertools_the_record_names_what_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, SQSRecord.__module__, None)
    with pytest.raises(ModuleNotFoundError, match=r"message\.record needs Powertools: add aws-lambda-powertools"):
        _ = delivered(record()).record


def test_the_outcome_is_none_until_the_verdict_and_after_an_error_until_the_policy_has_decided() -> None:  # SPEC B2
    seen: list[Any] = []

    @batch_consumer(backoff=Fixed(60), on_outcome=lambda message, outcome: seen.append((message.outcome, outcome)))
    def handler(batch: Batch) -> None:
        seen.append([message.outcome for message in batch])
        batch[0].retry(5)
        batch[1].fail(ValueError("no"))
        seen.append([message.outcome for message in batch])

    with Wire():
        handler(batch_of(2), Context())
    assert seen[:2] == [[None, None], [Outcome.retry(5), None]]
    assert seen[2:] == [(Outcome("retry", seconds, "error"),) * 2 for seconds in (5, 60)]


def test_the_id_is_that_of_sqs_unless_tarry_sent_the_message() -> None:  # SPEC K3
    fresh, copy = delivered(record()), delivered(record(attributes=tarry_attribute()))
    assert (fresh.id, fresh.delivery_id) == ("m1", "m1")
    assert (copy.id, copy.delivery_id) == ("stable", "m1")


def test_beside_an_incomplete_record_messages_keep_their_ids_and_redelivered_ones_run_last() -> None:
    """SPEC A2, G4, K3."""
    records = [record({}, "m0"), record("{}", "m1", receives=3), record("{}", "m2", attributes=tarry_attribute())]
    for missing in ("messageAttributes", "attributes"):
        ids: list[str] = []
        incomplete = {name: value for name, value in records[0].items() if name != missing}
        with Wire():
            consumer(lambda message, ids=ids: ids.append(message.id))(event(incomplete, *records[1:]), Context())
        assert ids == ["m0", "stable", "m1"]


@pytest.mark.parametrize(
    ("arn", "name"),
    [
        ("arn:aws:sqs:us-east-1:123456789012:orders", "orders"),
        ("arn:aws-cn:sqs:cn-north-1:123456789012:orders.fifo", "orders.fifo"),
        ("arn:aws:sns:us-east-1:123456789012:orders", ""),
        *((odd, "") for odd in ("orders", "", None, 7)),
    ],
)
def test_the_name_of_the_queue_comes_from_its_arn(arn: Any, name: str) -> None:  # SPEC K1
    assert delivered({**record(), "eventSourceARN": arn}).queue == name


OF_SQS = datetime.fromtimestamp(RECEIVED_AT, UTC)


@pytest.mark.parametrize(
    ("sent", "of_copy", "found"),
    [
        ("1800000000000", {}, OF_SQS),
        *((odd, {}, None) for odd in (None, "", "soon", "9" * 15, "9" * 5_000)),
        ("1800000000000", {"sent": "2026-01-01T00:00:00Z"}, datetime(2026, 1, 1, tzinfo=UTC)),
        *(("1800000000000", {"sent": odd}, OF_SQS) for odd in ("yesterday", "2026-01-01T00:00:00")),  # not in UTC
    ],
    ids=lambda value: repr(value)[:30],
)
def test_sent_at_is_when_it_was_first_sent_or_none_without_a_valid_timestamp(
    sent: Any, of_copy: dict[str, str], found: datetime | None
) -> None:  # SPEC K1
    one = record(attributes=tarry_attribute(**of_copy) if of_copy else None)
    one["attributes"]["SentTimestamp"] = sent
    assert delivered(one).sent_at == found


def test_group_context_and_earlier_failure_are_those_of_the_message() -> None:  # SPEC K1, F2
    fresh = delivered(record(), context := Context())
    assert (fresh.context, fresh.failure, fresh.group_id) == (context, None, None)
    failure = {"reason": "exhausted", "attempts": 5, "type": "KeyError"}
    redriven = delivered(record(group="customer-7", attributes=tarry_attribute(failure=failure)))
    assert redriven.group_id == "customer-7"
    assert redriven.failure is not None
    found = (redriven.failure.reason, redriven.failure.attempts, redriven.failure.type, redriven.failure.message)
    assert found == ("exhausted", 5, "KeyError", None)


def test_the_repr_is_one_line_with_id_queue_and_attempt_but_not_the_body() -> None:  # SPEC K1, L2
    shown = repr(delivered(record("secret", receives=3)))
    assert [each in shown for each in ("m1", "orders", "3", "secret")] == [True, True, True, False]
    shown = repr(delivered(record(attributes=tarry_attribute(id="x\nERROR forged"))))
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("fields", "envelope", "expected"),
    [
        ({}, None, {}), ({"receives": 2}, None, {"attempt": 2}), ({"group": "g"}, None, {"group_id": "g"}),
        ({"system": {"ApproximateReceiveCount": ""}}, None, {}),
        ({}, {"carried": 2}, {"message_id": "stable", "attempt": 3}),
    ],
)  # fmt: skip
def test_the_keys_for_a_logger_name_the_message_and_those_of_most_messages_need_no_object(
    fields: Any, envelope: Any, expected: dict[str, Any]
) -> None:
    invocation = Invocation(Wire().world, Context(), lambda _: 5, Log("handler", LogOptions()))
    one = record(attributes=None if envelope is None else tarry_attribute(**envelope), **fields)
    message = message_of(one, "m1", invocation, invocation.log)
    before = dict(invocation.deliveries)
    keys = {"message_id": "m1", "delivery_id": "m1", "queue": "orders", "attempt": 1} | expected
    assert message.logger_keys == keys
    assert invocation.deliveries == before
    if envelope is not None:
        other = Message(one, "m1", invocation)  # as a thread that has not made its own
        assert (other.logger_keys, other.id) == (keys, "stable")
    elif fields == {}:
        invocation.delivery = None  # type: ignore[assignment, method-assign]
        assert message.logger_keys == keys
    one["attributes"] = "odd"
    assert Message(one, "m2", Invocation(Wire().world, None, len, invocation.log)).logger_keys["attempt"] == 1


@pytest.mark.parametrize(
    ("context", "seconds"),
    [(Context(999_999.999), 999_999.999), (Context(1e6), math.inf), (Context(0.5), 0.5), (None, math.inf)],
)
def test_a_remaining_time_that_lambda_does_not_allow_is_no_deadline(context: Any, seconds: float) -> None:
    invocation = Invocation(Wire().world, context, len, Log("handler", LogOptions()))
    assert invocation.began_with == seconds
    assert invocation.time_left() == pytest.approx(seconds)


def test_a_batch_is_a_sequence_of_its_messages() -> None:  # SPEC B1
    seen: list[Batch] = []
    context = Context()
    with Wire():
        batch_consumer(seen.append)(batch_of(3), context)
    [batch] = seen
    assert len(batch) == 3
    assert [message.id for message in batch] == ["m0", "m1", "m2"]
    assert (batch[0].id, batch[-1].id, batch.index(batch[2])) == ("m0", "m2", 2)
    assert [message.id for message in batch[1:]] == ["m1", "m2"]
    assert batch[1] in batch
    assert batch.context is context
    assert "3" in repr(batch)
    with pytest.raises(IndexError):
        batch[3]


def test_the_attributes_of_powertools_name_those_of_tarry_in_their_errors() -> None:
    message = delivered(record("{}"))
    for name, hint in {
        "json_body": "; use message.json()",
        "message_id": "; use message.id, which all copies of the message have, or message.delivery_id, SQS's own",
        "message_attributes": '; use message.attributes: message.attributes["name"] is the value',
        "receipt_handle": "; use message.record.receipt_handle",
    }.items():
        assert error_of(message, name) == f"'Message' object has no attribute {name!r}{hint}"
        assert not hasattr(message, name)
        assert name not in dir(message)
    own = {name for name, value in vars(SQSRecord).items() if isinstance(value, property)} | {"raw_event"}
    theirs = {name for name in own if not hasattr(message, name)}
    assert theirs == {name for name in own - {"body", "attributes"} if "use message." in error_of(message, name)}


def error_of(message: Message, name: str) -> str:
    with pytest.raises(AttributeError) as raised:
        getattr(message, name)
    return str(raised.value)
