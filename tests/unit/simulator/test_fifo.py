"""FIFO queues of the SQS model, as far as no probe of a fact shows it: tests/facts/probes/fifo.py."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.simulator.account import Account, refused

QUEUE, INVALID = "ledger.fifo", "InvalidParameterValue"


def account_of(**attributes: Any) -> Account:
    account = Account()
    account.queue(QUEUE, **attributes)
    return account


@pytest.fixture
def account() -> Account:
    return account_of()


def send(account: Account, *bodies: str) -> None:
    """Send messages whose group is the first character of the body."""
    for body in bodies:
        account.send(QUEUE, body, group=body[0])


def handles(account: Account, **parameters: int) -> dict[str, str]:
    return {message["Body"]: message["ReceiptHandle"] for message in account.receive(QUEUE, **parameters)}


steps = st.one_of(
    st.tuples(st.just("send"), st.sampled_from("abc")),
    st.tuples(st.just("receive"), st.integers(1, 10)),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("change"), st.integers(0, 30), st.sampled_from((0, 1, 20, 50))),
    st.tuples(st.just("wait"), st.sampled_from((1, 10, 30))),
)


def receivable(account: Account) -> dict[str, list[str]]:
    """Return the messages that can be received, by group: those before the first invisible one."""
    bodies: dict[str, list[str]] = {}
    blocked: set[str | None] = set()
    for message in account.sqs.peek(QUEUE):
        if message.visible_at > account.clock.now:
            blocked.add(message.group)
        elif message.group not in blocked:
            bodies.setdefault(message.group or "", []).append(message.body)
    return bodies


@given(script=st.lists(steps, min_size=10, max_size=60))
def test_a_receive_returns_the_messages_of_each_group_before_the_first_invisible_one(
    script: list[tuple[Any, ...]],
) -> None:
    """PLATFORM 14. moto cannot serve as a reference, since its rule differs."""
    account, sent = account_of(), 0
    leases: dict[str, tuple[str, float]] = {}
    for step in script:
        leased = [(body, handle) for body, (handle, until) in leases.items() if until > account.clock.now]
        match step:
            case "send", str(group):
                sent += 1
                send(account, f"{group}{sent}")
            case "receive", int(most):
                allowed = receivable(account)
                received = account.receive(QUEUE, most)
                assert len(received) == min(most, sum(map(len, allowed.values())))
                for message in received:
                    assert message["Body"] == allowed[message["Body"][0]].pop(0)
                    leases[message["Body"]] = message["ReceiptHandle"], account.clock.now + 30
            case "delete", int(index) if leased:
                body, handle = leased[index % len(leased)]
                account.delete(QUEUE, handle)
                del leases[body]
            case "change", int(index), seconds if leased:
                body, handle = leased[index % len(leased)]
                account.change_visibility(QUEUE, handle, seconds)
                leases[body] = handle, account.clock.now + seconds
            case "wait", int(seconds):
                account.wait(seconds)


def test_a_handle_of_a_fifo_queue_changes_nothing_once_it_has_expired(account: Account) -> None:  # PLATFORM 14
    send(account, "a1")
    handle = handles(account)["a1"]
    for seconds, waited in ((60, 59), (30, 30)):
        account.change_visibility(QUEUE, handle, seconds)
        account.wait(waited)
    text = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    with refused(INVALID, text):
        account.change_visibility(QUEUE, handle, 10)


def test_the_sequence_numbers_of_a_fifo_queue_increase(account: Account) -> None:
    answer = account.call("SendMessage", QUEUE, MessageBody="x", MessageGroupId="g")
    send(account, "b1", "a2")
    numbers = [message.sequence_number or "" for message in account.sqs.peek(QUEUE)]
    assert numbers == sorted(set(numbers))
    assert account.receive(QUEUE)[0]["Attributes"]["SequenceNumber"] == answer["SequenceNumber"] == numbers[0]
    assert len(numbers[0]) == 20


@pytest.mark.parametrize(
    ("attribute", "invisible", "left"), [("DelaySeconds", 0, ["a1"]), ("MessageRetentionPeriod", 600, ["a2"])]
)
def test_the_delay_of_a_queue_delays_its_groups_and_they_continue_when_their_heads_have_expired(
    attribute: str, invisible: int, left: list[str]
) -> None:  # PLATFORM 5
    account = account_of(**{attribute: 60})
    send(account, "a1")
    account.wait(30)
    send(account, "a2")
    assert len(account.receive(QUEUE, most=1, VisibilityTimeout=invisible)) == bool(invisible)
    account.wait(30)
    assert account.bodies(QUEUE) == left


def test_a_message_that_is_dropped_as_a_duplicate_is_recorded_with_the_id_of_the_first(account: Account) -> None:
    first, again = (
        account.send(QUEUE, body, group=group, MessageDeduplicationId="d")
        for body, group in (("one", "a"), ("two", "b"))
    )  # PLATFORM 20
    [(_, fields)] = account.recorded("deduplicated")
    assert (again, fields["delivery_id"], fields["body"]) == (first, first, "two")
    assert account.bodies(QUEUE) == ["one"]


def test_a_group_that_was_received_without_a_visibility_timeout_or_released_goes_behind_the_groups_that_waited(
    account: Account,
) -> None:
    """As recorded; more of it in the probes of fact 34a."""
    send(account, "a1", "b1", "b2", "c1", "a2")
    account.wait(1)
    assert account.bodies(QUEUE, most=3, VisibilityTimeout=0) == ["a1", "a2", "b1"]
    got = handles(account, VisibilityTimeout=600)
    assert list(got) == ["c1", "a1", "a2", "b1", "b2"]
    account.wait(1)
    for body in ("b1", "a1"):
        account.change_visibility(QUEUE, got[body], 0)
        account.wait(1)
    assert account.bodies(QUEUE) == ["b1", "a1"]


def test_only_received_messages_of_a_group_count_as_not_visible(account: Account) -> None:
    send(account, "a1", "a2", "a3", "b1")
    handle = handles(account, most=2)["a2"]
    counts = [account.sqs.depth(QUEUE)[:2]]
    account.delete(QUEUE, handle)
    counts.append(account.sqs.depth(QUEUE)[:2])
    account.wait(30)
    assert [*counts, account.sqs.depth(QUEUE)[:2]] == [(2, 2), (2, 1), (3, 0)]
    assert account.bodies(QUEUE) == ["b1", "a1", "a3"]


# repeated receives


def attempt(account: Account, attempt_id: str = "try", **more: int) -> list[tuple[str, str]]:
    received = account.receive(QUEUE, ReceiveRequestAttemptId=attempt_id, **more)
    return [(message["Body"], message["ReceiptHandle"]) for message in received]


def test_a_receive_with_the_same_attempt_id_returns_the_same_messages_and_handles(account: Account) -> None:
    send(account, "a1", "a2", "b1")
    first = attempt(account, most=2)
    account.wait(20)
    assert attempt(account, most=2) == first
    assert [body for body, _ in attempt(account, "another")] == ["b1"]
    account.wait(20)  # the visibility timeout started again at the second receive
    account.delete(QUEUE, dict(first)["a1"])


@pytest.mark.parametrize("how", ["delete", "change", "another receive"])
def test_a_receive_whose_messages_have_changed_since_cannot_be_repeated(account: Account, how: str) -> None:
    send(account, "a1", "a2")
    handle = dict(attempt(account))["a1"]
    if how == "delete":
        account.delete(QUEUE, handle)
    elif how == "change":
        account.change_visibility(QUEUE, handle, 60)
    else:
        account.wait(30)
        account.receive(QUEUE)
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
