"""Queues of the SQS model and the messages of standard queues, as far as no probe of a fact and no script shows it.

The probes: tests/facts; scripts compared with moto and MiniStack: tests/simulation/referee; refusals: test_refusals.py.
"""

import hashlib
import json
from time import process_time
from typing import Any

import pytest

from tests.unit.simulator.account import Account, Realism, refused, text

GONE = "AWS.SimpleQueueService.NonExistentQueue"


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("orders")
    return account


def test_a_queue_has_a_url_and_an_arn_and_is_found_by_a_url_of_any_host(account: Account) -> None:
    url = account.sqs.call("GetQueueUrl", {"QueueName": "orders"})["QueueUrl"]
    assert url == "https://sqs.us-east-1.amazonaws.com/123456789012/orders" == account.sqs.url("orders")
    assert account.attributes("orders")["QueueArn"] == "arn:aws:sqs:us-east-1:123456789012:orders"
    for url in ("http://localhost:9324/123456789012/orders", "orders"):
        account.sqs.call("GetQueueAttributes", {"QueueUrl": url})
    with refused(GONE):
        account.sqs.call("GetQueueAttributes", {"QueueUrl": "http://localhost:9324/210987654321/orders"})


def test_only_the_requested_attributes_of_a_queue_are_returned(account: Account) -> None:
    account.wait(5)
    account.call("SetQueueAttributes", "orders", Attributes={"VisibilityTimeout": "5"})
    names = ["VisibilityTimeout", "CreatedTimestamp", "LastModifiedTimestamp", "RedrivePolicy"]
    attributes = dict(zip(names, ("5", "1800000000", "1800000005"), strict=False))
    for asked, answer in ((names, {"Attributes": attributes}), (["RedrivePolicy"], {})):
        assert account.call("GetQueueAttributes", "orders", AttributeNames=asked) == answer
    assert account.call("GetQueueAttributes", "orders") == {}


def test_queues_are_listed_by_prefix_with_pagination(account: Account) -> None:
    names = [account.queue(f"other-{number}") for number in (1, 2, 3)]
    urls = [account.sqs.url(name) for name in names]

    def listed(prefix: str = "other", **more: Any) -> dict[str, Any]:
        return account.sqs.call("ListQueues", {"QueueNamePrefix": prefix, **more})

    first = listed(MaxResults=2)
    assert (listed(), listed("none"), first["QueueUrls"]) == ({"QueueUrls": urls}, {}, urls[:2])
    assert listed(MaxResults=2, NextToken=first["NextToken"]) == {"QueueUrls": urls[2:]}


def test_permissions_are_statements_of_the_policy_of_the_queue(account: Account) -> None:
    roots = [f"arn:aws:iam::{each}:root" for each in ("111111111111", "222222222222")]
    for label, number, actions in (("one", 2, ["ReceiveMessage"]), ("two", 1, ["SendMessage", "*"])):
        ids = [root.split(":")[4] for root in roots[:number]]
        account.call("AddPermission", "orders", Label=label, AWSAccountIds=ids, Actions=actions)
    arn = account.sqs.arn("orders")
    both = {"Effect": "Allow", "Resource": arn}
    assert json.loads(account.attributes("orders")["Policy"]) == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {"Sid": "one", "Principal": {"AWS": roots}, "Action": "SQS:ReceiveMessage", **both},
            {"Sid": "two", "Principal": {"AWS": roots[0]}, "Action": ["SQS:SendMessage", "SQS:*"], **both},
        ],
    }


def test_a_purge_or_a_new_queue_of_the_name_of_a_deleted_one_is_possible_once_a_minute(account: Account) -> None:
    for body in ("1", "2", "3"):
        account.send("orders", body)
    account.receive("orders", most=1)
    account.call("PurgeQueue", "orders")
    assert (account.sqs.peek("orders"), len(account.recorded("purged"))) == ([], 3)
    with refused("AWS.SimpleQueueService.PurgeQueueInProgress", "on orders is allowed every 60 seconds."):
        account.call("PurgeQueue", "orders")
    account.wait(60)
    account.call("PurgeQueue", "orders")
    account.send("orders")
    account.call("DeleteQueue", "orders")
    assert len(account.recorded("purged")) == 4
    with refused(GONE):
        account.receive("orders")
    with refused("AWS.SimpleQueueService.QueueDeletedRecently", "You must wait 60 seconds"):
        account.queue("orders")
    account.wait(60)
    account.queue("orders")
    assert account.receive("orders") == []


