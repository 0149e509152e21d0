"""Standard queues of the SQS model: receives, deletes, delays, retention, the in-flight limit."""

import pytest

from tests.unit.simulator.account import Account, refused


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("orders")
    return account


def test_a_message_is_received_as_it_was_sent(account: Account) -> None:
    message_id = account.send("orders", "hello")
    [message] = account.receive("orders")
    assert (message["MessageId"], message["Body"]) == (message_id, "hello")


def test_a_received_message_is_invisible_for_the_visibility_timeout(account: Account) -> None:
    account.send("orders")
    account.receive("orders")
    account.wait(29.999)
    assert account.receive("orders") == []
    account.wait(0.001)
    assert len(account.receive("orders")) == 1


def test_a_receive_may_have_its_own_visibility_timeout(account: Account) -> None:
    account.send("orders")
    account.receive("orders", VisibilityTimeout=5)
    account.wait(5)
    account.receive("orders", VisibilityTimeout=0)
    assert len(account.receive("orders")) == 1


def test_the_receive_count_rises_with_every_receive(account: Account) -> None:  # PLATFORM 6
    account.send("orders")
    counts = []
    for _ in range(3):
        [message] = account.receive("orders")
        counts.append(message["Attributes"]["ApproximateReceiveCount"])
        account.wait(30)
    assert counts == ["1", "2", "3"]


def test_the_time_of_the_first_receive_stays_the_same(account: Account) -> None:
    account.send("orders")
    account.wait(10)
    first = account.receive("orders")[0]["Attributes"]["ApproximateFirstReceiveTimestamp"]
    account.wait(60)
    [message] = account.receive("orders")
    assert message["Attributes"]["ApproximateFirstReceiveTimestamp"] == first == str(1_800_000_010_000)
    assert message["Attributes"]["SentTimestamp"] == str(1_800_000_000_000)


def test_messages_are_received_in_the_order_of_their_sends(account: Account) -> None:
    for number in range(12):
        account.send("orders", str(number))
    assert account.bodies("orders") == [str(number) for number in range(10)]
    assert account.bodies("orders") == ["10", "11"]


# deleting


def test_a_deleted_message_is_not_received(account: Account) -> None:
    account.send("orders")
    account.delete("orders", account.handle("orders"))
    account.wait(60)
    assert account.receive("orders") == []


def test_a_second_delete_succeeds_and_has_no_effect(account: Account) -> None:  # PLATFORM 11
    account.send("orders")
    handle = account.handle("orders")
    account.delete("orders", handle)
    account.delete("orders", handle)
    assert [name for name, _ in account.recorded()][-2:] == ["deleted", "delete_ignored"]


def test_a_delete_after_the_visibility_timeout_works_until_the_next_receive(account: Account) -> None:  # FACTS 1.5
    account.send("orders")
    handle = account.handle("orders")
    account.wait(31)
    account.delete("orders", handle)
    assert account.receive("orders") == []


def test_a_delete_with_an_old_handle_succeeds_and_has_no_effect(account: Account) -> None:  # PLATFORM 11
    account.send("orders")
    old = account.handle("orders")
    account.wait(30)
    account.receive("orders")
    account.delete("orders", old)
    account.wait(30)
    assert len(account.receive("orders")) == 1


def test_an_invalid_handle_is_refused(account: Account) -> None:
    for handle in ("nonsense", "bm9uc2Vuc2U="):
        with refused("ReceiptHandleIsInvalid", "is not a valid receipt handle"):
            account.delete("orders", handle)


def test_an_empty_handle_counts_as_missing(account: Account) -> None:
    with refused("MissingParameter", "must contain the parameter ReceiptHandle"):
        account.delete("orders", "")
    with refused("MissingParameter", "must contain the parameter ReceiptHandle"):
        account.change_visibility("orders", "", 1)


def test_a_handle_of_another_queue_is_refused(account: Account) -> None:
    account.queue("others")
    account.send("orders")
    with refused("ReceiptHandleIsInvalid"):
        account.delete("others", account.handle("orders"))


# delays


def test_a_delayed_message_becomes_visible_when_its_delay_ends(account: Account) -> None:  # PLATFORM 3
    account.send("orders", DelaySeconds=10)
    account.wait(9.999)
    assert account.receive("orders") == []
    account.wait(0.001)
    assert len(account.receive("orders")) == 1


def test_the_delay_of_a_message_overrides_that_of_the_queue_even_if_it_is_0(account: Account) -> None:  # PLATFORM 3
    account.queue("slow", DelaySeconds=60)
    account.send("slow", "later")
    account.send("slow", "now", DelaySeconds=0)
    assert account.bodies("slow") == ["now"]
    account.wait(60)
    assert "later" in account.bodies("slow")


@pytest.mark.parametrize("seconds", [-1, 901])
def test_a_delay_beyond_900_seconds_is_refused(account: Account, seconds: int) -> None:  # PLATFORM 3
    with refused("InvalidParameterValue", f"Value {seconds} for parameter DelaySeconds is invalid"):
        account.send("orders", DelaySeconds=seconds)


def test_a_delayed_message_is_not_in_flight(account: Account) -> None:  # PLATFORM 4
    account.send("orders", DelaySeconds=10)
    account.send("orders")
    account.send("orders")
    account.receive("orders", most=1)
    assert account.sqs.depth("orders")[:3] == (1, 1, 1)


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


def test_an_expiry_is_recorded_by_catch_up(account: Account) -> None:
    account.send("orders")
    account.wait(4 * 86_400)
    assert account.recorded("expired") == []
    account.sqs.catch_up()
    assert len(account.recorded("expired")) == 1


def test_a_shorter_retention_applies_to_messages_in_the_queue(account: Account) -> None:
    account.send("orders")
    account.wait(120)
    account.call("SetQueueAttributes", "orders", Attributes={"MessageRetentionPeriod": "60"})
    assert account.receive("orders") == []


# the in-flight limit


def test_at_the_in_flight_limit_a_standard_receive_is_refused() -> None:  # PLATFORM 4
    account = Account(in_flight_limit=3)
    account.queue("orders")
    for _ in range(5):
        account.send("orders")
    assert len(account.receive("orders")) == 3
    with refused("OverLimit"):
        account.receive("orders")
    assert account.receive("orders", WaitTimeSeconds=1) == []  # a long poll returns no messages instead


def test_messages_of_a_standard_queue_may_have_groups_which_do_not_order_them(account: Account) -> None:  # PLATFORM 14
    account.send("orders", "1", group="a")
    account.send("orders", "2", group="a")
    account.receive("orders", most=1)
    [message] = account.receive("orders")
    assert (message["Body"], message["Attributes"]["MessageGroupId"]) == ("2", "a")


def test_a_standard_queue_refuses_a_deduplication_id(account: Account) -> None:
    with refused("InvalidParameterValue", "not valid for this queue type"):
        account.send("orders", MessageDeduplicationId="1")
