"""FIFO queues of the SQS model: order, deduplication, receipt handles."""

import pytest

from tests.unit.simulator.account import Account, refused


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


def test_a_group_is_delivered_in_order(account: Account) -> None:
    send(account, *(f"a{number}" for number in range(12)))
    got = handles(account)
    assert list(got) == [f"a{number}" for number in range(10)]
    for handle in got.values():
        account.delete("ledger.fifo", handle)
    assert list(handles(account)) == ["a10", "a11"]


def test_one_receive_may_return_several_groups_each_in_order(account: Account) -> None:  # PLATFORM 14
    send(account, "a1", "b1", "a2", "b2")
    got = list(handles(account))
    assert sorted(got) == ["a1", "a2", "b1", "b2"]
    assert got.index("a1") < got.index("a2")
    assert got.index("b1") < got.index("b2")


def test_a_fifo_message_is_not_delivered_while_an_earlier_one_of_its_group_is_in_flight(account: Account) -> None:
    # PLATFORM 14
    send(account, "a1", "a2", "b1")
    assert list(handles(account, most=1)) == ["a1"]
    assert list(handles(account)) == ["b1"]


def test_a_fifo_message_is_delivered_once_the_one_before_it_is_deleted(account: Account) -> None:
    send(account, "a1", "a2")
    account.delete("ledger.fifo", handles(account, most=1)["a1"])
    assert list(handles(account)) == ["a2"]


@pytest.mark.parametrize(("extended", "received"), [("a1", []), ("a2", ["a1"]), ("a3", ["a1", "a2"])])
def test_an_invisible_message_blocks_itself_and_the_later_ones_of_its_group(
    account: Account, extended: str, received: list[str]
) -> None:  # PLATFORM 14, as measured in FACTS 1.5
    send(account, "a1", "a2", "a3")
    got = handles(account, VisibilityTimeout=1)
    account.change_visibility("ledger.fifo", got[extended], 4)
    account.wait(2.5)
    assert list(handles(account)) == received


def test_the_visible_head_of_a_group_is_delivered_while_its_tail_is_invisible(account: Account) -> None:
    # FACTS 1.5
    send(account, "a1", "a2", "b1")
    got = handles(account, most=2)
    account.change_visibility("ledger.fifo", got["a1"], 0)
    assert sorted(handles(account)) == ["a1", "b1"]


def test_an_expired_handle_of_a_fifo_queue_is_refused(account: Account) -> None:  # PLATFORM 14
    send(account, "a1")
    handle = handles(account)["a1"]
    account.wait(30)
    text = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The "
    with refused("InvalidParameterValue", text):
        account.delete("ledger.fifo", handle)
    with refused("InvalidParameterValue", text):
        account.change_visibility("ledger.fifo", handle, 10)


def test_a_handle_is_valid_until_the_extended_visibility_timeout_ends(account: Account) -> None:  # FACTS 1.5
    send(account, "a1")
    handle = handles(account)["a1"]
    account.change_visibility("ledger.fifo", handle, 60)
    account.wait(59)
    account.delete("ledger.fifo", handle)
    assert account.sqs.peek("ledger.fifo") == []


def test_a_second_delete_succeeds(account: Account) -> None:
    send(account, "a1")
    handle = handles(account)["a1"]
    account.delete("ledger.fifo", handle)
    account.delete("ledger.fifo", handle)


def test_at_the_in_flight_limit_a_fifo_receive_returns_no_messages() -> None:  # PLATFORM 4
    account = Account(in_flight_limit=1)
    account.queue("ledger.fifo")
    send(account, "a1", "b1")
    assert list(handles(account)) == ["a1"]
    assert list(handles(account)) == []