def test_subscribers_are_notified_of_changes_that_may_affect_the_next_receive(account: Account) -> None:
    # PLATFORM 34
    calls: list[str] = []
    for name in ("others", "ledger.fifo"):
        account.queue(name)
        account.sqs.subscribe(name, lambda name=name: calls.append(name))
    account.sqs.subscribe("orders", lambda: calls.append("orders"))
    account.send("orders")
    handle = account.handle("orders")  # the message becomes visible later: a waiting poller must be notified
    account.change_visibility("orders", handle, 5)
    assert calls == ["orders"] * 3
    account.delete("orders", handle)
    account.receive("orders")
    assert calls == ["orders"] * 3
    for body in ("a1", "a2", "a3"):
        account.send("ledger.fifo", body, group="a")
    for how, following in (("delete", "a2"), ("release", "a2")):  # the next message of the group can be received
        [head] = account.receive("ledger.fifo", most=1)
        calls.clear()
        if how == "delete":
            account.delete("ledger.fifo", head["ReceiptHandle"])
        else:
            account.change_visibility("ledger.fifo", head["ReceiptHandle"], 0)
        assert calls == ["ledger.fifo"], how
        assert account.sqs.peek("ledger.fifo")[0].body == following


@pytest.mark.parametrize("queue", ["orders", "ledger.fifo"])
def test_a_send_a_receive_and_a_delete_are_fast_with_10000_messages_in_the_queue(queue: str) -> None:
    """The limit is dozens of times the usual time, and less than a scan of all messages takes."""
    account = Account()
    account.queue(queue)
    for number in range(10_000):
        account.send(queue, str(number), group=str(number % 2000))
    for _ in range(200):
        account.receive(queue)
    began = process_time()
    for number in range(300):
        account.send(queue, str(10_000 + number), group=str(number % 2000))
        [message] = account.receive(queue, most=1)
        account.change_visibility(queue, message["ReceiptHandle"], 60)
        account.delete(queue, message["ReceiptHandle"])
        account.sqs.depth(queue)
    assert (process_time() - began) / 300 < 0.003


# the contents of messages


