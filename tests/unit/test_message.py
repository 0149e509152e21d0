"""The public attributes of messages and batches, as a handler sees them."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from tarry import Batch, Message, Undecodable, batch_consumer, consumer
from tarry.message.delivery import Delivery
from tarry.message.invocation import Invocation
from tarry.observe.logs import Log, LogOptions
from tarry.record.attribute import body_sum
from tarry.settle.requests import VisibilityChange, extend_leases
from tarry.sqs.client import Lookups, Requests
from tests.loglines import lines
from tests.records import RECEIVED_AT, Context, batch_of, event, record
from tests.wire import Wire


def delivered(one: dict[str, Any], context: Any = None) -> Message:
    """Return the message that a handler receives for a record."""
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
    [
        ('{"id": 7}', {"id": 7}),
        ("[]", []),
        ("null", None),
        ('"x"', "x"),
        ("1.5", 1.5),
        (' {"a": "\u00fc"} ', {"a": "\u00fc"}),
    ],
)
def test_json_decodes_the_body(body: str, value: Any) -> None:  # SPEC K1
    assert delivered(record(body)).json() == value


def test_json_returns_a_new_value_at_each_call() -> None:  # SPEC K1
    message = delivered(record('{"a": []}'))
    message.json()["a"].append(1)
    assert message.json() == {"a": []}


@pytest.mark.parametrize("body", [None, 7, {"a": 1}], ids=repr)
def test_a_body_that_is_not_a_text_is_undecodable(body: Any) -> None:  # SPEC D4
    with pytest.raises(Undecodable):
        delivered({**record(), "body": body}).json()


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        pytest.param(text("x"), "x", id="String"),
        pytest.param(text("x", "String.uuid"), "x", id="String with a label"),
        pytest.param(text("7", "Number"), 7, id="Number"),
        pytest.param(text("-7", "Number.int"), -7, id="Number with a label"),
        pytest.param(text("1.50", "Number.float"), Decimal("1.50"), id="Number with a fraction"),
        pytest.param(text("1e3", "Number"), Decimal(1000), id="Number with an exponent"),
        pytest.param(
            text("12345678901234567890123456789", "Number"), 12345678901234567890123456789, id="a large Number"
        ),
        pytest.param(text("many", "Number"), "many", id="a Number that is not a number"),
        pytest.param({"binaryValue": "AP8=", "dataType": "Binary"}, b"\x00\xff", id="Binary"),
        pytest.param({"binaryValue": "AP8=", "dataType": "Binary.png"}, b"\x00\xff", id="Binary with a label"),
    ],
)
def test_attributes_are_python_values(attribute: dict[str, str], value: Any) -> None:  # SPEC K1
    found = delivered(record(attributes={"one": attribute})).attributes["one"]
    assert found == value
    assert type(found) is type(value)


def test_the_empty_lists_of_an_attribute_in_a_lambda_event_are_ignored() -> None:  # SPEC K1
    attribute = {**text("x"), "stringListValues": [], "binaryListValues": []}
    assert delivered(record(attributes={"one": attribute})).attributes == {"one": "x"}


@pytest.mark.parametrize("attributes", [None, [], "x", {"one": None}], ids=repr)
def test_malformed_attributes_are_ignored(attributes: Any) -> None:  # SPEC K1
    assert delivered({**record(), "messageAttributes": attributes}).attributes == {}


def test_the_attributes_do_not_include_the_record_of_tarry() -> None:  # SPEC K1
    assert delivered(record(attributes={**tarry_attribute(), "mine": text("x")})).attributes == {"mine": "x"}


def test_the_attributes_include_an_attribute_of_the_user_named_tarry() -> None:  # SPEC K1
    assert delivered(record(attributes={"Tarry": text("mine")})).attributes == {"Tarry": "mine"}


def test_the_record_is_powertools_class_with_the_record_of_the_event() -> None:  # SPEC K1
    one = record('{"id": 7}')
    found = delivered(one).record
    assert isinstance(found, SQSRecord)
    assert (found.message_id, found.json_body, found.queue_url.rpartition("/")[2]) == ("m1", {"id": 7}, "orders")
    assert found.raw_event == one


def test_changing_the_powertools_record_does_not_change_the_message() -> None:  # SPEC F2
    message = delivered(record("{}"))
    message.record.raw_event["body"] = "changed"
    message.record.raw_event["attributes"]["ApproximateReceiveCount"] = "9"
    assert (message.body, message.receive_count) == ("{}", 1)


def test_the_id_is_that_of_sqs_unless_tarry_sent_the_message() -> None:  # SPEC K3
    fresh, copy = delivered(record()), delivered(record(attributes=tarry_attribute()))
    assert (fresh.id, fresh.delivery_id) == ("m1", "m1")
    assert (copy.id, copy.delivery_id) == ("stable", "m1")


@pytest.mark.parametrize(
    ("arn", "name"),
    [
        ("arn:aws:sqs:us-east-1:123456789012:orders", "orders"),
        ("arn:aws-cn:sqs:cn-north-1:123456789012:orders.fifo", "orders.fifo"),
        ("arn:aws:sns:us-east-1:123456789012:orders", ""),
        ("orders", ""),
        ("", ""),
        (None, ""),
        (7, ""),
    ],
)
def test_the_name_of_the_queue_comes_from_its_arn(arn: Any, name: str) -> None:  # SPEC K1
    assert delivered({**record(), "eventSourceARN": arn}).queue == name


@pytest.mark.parametrize("group", [None, "customer-7"])
def test_the_group_id_is_that_of_the_message(group: str | None) -> None:  # SPEC K1
    assert delivered(record(group=group)).group_id == group


def test_sent_at_is_when_it_was_first_sent() -> None:  # SPEC K1
    assert delivered(record()).sent_at == datetime.fromtimestamp(RECEIVED_AT, UTC)
    copy = delivered(record(attributes=tarry_attribute(sent="2026-01-01T00:00:00Z")))
    assert copy.sent_at == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("sent", [None, "", "soon", "9" * 15, "9" * 5_000], ids=lambda sent: repr(sent)[:20])
def test_sent_at_is_none_if_the_record_has_no_valid_timestamp(sent: Any) -> None:  # SPEC K1
    one = record()
    one["attributes"]["SentTimestamp"] = sent
    assert delivered(one).sent_at is None


@pytest.mark.parametrize("sent", ["yesterday", "2026-01-01T00:00:00"])
def test_sent_at_is_the_timestamp_of_sqs_if_that_of_the_copy_is_not_a_time_in_utc(sent: str) -> None:  # SPEC K1
    message = delivered(record(attributes=tarry_attribute(sent=sent)))
    assert message.sent_at == datetime.fromtimestamp(RECEIVED_AT, UTC)


def test_the_context_is_that_of_lambda() -> None:  # SPEC K1
    context = Context()
    assert delivered(record(), context).context is context


def test_a_fresh_message_has_no_earlier_failure() -> None:  # SPEC K1
    assert delivered(record()).failure is None


def test_a_dead_letter_has_its_failure() -> None:  # SPEC K1, F2
    failure = {"reason": "exhausted", "attempts": 5, "type": "KeyError"}
    found = delivered(record(attributes=tarry_attribute(failure=failure))).failure
    assert found is not None
    assert (found.reason, found.attempts, found.type, found.message) == ("exhausted", 5, "KeyError", None)


def test_the_repr_shows_id_queue_and_attempt_but_not_the_body() -> None:  # SPEC K1, L2
    shown = repr(delivered(record("secret", receives=3)))
    assert "m1" in shown
    assert "orders" in shown
    assert "3" in shown
    assert "secret" not in shown


def test_the_repr_is_one_line_whatever_the_id() -> None:  # SPEC K1, L2
    shown = repr(delivered(record(attributes=tarry_attribute(id="x\nERROR forged"))))
    assert len(shown.splitlines()) == 1


def test_a_batch_is_a_sequence_of_its_messages() -> None:  # SPEC B1
    seen: list[Batch] = []
    context = Context()
    with Wire():
        batch_consumer(seen.append)(batch_of(3), context)
    [batch] = seen
    assert len(batch) == 3
    assert [message.id for message in batch] == ["m0", "m1", "m2"]
    assert (batch[0].id, batch[-1].id) == ("m0", "m2")
    assert [message.id for message in batch[1:]] == ["m1", "m2"]
    assert batch[1] in batch
    assert batch.index(batch[2]) == 2
    assert batch.context is context
    assert "3" in repr(batch)
    with pytest.raises(IndexError):
        batch[3]


def test_the_attributes_of_powertools_name_those_of_tarry_in_their_errors() -> None:
    message = delivered(record("{}"))
    for name, text in {
        "json_body": "; use message.json()",
        "message_id": "; use message.id, which all copies of the message have, or message.delivery_id, SQS's own",
        "message_attributes": '; use message.attributes: message.attributes["name"] is the value',
        "receipt_handle": "; use message.record.receipt_handle",
    }.items():
        with pytest.raises(AttributeError) as raised:
            getattr(message, name)
        assert str(raised.value) == f"'Message' object has no attribute {name!r}{text}"
        assert not hasattr(message, name)
        assert name not in dir(message)
    own = {name for name, value in vars(SQSRecord).items() if isinstance(value, property)} | {"raw_event"}
    theirs = {name for name in own if not hasattr(message, name)}
    assert theirs == {name for name in own - {"body", "attributes"} if "use message." in error_of(message, name)}


def error_of(message: Message, name: str) -> str:
    with pytest.raises(AttributeError) as raised:
        getattr(message, name)
    return str(raised.value)


@pytest.mark.parametrize("is_given_up", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_a_message_that_is_being_settled_does_not_lose_its_lease(
    is_given_up: bool, ended: bool, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC I4
    """Its lease is extended, and has ended or SQS refuses its handle."""
    wire, log = Wire(), Log("handler", LogOptions())
    wire.refuses["ChangeMessageVisibilityBatch"] = lambda *_: ("ReceiptHandleIsInvalid", "")
    with wire:
        invocation = Invocation(wire.world, Context(), lambda _: 5, log)
        delivery = Delivery(batch_of(1)["Records"][0], "m0", invocation)
        if ended:
            delivery.visible_at = invocation.now() - 1
        delivery.is_given_up = is_given_up
        lookups = Lookups(Requests(invocation), log)
        extend_leases([VisibilityChange(delivery, 60)], lookups, log, 1, "it is only reported as failed")
    assert delivery.is_lost is not is_given_up
    assert len(lines(caplog, "lease_lost")) == (0 if is_given_up else 1)
