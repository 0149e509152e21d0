"""Bodies, attributes and sizes of messages in the SQS model, and their digests."""

import hashlib
from typing import Any

import pytest

from tests.unit.simulator.account import Account, refused, text

MIB = 1_048_576


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("orders")
    return account


def many(count: int) -> dict[str, Any]:
    return {f"a{number}": text("x") for number in range(count)}


# sizes


def test_a_message_has_at_most_one_mebibyte(account: Account) -> None:  # PLATFORM 17
    account.send("orders", "x" * MIB)
    with refused("InvalidParameterValue", f"Reason: Message must be shorter than {MIB} bytes."):
        account.send("orders", "x" * (MIB + 1))


def test_the_size_of_a_message_is_in_bytes_and_includes_its_attributes(account: Account) -> None:
    # PLATFORM 17
    account.queue("small", MaximumMessageSize=1024)
    attributes = {"name": text("välue"), "raw": {"DataType": "Binary.x", "BinaryValue": b"123"}}
    size = 4 + 6 + 6 + 3 + 8 + 3
    body = "é" * ((1024 - size) // 2)
    account.send("small", body, MessageAttributes=attributes)
    with refused("InvalidParameterValue", "Message must be shorter than 1024 bytes."):
        account.send("small", body + "x", MessageAttributes=attributes)


def test_the_trace_header_does_not_count_towards_the_size(account: Account) -> None:
    account.queue("small", MaximumMessageSize=1024)
    account.send("small", "x" * 1024, MessageSystemAttributes={"AWSTraceHeader": text("Root=1")})


# bodies


def test_an_empty_body_is_refused(account: Account) -> None:
    with refused("MissingParameter", "MessageBody"):
        account.send("orders", "")


@pytest.mark.parametrize("character", ["\x00", "\x0b", "\ufffe", "\ud800"])
def test_an_invalid_character_is_refused(account: Account, character: str) -> None:  # PLATFORM 19
    with refused("InvalidMessageContents", "Invalid characters found."):
        account.send("orders", f"a{character}b")
    with refused("InvalidParameterValue", "Invalid characters found."):
        account.send("orders", MessageAttributes={"a": text(f"a{character}b")})


# attributes


def test_a_message_has_at_most_ten_attributes(account: Account) -> None:  # PLATFORM 18
    account.send("orders", MessageAttributes=many(10))
    with refused("InvalidParameterValue", "Number of message attributes [11] exceeds the allowed maximum [10]."):
        account.send("orders", MessageAttributes=many(11))


@pytest.mark.parametrize("name", ["", "a b", ".a", "a.", "a..b", "AWS.a", "amazon.a", "a!", "§", "a(", "٣", "x" * 257])
def test_an_invalid_name_is_refused(account: Account, name: str) -> None:  # PLATFORM 18
    with refused("InvalidParameterValue", f"The message attribute name '{name}' is invalid."):
        account.send("orders", MessageAttributes={name: text("x")})


def test_a_name_may_have_alphabetic_characters_beyond_ascii(account: Account) -> None:  # PLATFORM 36
    attributes = {"attr.1øßä": text("x"), "größe": text("L")}
    sent = account.call("SendMessage", "orders", MessageBody="x", MessageAttributes=attributes)
    [message] = account.receive("orders")
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


@pytest.mark.parametrize(
    ("asked", "returned"), [("*", "ab"), (".*", "ab"), ("x.*", "ab"), ("x.a.*", "a"), ("x.a*", "")]
)
def test_message_attributes_are_requested_by_name_prefix_or_wildcard(
    account: Account, asked: str, returned: str
) -> None:
    account.send("orders", MessageAttributes={"x.a": text("1"), "x.b": text("2")})
    [message] = account.receive("orders", MessageAttributeNames=[asked])
    assert list(message.get("MessageAttributes", {})) == [f"x.{name}" for name in returned]


def test_an_empty_attribute_value_is_refused(account: Account) -> None:  # PLATFORM 18
    with refused("InvalidParameterValue", "attribute 'a' must contain a non-empty value of type 'String'."):
        account.send("orders", MessageAttributes={"a": text("")})
    with refused("InvalidParameterValue", "attribute 'a' must contain a non-empty value of type 'Binary'."):
        account.send("orders", MessageAttributes={"a": {"DataType": "Binary", "StringValue": "x"}})


@pytest.mark.parametrize("data_type", ["", "string", "Text", "String.", "List.String"])
def test_a_data_type_is_string_number_or_binary_with_an_optional_label(account: Account, data_type: str) -> None:
    with refused("InvalidParameterValue", "supported type prefixes: Binary, Number, String."):
        account.send("orders", MessageAttributes={"a": text("x", data_type)})
    account.send("orders", MessageAttributes={"a": text("x", "String.label"), "n": text("-1.5e3", "Number.float")})


def test_the_value_of_a_number_attribute_must_be_a_number(account: Account) -> None:
    with refused("InvalidParameterValue", "Can't cast the value of message (user) attribute 'a' to a number."):
        account.send("orders", MessageAttributes={"a": text("one", "Number")})


def test_the_trace_header_is_the_only_system_attribute_that_can_be_sent(account: Account) -> None:
    with refused("InvalidParameterValue", "SenderId"):
        account.send("orders", MessageSystemAttributes={"SenderId": text("me")})


# digests


@pytest.mark.parametrize("attribute", [{"DataType": "Binary", "BinaryValue": b"x"}, text("")])
def test_a_trace_header_without_text_is_refused(account: Account, attribute: dict[str, Any]) -> None:
    with refused("InvalidParameterValue", "'AWSTraceHeader' must contain a non-empty value of type 'String'."):
        account.send("orders", MessageSystemAttributes={"AWSTraceHeader": attribute})


@pytest.mark.parametrize("lists", [{"StringListValues": ["x"]}, {"BinaryListValues": [b"x"]}])
def test_a_list_as_the_value_of_an_attribute_is_refused(account: Account, lists: dict[str, Any]) -> None:
    for parameter, name in [("MessageAttributes", "a"), ("MessageSystemAttributes", "AWSTraceHeader")]:
        with refused("AWS.SimpleQueueService.UnsupportedOperation", "list values in SendMessage operation are not"):
            account.send("orders", **{parameter: {name: {**text("x"), **lists}}})


def test_the_answer_to_a_send_has_the_digests_of_the_message(account: Account) -> None:  # PLATFORM 21
    attributes = {"Hello": text("There"), "General": text("Kenobi"), "Help.Me": text("Me")}
    answer = account.call("SendMessage", "orders", MessageBody="msg", MessageAttributes=attributes)
    assert answer["MD5OfMessageBody"] == "6e2baaf3b97dbeef01c0043275f9a0e7"
    assert answer["MD5OfMessageAttributes"] == "4c360f3fdafd970e05fae2f149d997f5"  # as AWS computed it


def test_the_digest_of_a_binary_attribute_equals_that_of_aws(account: Account) -> None:
    value = b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"
    attributes = {"attr1": {"DataType": "Binary", "BinaryValue": value}}
    answer = account.call("SendMessage", "orders", MessageBody="test", MessageAttributes=attributes)
    assert answer["MD5OfMessageAttributes"] == "8cbe4db156db8a94db8b801b7addb984"  # as AWS computed it


def test_the_trace_header_has_a_digest_of_its_own(account: Account) -> None:
    system = {"AWSTraceHeader": text("Root=1")}
    answer = account.call("SendMessage", "orders", MessageBody="test", MessageSystemAttributes=system)
    assert "MD5OfMessageAttributes" not in answer
    parts = [b"AWSTraceHeader", b"String", b"Root=1"]
    name, kind, value = (len(part).to_bytes(4, "big") + part for part in parts)
    digest = hashlib.md5(name + kind + b"\x01" + value, usedforsecurity=False).hexdigest()
    assert answer["MD5OfMessageSystemAttributes"] == digest


# the attributes that a receive returns


@pytest.fixture
def sent(account: Account) -> Account:
    attributes = {"Hello": text("There"), "General": text("Kenobi"), "Help.Me": text("Me")}
    account.send("orders", "msg", MessageAttributes=attributes)
    return account


@pytest.mark.parametrize(
    ("asked", "returned", "digest"),
    [
        ([], [], None),
        (["All"], ["General", "Hello", "Help.Me"], "4c360f3fdafd970e05fae2f149d997f5"),
        ([".*"], ["General", "Hello", "Help.Me"], "4c360f3fdafd970e05fae2f149d997f5"),
        (["Hello", "General"], ["General", "Hello"], "fca026605781cb4126a1e9044df24232"),
        (["Hello", "nothing"], ["Hello"], "a311262e065454b75da111d535b8dacd"),
        (["Hel.*"], ["Hello", "Help.Me"], "83fee93c1bcd8b9a5a923ffacdc636c7"),
        (["nothing"], [], None),
    ],
)
def test_a_receive_returns_only_the_requested_attributes_and_their_digest(
    sent: Account, asked: list[str], returned: list[str], digest: str | None
) -> None:  # the digests are from AWS
    [message] = sent.receive("orders", MessageAttributeNames=asked)
    assert sorted(message.get("MessageAttributes", {})) == returned
    assert message.get("MD5OfMessageAttributes") == digest


def test_a_receive_returns_only_the_requested_system_attributes(sent: Account) -> None:
    for parameter in ("AttributeNames", "MessageSystemAttributeNames"):
        [message] = sent.receive("orders", VisibilityTimeout=0, **{"AttributeNames": [], parameter: ["SenderId"]})
        assert list(message["Attributes"]) == ["SenderId"]
    [message] = sent.receive("orders", AttributeNames=[])
    assert "Attributes" not in message


def test_an_unknown_system_attribute_is_refused(sent: Account) -> None:
    with refused("InvalidAttributeName", "Unknown Attribute Foo."):
        sent.receive("orders", AttributeNames=["Foo"])
