"""Bodies, attributes, sizes and digests of messages in the SQS model, and the entries of batch requests.

What is refused as a whole: test_refusals.py.
"""

import hashlib
from typing import Any

import pytest

from tests.unit.simulator.account import Account, refused, text


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("orders")
    account.queue("small", MaximumMessageSize=1024)
    return account


def test_the_size_of_a_message_is_in_bytes_and_includes_its_attributes_but_not_its_trace(account: Account) -> None:
    # PLATFORM 17
    attributes = {"name": text("välue"), "raw": {"DataType": "Binary.x", "BinaryValue": b"123"}}
    size = 4 + 6 + 6 + 3 + 8 + 3
    body = "é" * ((1024 - size) // 2)
    trace = {"AWSTraceHeader": text("Root=1")}
    account.send("small", body, MessageAttributes=attributes, MessageSystemAttributes=trace)
    with refused("InvalidParameterValue", "Message must be shorter than 1024 bytes."):
        account.send("small", body + "x", MessageAttributes=attributes)


def test_a_name_may_have_alphabetic_characters_beyond_ascii(account: Account) -> None:  # PLATFORM 36
    attributes = {"attr.1øßä": text("x"), "größe": text("L")}
    sent = account.call("SendMessage", "orders", MessageBody="x", MessageAttributes=attributes)
    [message] = account.receive("orders")
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


def test_the_answer_to_a_send_has_the_digests_of_the_message_as_aws_computes_them(account: Account) -> None:
    # PLATFORM 21
    attributes = {"Hello": text("There"), "General": text("Kenobi"), "Help.Me": text("Me")}
    answer = account.call("SendMessage", "orders", MessageBody="msg", MessageAttributes=attributes)
    assert answer["MD5OfMessageBody"] == "6e2baaf3b97dbeef01c0043275f9a0e7"
    assert answer["MD5OfMessageAttributes"] == "4c360f3fdafd970e05fae2f149d997f5"
    value = b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"
    binary = {"attr1": {"DataType": "Binary", "BinaryValue": value}}
    answer = account.call("SendMessage", "orders", MessageBody="test", MessageAttributes=binary)
    assert answer["MD5OfMessageAttributes"] == "8cbe4db156db8a94db8b801b7addb984"
    trace = {"AWSTraceHeader": text("Root=1")}
    answer = account.call("SendMessage", "orders", MessageBody="test", MessageSystemAttributes=trace)
    assert "MD5OfMessageAttributes" not in answer
    parts = [b"AWSTraceHeader", b"String", b"Root=1"]
    name, kind, value = (len(part).to_bytes(4, "big") + part for part in parts)
    digest = hashlib.md5(name + kind + b"\x01" + value, usedforsecurity=False).hexdigest()
    assert answer["MD5OfMessageSystemAttributes"] == digest


@pytest.mark.parametrize(
    ("asked", "returned", "digest"),
    [
        ([], [], None),
        (["All"], ["General", "Hello", "Help.Me"], "4c360f3fdafd970e05fae2f149d997f5"),
        ([".*"], ["General", "Hello", "Help.Me"], "4c360f3fdafd970e05fae2f149d997f5"),
        (["*"], ["General", "Hello", "Help.Me"], "4c360f3fdafd970e05fae2f149d997f5"),
        (["Hello", "General"], ["General", "Hello"], "fca026605781cb4126a1e9044df24232"),
        (["Hello", "nothing"], ["Hello"], "a311262e065454b75da111d535b8dacd"),
        (["Hel.*"], ["Hello", "Help.Me"], "83fee93c1bcd8b9a5a923ffacdc636c7"),
        (["nothing"], [], None),
        (["Help*"], [], None),
    ],
)
def test_a_receive_returns_only_the_requested_attributes_and_their_digest(
    account: Account, asked: list[str], returned: list[str], digest: str | None
) -> None:  # the digests are from AWS
    attributes = {"Hello": text("There"), "General": text("Kenobi"), "Help.Me": text("Me")}
    account.send("orders", "msg", MessageAttributes=attributes)
    [message] = account.receive("orders", MessageAttributeNames=asked)
    assert sorted(message.get("MessageAttributes", {})) == returned
    assert message.get("MD5OfMessageAttributes") == digest


def test_a_prefix_ends_at_the_dot_if_it_has_one(account: Account) -> None:
    account.send("orders", MessageAttributes={"x.a": text("1"), "x.b": text("2")})
    for asked, returned in (("x.*", ["x.a", "x.b"]), ("x.a.*", ["x.a"]), ("x.a*", [])):
        [message] = account.receive("orders", MessageAttributeNames=[asked], VisibilityTimeout=0)
        assert list(message.get("MessageAttributes", {})) == returned


def test_a_receive_returns_only_the_requested_system_attributes(account: Account) -> None:
    account.send("orders")
    for parameter in ("AttributeNames", "MessageSystemAttributeNames"):
        [message] = account.receive("orders", VisibilityTimeout=0, **{"AttributeNames": [], parameter: ["SenderId"]})
        assert list(message["Attributes"]) == ["SenderId"]
    [message] = account.receive("orders", AttributeNames=[])
    assert "Attributes" not in message


# batches


def entries(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"Id": str(number), "MessageBody": f"body {number}", **more} for number in range(count)]


