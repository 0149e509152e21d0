"""The queues of the SQS model: creating, finding, configuring, deleting."""

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


def test_a_queue_has_a_url_and_an_arn(account: Account) -> None:
    url = account.sqs.call("GetQueueUrl", {"QueueName": "orders"})["QueueUrl"]
    assert url == "https://sqs.us-east-1.amazonaws.com/123456789012/orders" == account.sqs.url("orders")
    assert account.attributes("orders")["QueueArn"] == "arn:aws:sqs:us-east-1:123456789012:orders"


def test_a_url_of_any_host_finds_the_queue_of_this_account(account: Account) -> None:
    for url in ("http://localhost:9324/123456789012/orders", "orders"):
        account.sqs.call("GetQueueAttributes", {"QueueUrl": url})
    with refused(GONE):
        account.sqs.call("GetQueueAttributes", {"QueueUrl": "http://localhost:9324/210987654321/orders"})


def test_a_missing_queue_is_refused(account: Account) -> None:
    with refused(GONE, "The specified queue does not exist."):
        account.send("others")
    with refused(GONE):
        account.sqs.call("GetQueueUrl", {"QueueName": "others"})


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 81, "x" * 76 + ".fifo"])
def test_an_invalid_name_is_refused(account: Account, name: str) -> None:
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    with refused("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80"):
        account.sqs.call("CreateQueue", {"QueueName": name, "Attributes": attributes})


def test_a_fifo_queue_needs_both_the_name_suffix_and_the_attribute(account: Account) -> None:
    for request in ({"QueueName": "a.fifo"}, {"QueueName": "a", "Attributes": {"FifoQueue": "true"}}):
        with refused("InvalidParameterValue", "end with .fifo suffix"):
            account.sqs.call("CreateQueue", request)


def test_creating_an_existing_queue_changes_nothing(account: Account) -> None:
    account.send("orders")
    account.queue("orders", VisibilityTimeout=30)
    assert len(account.receive("orders")) == 1


def test_creating_an_existing_queue_with_other_attributes_is_refused(account: Account) -> None:
    text = "A queue already exists with the same name and a different value for attribute DelaySeconds"
    with refused("QueueAlreadyExists", text):
        account.queue("orders", DelaySeconds=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VisibilityTimeout", "43201"),
        ("DelaySeconds", "901"),
        ("MessageRetentionPeriod", "59"),
        ("MaximumMessageSize", "1048577"),
        ("MaximumMessageSize", "many"),
        ("SqsManagedSseEnabled", "yes"),
    ],
)
def test_an_attribute_out_of_range_is_refused(account: Account, name: str, value: str) -> None:
    with refused("InvalidAttributeValue", f"Invalid value for the parameter {name}."):
        account.call("SetQueueAttributes", "orders", Attributes={name: value})


def test_an_unknown_attribute_is_refused(account: Account) -> None:
    with refused("InvalidAttributeName", "Unknown Attribute Foo."):
        account.call("SetQueueAttributes", "orders", Attributes={"Foo": "1"})
    with refused("InvalidAttributeName", "Unknown Attribute Foo."):
        account.call("GetQueueAttributes", "orders", AttributeNames=["Foo"])


def test_fifo_attributes_are_refused_on_a_standard_queue_and_the_type_cannot_change(account: Account) -> None:
    with refused("InvalidAttributeName", "Unknown Attribute ContentBasedDeduplication."):
        account.call("SetQueueAttributes", "orders", Attributes={"ContentBasedDeduplication": "true"})
    for name, value in (("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue")):
        with refused("InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true."):
            account.call("SetQueueAttributes", "orders", Attributes={name: value})
        with refused("InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true."):
            account.queue("new", **{name: value})
    with refused("InvalidAttributeName", "Unknown Attribute FifoQueue."):
        account.call("SetQueueAttributes", "orders", Attributes={"FifoQueue": "true"})
    account.queue("ledger.fifo")
    with refused("InvalidAttributeValue", "Modifying queue type is not supported."):
        account.call("SetQueueAttributes", "ledger.fifo", Attributes={"FifoQueue": "false"})


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
    assert attributes["ApproximateNumberOfMessages"] == "3"
    assert attributes["ApproximateNumberOfMessagesNotVisible"] == "2"
    assert attributes["ApproximateNumberOfMessagesDelayed"] == "1"


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


def test_a_handle_of_a_deleted_queue_is_refused_by_a_new_queue_of_the_same_name(account: Account) -> None:
    account.send("orders")
    handle = account.handle("orders")
    account.call("DeleteQueue", "orders")
    account.wait(60)
    account.queue("orders")
    account.send("orders")
    account.receive("orders")
    with refused("ReceiptHandleIsInvalid"):
        account.delete("orders", handle)


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


def permit(account: Account, label: str, *accounts: str, actions: tuple[str, ...] = ("ReceiveMessage",)) -> None:
    request = {"Label": label, "AWSAccountIds": list(accounts), "Actions": list(actions)}
    account.call("AddPermission", "orders", **request)


def policy(account: Account) -> Any:
    return json.loads(account.attributes("orders").get("Policy", "null"))


