"""FIFO queues of the model: order, deduplication, leases."""

import pytest

from tests.unit.simulator.account import Account, refused


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("ledger.fifo")
    return account


def send(account: Account, *bodies: str) -> None:
    """The group is the first letter of the body."""
    for body in bodies:
        account.send("ledger.fifo", body, group=body[0])


def handles(account: Account, **parameters: int) -> dict[str, str]:
    return {message["Body"]: message["ReceiptHandle"] for message in account.receive("ledger.fifo", **parameters)}


def test_a_group_comes_in_order(account: Account) -> None:
    send(account, *(f"a{number}" for number in range(12)))
    got = handles(account)
    assert list(got) == [f"a{number}" for number in range(10)]
    for handle in got.values():
        account.delete("ledger.fifo", handle)
    assert list(handles(account)) == ["a10", "a11"]


def test_one_receive_may_hold_several_groups_each_in_order(account: Account) -> None:  # PLATFORM 14
    send(account, "a1", "b1", "a2", "b2")
    got = list(handles(account))
    assert sorted(got) == ["a1", "a2", "b1", "b2"]
    assert got.index("a1") < got.index("a2")
    assert got.index("b1") < got.index("b2")


def test_a_group_of_which_a_message_is_hidden_gives_nothing_later(account: Account) -> None:  # PLATFORM 14
    send(account, "a1", "a2", "b1")
    assert list(handles(account, most=1)) == ["a1"]
    assert list(handles(account)) == ["b1"]


def test_the_next_of_a_group_comes_when_the_one_before_is_deleted(account: Account) -> None:
    send(account, "a1", "a2")
    account.delete("ledger.fifo", handles(account, most=1)["a1"])
    assert list(handles(account)) == ["a2"]


@pytest.mark.parametrize(("extended", "what_comes"), [("a1", []), ("a2", ["a1"]), ("a3", ["a1", "a2"])])
def test_a_hidden_message_hides_itself_and_every_later_one_of_its_group(
    account: Account, extended: str, what_comes: list[str]
) -> None:  # PLATFORM 14, as measured in FACTS 1.5
    send(account, "a1", "a2", "a3")
    got = handles(account, VisibilityTimeout=1)
    account.hide("ledger.fifo", got[extended], 4)
    account.wait(2.5)
    assert list(handles(account)) == what_comes


def test_a_head_that_is_shown_comes_while_its_tail_is_hidden_and_other_groups_too(account: Account) -> None:
    # FACTS 1.5
    send(account, "a1", "a2", "b1")
    got = handles(account, most=2)
    account.hide("ledger.fifo", got["a1"], 0)
    assert sorted(handles(account)) == ["a1", "b1"]


def test_an_expired_handle_deletes_nothing_and_says_so(account: Account) -> None:  # PLATFORM 14
    send(account, "a1")
    handle = handles(account)["a1"]
    account.wait(30)
    for use in (lambda: account.delete("ledger.fifo", handle), lambda: account.hide("ledger.fifo", handle, 10)):
        with refused("InvalidParameterValue", f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The "):
            use()


def test_after_an_extension_the_handle_works(account: Account) -> None:  # FACTS 1.5
    send(account, "a1")
    handle = handles(account)["a1"]
    account.hide("ledger.fifo", handle, 60)
    account.wait(59)
    account.delete("ledger.fifo", handle)
    assert account.sqs.peek("ledger.fifo") == []


def test_deleting_again_succeeds(account: Account) -> None:
    send(account, "a1")
    handle = handles(account)["a1"]
    account.delete("ledger.fifo", handle)
    account.delete("ledger.fifo", handle)


def test_beyond_the_in_flight_limit_a_receive_finds_nothing() -> None:  # PLATFORM 4
    account = Account(in_flight_limit=1)
    account.queue("ledger.fifo")
    send(account, "a1", "b1")
    assert list(handles(account)) == ["a1"]
    assert list(handles(account)) == []


def test_a_message_tells_its_group_its_deduplication_id_and_its_sequence_number(account: Account) -> None:
    answer = account.call("SendMessage", "ledger.fifo", MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    [message] = account.receive("ledger.fifo")
    told = message["Attributes"]
    assert (told["MessageGroupId"], told["MessageDeduplicationId"]) == ("g", "d")
    assert told["SequenceNumber"] == answer["SequenceNumber"]
    assert len(told["SequenceNumber"]) == 20


def test_sequence_numbers_grow(account: Account) -> None:
    send(account, "a1", "b1", "a2")
    numbers = [message.sequence_number or "" for message in account.sqs.peek("ledger.fifo")]
    assert numbers == sorted(set(numbers))


def test_a_delay_of_a_message_is_refused_and_0_is_none(account: Account) -> None:  # PLATFORM 3
    text = "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid"
    with refused("InvalidParameterValue", text):
        account.send("ledger.fifo", group="a", DelaySeconds=2)
    account.send("ledger.fifo", group="a", DelaySeconds=0)


def test_the_queue_s_own_delay_holds_up_the_group() -> None:
    account = Account()
    account.queue("ledger.fifo", DelaySeconds=60)
    send(account, "a1")
    account.wait(30)
    send(account, "a2")
    account.wait(30)
    assert list(handles(account)) == ["a1"]


def test_a_group_is_needed(account: Account) -> None:  # PLATFORM 20
    with refused("MissingParameter", "The request must contain the parameter MessageGroupId."):
        account.send("ledger.fifo")


def test_a_group_goes_on_when_its_head_has_expired() -> None:  # PLATFORM 5
    account = Account()
    account.queue("ledger.fifo", MessageRetentionPeriod=60)
    send(account, "a1")
    account.wait(30)
    send(account, "a2")
    handles(account, most=1, VisibilityTimeout=600)
    account.wait(30)
    assert list(handles(account)) == ["a2"]


# deduplication


def test_the_same_id_within_5_minutes_is_accepted_and_swallowed(account: Account) -> None:  # PLATFORM 20
    first = account.send("ledger.fifo", "one", group="a", MessageDeduplicationId="d")
    account.wait(299)
    assert account.send("ledger.fifo", "another", group="b", MessageDeduplicationId="d") == first
    assert account.bodies("ledger.fifo") == ["one"]
    [(_, fields)] = account.happened("swallowed")
    assert (fields["delivery_id"], fields["body"]) == (first, "another")


def test_after_5_minutes_the_id_is_free(account: Account) -> None:
    account.send("ledger.fifo", "one", group="a", MessageDeduplicationId="d")
    account.wait(300)
    account.send("ledger.fifo", "two", group="a", MessageDeduplicationId="d")
    assert account.bodies("ledger.fifo") == ["one", "two"]


def test_deduplication_outlives_the_message(account: Account) -> None:
    send(account, "a1")
    account.delete("ledger.fifo", handles(account)["a1"])
    send(account, "a1")
    assert handles(account) == {}


def test_without_content_based_deduplication_an_id_is_needed() -> None:
    account = Account()
    account.queue("ledger.fifo", ContentBasedDeduplication="false")
    with refused("InvalidParameterValue", "The queue should either have ContentBasedDeduplication enabled or Message"):
        send(account, "a1")


def test_in_high_throughput_each_group_has_ids_of_its_own() -> None:
    account = Account()
    account.queue("ledger.fifo", DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    account.send("ledger.fifo", "same", group="a")
    account.send("ledger.fifo", "same", group="b")
    account.send("ledger.fifo", "same", group="b")
    assert account.bodies("ledger.fifo") == ["same", "same"]