def test_an_invalid_entry_fails_alone(account: Account) -> None:  # PLATFORM 16, 17, 35
    some = entries(6)
    some[1]["DelaySeconds"] = 901
    some[2]["MessageBody"] = "\x00"
    some[3]["MessageAttributes"] = {"a": {"DataType": "String"}}
    some[4]["MessageBody"] = "x" * 1025
    answer = account.call("SendMessageBatch", "small", Entries=some)
    assert [each["Id"] for each in answer["Successful"]] == ["0", "5"]
    assert account.bodies("small") == ["body 0", "body 5"]
    assert [(each["Id"], each["Code"], each["SenderFault"]) for each in answer["Failed"]] == [
        ("1", "InvalidParameterValue", True),
        ("2", "InvalidMessageContents", True),
        ("3", "InvalidParameterValue", True),
        ("4", "InvalidParameterValue", True),
    ]
    text = "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."
    assert answer["Failed"][-1]["Message"] == text


def test_deletes_and_changes_fail_entry_by_entry_and_an_empty_list_is_left_out(account: Account) -> None:
    # PLATFORM 16, 35
    sent = account.call("SendMessageBatch", "orders", Entries=entries(1))
    handle = account.handle("orders")
    some = [{"Id": "good", "ReceiptHandle": handle}, {"Id": "bad", "ReceiptHandle": "nonsense"}]
    changes = [{**entry, "VisibilityTimeout": 60} for entry in some] + [
        {"Id": "long", "ReceiptHandle": handle, "VisibilityTimeout": 43_201},
        {"Id": "none", "ReceiptHandle": handle},
    ]
    changed = account.call("ChangeMessageVisibilityBatch", "orders", Entries=changes)
    assert changed["Successful"] == [{"Id": "good"}]
    assert [(entry["Id"], entry["Code"]) for entry in changed["Failed"]] == [
        ("bad", "ReceiptHandleIsInvalid"),
        ("long", "InvalidParameterValue"),
        ("none", "MissingParameter"),
    ]
    only_good = account.call("ChangeMessageVisibilityBatch", "orders", Entries=changes[:1])
    deleted = account.call("DeleteMessageBatch", "orders", Entries=some)
    assert deleted["Successful"] == [{"Id": "good"}]
    assert [entry["Code"] for entry in deleted["Failed"]] == ["ReceiptHandleIsInvalid"]
    again = account.call("DeleteMessageBatch", "orders", Entries=some[:1])
    assert [list(answer) for answer in (sent, only_good, again)] == [["Successful"]] * 3
    assert list(account.call("SendMessageBatch", "orders", Entries=entries(1, DelaySeconds=901))) == ["Failed"]
