"""The life of a message in a standard queue of the model."""

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


def test_a_received_message_is_hidden_for_the_visibility_timeout(account: Account) -> None:
    account.send("orders")
    account.receive("orders")
    account.wait(29.999)
    assert account.receive("orders") == []
    account.wait(0.001)
    assert len(account.receive("orders")) == 1


def test_a_receive_may_say_its_own_visibility_timeout(account: Account) -> None:
    account.send("orders")
    account.receive("orders", VisibilityTimeout=5)
    account.wait(5)
    account.receive("orders", VisibilityTimeout=0)
    assert len(account.receive("orders")) == 1


def test_every_receive_counts(account: Account) -> None:  # PLATFORM 6
    account.send("orders")
    counts = []
    for _ in range(3):
        [message] = account.receive("orders")
        counts.append(message["Attributes"]["ApproximateReceiveCount"])
        account.wait(30)
    assert counts == ["1", "2", "3"]


def test_the_first_receive_is_remembered(account: Account) -> None:
    account.send("orders")
    account.wait(10)
    first = account.receive("orders")[0]["Attributes"]["ApproximateFirstReceiveTimestamp"]
    account.wait(60)
    [again] = account.receive("orders")
    assert again["Attributes"]["ApproximateFirstReceiveTimestamp"] == first == str(1_800_000_010_000)
    assert again["Attributes"]["SentTimestamp"] == str(1_800_000_000_000)


def test_messages_come_in_the_order_in_which_they_were_sent(account: Account) -> None:
    for number in range(12):
        account.send("orders", str(number))
    assert account.bodies("orders") == [str(number) for number in range(10)]
    assert account.bodies("orders") == ["10", "11"]


# deleting


def test_a_deleted_message_is_gone(account: Account) -> None:
    account.send("orders")
    account.delete("orders", account.handle("orders"))
    account.wait(60)
    assert account.receive("orders") == []


def test_deleting_again_does_nothing_and_succeeds(account: Account) -> None:  # PLATFORM 11
    account.send("orders")
    handle = account.handle("orders")
    account.delete("orders", handle)
    account.delete("orders", handle)
    assert [what for what, _ in account.happened()][-2:] == ["deleted", "delete_ignored"]


def test_a_late_delete_works_if_nobody_has_received_the_message_since(account: Account) -> None:  # FACTS 1.5
    account.send("orders")
    handle = account.handle("orders")
    account.wait(31)
    account.delete("orders", handle)
    assert account.receive("orders") == []


def test_a_delete_with_an_old_handle_succeeds_and_deletes_nothing(account: Account) -> None:  # PLATFORM 11
    account.send("orders")
    old = account.handle("orders")
    account.wait(30)
    account.receive("orders")
    account.delete("orders", old)
    account.wait(30)
    assert len(account.receive("orders")) == 1


def test_what_never_was_a_handle_is_refused(account: Account) -> None:
    for handle in ("nonsense", "", "bm9uc2Vuc2U="):
        with refused("ReceiptHandleIsInvalid", "is not a valid receipt handle"):
            account.delete("orders", handle)


def test_a_handle_of_another_queue_is_refused(account: Account) -> None:
    account.queue("others")
    account.send("orders")
    with refused("ReceiptHandleIsInvalid"):
        account.delete("others", account.handle("orders"))


# delays


def test_a_delayed_message_comes_when_its_delay_is_over(account: Account) -> None:  # PLATFORM 3
    account.send("orders", DelaySeconds=10)
    account.wait(9.999)
    assert account.receive("orders") == []
    account.wait(0.001)
    assert len(account.receive("orders")) == 1


def test_the_queue_s_own_delay_holds_unless_one_is_given_and_0_overrides_it(account: Account) -> None:  # PLATFORM 3
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


def test_a_message_vanishes_when_its_retention_is_over(account: Account) -> None:  # PLATFORM 5
    account.queue("short", MessageRetentionPeriod=60)
    account.send("short")
    account.wait(30)
    account.receive("short", VisibilityTimeout=20)
    account.wait(30)
    assert account.receive("short") == []
    [(_, fields)] = account.happened("expired")
    assert fields["expired_at"] == 1_800_000_060


def test_expiry_is_recorded_when_somebody_looks(account: Account) -> None:
    account.send("orders")
    account.wait(4 * 86_400)
    assert account.happened("expired") == []
    account.sqs.catch_up()
    assert len(account.happened("expired")) == 1


def test_a_shorter_retention_holds_for_what_is_there(account: Account) -> None:
    account.send("orders")
    account.wait(120)
    account.call("SetQueueAttributes", "orders", Attributes={"MessageRetentionPeriod": "60"})
    assert account.receive("orders") == []


# the in-flight limit


def test_beyond_the_in_flight_limit_a_receive_is_refused() -> None:  # PLATFORM 4
    account = Account(in_flight_limit=3)
    account.queue("orders")
    for _ in range(5):
        account.send("orders")
    assert len(account.receive("orders")) == 3
    with refused("OverLimit"):
        account.receive("orders")
    assert account.receive("orders", WaitTimeSeconds=1) == []  # a long poll is not refused: it finds nothing


def test_the_messages_of_a_standard_queue_may_have_groups_which_keep_no_order(account: Account) -> None:  # PLATFORM 14
    account.send("orders", "1", group="a")
    account.send("orders", "2", group="a")
    account.receive("orders", most=1)
    [message] = account.receive("orders")
    assert (message["Body"], message["Attributes"]["MessageGroupId"]) == ("2", "a")


def test_a_deduplication_id_is_for_fifo_queues(account: Account) -> None:
    with refused("InvalidParameterValue", "not valid for this queue type"):
        account.send("orders", MessageDeduplicationId="1")
