"""The checkers of moves by SQS, delays, attempts, duplicates and leases (SPEC C8, C11, E6)."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tarry import (
    AttemptChange,
    Batch,
    Consumer,
    DeadLetter,
    Failure,
    Fixed,
    LocalRetry,
    LogOptions,
    MemoryAttempts,
    Message,
    Outcome,
    Reject,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tarry.run.verdicts import Verdicts
from tarry.settle.executor import Executor
from tarry.settle.planner import Planner
from tarry.testing import Realism, Sandbox
from tarry.tools.simulator.history import HistoryEvent
from tests.sandboxes import work
from tests.simulation.failing_tables import FailingRecords
from tests.unit.testing.histories import (
    FIFO,
    TOO_SMALL,
    broken,
    changed,
    events_of,
    failing,
    first,
    having,
    leave_out,
    only,
    rules,
    with_terms,
)

MOVES, DELAYS, MADE = "moves by SQS have a cause", "delays are kept", "retries asked for are made"
BUDGET, RELEASED, LEASES = "requests keep their budget", "released messages are visible", "lost leases are left alone"
CHANGED, STARTED = "visibility_changed", "run_started"
TEN: dict[str, Any] = {"attributes": {f"own-{number}": "x" for number in range(10)}}
"""Enough attributes to leave no room for a record in a copy."""


def later(seconds: float) -> Callable[[HistoryEvent], HistoryEvent]:
    return having(visible_until=lambda event: event.fields["visible_until"] + seconds)


def ignored(event: HistoryEvent) -> HistoryEvent:
    """SQS ignores a change of the visibility of a message that is visible."""
    return changed(event, what="visibility_change_ignored")


# moves by SQS


def test_a_move_by_sqs_needs_a_cause(sandbox: Sandbox) -> None:  # SPEC C8, E6
    """The history of a failed message without its dead letter, as if SQS had moved the message instead."""
    events = events_of(sandbox, failing(max_attempts=2, backoff=Fixed(5)), "1", max_receive_count=2)
    deleted = first(events, "deleted")
    sent = next(event for event in events if event.what == "sent" and event.fields["queue"] == "orders-dlq")
    moved = {"queue": "orders", "delivery_id": deleted.fields["delivery_id"], "to": "orders-dlq", "receive_count": 2}
    events = [event for event in events if event not in (deleted, sent)]
    events.append(HistoryEvent(events[-1].at + 900, "moved", {**moved, "origin": "redrive policy"}))
    request_id = next(e for e in reversed(events) if e.what == "answered").fields["request_id"]
    place = next(index for index, event in enumerate(events) if event.fields.get("request_id") == request_id) + 1

    def with_fault(operation: str, queue: str) -> list[HistoryEvent]:
        fields = {"fault": 0, "kind": "denied", "request_id": request_id, "operation": operation, "queue": queue}
        return [*events[:place], HistoryEvent(events[place].at, "fault", fields), *events[place:]]

    def on_fifo(event: HistoryEvent) -> HistoryEvent:
        names = {"orders": FIFO, "orders-dlq": "orders-dlq.fifo"}
        renamed = {name: names.get(str(value), value) for name, value in event.fields.items()}
        return changed(event, fields=renamed)

    assert MOVES in broken(events)
    assert MOVES in broken(events, STARTED, with_terms(has_own_steps=True))
    assert MOVES not in broken(events, "invoked", having(deadline=lambda event: event.at))
    assert MOVES not in broken(with_fault("SendMessageBatch", "orders-dlq"))
    assert MOVES in broken(with_fault("SendMessageBatch", "elsewhere"))
    tested = "ChangeMessageVisibilityBatch"  # a lease, which is the end on FIFO
    assert MOVES in broken(with_fault(tested, "orders"))
    assert MOVES not in broken(map(on_fifo, with_fault(tested, "orders")))


def test_a_move_after_crashes_is_accepted(sandbox: Sandbox) -> None:
    sandbox.faults.add("crash", times=2)
    work(sandbox, consumer(lambda message: None), "1", max_receive_count=2)
    assert rules(sandbox) == set()
    assert sandbox.messages("orders-dlq")[0].failure is None


def test_a_retry_that_was_asked_for_and_not_made_is_reported(sandbox: Sandbox) -> None:
    """But not one that would expire, nor the last attempt."""
    events = events_of(sandbox, consumer(max_attempts=2)(lambda message: message.retry(60)), "1")
    logged = first(events, "transition_logged")

    def instead(name: str, reason: str) -> set[str]:
        return broken(events, "transition_logged", only(logged, having(event=name, reason=reason)))

    assert MADE in instead("discarded", "error")
    assert MADE not in instead("dead_lettered", "expiring")
    assert MADE not in broken(events)  # attempt 2 is a dead letter


@pytest.mark.parametrize(("retention", "is_reported"), [(300, False), (86_400, True)])
def test_a_step_may_give_a_retry_that_would_expire_a_reason_of_its_own(
    retention: int, is_reported: bool, sandbox: Sandbox
) -> None:
    steps: Any = [lambda failure, next_step: Outcome.dead_letter("whimsical")]
    handler = consumer(on_failure=steps)(lambda message: message.retry(3_600))
    events = events_of(sandbox, handler, "1", queue=FIFO, max_receive_count=2, retention=retention)
    given_up = having(event="dead_lettered", reason="whimsical")
    found = broken(events, "transition_logged", only(first(events, "transition_logged"), given_up))
    assert (MADE in found) == is_reported


def test_deliveries_that_an_attempt_store_did_not_take_count_as_attempts(sandbox: Sandbox) -> None:
    class ReadOnly(MemoryAttempts):
        def write(self, changes: Sequence[AttemptChange]) -> None:
            raise PermissionError("no")

    handler = consumer(max_attempts=3, attempts=ReadOnly())(lambda message: message.retry(60))
    events = events_of(sandbox, handler, "1", max_receive_count=9)
    failure = sandbox.messages("orders-dlq")[0].failure
    assert failure is not None
    assert failure.attempts == 3
    assert MADE not in broken(events, STARTED, with_terms(limit=3))
    assert MADE in broken(events, STARTED, with_terms(limit=4))


def test_a_crash_may_be_dead_lettered_before_the_last_attempt_only_if_errors_are_not_retried(sandbox: Sandbox) -> None:
    """``max_attempts`` beside a list without `RetryInPlace` limits the retries that are asked for (SPEC B7)."""
    settings: dict[str, Any] = {"on_failure": [DeadLetter()], "max_attempts": 5, "attempts": MemoryAttempts()}
    handler = consumer(**settings)(lambda message: os._exit(1))
    events = events_of(sandbox, handler, "1", queue=FIFO, max_receive_count=100)
    failure = sandbox.messages("orders-dlq.fifo")[0].failure
    assert failure is not None
    assert failure.type == "tarry.ProcessCrashed"
    assert "dead letters say why" not in broken(events, STARTED, with_terms(retries_errors=False))
    assert "dead letters say why" in broken(events, STARTED, with_terms(retries_errors=True))


# extensions


def test_a_lease_that_is_shortened_while_its_message_runs_is_reported(sandbox: Sandbox) -> None:
    @consumer(on_failure=[LocalRetry(1), RetryInPlace(), DeadLetter()], max_attempts=1)
    def handler(message: Message) -> None:
        message.extend(300)
        sandbox.sleep(1)
        raise ValueError("no")

    events = events_of(sandbox, handler, "1", visibility_timeout=60)
    assert broken(events) == set()  # nor is an extension in each of its runs too many
    sooner = only(first(events, CHANGED), having(visible_until=lambda event: event.at + 5))
    assert "running messages keep their lease" in broken(events, CHANGED, sooner)


def test_an_extension_that_comes_too_late_is_not_one_request_too_many(sandbox: Sandbox) -> None:
    events = events_of(sandbox, consumer(lambda message: message.extend(300)), "1", visibility_timeout=60)
    assert BUDGET not in broken(events, CHANGED, ignored)
    assert BUDGET in broken(events, CHANGED, leave_out)


# delays


def test_a_delay_that_counts_from_the_settlement_is_reported(sandbox: Sandbox) -> None:
    """In the edited history, the message failed a minute before it was settled. SQS may ignore, but not miss, its wait.

    If an earlier request has made it visible, it need not wait.
    """
    events = events_of(sandbox, failing(1, max_attempts=2, backoff=Fixed(30)), "1")
    place = events.index(first(events, "run_ended"))
    earlier = [changed(event, at=event.at - 60) for event in events[: place + 1]]
    assert DELAYS not in broken(events)
    assert DELAYS in broken([*earlier, *events[place + 1 :]])
    assert DELAYS not in broken(events, CHANGED, ignored)
    assert DELAYS in broken(events, CHANGED, leave_out)


def test_the_moment_of_each_verdict_is_recorded(sandbox: Sandbox) -> None:
    @batch_consumer
    def handler(batch: Batch) -> None:
        for message in batch:
            sandbox.sleep(5)
            if message.attempt == 1:
                message.retry(100)
                message.ack()

    work(sandbox, handler, *"123", visibility_timeout=300)
    run = sandbox.run(check=False).history.runs[0]
    given = [run.first_verdicts.get(each) for each in run.messages]
    assert [each is not None and round(each.at - run.began.at) for each in given] == [5, 10, 15]
    promised = [run.promised(each) for each in run.messages]
    assert [each is not None and round(each[0] - run.began.at) for each in promised] == [105, 110, 115]


def test_a_deferral_that_can_neither_be_sent_nor_dead_lettered_keeps_its_own_delay(sandbox: Sandbox) -> None:
    """It would expire, so it waits for half of the time left; in the edited history it comes back at once."""

    @consumer(backoff=Fixed(30))
    def handler(message: Message) -> None:
        if message.attempt == 1:
            message.defer(43_000)

    events = events_of(sandbox, handler, "1", dead_letter=None, retention=40_000, send=TEN)
    changed = first(events, CHANGED)
    at_once = only(changed, having(seconds=60, visible_until=lambda event: event.at + 60))
    assert any(event.fields.get("event") == "unhandled" for event in events)
    assert changed.fields["seconds"] == pytest.approx(20_000, abs=10)
    assert DELAYS not in broken(events)
    assert DELAYS in broken(events, CHANGED, at_once)


@pytest.mark.parametrize(("asked", "waited"), [(3_600, 900), (1, 900)])
def test_a_deferral_that_cannot_be_sent_keeps_its_delay(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, asked: int, waited: int
) -> None:  # SPEC C8, J5
    """It is at its last delivery, and does not fit its dead-letter queue."""
    handler = consumer(lambda message: message.defer(asked))
    small = {**TOO_SMALL, "queue": FIFO, "max_receive_count": 1}
    work(sandbox, handler, "x" * 2_000, **small)
    assert rules(sandbox) == set()
    monkeypatch.setattr(Planner, "seconds_in_place", lambda *_: waited)
    with Sandbox() as other:
        work(other, handler, "x" * 2_000, **small)
        assert rules(other) == {DELAYS}


def test_a_failure_that_cannot_be_copied_before_it_expires_keeps_the_delay_of_the_backoff(
    sandbox: Sandbox,
) -> None:  # SPEC C10
    work(sandbox, failing(max_attempts=1_000, backoff=Fixed(100)), "1", dead_letter=None, retention=3_600, send=TEN)
    assert DELAYS not in rules(sandbox)


def test_a_delay_is_longer_only_by_the_requests_that_end_the_claim(sandbox: Sandbox) -> None:  # SPEC C11, K4
    @consumer(idempotency=FailingRecords(0, "slow", 1.2))
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            message.retry(0)

    events = events_of(sandbox, handler, "1")
    assert DELAYS not in broken(events)
    assert DELAYS in broken(events, CHANGED, later(5))


def test_a_delay_is_longer_only_by_the_redaction_of_a_line_about_its_verdict(sandbox: Sandbox) -> None:  # SPEC C11, I7
    def redact(fields: dict[str, Any]) -> dict[str, Any]:
        if fields["event"] == "raised_after_verdict":
            sandbox.sleep(10)
        return fields

    @consumer(log=LogOptions(redact=redact))
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            message.defer(1)
            raise ValueError("no")

    events = events_of(sandbox, handler, "1", send=TEN)
    assert DELAYS not in broken(events)
    assert DELAYS in broken(events, CHANGED, later(5))


def with_batching_window(sandbox: Sandbox, handler: Consumer[Any], *bodies: str) -> list[HistoryEvent]:
    """Return the history of messages that a function receives after 20 of the 30 seconds of their visibility timeout.

    Lambda keeps them invisible for longer, which the consumer does not know.
    """
    return events_of(sandbox, handler, *bodies, visibility_timeout=30, timeout=30, window=20)


def test_a_failure_need_not_be_settled_once_its_own_hook_has_taken_the_time_of_its_lease(
    sandbox: Sandbox,
) -> None:  # SPEC E6, I7
    def enrich(failure: Failure) -> dict[str, Any]:
        if failure.message.receive_count == 1:
            sandbox.sleep(15)
        return {}

    handler = failing(max_attempts=1, on_failure=[RetryInPlace(), DeadLetter(enrich=enrich)])
    events = with_batching_window(sandbox, handler, "1")
    assert sum(event.what == "received" for event in events if event.fields.get("queue") == "orders") == 2
    assert broken(events) == set()


def test_a_failure_that_may_run_again_here_need_not_be_settled_before_the_end(sandbox: Sandbox) -> None:  # SPEC E6, I5
    """No time is left for the run by `LocalRetry`, and the known lease has ended by then."""

    @consumer(backoff=Fixed(1), on_failure=[LocalRetry(1, 20), RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(15)
        elif message.receive_count == 1:
            raise ValueError("no")

    events = with_batching_window(sandbox, handler, "fails", "long")
    assert sum(event.what == STARTED for event in events) == 3
    assert broken(events) == set()
    assert DELAYS in broken(events, STARTED, with_terms(local_retries=0))


@pytest.mark.parametrize("left", [0.1, 30])
def test_releases_for_which_no_time_is_left_are_accepted_without_a_line_of_their_own(
    left: float, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC I2
    """But not while much time is left, nor without the line that counts them."""

    @consumer
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep(1)
            raise SystemExit

    monkeypatch.setattr(Verdicts, "release", lambda self, message: None)
    events = events_of(sandbox, handler, "0", "1", visibility_timeout=30, window=1)
    place = events.index(answered := first(events, "answered"))
    fields = {"event": "out_of_time", "request_id": answered.fields["request_id"]}
    counted = [*events[:place], HistoryEvent(answered.at, "problem", fields), *events[place:]]
    with_time_left = having(deadline=answered.at + left)
    assert RELEASED in broken(events, "invoked", with_time_left)
    assert (RELEASED in broken(counted, "invoked", with_time_left)) == (left == 30)


def test_the_rest_of_a_group_need_not_be_released_if_the_lease_of_its_head_is_lost(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC H4, I6
    wait = Executor.wait_in_place

    def without_releases(self: Executor, deliveries: Any) -> None:
        wait(self, [each for each in deliveries if self.plan_of(each).decided.outcome.kind != "release"])

    def lost(event: HistoryEvent) -> HistoryEvent:
        is_of_head = event.fields.get("event") == "waiting_retry"
        return having(not_settled="the lease is lost")(event) if is_of_head else event

    monkeypatch.setattr(Executor, "wait_in_place", without_releases)
    events = events_of(sandbox, failing(1, backoff=Fixed(20)), "0", "1", queue=FIFO)
    assert RELEASED in broken(events)
    assert RELEASED not in broken(events, "transition_logged", lost)


def test_a_run_that_ends_after_its_message_was_decided_was_abandoned(sandbox: Sandbox) -> None:  # SPEC I3
    """Its delay counts from its timeout, also if the invocation has not answered yet."""

    @consumer(concurrency=2, timeout=2, backoff=Fixed(20), max_attempts=2)
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep({"long": 1.9, "hangs": 6, "longer": 1.9}[message.body])

    bodies = ("hangs", "long", "longer", "long", "longer")
    work(sandbox, handler, *bodies, visibility_timeout=180, timeout=30, batch_size=10, window=1)
    report = sandbox.run(check=False)
    [run] = [run for run in report.history.runs if run.was_abandoned]
    assert run.ended is not None
    answered = report.history.invocations[run.request_id].answered
    assert answered is not None
    assert run.ended.at < answered.at
    assert report.violations == []


def test_a_test_of_a_lease_before_a_dead_letter_that_is_too_large_is_not_one_request_too_many(
    sandbox: Sandbox,
) -> None:  # SPEC E6, F5
    """The dead-letter queue's limit may not be read, so SQS refuses the dead letter after the test."""

    @consumer(max_attempts=2, backoff=Fixed(1))
    def handler(message: Message) -> None:
        if message.body != "next":
            sandbox.sleep(10)
            raise ValueError("no")

    sandbox.faults.add("denied", operation="GetQueueAttributes", queue="orders-dlq.fifo", times=1)
    small = {**TOO_SMALL, "timeout": 18, "visibility_timeout": 18}
    events = events_of(sandbox, handler, "x" * 2_000, "next", queue=FIFO, max_receive_count=9, **small)
    assert any("shorter than" in str(event.fields.get("text")) for event in events if event.what == "refused")
    assert BUDGET not in broken(events, "fault", leave_out)


