"""How long a message can be hidden, and with which handle."""

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
    account.hide("orders", handle, 60)
    account.wait(59)
    assert account.receive("orders") == []
    account.wait(1)
    assert len(account.receive("orders")) == 1


def test_0_shows_a_message_at_once(account: Account) -> None:
    account.hide("orders", account.handle("orders"), 0)
    assert len(account.receive("orders")) == 1


def test_a_changed_visibility_holds_for_this_receive_only(account: Account) -> None:  # PLATFORM 2
    account.hide("orders", account.handle("orders"), 600)
    account.wait(600)
    account.receive("orders")
    account.wait(30)
    assert len(account.receive("orders")) == 1


def test_12_hours_in_all_since_the_receive_are_allowed_and_a_second_more_is_refused(account: Account) -> None:
    # PLATFORM 1
    handle = account.handle("orders")
    account.wait(10)
    with refused("InvalidParameterValue", f"Value 43191 for parameter VisibilityTimeout is invalid. Reason: {BEYOND}"):
        account.hide("orders", handle, 43_191)
    account.hide("orders", handle, 43_190)
    account.wait(43_190)
    assert len(account.receive("orders")) == 1


def test_the_12_hours_count_from_this_receive_not_from_the_send_or_the_first(account: Account) -> None:  # PLATFORM 1
    account.hide("orders", account.handle("orders"), 43_200)
    account.wait(43_200)
    account.hide("orders", account.handle("orders"), 43_200)
    account.wait(43_200)
    assert len(account.receive("orders")) == 1


def test_extensions_do_not_reset_the_12_hours(account: Account) -> None:  # FACTS 1.6
    handle = account.handle("orders")
    account.hide("orders", handle, 40_000)
    account.wait(39_000)
    account.hide("orders", handle, 4_200)
    with refused("InvalidParameterValue", BEYOND):
        account.hide("orders", handle, 4_201)


@pytest.mark.parametrize("seconds", [-1, 43_201])
def test_a_number_out_of_range_is_refused(account: Account, seconds: int) -> None:
    with refused("InvalidParameterValue", f"Value {seconds} for parameter VisibilityTimeout is invalid"):
        account.hide("orders", account.handle("orders"), seconds)


def test_a_refused_change_changes_nothing(account: Account) -> None:
    handle = account.handle("orders")
    with refused("InvalidParameterValue"):
        account.hide("orders", handle, 43_201)
    account.wait(30)
    assert len(account.receive("orders")) == 1


def test_a_deleted_message_cannot_be_hidden(account: Account) -> None:  # FACTS 1.6
    handle = account.handle("orders")
    account.delete("orders", handle)
    with refused("InvalidParameterValue", f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {GONE}"):
        account.hide("orders", handle, 10)


def test_a_change_after_the_lease_has_expired_succeeds_and_hides_nothing(account: Account) -> None:  # PLATFORM 33
    handle = account.handle("orders")
    account.wait(30)
    account.hide("orders", handle, 60)
    assert [what for what, _ in account.happened()][-1] == "hide_ignored"
    assert len(account.receive("orders")) == 1


def test_an_older_handle_changes_the_visibility_of_the_newer_delivery(account: Account) -> None:  # PLATFORM 33
    [first] = account.receive("orders", VisibilityTimeout=0)
    account.receive("orders", VisibilityTimeout=30)
    account.hide("orders", first["ReceiptHandle"], 0)
    assert len(account.receive("orders")) == 1


def test_an_account_can_be_told_to_ignore_old_handles_and_to_take_late_changes() -> None:
    account = Account(realism=Realism(old_handles_act=False, late_changes_are_ignored=False))
    account.queue("orders")
    account.send("orders")
    old = account.handle("orders")
    account.wait(30)
    latest = account.handle("orders")
    account.hide("orders", old, 0)
    assert account.receive("orders") == []
    account.wait(31)
    account.hide("orders", latest, 60)
    assert account.receive("orders") == []


def test_the_next_time_at_which_something_is_shown_is_known(account: Account) -> None:
    assert account.sqs.next_visible_at("orders") is None
    account.receive("orders")
    account.send("orders", DelaySeconds=10)
    assert account.sqs.next_visible_at("orders") == account.clock.now + 10
    account.wait(10)
    assert account.sqs.next_visible_at("orders") == account.clock.now + 20
