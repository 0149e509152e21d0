"""Standard queues of the SQS model with the switches of `Realism`."""

from tests.unit.simulator.account import Account, Realism


def account_with(seed: int = 1, **realism: float) -> Account:
    account = Account(seed, realism=Realism(**realism))
    account.queue("orders")
    account.queue("ledger.fifo")
    for number in range(20):
        account.send("orders", str(number))
        account.send("ledger.fifo", str(number), group="a")
    return account


def receives(account: Account, queue: str, count: int, **parameters: int) -> list[list[str]]:
    return [account.bodies(queue, **parameters) for _ in range(count)]


def test_reordered_messages_are_received_in_any_order() -> None:
    account = account_with(reorder=True)
    got = [body for some in receives(account, "orders", 2) for body in some]
    assert sorted(got, key=int) == [str(number) for number in range(20)]
    assert got != sorted(got, key=int)


def test_a_partial_receive_returns_some_messages_and_sometimes_none_but_not_a_long_poll() -> None:
    sizes = [len(some) for some in receives(account_with(partial=True), "orders", 10)]
    assert sum(sizes) == 20
    assert 0 in sizes
    assert any(0 < size < 10 for size in sizes)
    account = account_with(partial=True)
    while account.sqs.depth("orders").ready:
        assert account.receive("orders", WaitTimeSeconds=1)


def test_a_message_may_be_delivered_twice_while_it_is_in_flight() -> None:
    account = account_with(duplicate=1.0)
    first = {message["MessageId"]: message for message in account.receive("orders")}
    account.wait(29.9)
    duplicates = [message for message in account.receive("orders") if message["MessageId"] in first]
    assert len(duplicates) == 10
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in duplicates} == {"2"}
    recorded = [fields for _, fields in account.recorded("received") if fields.get("duplicate")]
    assert [fields["delivery_id"] for fields in recorded] == [message["MessageId"] for message in duplicates]


def test_a_deleted_message_may_be_delivered_once_more() -> None:
    account = account_with(duplicate=1.0)
    deleted = account.receive("orders")
    for message in deleted:
        account.delete("orders", message["ReceiptHandle"])
    account.wait(29.9)
    duplicates = [each for _ in range(2) for each in account.receive("orders") if int(each["Body"]) < 10]
    assert sorted(each["MessageId"] for each in duplicates) == sorted(each["MessageId"] for each in deleted)
    assert {each["Attributes"]["ApproximateReceiveCount"] for each in duplicates} == {"2"}
    assert len(account.recorded("reappeared")) == 10
    for message in duplicates:
        account.delete("orders", message["ReceiptHandle"])
    account.wait(60)
    assert len(account.recorded("reappeared")) == 10


def test_a_message_whose_visibility_was_changed_may_be_delivered_twice() -> None:
    account = account_with(duplicate=1.0)
    for message in account.receive("orders"):
        account.change_visibility("orders", message["ReceiptHandle"], 600)
    account.wait(29.9)
    assert sum(int(body) < 10 for _ in range(2) for body in account.bodies("orders")) == 10


def test_an_expired_or_moved_message_is_not_duplicated() -> None:
    account = Account(1, realism=Realism(duplicate=1.0))
    account.queue("dead")
    account.queue("short", dead_letter="dead", max_receives=1, MessageRetentionPeriod="60", VisibilityTimeout="50")
    account.send("short", "moved")
    account.receive("short", VisibilityTimeout=50)
    account.wait(51)
    assert account.receive("short") == []
    assert account.bodies("dead") == ["moved"]
    account.send("short", "expired")
    account.wait(59.9)
    account.delete("short", account.handle("short"))
    account.wait(60)
    assert account.receive("short") == []


def test_realism_does_not_affect_fifo_queues() -> None:
    account = account_with(reorder=True, partial=True, duplicate=1.0)
    assert receives(account, "ledger.fifo", 2) == [[str(number) for number in range(10)], []]
    account.wait(29.9)
    assert account.receive("ledger.fifo") == []


def test_the_same_seed_gives_the_same_history() -> None:
    def history(seed: int) -> list[tuple[str, dict[str, object]]]:
        account = account_with(seed, reorder=True, partial=True, duplicate=0.3)
        for _ in range(10):
            for message in account.receive("orders")[::2]:
                account.delete("orders", message["ReceiptHandle"])
            account.wait(7)
        return account.recorded()

    assert history(1) == history(1)
    assert history(1) != history(2)