def test_the_size_of_a_message_is_in_bytes_and_includes_its_attributes_but_not_its_trace(account: Account) -> None:
    # PLATFORM 17
    account.queue("small", MaximumMessageSize=1024)
    attributes = {"name": text("välue"), "raw": {"DataType": "Binary.x", "BinaryValue": b"123"}}
    body = "é" * ((1024 - (4 + 6 + 6 + 3 + 8 + 3)) // 2)
    account.send("small", body, MessageAttributes=attributes, MessageSystemAttributes={"AWSTraceHeader": text("R")})
    with refused("InvalidParameterValue", "Message must be shorter than 1024 bytes."):
        account.send("small", body + "x", MessageAttributes=attributes)


def test_a_receive_returns_only_the_requested_attributes_and_their_digest(account: Account) -> None:
    """The digests are from AWS. A prefix ends at the dot if it has one."""
    attributes = {"Hello": text("There"), "General": text("Kenobi"), "Help.Me": text("Me")}
    account.send("orders", "msg", MessageAttributes=attributes)
    for asked, returned, digest in (
        (["Hello", "General"], ["General", "Hello"], "fca026605781cb4126a1e9044df24232"),
        (["Hello", "nothing"], ["Hello"], "a311262e065454b75da111d535b8dacd"),
        (["Hel.*"], ["Hello", "Help.Me"], "83fee93c1bcd8b9a5a923ffacdc636c7"),
        *((none, [], None) for none in (["Help.Me*"], ["Help*"], [])),
    ):
        [message] = account.receive("orders", MessageAttributeNames=asked, VisibilityTimeout=0)
        assert sorted(message.get("MessageAttributes", {})) == returned
        assert message.get("MD5OfMessageAttributes") == digest


@pytest.mark.parametrize("asked", [{"AttributeNames": ["SenderId"]}, {"MessageSystemAttributeNames": ["SenderId"]}, {}])
def test_a_receive_returns_only_the_requested_system_attributes(account: Account, asked: dict[str, Any]) -> None:
    account.send("orders")
    [message] = account.receive("orders", **{"AttributeNames": [], **asked})
    assert list(message.get("Attributes", {})) == (["SenderId"] if asked else [])
    assert ("Attributes" in message) == bool(asked)


def test_the_answer_to_a_send_has_the_digest_of_the_system_attributes(account: Account) -> None:  # PLATFORM 21
    """The referee compares those of bodies and attributes."""
    answer = account.call(
        "SendMessage", "orders", MessageBody="x", MessageSystemAttributes={"AWSTraceHeader": text("R")}
    )
    parts = [len(part).to_bytes(4, "big") + part for part in (b"AWSTraceHeader", b"String", b"R")]
    digest = hashlib.md5(b"".join([*parts[:2], b"\x01", parts[2]]), usedforsecurity=False).hexdigest()
    assert answer["MD5OfMessageSystemAttributes"] == digest
    assert "MD5OfMessageAttributes" not in answer


def test_the_trace_header_of_a_request_becomes_that_of_its_messages(account: Account) -> None:
    own = {"AWSTraceHeader": text("Root=own")}
    entries = [{"Id": "0", "MessageBody": "0"}, {"Id": "1", "MessageBody": "1", "MessageSystemAttributes": own}]
    request = {"QueueUrl": account.sqs.url("orders"), "Entries": entries}
    answer = account.sqs.called_by("http", "SendMessageBatch", request, trace_header="Root=request")
    account.send("orders", "2")
    traces = [message["Attributes"].get("AWSTraceHeader") for message in account.receive("orders")]
    assert traces == ["Root=request", "Root=own", None]
    assert "MD5OfMessageSystemAttributes" not in answer["Successful"][0]


def test_an_invalid_entry_fails_alone(account: Account) -> None:  # PLATFORM 16, 17, 35
    account.queue("small", MaximumMessageSize=1024)
    changes = [{}, {"DelaySeconds": 901}, {"MessageBody": "\x00"}, {"MessageAttributes": {"a": {"DataType": "String"}}}]
    changes += [{"MessageBody": "x" * 1025}, {}]
    entries = [{"Id": str(number), "MessageBody": f"body {number}", **each} for number, each in enumerate(changes)]
    answer = account.call("SendMessageBatch", "small", Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["0", "5"]
    assert account.bodies("small") == ["body 0", "body 5"]
    invalid = "InvalidParameterValue"
    assert [(each["Id"], each["Code"], each["SenderFault"]) for each in answer["Failed"]] == [
        ("1", invalid, True), ("2", "InvalidMessageContents", True), ("3", invalid, True), ("4", invalid, True),
    ]  # fmt: skip
    too_long = "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."
    assert answer["Failed"][-1]["Message"] == too_long
    changes = [{"Id": "none", "ReceiptHandle": account.handle("orders") if account.send("orders") else ""}]
    answer = account.call("ChangeMessageVisibilityBatch", "orders", Entries=changes)
    assert [(key, each["Code"]) for key, [each] in answer.items()] == [("Failed", "MissingParameter")]


# visibility, deletes, retention


def test_the_visibility_of_a_deleted_message_cannot_be_changed(account: Account) -> None:
    account.send("orders")
    handle = account.handle("orders")
    for name in ("deleted", "delete_ignored"):
        account.delete("orders", handle)
        assert account.recorded()[-1][0] == name
    gone = "Message does not exist or is not available for visibility timeout change."
    with refused("InvalidParameterValue", f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {gone}"):
        account.change_visibility("orders", handle, 10)


def test_a_handle_of_another_queue_is_refused_even_if_that_had_the_same_name(account: Account) -> None:
    account.queue("others")
    account.send("orders")
    handle = account.handle("orders")
    with refused("ReceiptHandleIsInvalid"):
        account.delete("others", handle)
    account.call("DeleteQueue", "orders")
    account.wait(60)
    account.queue("orders")
    account.send("orders")
    account.receive("orders")
    with refused("ReceiptHandleIsInvalid"):
        account.delete("orders", handle)


def test_the_time_at_which_the_next_message_becomes_visible_is_known(account: Account) -> None:
    account.send("orders")
    assert account.sqs.next_visible_at("orders") is None
    account.receive("orders")
    account.send("orders", DelaySeconds=10)
    for seconds in (10, 20):
        assert account.sqs.next_visible_at("orders") == account.clock.now + seconds
        account.wait(10)


def test_a_message_expires_when_its_retention_period_ends_or_a_shorter_one_applies(account: Account) -> None:
    # PLATFORM 5
    account.queue("short", MessageRetentionPeriod=60)
    account.send("short")
    account.wait(30)
    account.receive("short", VisibilityTimeout=20)
    account.wait(30)
    assert account.receive("short") == []
    assert [fields["expired_at"] for _, fields in account.recorded("expired")] == [1_800_000_060]
    account.send("orders")
    account.wait(4 * 86_400)
    assert len(account.recorded("expired")) == 1
    account.sqs.catch_up()
    assert len(account.recorded("expired")) == 2
    account.send("orders")
    account.wait(120)
    account.call("SetQueueAttributes", "orders", Attributes={"MessageRetentionPeriod": "60"})
    assert account.receive("orders") == []


def test_at_the_in_flight_limit_a_long_poll_returns_no_messages_where_a_receive_is_refused() -> None:  # PLATFORM 4
    account = Account(in_flight_limit=3)
    account.queue("orders")
    for _ in range(5):
        account.send("orders")
    assert len(account.receive("orders")) == 3
    with refused("OverLimit"):
        account.receive("orders")
    assert account.receive("orders", WaitTimeSeconds=1) == []


# the switches of `Realism`


def account_with(seed: int = 1, **realism: float) -> Account:
    """Return an account with twenty messages, 0 to 19, in each of two queues."""
    account = Account(seed, realism=Realism(**realism))
    for queue in (account.queue("orders"), account.queue("ledger.fifo")):
        for number in range(20):
            account.send(queue, str(number), group="a")
    return account


def received_again(account: Account) -> list[dict[str, Any]]:
    """Return the next deliveries of the first ten messages, after 29.9 seconds."""
    account.wait(29.9)
    return [each for _ in range(2) for each in account.receive("orders") if int(each["Body"]) < 10]


def test_reordered_messages_are_received_in_any_order() -> None:
    account = account_with(reorder=True)
    got = [int(body) for _ in range(2) for body in account.bodies("orders")]
    assert sorted(got) == list(range(20)) != got


def test_a_partial_receive_returns_some_messages_and_sometimes_none_but_not_a_long_poll() -> None:
    account = account_with(partial=True)
    sizes = [len(account.receive("orders")) for _ in range(10)]
    assert (sum(sizes), 0 in sizes, any(0 < size < 10 for size in sizes)) == (20, True, True)
    account = account_with(partial=True)
    while account.sqs.depth("orders").ready:
        assert account.receive("orders", WaitTimeSeconds=1)


@pytest.mark.parametrize("how", ["in flight", "deleted", "hidden for longer"])
def test_a_message_may_be_delivered_once_more_while_it_is_in_flight_or_was_deleted(how: str) -> None:
    account = account_with(duplicate=1.0)
    first = account.receive("orders")
    for message in first:
        if how == "deleted":
            account.delete("orders", message["ReceiptHandle"])
        elif how == "hidden for longer":
            account.change_visibility("orders", message["ReceiptHandle"], 600)
    again = received_again(account)
    assert sorted(each["MessageId"] for each in again) == sorted(each["MessageId"] for each in first)
    assert {each["Attributes"]["ApproximateReceiveCount"] for each in again} == {"2"}
    assert len(account.recorded("reappeared")) == (10 if how == "deleted" else 0)
    if how == "in flight":
        recorded = [fields["delivery_id"] for _, fields in account.recorded("received") if fields.get("duplicate")]
        assert recorded == [each["MessageId"] for each in again]
    elif how == "deleted":
        for message in again:
            account.delete("orders", message["ReceiptHandle"])
        account.wait(60)
        assert len(account.recorded("reappeared")) == 10


def test_an_expired_or_moved_message_is_not_duplicated() -> None:
    account = Account(1, realism=Realism(duplicate=1.0))
    account.queue("dead")
    account.queue("short", dead_letter="dead", max_receives=1, MessageRetentionPeriod="60", VisibilityTimeout="50")
    account.send("short", "moved")
    account.receive("short", VisibilityTimeout=50)
    account.wait(51)
    assert account.receive("short") == []
    assert account.bodies("dead") == ["moved"]
    account.send("short", "expired")
    account.wait(59.9)
    account.delete("short", account.handle("short"))
    account.wait(60)
    assert account.receive("short") == []


def test_realism_does_not_affect_fifo_queues() -> None:
    account = account_with(reorder=True, partial=True, duplicate=1.0)
    assert [account.bodies("ledger.fifo") for _ in range(2)] == [[str(number) for number in range(10)], []]
    account.wait(29.9)
    assert account.receive("ledger.fifo") == []


def test_old_handles_and_late_changes_can_be_switched() -> None:
    account = Account(realism=Realism(old_handles_act=False, late_changes_are_ignored=False))
    account.queue("orders")
    account.send("orders")
    old = account.handle("orders")
    account.wait(30)
    latest = account.handle("orders")
    account.change_visibility("orders", old, 0)
    assert account.receive("orders") == []
    account.wait(31)
    account.change_visibility("orders", latest, 60)
    assert account.receive("orders") == []
