"""Standard queues of the SQS model: receives, visibility, deletes, delays, retention, the in-flight limit."""

import pytest

from tests.unit.simulator.account import Account, Realism, refused

BEYOND = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
GONE = "Message does not exist or is not available for visibility timeout change."


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("orders")
    return account


def test_a_received_message_is_invisible_for_the_visibility_timeout_of_the_queue_or_of_the_receive(
    account: Account,
) -> None:  # PLATFORM 6
    account.send("orders")
    account.wait(10)
    received = account.receive("orders")
    account.wait(29.999)
    assert account.receive("orders") == []
    account.wait(0.001)
    received += account.receive("orders", VisibilityTimeout=5)
    account.wait(5)
    received += account.receive("orders", VisibilityTimeout=0)
    assert len(account.receive("orders")) == 1
    attributes = [message["Attributes"] for message in received]
    assert [each["ApproximateReceiveCount"] for each in attributes] == ["1", "2", "3"]
    assert {each["ApproximateFirstReceiveTimestamp"] for each in attributes} == {"1800000010000"}
    assert {each["SentTimestamp"] for each in attributes} == {"1800000000000"}


def test_messages_are_received_in_the_order_of_their_sends_also_those_of_a_group(account: Account) -> None:
    # PLATFORM 14
    for number in range(12):
        account.send("orders", str(number), group="a")
    assert account.bodies("orders") == [str(number) for number in range(10)]
    rest = account.receive("orders")
    assert [(each["Body"], each["Attributes"]["MessageGroupId"]) for each in rest] == [("10", "a"), ("11", "a")]


# changed visibility


def test_a_changed_visibility_counts_from_now(account: Account) -> None:
    account.send("orders")
    handle = account.handle("orders")
    account.wait(20)
    account.change_visibility("orders", handle, 60)
    account.wait(59)
    assert account.receive("orders") == []
    account.wait(1)
    account.change_visibility("orders", account.handle("orders"), 0)
    assert len(account.receive("orders")) == 1


def test_the_total_visibility_timeout_since_the_latest_receive_is_12_hours_at_most(account: Account) -> None:
    # PLATFORM 1; FACTS 1.6
    account.send("orders")
    handle = account.handle("orders")
    account.wait(10)
    for seconds in (-1, 43_201):
        with refused("InvalidParameterValue", f"Value {seconds} for parameter VisibilityTimeout is invalid"):
            account.change_visibility("orders", handle, seconds)
    with refused("InvalidParameterValue", f"Value 43191 for parameter VisibilityTimeout is invalid. Reason: {BEYOND}"):
        account.change_visibility("orders", handle, 43_191)
    account.wait(20)  # a refused change changes nothing
    account.change_visibility("orders", account.handle("orders"), 43_200)
    account.wait(43_200)
    handle = account.handle("orders")
    account.change_visibility("orders", handle, 40_000)
    account.wait(39_000)
    account.change_visibility("orders", handle, 4_200)
    with refused("InvalidParameterValue", BEYOND):
        account.change_visibility("orders", handle, 4_201)
    account.wait(4_200)
    assert len(account.receive("orders")) == 1


def test_a_change_after_the_visibility_timeout_succeeds_and_has_no_effect(account: Account) -> None:  # PLATFORM 33
    account.send("orders")
    handle = account.handle("orders")
    account.wait(30)
    account.change_visibility("orders", handle, 60)
    assert [name for name, _ in account.recorded()][-1] == "visibility_change_ignored"
    assert len(account.receive("orders")) == 1
    account.change_visibility("orders", handle, 0)  # but an older handle changes the newer delivery
    assert len(account.receive("orders")) == 1


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


def test_the_time_at_which_the_next_message_becomes_visible_is_known(account: Account) -> None:
    account.send("orders")
    assert account.sqs.next_visible_at("orders") is None
    account.receive("orders")
    account.send("orders", DelaySeconds=10)
    assert account.sqs.next_visible_at("orders") == account.clock.now + 10
    account.wait(10)
    assert account.sqs.next_visible_at("orders") == account.clock.now + 20


# deletes


def test_a_second_delete_succeeds_and_the_visibility_of_a_deleted_message_cannot_be_changed(account: Account) -> None:
    # PLATFORM 11; FACTS 1.6
    account.send("orders")
    handle = account.handle("orders")
    account.delete("orders", handle)
    account.delete("orders", handle)
    assert [name for name, _ in account.recorded()][-2:] == ["deleted", "delete_ignored"]
    with refused("InvalidParameterValue", f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {GONE}"):
        account.change_visibility("orders", handle, 10)
    account.wait(60)
    assert account.receive("orders") == []


def test_a_handle_deletes_after_the_visibility_timeout_until_the_next_receive(account: Account) -> None:
    # PLATFORM 11; FACTS 1.5
    account.send("orders")
    old = account.handle("orders")
    account.wait(30)
    handle = account.handle("orders")
    account.delete("orders", old)
    account.wait(31)
    assert len(account.sqs.peek("orders")) == 1
    account.delete("orders", handle)
    assert account.sqs.peek("orders") == []


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


# delays


def test_the_delay_of_a_message_overrides_that_of_the_queue_even_if_it_is_0(account: Account) -> None:  # PLATFORM 3, 4
    account.queue("slow", DelaySeconds=60)
    account.send("slow", "later")
    account.send("slow", "now", DelaySeconds=0)
    account.send("slow", "soon", DelaySeconds=10)
    account.send("slow", "now too", DelaySeconds=0)
    assert account.bodies("slow", most=1) == ["now"]
    assert account.sqs.depth("slow")[:3] == (1, 1, 2)
    assert account.bodies("slow", VisibilityTimeout=600) == ["now too"]
    account.wait(9.999)
    assert account.receive("slow") == []
    account.wait(0.001)
    assert account.bodies("slow", VisibilityTimeout=600) == ["soon"]
    account.wait(50)
    assert "later" in account.bodies("slow")


# retention


def test_a_message_expires_when_its_retention_period_ends(account: Account) -> None:  # PLATFORM 5
    account.queue("short", MessageRetentionPeriod=60)
    account.send("short")
    account.wait(30)
    account.receive("short", VisibilityTimeout=20)
    account.wait(30)
    assert account.receive("short") == []
    [(_, fields)] = account.recorded("expired")
    assert fields["expired_at"] == 1_800_000_060


def test_an_expiry_is_recorded_by_catch_up_or_when_a_shorter_retention_applies(account: Account) -> None:
    account.send("orders")
    account.wait(4 * 86_400)
    assert account.recorded("expired") == []
    account.sqs.catch_up()
    assert len(account.recorded("expired")) == 1
    account.send("orders")
    account.wait(120)
    account.call("SetQueueAttributes", "orders", Attributes={"MessageRetentionPeriod": "60"})
    assert account.receive("orders") == []


def test_at_the_in_flight_limit_a_standard_receive_is_refused() -> None:  # PLATFORM 4
    account = Account(in_flight_limit=3)
    account.queue("orders")
    for _ in range(5):
        account.send("orders")
    assert len(account.receive("orders")) == 3
    with refused("OverLimit"):
        account.receive("orders")
    assert account.receive("orders", WaitTimeSeconds=1) == []  # a long poll returns no messages instead
