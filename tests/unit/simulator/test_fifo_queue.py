"""FIFO queues of the SQS model: handles, deduplication, the order of groups, repeated receives.

The order within groups: test_fifo_order.py, and the probes of fact 14.
"""

import pytest

from tests.unit.simulator.account import Account, refused

INVALID = "InvalidParameterValue"


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("ledger.fifo")
    return account


def send(account: Account, *bodies: str) -> None:
    """Send messages whose group is the first character of the body."""
    for body in bodies:
        account.send("ledger.fifo", body, group=body[0])


def handles(account: Account, **parameters: int) -> dict[str, str]:
    return {message["Body"]: message["ReceiptHandle"] for message in account.receive("ledger.fifo", **parameters)}


def test_a_handle_of_a_fifo_queue_is_refused_once_it_has_expired(account: Account) -> None:  # PLATFORM 14
    send(account, "a1")
    handle = handles(account)["a1"]
    account.change_visibility("ledger.fifo", handle, 60)
    account.wait(59)
    account.change_visibility("ledger.fifo", handle, 30)
    account.wait(30)
    text = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The "
    with refused(INVALID, text):
        account.delete("ledger.fifo", handle)
    with refused(INVALID, text):
        account.change_visibility("ledger.fifo", handle, 10)
    handle = handles(account)["a1"]
    for _ in range(2):  # the second delete has no effect
        account.delete("ledger.fifo", handle)
    assert account.sqs.peek("ledger.fifo") == []