def test_a_fifo_message_has_its_group_deduplication_id_and_sequence_number_as_attributes(account: Account) -> None:
    answer = account.call("SendMessage", "ledger.fifo", MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    [message] = account.receive("ledger.fifo")
    attributes = message["Attributes"]
    assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("g", "d")
    assert attributes["SequenceNumber"] == answer["SequenceNumber"]
    assert len(attributes["SequenceNumber"]) == 20


def test_sequence_numbers_increase(account: Account) -> None:
    send(account, "a1", "b1", "a2")
    numbers = [message.sequence_number or "" for message in account.sqs.peek("ledger.fifo")]
    assert numbers == sorted(set(numbers))


def test_a_fifo_queue_refuses_a_message_delay_other_than_0(account: Account) -> None:  # PLATFORM 3
    text = "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid"
    with refused("InvalidParameterValue", text):
        account.send("ledger.fifo", group="a", DelaySeconds=2)
    account.send("ledger.fifo", group="a", DelaySeconds=0)


def test_the_delay_of_a_fifo_queue_delays_the_whole_group() -> None:
    account = Account()
    account.queue("ledger.fifo", DelaySeconds=60)
    send(account, "a1")
    account.wait(30)
    send(account, "a2")
    account.wait(30)
    assert list(handles(account)) == ["a1"]


def test_a_fifo_message_needs_a_group(account: Account) -> None:  # PLATFORM 20
    with refused("MissingParameter", "The request must contain the parameter MessageGroupId."):
        account.send("ledger.fifo")


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
    assert account.bodies("ledger.fifo") == ["one"]
    [(_, fields)] = account.recorded("deduplicated")
    assert (fields["delivery_id"], fields["body"]) == (first, "another")


def test_a_deduplication_id_can_be_reused_after_5_minutes(account: Account) -> None:
    account.send("ledger.fifo", "one", group="a", MessageDeduplicationId="d")
    account.wait(300)
    account.send("ledger.fifo", "two", group="a", MessageDeduplicationId="d")
    assert account.bodies("ledger.fifo") == ["one", "two"]


def test_a_deduplication_id_counts_even_after_its_message_is_deleted(account: Account) -> None:
    send(account, "a1")
    account.delete("ledger.fifo", handles(account)["a1"])
    send(account, "a1")
    assert handles(account) == {}


def test_without_content_based_deduplication_a_deduplication_id_is_required() -> None:
    account = Account()
    account.queue("ledger.fifo", ContentBasedDeduplication="false")
    with refused("InvalidParameterValue", "The queue should either have ContentBasedDeduplication enabled or Message"):
        send(account, "a1")


def test_in_high_throughput_mode_deduplication_is_per_group() -> None:
    account = Account()
    account.queue("ledger.fifo", DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    account.send("ledger.fifo", "same", group="a")
    account.send("ledger.fifo", "same", group="b")
    account.send("ledger.fifo", "same", group="b")
    assert account.bodies("ledger.fifo") == ["same", "same"]


def test_the_scope_of_deduplication_is_that_of_the_creation() -> None:
    # recorded: SetQueueAttributes accepts another scope, and the queue deduplicates as before
    account = Account()
    high = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    low = {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}
    for created, changed, received in ((low, high, ["same"]), (high, low, ["same", "same"])):
        name = f"{created['FifoThroughputLimit']}.fifo"
        account.queue(name, **created)
        account.call("SetQueueAttributes", name, Attributes=changed)
        assert account.attributes(name)["DeduplicationScope"] == changed["DeduplicationScope"]
        for group in "ab":
            account.send(name, "same", group=group)
        assert account.bodies(name) == received


def test_a_purge_forgets_deduplication_ids(account: Account) -> None:  # PLATFORM 36
    account.send("ledger.fifo", "one", group="a", MessageDeduplicationId="d")
    account.call("PurgeQueue", "ledger.fifo")
    account.send("ledger.fifo", "two", group="a", MessageDeduplicationId="d")
    assert account.bodies("ledger.fifo") == ["two"]


@pytest.mark.parametrize("by_content", ["true", "false"])
def test_an_empty_deduplication_id_is_refused(by_content: str) -> None:
    account = Account()
    account.queue("ledger.fifo", ContentBasedDeduplication=by_content)
    text = "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length."
    with refused("InvalidParameterValue", text):
        account.send("ledger.fifo", group="a", MessageDeduplicationId="")


# the order of the groups, as recorded


def test_a_group_that_was_received_goes_behind_the_groups_that_waited(account: Account) -> None:
    send(account, "a1", "a2", "a3", "a4", "b1", "c1")
    assert account.bodies("ledger.fifo", most=2, VisibilityTimeout=1) == ["a1", "a2"]
    account.wait(0.1)
    assert account.bodies("ledger.fifo", most=1, VisibilityTimeout=1) == ["b1"]
    account.wait(2)
    assert account.bodies("ledger.fifo") == ["c1", "a1", "a2", "a3", "a4", "b1"]


def test_a_group_received_without_a_visibility_timeout_goes_behind_the_groups_that_waited(account: Account) -> None:
    send(account, "a1", "b1", "b2", "c1", "a2")
    account.wait(1)
    assert account.bodies("ledger.fifo", most=3, VisibilityTimeout=0) == ["a1", "a2", "b1"]
    assert account.bodies("ledger.fifo") == ["c1", "a1", "a2", "b1", "b2"]


def test_a_released_group_goes_behind_the_groups_that_waited(account: Account) -> None:
    send(account, "a1", "a2", "b1")
    got = handles(account, most=2)
    account.wait(1)
    account.change_visibility("ledger.fifo", got["a1"], 0)
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
    with refused("InvalidParameterValue", text):
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
    with refused("InvalidParameterValue", "for parameter ReceiveRequestAttemptId is invalid."):
        attempt(account, "a b")
