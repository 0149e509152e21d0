"""Queues of the model: made, found, changed, deleted."""

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


def test_a_queue_that_is_not_there_is_refused(account: Account) -> None:
    with refused(GONE, "The specified queue does not exist."):
        account.send("others")
    with refused(GONE):
        account.sqs.call("GetQueueUrl", {"QueueName": "others"})


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 81, "x" * 76 + ".fifo"])
def test_a_name_that_is_not_allowed_is_refused(account: Account, name: str) -> None:
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    with refused("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80"):
        account.sqs.call("CreateQueue", {"QueueName": name, "Attributes": attributes})


def test_the_name_and_the_attribute_both_say_fifo(account: Account) -> None:
    for request in ({"QueueName": "a.fifo"}, {"QueueName": "a", "Attributes": {"FifoQueue": "true"}}):
        with refused("InvalidParameterValue", "end with .fifo suffix"):
            account.sqs.call("CreateQueue", request)


def test_making_a_queue_again_changes_nothing(account: Account) -> None:
    account.send("orders")
    account.queue("orders", VisibilityTimeout=30)
    assert len(account.receive("orders")) == 1


def test_making_a_queue_again_with_other_attributes_is_refused(account: Account) -> None:
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


def test_an_attribute_that_there_is_not_is_refused(account: Account) -> None:
    with refused("InvalidAttributeName", "Unknown Attribute Foo."):
        account.call("SetQueueAttributes", "orders", Attributes={"Foo": "1"})
    with refused("InvalidAttributeName", "Unknown Attribute Foo."):
        account.call("GetQueueAttributes", "orders", AttributeNames=["Foo"])


def test_what_is_fifo_s_own_is_refused_elsewhere_and_the_type_stays(account: Account) -> None:
    with refused("InvalidAttributeName", "Unknown Attribute ContentBasedDeduplication."):
        account.call("SetQueueAttributes", "orders", Attributes={"ContentBasedDeduplication": "true"})
    with refused("InvalidAttributeName", "Unknown Attribute FifoQueue."):
        account.call("SetQueueAttributes", "orders", Attributes={"FifoQueue": "true"})
    account.queue("ledger.fifo")
    with refused("InvalidAttributeValue", "Modifying queue type is not supported."):
        account.call("SetQueueAttributes", "ledger.fifo", Attributes={"FifoQueue": "false"})


def test_changed_attributes_hold_from_now(account: Account) -> None:
    account.send("orders")
    account.wait(5)
    account.call("SetQueueAttributes", "orders", Attributes={"VisibilityTimeout": "5"})
    account.receive("orders")
    account.wait(5)
    assert len(account.receive("orders")) == 1
    told = account.attributes("orders")
    assert (told["VisibilityTimeout"], told["CreatedTimestamp"]) == ("5", "1800000000")
    assert told["LastModifiedTimestamp"] == "1800000005"


def test_the_numbers_of_messages_are_told(account: Account) -> None:
    account.send("orders", DelaySeconds=60)
    for _ in range(5):
        account.send("orders")
    account.receive("orders", most=2)
    told = account.attributes("orders")
    assert told["ApproximateNumberOfMessages"] == "3"
    assert told["ApproximateNumberOfMessagesNotVisible"] == "2"
    assert told["ApproximateNumberOfMessagesDelayed"] == "1"


def test_only_the_attributes_that_were_asked_for_are_told(account: Account) -> None:
    answer = account.call("GetQueueAttributes", "orders", AttributeNames=["DelaySeconds", "RedrivePolicy"])
    assert answer == {"Attributes": {"DelaySeconds": "0"}}
    assert account.call("GetQueueAttributes", "orders") == {}


def test_queues_are_listed_by_prefix_and_in_pages(account: Account) -> None:
    for name in ("other-1", "other-2", "other-3"):
        account.queue(name)
    urls = [account.sqs.url(name) for name in ("other-1", "other-2", "other-3")]
    assert account.sqs.call("ListQueues", {"QueueNamePrefix": "other"}) == {"QueueUrls": urls}
    first = account.sqs.call("ListQueues", {"QueueNamePrefix": "other", "MaxResults": 2})
    assert first["QueueUrls"] == urls[:2]
    rest = {"QueueNamePrefix": "other", "MaxResults": 2, "NextToken": first["NextToken"]}
    assert account.sqs.call("ListQueues", rest) == {"QueueUrls": urls[2:]}
    assert account.sqs.call("ListQueues", {"QueueNamePrefix": "none"}) == {}


def test_a_deleted_queue_is_gone_and_its_name_free_after_a_minute(account: Account) -> None:
    account.send("orders")
    account.call("DeleteQueue", "orders")
    assert len(account.happened("purged")) == 1
    with refused(GONE):
        account.receive("orders")
    with refused("AWS.SimpleQueueService.QueueDeletedRecently", "You must wait 60 seconds"):
        account.queue("orders")
    account.wait(60)
    account.queue("orders")
    assert account.receive("orders") == []


def test_a_handle_of_a_queue_that_was_made_anew_is_none_of_its(account: Account) -> None:
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
    assert len(account.happened("purged")) == 3
    with refused("AWS.SimpleQueueService.PurgeQueueInProgress", "on orders is allowed every 60 seconds."):
        account.call("PurgeQueue", "orders")
    account.wait(60)
    account.call("PurgeQueue", "orders")


def test_tags_are_kept(account: Account) -> None:
    account.call("TagQueue", "orders", Tags={"a": "1", "b": "2"})
    account.call("UntagQueue", "orders", TagKeys=["a", "c"])
    assert account.call("ListQueueTags", "orders") == {"Tags": {"b": "2"}}
    account.call("UntagQueue", "orders", TagKeys=["b"])
    assert account.call("ListQueueTags", "orders") == {}


def test_permissions_are_unknown_here(account: Account) -> None:
    request = {"Label": "a", "AWSAccountIds": ["1"], "Actions": ["*"]}
    with refused("AWS.SimpleQueueService.UnsupportedOperation", "AddPermission"):
        account.call("AddPermission", "orders", **request)


def test_a_request_of_the_wrong_shape_is_refused(account: Account) -> None:
    with refused("SerializationException", 'Missing required parameter in input: "MessageBody"'):
        account.call("SendMessage", "orders")


def test_a_receive_asks_for_1_to_10_and_waits_for_0_to_20_seconds(account: Account) -> None:
    for most in (0, 11):
        with refused(
            "InvalidParameterValue", f"Value {most} for parameter MaxNumberOfMessages is invalid. Reason: Must"
        ):
            account.receive("orders", most)
    with refused("InvalidParameterValue", "Value 21 for parameter WaitTimeSeconds is invalid"):
        account.receive("orders", WaitTimeSeconds=21)
    with refused("InvalidParameterValue", "Value 43201 for parameter VisibilityTimeout is invalid"):
        account.receive("orders", VisibilityTimeout=43_201)


def test_subscribers_are_told_of_what_may_change_the_next_receive(account: Account) -> None:
    told: list[str] = []
    account.queue("others")
    account.sqs.subscribe("orders", lambda: told.append("orders"))
    account.send("others")
    account.receive("others")
    assert told == []
    account.send("orders")
    handle = account.handle("orders")  # it comes back, which a poller that is waiting has to know
    account.hide("orders", handle, 5)
    assert told == ["orders"] * 3
    account.delete("orders", handle)
    account.receive("orders")
    assert told == ["orders"] * 3