def test_a_step_decides_how_long_a_retry_that_would_expire_waits(sandbox: Sandbox) -> None:  # SPEC C10
    """Its dead-letter queue takes no message of this size, and half of its life that is left is more than was asked."""

    @consumer(on_failure=[lambda failure, next_step: Outcome.retry(40_000), DeadLetter()])
    def handler(message: Message) -> None:
        if delay := {1: 42_000, 2: 40_500, 3: 600}.get(message.receive_count):
            message.retry(delay)

    small = {**TOO_SMALL, "max_receive_count": 9, "retention": 86_400}
    events = events_of(sandbox, handler, "x" * 2_000, queue=FIFO, **small)
    waits = [event.fields["seconds"] for event in events if event.what == CHANGED]
    assert any(1_900 < seconds < 2_000 for seconds in waits)
    assert broken(events) == set()


# attempts


def test_a_message_with_more_attempts_than_a_record_counts_breaks_no_rule(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record counts to 1,000; here to 20, which takes less time."""
    for module in ("tarry.message.failure_record", "tarry.tools.testing.checkers.retries"):
        monkeypatch.setattr(f"{module}.MAX_COUNT", 20)
    work(sandbox, failing(max_attempts=1_000, backoff=Fixed(900)), "1", dead_letter=None, retention=15 * 900)
    report = sandbox.run(for_=60 * 900, check=False)
    assert sum(event.what == "received" for event in report.events) > 40
    assert report.violations == []
    monkeypatch.setattr("tarry.tools.testing.checkers.retries.MAX_COUNT", 1_000)
    assert "attempts are counted" in broken(report.events)


# duplicates


def test_a_message_may_come_back_when_the_time_that_its_handler_asked_for_is_over(sandbox: Sandbox) -> None:
    """SPEC I6: its handler has finished it, but other messages of its batch still run."""

    @consumer
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(20)
        elif message.receive_count == 1:
            message.extend(15)

    events = with_batching_window(sandbox, handler, "short", "long")
    assert broken(events) == set()
    to_its_end = having(visible_until=lambda event: event.at + 60)
    assert "duplicates have a cause" in broken(events, CHANGED, to_its_end)


@pytest.mark.parametrize("seed", range(3))
def test_messages_that_sqs_delivers_twice_run_twice_and_break_no_rule(seed: int) -> None:
    runs: list[str] = []
    with Sandbox(seed=seed, realism=Realism(duplicate=0.5)) as sandbox:
        work(sandbox, consumer(lambda message: runs.append(message.id)), *map(str, range(20)))
        report = sandbox.run()
        assert report.count("COMMITTED") == 20
        assert len(runs) > 20
        assert sandbox.messages("orders") == []


def test_a_dead_lettered_message_that_reappears_breaks_no_rule() -> None:
    with Sandbox(realism=Realism(duplicate=1)) as sandbox:
        work(sandbox, failing(max_attempts=2, backoff=Fixed(5)), *"12345")
        assert any(event.what == "reappeared" for event in sandbox.run().events)


# leases


def test_a_visibility_change_after_the_end_of_the_lease_is_reported(sandbox: Sandbox) -> None:
    @consumer(max_attempts=2, backoff=Fixed(30))
    def handler(message: Message) -> None:
        if message.attempt == 1:
            sandbox.sleep(5)
            raise ValueError("no")

    def received_earlier(event: HistoryEvent) -> HistoryEvent:
        """Move the receive back by almost a minute: the lease ends before the settlement."""
        return changed(having(visible_until=event.at + 2)(event), at=event.at - 58)

    events = events_of(sandbox, handler, "1", visibility_timeout=60)
    assert LEASES not in broken(events)
    assert LEASES in broken(events, "received", received_earlier)


def test_on_a_slow_cpu_the_check_of_a_lease_may_be_as_old_as_the_readings_of_the_clock_since(sandbox: Sandbox) -> None:
    sandbox.faults.add("slow_cpu", seconds=0.05)
    events = events_of(sandbox, failing(1, max_attempts=2, backoff=Fixed(30)), "1", visibility_timeout=60)
    changed_at = first(events, CHANGED).at

    def ended_before(seconds: float) -> Callable[[HistoryEvent], HistoryEvent]:
        """Move the first receive back, so that the lease ends ``seconds`` before the visibility change."""
        at = changed_at - seconds
        return only(first(events, "received"), lambda event: changed(having(visible_until=at)(event), at=at - 60))

    assert LEASES not in broken(events, "received", ended_before(0.3))
    assert LEASES in broken(events, "received", ended_before(1))


def test_the_log_decides_which_of_two_messages_with_equal_bodies_was_dead_lettered(sandbox: Sandbox) -> None:
    """The dead letter has no room for a record, so it does not name its message."""
    seen: list[str] = []

    @consumer(backoff=Fixed(5))
    def handler(message: Message) -> None:
        if not seen:
            seen.append(message.id)
            raise ValueError("later")
        if message.id != seen[0]:
            raise Reject("never")

    work(sandbox, handler, "x" * 1_000, "x" * 1_000, batch_size=2, window=1, **TOO_SMALL)
    sandbox.run()
    assert len(sandbox.messages("orders-dlq")) == 1


def test_a_message_without_time_for_its_local_retry_may_be_late(sandbox: Sandbox) -> None:
    runs: list[str] = []

    @consumer(backoff=Fixed(0), max_attempts=2, on_failure=[LocalRetry(times=2, delay=5), RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        runs.append(message.body)
        if message.attempt == 1:
            raise ValueError("no")

    work(sandbox, handler, "first", "second", visibility_timeout=90, batch_size=2, window=1, timeout=15)
    sandbox.run()
    assert sorted(runs) == ["first"] * 4 + ["second"] * 2


@pytest.mark.parametrize("count", [2, 10])
def test_messages_that_ack_all_deleted_before_a_crash_are_not_lost(count: int, sandbox: Sandbox) -> None:
    """Ten messages are deleted while the handler waits in `ack_all`, fewer a second later."""

    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        batch.ack_all()
        sandbox.sleep(5)

    work(sandbox, handler, *map(str, range(count)), batch_size=count, window=1)
    sandbox.faults.add("crash_after", operation="DeleteMessageBatch")
    sandbox.run()
    assert sandbox.history.events
