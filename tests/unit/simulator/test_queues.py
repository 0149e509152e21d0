"""The queues of the SQS model: creating, finding, configuring, deleting. What is refused: test_refusals.py."""

import json
from typing import Any

import pytest

from tests.unit.simulator.account import Account, refused

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


def test_creating_an_existing_queue_changes_nothing(account: Account) -> None:
    account.send("orders")
    account.queue("orders", VisibilityTimeout=30)
    assert len(account.receive("orders")) == 1


def test_changed_attributes_apply_from_now_on(account: Account) -> None:
    account.send("orders")
    account.wait(5)
    account.call("SetQueueAttributes", "orders", Attributes={"VisibilityTimeout": "5"})
    account.receive("orders")
    account.wait(5)
    assert len(account.receive("orders")) == 1
    attributes = account.attributes("orders")
    assert (attributes["VisibilityTimeout"], attributes["CreatedTimestamp"]) == ("5", "1800000000")
    assert attributes["LastModifiedTimestamp"] == "1800000005"


def test_queue_attributes_include_the_numbers_of_messages(account: Account) -> None:
    account.send("orders", DelaySeconds=60)
    for _ in range(5):
        account.send("orders")
    account.receive("orders", most=2)
    attributes = account.attributes("orders")
    numbers = [attributes[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible", "Delayed")]
    assert numbers == ["3", "2", "1"]


def test_only_the_requested_queue_attributes_are_returned(account: Account) -> None:
    answer = account.call("GetQueueAttributes", "orders", AttributeNames=["DelaySeconds", "RedrivePolicy"])
    assert answer == {"Attributes": {"DelaySeconds": "0"}}
    assert account.call("GetQueueAttributes", "orders") == {}
    assert account.call("GetQueueAttributes", "orders", AttributeNames=["RedrivePolicy"]) == {}


def test_queues_are_listed_by_prefix_with_pagination(account: Account) -> None:
    for name in ("other-1", "other-2", "other-3"):
        account.queue(name)
    urls = [account.sqs.url(name) for name in ("other-1", "other-2", "other-3")]
    assert account.sqs.call("ListQueues", {"QueueNamePrefix": "other"}) == {"QueueUrls": urls}
    first = account.sqs.call("ListQueues", {"QueueNamePrefix": "other", "MaxResults": 2})
    assert first["QueueUrls"] == urls[:2]
    rest = {"QueueNamePrefix": "other", "MaxResults": 2, "NextToken": first["NextToken"]}
    assert account.sqs.call("ListQueues", rest) == {"QueueUrls": urls[2:]}
    assert account.sqs.call("ListQueues", {"QueueNamePrefix": "none"}) == {}


def test_the_name_of_a_deleted_queue_can_be_reused_after_a_minute(account: Account) -> None:
    account.send("orders")
    account.call("DeleteQueue", "orders")
    assert len(account.recorded("purged")) == 1
    with refused(GONE):
        account.receive("orders")
    with refused("AWS.SimpleQueueService.QueueDeletedRecently", "You must wait 60 seconds"):
        account.queue("orders")
    account.wait(60)
    account.queue("orders")
    assert account.receive("orders") == []


def test_a_purge_deletes_everything_once_a_minute(account: Account) -> None:
    for body in ("1", "2", "3"):
        account.send("orders", body)
    account.receive("orders", most=1)
    account.call("PurgeQueue", "orders")
    assert account.sqs.peek("orders") == []
    assert len(account.recorded("purged")) == 3
    with refused("AWS.SimpleQueueService.PurgeQueueInProgress", "on orders is allowed every 60 seconds."):
        account.call("PurgeQueue", "orders")
    account.wait(60)
    account.call("PurgeQueue", "orders")


def test_tags_can_be_added_listed_and_removed(account: Account) -> None:
    account.call("TagQueue", "orders", Tags={"a": "1", "b": "2"})
    account.call("UntagQueue", "orders", TagKeys=["a", "c"])
    assert account.call("ListQueueTags", "orders") == {"Tags": {"b": "2"}}
    account.call("UntagQueue", "orders", TagKeys=["b"])
    assert account.call("ListQueueTags", "orders") == {}


def test_permissions_are_statements_of_the_policy_of_the_queue(account: Account) -> None:
    def policy() -> Any:
        return json.loads(account.attributes("orders").get("Policy", "null"))

    for label, accounts, actions in (
        ("one", ["111111111111", "222222222222"], ["ReceiveMessage"]),
        ("two", ["111111111111"], ["SendMessage", "*"]),
    ):
        account.call("AddPermission", "orders", Label=label, AWSAccountIds=accounts, Actions=actions)
    arn, root = account.sqs.arn("orders"), "arn:aws:iam::111111111111:root"
    one, two = policy()["Statement"]
    assert (policy()["Version"], policy()["Id"]) == ("2008-10-17", f"{arn}/SQSDefaultPolicy")
    assert one == {
        "Sid": "one",
        "Effect": "Allow",
        "Principal": {"AWS": [root, "arn:aws:iam::222222222222:root"]},
        "Action": "SQS:ReceiveMessage",
        "Resource": arn,
    }
    assert (two["Principal"], two["Action"]) == ({"AWS": root}, ["SQS:SendMessage", "SQS:*"])
    account.call("RemovePermission", "orders", Label="one")
    assert [each["Sid"] for each in policy()["Statement"]] == ["two"]
    account.call("RemovePermission", "orders", Label="two")
    assert "Policy" not in account.attributes("orders")


def test_fifo_queue_and_content_based_deduplication_are_accepted_in_any_case(account: Account) -> None:  # PLATFORM 36
    given = {"FifoQueue": "True", "ContentBasedDeduplication": "TRUE"}
    for _ in range(2):  # the second request finds the same attributes
        account.sqs.call("CreateQueue", {"QueueName": "any.fifo", "Attributes": given})
    attributes = account.attributes("any.fifo")
    assert (attributes["FifoQueue"], attributes["ContentBasedDeduplication"]) == ("true", "true")
    changed = {"FifoQueue": "True", "ContentBasedDeduplication": "False"}
    account.call("SetQueueAttributes", "any.fifo", Attributes=changed)
    assert account.attributes("any.fifo")["ContentBasedDeduplication"] == "false"


def test_attributes_can_be_set_to_their_default_values(account: Account) -> None:
    before = account.attributes("orders")
    account.call("SetQueueAttributes", "orders", Attributes={"KmsMasterKeyId": "key", "VisibilityTimeout": "60"})
    assert account.attributes("orders")["SqsManagedSseEnabled"] == "false"
    names = ("DelaySeconds", "MaximumMessageSize", "MessageRetentionPeriod", "ReceiveMessageWaitTimeSeconds")
    defaults = {name: before[name] for name in (*names, "VisibilityTimeout")}
    more = {"KmsDataKeyReusePeriodSeconds": "300", "KmsMasterKeyId": "", "Policy": "", "RedrivePolicy": ""}
    account.call("SetQueueAttributes", "orders", Attributes={**defaults, **more})
    assert account.attributes("orders") == before


def test_the_trace_header_of_a_request_becomes_that_of_its_messages(account: Account) -> None:
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=own"}}
    entries = [{"Id": "0", "MessageBody": "0"}, {"Id": "1", "MessageBody": "1", "MessageSystemAttributes": own}]
    request = {"QueueUrl": account.sqs.url("orders"), "Entries": entries}
    answer = account.sqs.called_by("http", "SendMessageBatch", request, trace_header="Root=request")
    account.send("orders", "2")
    traces = [message["Attributes"].get("AWSTraceHeader") for message in account.receive("orders")]
    assert traces == ["Root=request", "Root=own", None]
    assert "MD5OfMessageSystemAttributes" not in answer["Successful"][0]


def test_subscribers_are_notified_of_changes_that_may_affect_the_next_receive(account: Account) -> None:
    calls: list[str] = []
    account.queue("others")
    account.sqs.subscribe("orders", lambda: calls.append("orders"))
    account.send("others")
    account.receive("others")
    assert calls == []
    account.send("orders")
    handle = account.handle("orders")  # the message becomes visible later: a waiting poller must be notified
    account.change_visibility("orders", handle, 5)
    assert calls == ["orders"] * 3
    account.delete("orders", handle)
    account.receive("orders")
    assert calls == ["orders"] * 3


@pytest.mark.parametrize("how", ["delete", "release"])
def test_subscribers_are_notified_when_the_next_message_of_a_group_can_be_received(account: Account, how: str) -> None:
    # PLATFORM 34
    account.queue("ledger.fifo")
    for body in ("a1", "a2"):
        account.send("ledger.fifo", body, group="a")
    [head] = account.receive("ledger.fifo", most=1)
    calls: list[str] = []
    account.sqs.subscribe("ledger.fifo", lambda: calls.append("called"))
    if how == "delete":
        account.delete("ledger.fifo", head["ReceiptHandle"])
    else:
        account.change_visibility("ledger.fifo", head["ReceiptHandle"], 0)
    assert len(calls) == 1
    assert account.bodies("ledger.fifo", most=1) == (["a2"] if how == "delete" else ["a1"])
