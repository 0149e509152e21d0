"""Batch requests of the SQS model: which errors fail the whole request, and which fail one entry."""

from typing import Any

import pytest

from tests.unit.simulator.account import Account, refused, text

PREFIX = "AWS.SimpleQueueService."


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("orders")
    return account


def entries(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"Id": str(number), "MessageBody": f"body {number}", **more} for number in range(count)]


def batch(account: Account, queue: str, some: list[dict[str, Any]]) -> dict[str, Any]:
    return account.call("SendMessageBatch", queue, Entries=some)


def test_each_entry_is_answered_by_its_id(account: Account) -> None:
    answer = batch(account, "orders", entries(3))
    assert [entry["Id"] for entry in answer["Successful"]] == ["0", "1", "2"]
    assert account.bodies("orders") == ["body 0", "body 1", "body 2"]


def test_a_batch_answer_leaves_out_the_list_that_is_empty(account: Account) -> None:  # PLATFORM 35
    sent = batch(account, "orders", entries(1))
    refused_whole = batch(account, "orders", entries(1, DelaySeconds=901))
    handle = account.handle("orders")
    changed = account.call(
        "ChangeMessageVisibilityBatch",
        "orders",
        Entries=[{"Id": "0", "ReceiptHandle": handle, "VisibilityTimeout": 60}],
    )
    deleted = account.call("DeleteMessageBatch", "orders", Entries=[{"Id": "0", "ReceiptHandle": handle}])
    assert [list(answer) for answer in (sent, changed, deleted)] == [["Successful"]] * 3
    assert list(refused_whole) == ["Failed"]


@pytest.mark.parametrize("operation", ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
def test_an_empty_batch_and_one_of_more_than_ten_are_refused(account: Account, operation: str) -> None:  # PLATFORM 16
    def of(count: int) -> list[dict[str, Any]]:
        more = {"MessageBody": "x"} if operation == "SendMessageBatch" else {"ReceiptHandle": "x"}
        return [{"Id": str(number), **more} for number in range(count)]

    with refused(PREFIX + "EmptyBatchRequest", f"at least one {operation}RequestEntry in the request"):
        account.call(operation, "orders", Entries=of(0))
    text = "Maximum number of entries per request are 10. You have sent 11."
    with refused(PREFIX + "TooManyEntriesInBatchRequest", text):
        account.call(operation, "orders", Entries=of(11))


@pytest.mark.parametrize("entry_id", ["", "a.b", "x" * 81, "ä"])
def test_an_invalid_entry_id_is_refused(account: Account, entry_id: str) -> None:  # FACTS 1.6
    with refused(PREFIX + "InvalidBatchEntryId", "can only contain alphanumeric characters, hyphens and underscores"):
        batch(account, "orders", [{"Id": entry_id, "MessageBody": "x"}])


def test_a_repeated_entry_id_is_refused(account: Account) -> None:  # PLATFORM 16
    with refused(PREFIX + "BatchEntryIdsNotDistinct", "Id 0 repeated."):
        batch(account, "orders", entries(1) + entries(1))


def test_messages_of_more_than_a_mebibyte_together_are_refused(account: Account) -> None:  # PLATFORM 17
    some = [{"Id": str(number), "MessageBody": "x" * 524_288} for number in range(2)]
    batch(account, "orders", some)
    some[0]["MessageAttributes"] = {"a": text("1")}
    with refused(PREFIX + "BatchRequestTooLong", "longer than 1048576 bytes. You have sent 1048584 bytes."):
        batch(account, "orders", some)


def test_an_invalid_entry_fails_alone(account: Account) -> None:  # PLATFORM 16
    some = entries(4)
    some[1]["DelaySeconds"] = 901
    some[2]["MessageBody"] = "\x00"
    some[3]["MessageAttributes"] = {"a": {"DataType": "String"}}
    answer = batch(account, "orders", some)
    assert [entry["Id"] for entry in answer["Successful"]] == ["0"]
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]] == [
        ("1", "InvalidParameterValue", True),
        ("2", "InvalidMessageContents", True),
        ("3", "InvalidParameterValue", True),
    ]


def test_a_message_above_the_size_limit_of_the_queue_fails_alone(account: Account) -> None:  # PLATFORM 17
    account.queue("small", MaximumMessageSize=1024)
    answer = batch(account, "small", [*entries(1), {"Id": "large", "MessageBody": "x" * 1025}])
    [failed] = answer["Failed"]
    assert failed["Id"] == "large"
    assert failed["Message"] == "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."


def test_a_fifo_batch_with_a_missing_group_or_deduplication_id_is_refused_as_a_whole(account: Account) -> None:
    account.queue("ledger.fifo", ContentBasedDeduplication="false")
    with refused("InvalidParameterValue", "The request must contain the parameter MessageGroupId."):
        batch(account, "ledger.fifo", entries(1, MessageDeduplicationId="d"))
    with refused("InvalidParameterValue", "The queue should either have ContentBasedDeduplication enabled"):
        batch(account, "ledger.fifo", entries(1, MessageGroupId="g"))


def test_deletes_and_changes_fail_entry_by_entry(account: Account) -> None:
    account.send("orders")
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
    deleted = account.call("DeleteMessageBatch", "orders", Entries=some)
    assert deleted["Successful"] == [{"Id": "good"}]
    assert [entry["Code"] for entry in deleted["Failed"]] == ["ReceiptHandleIsInvalid"]
