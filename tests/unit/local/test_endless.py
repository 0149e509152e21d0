"""Messages that only their retention can end."""

from typing import Any

import pytest

from tarry.tools.local.runs.virtual import EndlessFailures
from tarry.tools.simulator.history import HistoryEvent

POLICY = '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead", "maxReceiveCount": 99}'


class Run:
    """A listener, and methods that record events."""

    def __init__(self, *queues: str, **attributes: str) -> None:
        self.endless = EndlessFailures()
        for queue in queues:
            self.record("queue_configured", queue=queue, attributes=attributes)
            self.record("connected", queue=queue)

    def record(self, what: str, **fields: Any) -> None:
        self.endless.take(HistoryEvent(1.0, what, fields))

    def sent(self, *ids: str, queue: str = "orders", group: str | None = None) -> None:
        for delivery_id in ids:
            self.record("sent", queue=queue, delivery_id=delivery_id, group=group)

    def fails(self, *ids: str, times: int = 10, logged: str = "") -> None:
        for _ in range(times):
            self.record("invoked", request_id="r")
            if logged:
                self.record("consumed", request_id="r")
                for delivery_id in ids:
                    self.record("transition_logged", event=logged, delivery_id=delivery_id)
            self.record("answered", request_id="r", failed=list(ids))


def test_the_run_is_over_when_all_messages_that_are_left_have_failed_ten_deliveries() -> None:
    run = Run("orders")
    run.sent("a", "b", "c")
    run.fails("a", "b", times=9)
    assert not run.endless.is_over
    run.fails("a", "b", times=1)
    assert (run.endless.is_over, run.endless.text) == (False, "")  # c is left
    run.record("deleted", delivery_id="c")
    assert run.endless.is_over
    assert run.endless.text.startswith(
        "Stopped: the 2 messages that are left failed 10 deliveries in a row, and orders"
    )
    run.record("invoked", request_id="r")
    assert not run.endless.is_over  # while one of them runs
    run.record("answered", request_id="r", failed=["b"])
    run.record("deleted", delivery_id="a")
    run.record("deleted", delivery_id="b")
    assert not run.endless.is_over  # there are none


def test_a_redrive_policy_ends_failing_messages() -> None:
    run = Run("orders", RedrivePolicy=POLICY)
    run.sent("a")
    run.fails("a", times=50)
    assert not run.endless.is_over


def test_messages_in_queues_without_a_function_are_not_waited_for() -> None:
    run = Run("orders", MessageRetentionPeriod="3600")
    run.sent("a")
    run.sent("elsewhere", queue="archive")
    run.fails("a")
    assert "at the end of the retention (1 h). Give orders a RedrivePolicy" in run.endless.text


@pytest.mark.parametrize(("logged", "is_over"), [("waiting_retry", False), ("unhandled", True)])
def test_the_retries_of_a_consumer_count_once_it_has_given_the_message_up(logged: str, is_over: bool) -> None:
    run = Run("orders")
    run.sent("a")
    run.fails("a", times=20, logged=logged)
    assert run.endless.is_over is is_over


def test_messages_behind_a_failing_one_in_their_fifo_group_are_stuck_too() -> None:
    run = Run("orders.fifo", "orders")
    run.sent("a", "b", queue="orders.fifo", group="one")
    run.fails("a")
    assert run.endless.is_over
    assert (
        "the 2 messages that are left failed 10 deliveries in a row or wait behind one that did (1), and orders.fifo"
        in (run.endless.text)
    )
    run.sent("c", queue="orders.fifo", group="two")
    assert not run.endless.is_over
    run.fails("c")
    assert run.endless.is_over
    run.sent("d", queue="orders", group="one")  # a fair queue
    assert not run.endless.is_over