def test_permissions_are_statements_of_the_policy_of_the_queue(account: Account) -> None:
    permit(account, "one", "111111111111", "222222222222")
    permit(account, "two", "111111111111", actions=("SendMessage", "*"))
    arn, root = account.sqs.arn("orders"), "arn:aws:iam::111111111111:root"
    one, two = policy(account)["Statement"]
    assert (policy(account)["Version"], policy(account)["Id"]) == ("2008-10-17", f"{arn}/SQSDefaultPolicy")
    assert one == {
        "Sid": "one",
        "Effect": "Allow",
        "Principal": {"AWS": [root, "arn:aws:iam::222222222222:root"]},
        "Action": "SQS:ReceiveMessage",
        "Resource": arn,
    }
    assert (two["Principal"], two["Action"]) == ({"AWS": root}, ["SQS:SendMessage", "SQS:*"])
    account.call("RemovePermission", "orders", Label="one")
    assert [each["Sid"] for each in policy(account)["Statement"]] == ["two"]
    account.call("RemovePermission", "orders", Label="two")
    assert "Policy" not in account.attributes("orders")


def test_a_permission_is_refused_if_its_label_exists_or_a_value_is_invalid(account: Account) -> None:
    permit(account, "one", "111111111111")
    with refused("InvalidParameterValue", "Value one for parameter Label is invalid. Reason: Already exists."):
        permit(account, "one", "222222222222")
    with refused("InvalidParameterValue", "Value two for parameter Label is invalid. Reason: can't find label."):
        account.call("RemovePermission", "orders", Label="two")
    with refused("InvalidParameterValue", "Value SQS:Eat for parameter ActionName is invalid."):
        permit(account, "two", "111111111111", actions=("Eat",))
    with refused("InvalidParameterValue", "for parameter PrincipalId is invalid. Reason: Unable to verify."):
        permit(account, "two", "bob")
    with refused("InvalidParameterValue", "Value a b for parameter Label is invalid."):
        permit(account, "a b", "111111111111")
    with refused("OverLimit", "8 Actions were found, maximum allowed is 7."):
        permit(account, "two", "111111111111", actions=("*",) * 8)


@pytest.mark.parametrize("text", ["x", "[]", '"x"', "{"])
def test_a_policy_that_is_not_a_json_map_is_refused(account: Account, text: str) -> None:
    with refused("InvalidAttributeValue", "Invalid value for the parameter Policy."):
        account.call("SetQueueAttributes", "orders", Attributes={"Policy": text})


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


def test_two_kinds_of_encryption_at_once_are_refused(account: Account) -> None:
    with refused("InvalidAttributeName", "You can use one type of server-side encryption (SSE) at one time."):
        attributes = {"KmsMasterKeyId": "key", "SqsManagedSseEnabled": "true"}
        account.call("SetQueueAttributes", "orders", Attributes=attributes)


def test_a_throughput_limit_per_group_needs_deduplication_per_group(account: Account) -> None:
    text = "Invalid value for the parameter FifoThroughputLimit."
    with refused("InvalidAttributeValue", text):
        account.queue("fast.fifo", FifoThroughputLimit="perMessageGroupId")
    account.queue("fast.fifo", FifoThroughputLimit="perMessageGroupId", DeduplicationScope="messageGroup")
    with refused("InvalidAttributeValue", text):
        account.call("SetQueueAttributes", "fast.fifo", Attributes={"DeduplicationScope": "queue"})
    slow = {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}
    account.call("SetQueueAttributes", "fast.fifo", Attributes=slow)


def test_a_queue_of_another_account_is_not_found(account: Account) -> None:
    mine = {"QueueName": "orders", "QueueOwnerAWSAccountId": "123456789012"}
    assert account.sqs.call("GetQueueUrl", mine) == {"QueueUrl": account.sqs.url("orders")}
    with refused(GONE, "The specified queue does not exist or you do not have access to it."):
        account.sqs.call("GetQueueUrl", {**mine, "QueueOwnerAWSAccountId": "210987654321"})


@pytest.mark.parametrize("most", [0, 1_001])
def test_a_page_has_1_to_1000_queues(account: Account, most: int) -> None:
    with refused("InvalidParameterValue", f"Value {most} for parameter MaxResults is invalid."):
        account.sqs.call("ListQueues", {"MaxResults": most})
    with refused("InvalidParameterValue", f"Value {most} for parameter MaxResults is invalid."):
        account.call("ListDeadLetterSourceQueues", "orders", MaxResults=most)


def test_the_trace_header_of_a_request_becomes_that_of_its_messages(account: Account) -> None:
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=own"}}
    entries = [{"Id": "0", "MessageBody": "0"}, {"Id": "1", "MessageBody": "1", "MessageSystemAttributes": own}]
    request = {"QueueUrl": account.sqs.url("orders"), "Entries": entries}
    answer = account.sqs.called_by("http", "SendMessageBatch", request, trace_header="Root=request")
    account.send("orders", "2")
    traces = [message["Attributes"].get("AWSTraceHeader") for message in account.receive("orders")]
    assert traces == ["Root=request", "Root=own", None]
    assert "MD5OfMessageSystemAttributes" not in answer["Successful"][0]


def test_a_request_that_does_not_fit_the_service_model_is_refused(account: Account) -> None:
    with refused("SerializationException", 'Missing required parameter in input: "MessageBody"'):
        account.call("SendMessage", "orders")


def test_the_parameters_of_a_receive_must_be_in_range(account: Account) -> None:
    for most in (0, 11):
        with refused(
            "InvalidParameterValue", f"Value {most} for parameter MaxNumberOfMessages is invalid. Reason: Must"
        ):
            account.receive("orders", most)
    with refused("InvalidParameterValue", "Value 21 for parameter WaitTimeSeconds is invalid"):
        account.receive("orders", WaitTimeSeconds=21)
    with refused("InvalidParameterValue", "Value 43201 for parameter VisibilityTimeout is invalid"):
        account.receive("orders", VisibilityTimeout=43_201)


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
