"""Runs that fail: a fault that never strikes, an endless failure, a message that Lambda deletes; and their logs."""

import logging
from typing import Any

import pytest

import tarry.tools.testing.sandbox
from tarry import Batch, Fixed, Message, batch_consumer, consumer
from tarry.testing import Sandbox
from tests.sandboxes import work


@consumer(max_attempts=2, backoff=Fixed(10))
def fails(message: Message) -> None:
    raise ValueError("as always")


def orders(sandbox: Sandbox, dead_letter: str | None = "orders-dlq") -> None:
    work(sandbox, fails, "1", dead_letter=dead_letter)


def test_a_fault_that_never_strikes_fails_the_run(sandbox: Sandbox) -> None:
    """It may strike in a later run, and need not with ``maybe``."""
    orders(sandbox)
    sandbox.faults.add("denied", operation="SendMessage", maybe=True)
    sandbox.faults.add("denied", operation="SendMessageBatch")
    sandbox.advance(1)
    sandbox.run()
    sandbox.faults.add("denied", operation="SendMessage", queue="orders-dlq")
    with pytest.raises(AssertionError, match=r"'denied' of SendMessage on orders-dlq never struck: .* maybe=True"):
        sandbox.run()


def test_a_fault_that_strikes_less_often_than_its_times_fails_the_run(sandbox: Sandbox) -> None:
    orders(sandbox)
    sandbox.faults.add("throttle", operation="SendMessageBatch", times=40)
    with pytest.raises(AssertionError, match=r"struck \d+ of 40 times"):
        sandbox.run()


@pytest.mark.parametrize("often", [{"times": None}, {"times": None, "chance": 0.9}, {"times": 40, "chance": 0.9}])
def test_a_fault_without_times_or_with_a_chance_needs_to_strike_once(
    sandbox: Sandbox, often: dict[str, float | None]
) -> None:
    orders(sandbox)
    sandbox.faults.add("throttle", operation="ChangeMessageVisibilityBatch", **often)
    sandbox.run()


def test_a_fault_that_is_cleared_before_it_strikes_fails_the_run(sandbox: Sandbox) -> None:
    orders(sandbox)
    sandbox.faults.add("denied", operation="DeleteMessageBatch")
    sandbox.faults.clear()
    with pytest.raises(AssertionError, match="'denied' of DeleteMessageBatch never struck"):
        sandbox.run()


def test_an_endless_failure_without_a_dead_letter_queue_fails_with_one_sentence(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tarry.tools.testing.sandbox, "GIVE_UP_SECONDS", 86_400
    )  # 15 days otherwise, of an attempt each 900 s
    orders(sandbox, dead_letter=None)
    with pytest.raises(AssertionError) as raised:
        sandbox.run()
    assert str(raised.value).startswith("the queue 'orders' has no dead-letter queue, and message ")
    assert len(str(raised.value).splitlines()) == 1


def test_a_crashed_process_logs_nothing(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    orders(sandbox)
    sandbox.faults.add("crash_before", operation="ChangeMessageVisibilityBatch")
    with caplog.at_level(logging.DEBUG, "tarry"):
        sandbox.run()
    assert "runtime_failed" not in [vars(record).get("event") for record in caplog.records]


def test_a_handler_killed_by_closing_the_sandbox_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    @consumer
    def handler(message: Message) -> None:
        sandbox.sleep(20)

    with caplog.at_level(logging.DEBUG, "tarry"), Sandbox() as sandbox:
        work(sandbox, handler, "1", dead_letter=None)
        sandbox.advance(5)
    assert "runtime_failed" not in [vars(record).get("event") for record in caplog.records]


def test_a_failed_message_that_lambda_deletes_is_lost(sandbox: Sandbox) -> None:
    work(sandbox, fails, "1", reports_failures=False)
    sandbox.faults.add("denied", operation="ChangeMessageVisibilityBatch", times=None)
    with pytest.raises(AssertionError, match=r"no message is lost: .*ReportBatchItemFailures"):
        sandbox.run()
    assert "deleted, though it was WAITING_RETRY" in str(sandbox.report())


def test_an_eagerly_acknowledged_message_is_not_lost_in_a_crash(sandbox: Sandbox) -> None:
    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        for message in batch:
            message.ack()
            sandbox.sleep(5)

    work(sandbox, handler, *map(str, range(3)))
    sandbox.faults.add("crash", seconds=8)
    sandbox.run()
    deleted = [event.at for event in sandbox.report().events if event.what == "deleted"]
    assert min(deleted) < sandbox.now - 10


def test_failures_that_a_mapping_ignores_are_warned_about_once_and_shown(sandbox: Sandbox) -> None:
    def reports_all(event: Any, context: Any) -> Any:
        return {"batchItemFailures": [{"itemIdentifier": each["messageId"]} for each in event["Records"]]}

    work(sandbox, reports_all, "1", reports_failures=False, batch_size=1)
    sandbox.send("orders", "2")
    with pytest.warns(
        UserWarning, match="returned batchItemFailures with 1 message of orders, but the mapping lacks"
    ) as all_:
        report = sandbox.run()
    assert len(all_) == 1
    assert "COMMITTED      deleted, though it was reported as failed: its event source mapping lacks" in str(report)


def test_filters_that_aws_may_treat_differently_are_warned_about(sandbox: Sandbox) -> None:
    work(sandbox, fails, dead_letter=None, filters=[{"body": {"ip": [{"cidr": "10.0.0.0/8"}]}}])
    with pytest.warns(UserWarning, match="the mapping of orders: its filters use cidr, which Lambda does not list"):
        sandbox.run()