def test_a_fifo_message_has_its_group_deduplication_id_and_sequence_number_as_attributes(account: Account) -> None:
    answer = account.call("SendMessage", "ledger.fifo", MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    send(account, "b1", "a2")
    numbers = [message.sequence_number or "" for message in account.sqs.peek("ledger.fifo")]
    assert numbers == sorted(set(numbers))
    attributes = account.receive("ledger.fifo")[0]["Attributes"]
    assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("g", "d")
    assert attributes["SequenceNumber"] == answer["SequenceNumber"]
    assert len(attributes["SequenceNumber"]) == 20


def test_the_delay_of_a_fifo_queue_delays_the_whole_group() -> None:
    account = Account()
    account.queue("ledger.fifo", DelaySeconds=60)
    send(account, "a1")
    account.wait(30)
    send(account, "a2")
    account.wait(30)
    assert list(handles(account)) == ["a1"]


def test_a_group_continues_when_its_head_has_expired() -> None:  # PLATFORM 5
    account = Account()
    account.queue("ledger.fifo", MessageRetentionPeriod=60)
    send(account, "a1")
    account.wait(30)
    send(account, "a2")
    handles(account, most=1, VisibilityTimeout=600)
    account.wait(30)
    assert list(handles(account)) == ["a2"]


# deduplication


def test_a_message_with_the_same_deduplication_id_within_5_minutes_is_dropped(account: Account) -> None:  # PLATFORM 20
    first = account.send("ledger.fifo", "one", group="a", MessageDeduplicationId="d")
    account.wait(299)
    assert account.send("ledger.fifo", "another", group="b", MessageDeduplicationId="d") == first
    [(_, fields)] = account.recorded("deduplicated")
    assert (fields["delivery_id"], fields["body"]) == (first, "another")
    account.delete("ledger.fifo", account.handle("ledger.fifo"))
    account.send("ledger.fifo", "another", group="b", MessageDeduplicationId="d")
    assert account.bodies("ledger.fifo") == []
    account.wait(1)
    account.send("ledger.fifo", "two", group="a", MessageDeduplicationId="d")
    account.call("PurgeQueue", "ledger.fifo")  # forgets it: PLATFORM 36
    account.send("ledger.fifo", "three", group="a", MessageDeduplicationId="d")
    assert account.bodies("ledger.fifo") == ["three"]


def test_in_high_throughput_mode_deduplication_is_per_group() -> None:
    account = Account()
    account.queue("ledger.fifo", DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    for group in "abb":
        account.send("ledger.fifo", "same", group=group)
    assert account.bodies("ledger.fifo") == ["same", "same"]


# the order of the groups, as recorded


def test_a_group_that_was_received_goes_behind_the_groups_that_waited(account: Account) -> None:
    send(account, "a1", "a2", "a3", "a4", "b1", "c1")
    assert account.bodies("ledger.fifo", most=2, VisibilityTimeout=1) == ["a1", "a2"]
    account.wait(0.1)
    assert account.bodies("ledger.fifo", most=1, VisibilityTimeout=1) == ["b1"]
    account.wait(2)
    assert account.bodies("ledger.fifo") == ["c1", "a1", "a2", "a3", "a4", "b1"]


def test_so_does_one_that_is_received_without_a_visibility_timeout_or_released(account: Account) -> None:
    send(account, "a1", "b1", "b2", "c1", "a2")
    account.wait(1)
    assert account.bodies("ledger.fifo", most=3, VisibilityTimeout=0) == ["a1", "a2", "b1"]
    got = handles(account, VisibilityTimeout=600)
    assert list(got) == ["c1", "a1", "a2", "b1", "b2"]
    account.wait(1)
    for body in ("b1", "a1"):
        account.change_visibility("ledger.fifo", got[body], 0)
        account.wait(1)
    assert account.bodies("ledger.fifo") == ["b1", "a1"]


def test_a_group_whose_head_was_deleted_keeps_the_place_of_its_next_message(account: Account) -> None:
    for body in ("a1", "b1", "a2", "b2", "a3", "a4", "c1"):
        send(account, body)
        account.wait(0.1)
    for handle in handles(account, most=2).values():
        account.delete("ledger.fifo", handle)
    assert account.bodies("ledger.fifo") == ["b1", "b2", "a3", "a4", "c1"]


def test_only_received_messages_of_a_group_count_as_not_visible(account: Account) -> None:
    send(account, "a1", "a2", "a3", "b1")
    got = handles(account, most=2)

    def counts() -> tuple[str, str]:
        attributes = account.attributes("ledger.fifo")
        return attributes["ApproximateNumberOfMessages"], attributes["ApproximateNumberOfMessagesNotVisible"]

    assert counts() == ("2", "2")
    account.delete("ledger.fifo", got["a1"])
    assert counts() == ("2", "1")
    account.wait(30)
    assert counts() == ("3", "0")


# repeated receives


def attempt(account: Account, attempt_id: str = "try", **more: int) -> list[tuple[str, str]]:
    received = account.receive("ledger.fifo", ReceiveRequestAttemptId=attempt_id, **more)
    return [(message["Body"], message["ReceiptHandle"]) for message in received]


def test_a_receive_with_the_same_attempt_id_returns_the_same_messages_and_handles(account: Account) -> None:
    send(account, "a1", "a2", "b1")
    first = attempt(account, most=2)
    account.wait(20)
    assert attempt(account, most=2) == first
    assert [body for body, _ in attempt(account, "another")] == ["b1"]
    account.wait(20)  # the visibility timeout started again at the second receive
    account.delete("ledger.fifo", dict(first)["a1"])


@pytest.mark.parametrize("how", ["delete", "change", "another receive"])
def test_a_receive_whose_messages_have_changed_since_cannot_be_repeated(account: Account, how: str) -> None:
    send(account, "a1", "a2")
    handle = dict(attempt(account))["a1"]
    if how == "delete":
        account.delete("ledger.fifo", handle)
    elif how == "change":
        account.change_visibility("ledger.fifo", handle, 60)
    else:
        account.wait(30)
        account.receive("ledger.fifo")
    text = "for parameter ReceiveRequestAttemptId is invalid. Reason: The receiveRequestAttemptId is not valid anymore"
    with refused(INVALID, text):
        attempt(account)


def test_an_attempt_id_is_forgotten_after_5_minutes_or_after_the_visibility_timeout(account: Account) -> None:
    assert attempt(account) == []  # nothing to repeat
    send(account, "a1")
    [(_, first)] = attempt(account)
    account.wait(30)
    [(_, second)] = attempt(account, VisibilityTimeout=600)
    assert second != first
    account.wait(300)
    assert attempt(account) == []
    with refused(INVALID, "for parameter ReceiveRequestAttemptId is invalid."):
        attempt(account, "a b")
