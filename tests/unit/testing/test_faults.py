"""Faults: which are refused, when they strike, and runs that fail because of them or without them."""

import logging
from typing import Any

import pytest

import tarry.tools.testing.sandbox
from tarry import Fixed, Message, consumer
from tarry.testing import Sandbox
from tarry.world import World, current
from tests.sandboxes import work


@consumer(max_attempts=2, backoff=Fixed(10))
def fails(message: Message) -> None:
    raise ValueError("as always")


@pytest.fixture
def orders(sandbox: Sandbox) -> Sandbox:
    """A sandbox with a message that fails."""
    work(sandbox, fails, "1")
    return sandbox


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"kind": "thunder"}, "unknown fault 'thunder'; the kinds are throttle, unavailable"),
        ({"kind": "throttle", "operation": "SendMesage"}, "SQS has no operation 'SendMesage'; its names are such as"),
        ({"kind": "throttle", "chance": 2}, "chance is from 0 to 1, got 2"),
    ],
)
def test_a_fault_that_cannot_strike_is_refused(sandbox: Sandbox, fault: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        sandbox.faults.add(**fault)


def test_a_fault_that_never_strikes_fails_the_run(orders: Sandbox) -> None:
    """It may strike in a later run, and need not with ``maybe``."""
    orders.faults.add("denied", operation="SendMessage", maybe=True)
    orders.faults.add("denied", operation="SendMessageBatch")
    orders.advance(1)
    orders.run()
    orders.faults.add("denied", operation="SendMessage", queue="orders-dlq")
    with pytest.raises(AssertionError, match=r"'denied' of SendMessage on orders-dlq never struck: .* maybe=True"):
        orders.run()


def test_a_fault_that_is_cleared_before_it_strikes_fails_the_run(orders: Sandbox) -> None:
    orders.faults.add("denied", operation="DeleteMessageBatch")
    orders.faults.clear()
    with pytest.raises(AssertionError, match="'denied' of DeleteMessageBatch never struck"):
        orders.run()


@pytest.mark.parametrize(
    ("often", "fails_the_run"),
    [({"times": 40}, True), ({"times": None}, False), ({"times": None, "chance": 0.9}, False),
     ({"times": 40, "chance": 0.9}, False)],
)  # fmt: skip
def test_a_fault_strikes_as_often_as_its_times_and_once_without_times_or_with_a_chance(
    orders: Sandbox, often: dict[str, Any], fails_the_run: bool
) -> None:
    orders.faults.add("throttle", operation="ChangeMessageVisibilityBatch", **often)
    if fails_the_run:
        with pytest.raises(AssertionError, match=r"struck \d+ of 40 times"):
            orders.run()
    else:
        orders.run()


def test_a_fault_that_is_added_twice_strikes_twice(orders: Sandbox) -> None:
    for _ in range(2):
        orders.faults.add("denied", operation="SendMessageBatch")
    report = orders.run()
    assert sum(event.what == "fault" for event in report.events) == 2
    assert report.count("DEAD_LETTERED") == 1


def test_a_crash_after_the_end_of_an_invocation_strikes_the_next_one_that_lasts_longer(sandbox: Sandbox) -> None:
    """The first handler takes no virtual time, so there is no process to kill after 0.05 s."""

    @consumer
    def handler(message: Message) -> None:
        if message.body == "slow":
            sandbox.sleep(1)

    work(sandbox, handler, "fast")
    sandbox.faults.add("crash", seconds=0.05)
    with pytest.raises(AssertionError, match=r"the fault 'crash' never struck: .* seconds="):
        sandbox.run()
    assert "crash" not in str(sandbox.report())
    sandbox.send("orders", "slow")
    report = sandbox.run()
    answers = [event.fields["kind"] for event in report.events if event.what == "answered"]
    assert answers == ["returned", "crash", "returned"]
    assert sum(event.what == "fault" for event in report.events) == 1


def test_an_endless_failure_without_a_dead_letter_queue_fails_with_one_sentence(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 15 days otherwise, of an attempt each 900 s
    monkeypatch.setattr(tarry.tools.testing.sandbox, "GIVE_UP_SECONDS", 86_400)
    work(sandbox, fails, "1", dead_letter=None)
    with pytest.raises(AssertionError) as raised:
        sandbox.run()
    assert str(raised.value).startswith("the queue 'orders' has no dead-letter queue, and message ")
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("ends_by", ["a crash", "the end of the sandbox"])
def test_a_process_that_ends_logs_nothing(ends_by: str, caplog: pytest.LogCaptureFixture) -> None:
    @consumer(max_attempts=2, backoff=Fixed(10))
    def handler(message: Message) -> None:
        sandbox.sleep(20)
        raise ValueError("as always")

    with caplog.at_level(logging.DEBUG, "tarry"), Sandbox() as sandbox:
        work(sandbox, handler, "1")
        if ends_by == "a crash":
            sandbox.faults.add("crash_before", operation="ChangeMessageVisibilityBatch")
            sandbox.run()
        else:
            sandbox.advance(5)
    assert "runtime_failed" not in [vars(record).get("event") for record in caplog.records]


def test_a_failed_message_that_lambda_deletes_is_lost(sandbox: Sandbox) -> None:
    work(sandbox, fails, "1", reports_failures=False)
    sandbox.faults.add("denied", operation="ChangeMessageVisibilityBatch", times=None)
    with pytest.raises(AssertionError, match=r"no message is lost: .*ReportBatchItemFailures"):
        sandbox.run()
    assert "deleted, though it was WAITING_RETRY" in str(sandbox.report())


def test_failures_that_a_mapping_ignores_are_warned_about_once_and_shown(sandbox: Sandbox) -> None:
    def reports_all(event: Any, context: Any) -> Any:
        return {"batchItemFailures": [{"itemIdentifier": each["messageId"]} for each in event["Records"]]}

    work(sandbox, reports_all, "1", "2", reports_failures=False, batch_size=1)
    text = "returned batchItemFailures with 1 message of orders, but the mapping lacks"
    with pytest.warns(UserWarning, match=text) as all_:
        report = sandbox.run()
    assert len(all_) == 1
    assert "COMMITTED      deleted, though it was reported as failed: its event source mapping lacks" in str(report)


def test_filters_that_aws_may_treat_differently_are_warned_about(sandbox: Sandbox) -> None:
    work(sandbox, fails, dead_letter=None, filters=[{"body": {"ip": [{"cidr": "10.0.0.0/8"}]}}])
    with pytest.warns(UserWarning, match="the mapping of orders: its filters use cidr, which Lambda does not list"):
        sandbox.run()


# a late invocation, and a slow CPU


def test_a_held_batch_is_invoked_late(sandbox: Sandbox) -> None:
    began: list[float] = []
    work(sandbox, consumer(lambda message: began.append(sandbox.elapsed)), "1", dead_letter=None)
    sandbox.faults.add("held", seconds=20)
    sandbox.run()
    assert 20 < began[0] < 21


def test_on_a_slow_cpu_each_reading_of_the_clock_takes_time_but_not_what_an_invocation_makes_once(
    sandbox: Sandbox,
) -> None:
    """It holds a lock, for which another thread would wait in real time, for ever."""
    took: list[tuple[float, float]] = []

    def make(world: World) -> float:
        began = world.clock.monotonic()
        return world.clock.monotonic() - began

    @consumer
    def handler(message: Message) -> None:
        clock = current().clock
        before = clock.time()
        took.append((round(clock.monotonic() - (before - sandbox._began), 3), current().keep(make)))

    work(sandbox, handler, dead_letter=None)
    sandbox.faults.add("slow_cpu", seconds=0.25)
    for number in range(2):
        sandbox.send("orders", str(number))
        sandbox.run()
    assert took == [(0.25, 0), (0, 0)]
