"""Visibility timeouts of the SQS model: their limits, and the receipt handles that change them."""

import pytest

from tests.unit.simulator.account import Account, Realism, refused

BEYOND = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
GONE = "Message does not exist or is not available for visibility timeout change."


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("orders")
    account.send("orders")
    return account


def test_a_changed_visibility_counts_from_now(account: Account) -> None:
    handle = account.handle("orders")
    account.wait(20)
    account.change_visibility("orders", handle, 60)
    account.wait(59)
    assert account.receive("orders") == []
    account.wait(1)
    assert len(account.receive("orders")) == 1


def test_a_visibility_timeout_of_0_makes_a_message_visible_at_once(account: Account) -> None:
    account.change_visibility("orders", account.handle("orders"), 0)
    assert len(account.receive("orders")) == 1


def test_a_changed_visibility_applies_to_this_receive_only(account: Account) -> None:  # PLATFORM 2
    account.change_visibility("orders", account.handle("orders"), 600)
    account.wait(600)
    account.receive("orders")
    account.wait(30)
    assert len(account.receive("orders")) == 1


def test_the_total_visibility_timeout_since_the_receive_is_12_hours_at_most(account: Account) -> None:
    # PLATFORM 1
    handle = account.handle("orders")
    account.wait(10)
    with refused("InvalidParameterValue", f"Value 43191 for parameter VisibilityTimeout is invalid. Reason: {BEYOND}"):
        account.change_visibility("orders", handle, 43_191)
    account.change_visibility("orders", handle, 43_190)
    account.wait(43_190)
    assert len(account.receive("orders")) == 1


def test_the_12_hours_count_from_the_latest_receive(account: Account) -> None:  # PLATFORM 1
    account.change_visibility("orders", account.handle("orders"), 43_200)
    account.wait(43_200)
    account.change_visibility("orders", account.handle("orders"), 43_200)
    account.wait(43_200)
    assert len(account.receive("orders")) == 1


def test_extensions_do_not_reset_the_12_hours(account: Account) -> None:  # FACTS 1.6
    handle = account.handle("orders")
    account.change_visibility("orders", handle, 40_000)
    account.wait(39_000)
    account.change_visibility("orders", handle, 4_200)
    with refused("InvalidParameterValue", BEYOND):
        account.change_visibility("orders", handle, 4_201)


@pytest.mark.parametrize("seconds", [-1, 43_201])
def test_a_visibility_timeout_out_of_range_is_refused(account: Account, seconds: int) -> None:
    with refused("InvalidParameterValue", f"Value {seconds} for parameter VisibilityTimeout is invalid"):
        account.change_visibility("orders", account.handle("orders"), seconds)


def test_a_refused_change_changes_nothing(account: Account) -> None:
    handle = account.handle("orders")
    with refused("InvalidParameterValue"):
        account.change_visibility("orders", handle, 43_201)
    account.wait(30)
    assert len(account.receive("orders")) == 1


def test_the_visibility_of_a_deleted_message_cannot_be_changed(account: Account) -> None:  # FACTS 1.6
    handle = account.handle("orders")
    account.delete("orders", handle)
    with refused("InvalidParameterValue", f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {GONE}"):
        account.change_visibility("orders", handle, 10)


def test_a_change_after_the_visibility_timeout_succeeds_and_has_no_effect(account: Account) -> None:  # PLATFORM 33
    handle = account.handle("orders")
    account.wait(30)
    account.change_visibility("orders", handle, 60)
    assert [name for name, _ in account.recorded()][-1] == "visibility_change_ignored"
    assert len(account.receive("orders")) == 1


def test_an_older_handle_changes_the_visibility_of_the_newer_delivery(account: Account) -> None:  # PLATFORM 33
    [first] = account.receive("orders", VisibilityTimeout=0)
    account.receive("orders", VisibilityTimeout=30)
    account.change_visibility("orders", first["ReceiptHandle"], 0)
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
    assert account.sqs.next_visible_at("orders") is None
    account.receive("orders")
    account.send("orders", DelaySeconds=10)
    assert account.sqs.next_visible_at("orders") == account.clock.now + 10
    account.wait(10)
    assert account.sqs.next_visible_at("orders") == account.clock.now + 20
