"""The checkers of moves by SQS, delays, attempts, duplicates and leases (SPEC C8, C11, E6)."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from tarry.tools.testing.checkers import check
from tarry.tools.testing.recorded_history import RecordedHistory
from tests.simulation.failing_tables import FailingRecords


def rules(sandbox: Sandbox) -> set[str]:
    return {violation.rule for violation in sandbox.run(check=False).violations}


def rules_of_edited(events: list[HistoryEvent], edit: Callable[[HistoryEvent], HistoryEvent | None]) -> set[str]:
    edited = [each for event in events if (each := edit(event)) is not None]
    return {violation.rule for violation in check(RecordedHistory(edited, settled=True))}


# moves by SQS


def with_a_move_by_sqs(sandbox: Sandbox) -> list[HistoryEvent]:
    """Return the history of a failed message without its dead letter, as if SQS had moved the message instead."""

    @consumer(max_attempts=2, backoff=Fixed(5))
    def handler(message: Message) -> None:
        raise ValueError("no")

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=2)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run().events)
    deleted = next(event for event in events if event.what == "deleted")
    sent = next(event for event in events if event.what == "sent" and event.fields["queue"] == "orders-dlq")
    kept = [event for event in events if event not in (deleted, sent)]
    fields = {"queue": "orders", "delivery_id": deleted.fields["delivery_id"], "to": "orders-dlq", "receive_count": 2}
    return [*kept, HistoryEvent(events[-1].at + 900, "moved", {**fields, "origin": "redrive policy"})]


def unchanged(event: HistoryEvent) -> HistoryEvent:
    return event


def test_a_move_of_a_failed_message_is_reported(sandbox: Sandbox) -> None:
    assert "moves by SQS have a cause" in rules_of_edited(with_a_move_by_sqs(sandbox), unchanged)


def with_fault(sandbox: Sandbox, events: list[HistoryEvent], **fields: Any) -> list[HistoryEvent]:
    request_id = next(e for e in reversed(events) if e.what == "answered").fields["request_id"]
    place = next(index for index, event in enumerate(events) if event.fields.get("request_id") == request_id) + 1
    struck = HistoryEvent(events[place].at, "fault", {"fault": 0, "kind": "denied", "request_id": request_id, **fields})
    return [*events[:place], struck, *events[place:]]


def test_a_move_after_a_failed_send_to_the_dead_letter_queue_is_accepted(sandbox: Sandbox) -> None:
    events = with_a_move_by_sqs(sandbox)
    to_dlq = with_fault(sandbox, events, operation="SendMessageBatch", queue="orders-dlq")
    assert "moves by SQS have a cause" not in rules_of_edited(to_dlq, unchanged)


def test_a_move_after_a_failed_send_to_another_queue_is_reported(sandbox: Sandbox) -> None:
    events = with_a_move_by_sqs(sandbox)
    elsewhere = with_fault(sandbox, events, operation="SendMessageBatch", queue="elsewhere")
    assert "moves by SQS have a cause" in rules_of_edited(elsewhere, unchanged)


def test_a_retry_that_was_asked_for_and_not_made_is_reported(sandbox: Sandbox) -> None:
    """But not one that would expire, nor the last attempt."""

    @consumer(max_attempts=2)
    def handler(message: Message) -> None:
        message.retry(60)

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=5)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run().events)
    first = next(event for event in events if event.what == "transition_logged")

    def instead(name: str, reason: str) -> set[str]:
        changed = replace(first, fields={**first.fields, "event": name, "reason": reason})
        return rules_of_edited(events, lambda event: changed if event is first else event)

    assert "retries asked for are made" in instead("discarded", "error")
    assert "retries asked for are made" not in instead("dead_lettered", "expiring")
    assert "retries asked for are made" not in rules_of_edited(events, unchanged)  # attempt 2 is a dead letter


@pytest.mark.parametrize(("retention", "is_reported"), [(300, False), (86_400, True)])
def test_a_step_may_give_a_retry_that_would_expire_a_reason_of_its_own(
    retention: int, is_reported: bool, sandbox: Sandbox
) -> None:
    @consumer(on_failure=[lambda failure, next_step: Outcome.dead_letter("whimsical")])
    def handler(message: Message) -> None:
        message.retry(3_600)

    sandbox.queue("dlq.fifo", retention=86_400)
    sandbox.queue("orders.fifo", dead_letter="dlq.fifo", max_receive_count=2, retention=retention)
    sandbox.connect(handler, "orders.fifo")
    sandbox.send("orders.fifo", "1", group_id="a")
    events = list(sandbox.run().events)
    first = next(event for event in events if event.what == "transition_logged")
    given_up = replace(first, fields={**first.fields, "event": "dead_lettered", "reason": "whimsical"})
    found = rules_of_edited(events, lambda event: given_up if event is first else event)
    assert ("retries asked for are made" in found) == is_reported


@pytest.mark.parametrize(("attempts", "is_reported"), [(3, False), (4, True)])
def test_deliveries_that_an_attempt_store_did_not_take_count_as_attempts(
    attempts: int, is_reported: bool, sandbox: Sandbox
) -> None:
    class ReadOnly(MemoryAttempts):
        def write(self, changes: Sequence[AttemptChange]) -> None:
            raise PermissionError("no")

    @consumer(max_attempts=3, attempts=ReadOnly())
    def handler(message: Message) -> None:
        message.retry(60)

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=9)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run().events)

    def limited(event: HistoryEvent) -> HistoryEvent:
        """Return the event with another limit of attempts in the terms of its run."""
        if event.what != "run_started":
            return event
        ran = {
            delivery_id: each._replace(terms=each.terms._replace(limit=attempts))
            for delivery_id, each in event.fields["messages"].items()
        }
        return replace(event, fields={**event.fields, "messages": ran})

    assert sandbox.messages("orders-dlq")[0].failure.attempts == 3
    assert ("retries asked for are made" in rules_of_edited(events, limited)) == is_reported


def test_a_lease_that_is_shortened_while_its_message_runs_is_reported(sandbox: Sandbox) -> None:
    @consumer(on_failure=[LocalRetry(1), RetryInPlace(), DeadLetter()], max_attempts=1)
    def handler(message: Message) -> None:
        message.extend(300)
        sandbox.sleep(1)
        raise ValueError("no")

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=5, visibility_timeout=60)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run().events)
    assert rules_of_edited(events, unchanged) == set()  # nor is an extension in each of its runs too many
    extended = next(event for event in events if event.what == "visibility_changed")
    sooner = replace(extended, fields={**extended.fields, "visible_until": extended.at + 5})
    shortened = rules_of_edited(events, lambda event: sooner if event is extended else event)
    assert "running messages keep their lease" in shortened


def test_an_extension_that_comes_too_late_is_not_one_request_too_many(sandbox: Sandbox) -> None:
    """SQS ignores a change of the visibility of a message that is visible again."""

    @consumer
    def handler(message: Message) -> None:
        message.extend(300)

    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=60)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run().events)

    def extended_too_late(event: HistoryEvent) -> HistoryEvent:
        return replace(event, what="visibility_change_ignored") if event.what == "visibility_changed" else event

    def not_extended(event: HistoryEvent) -> HistoryEvent | None:
        return None if event.what == "visibility_changed" else event

    assert "requests keep their budget" not in rules_of_edited(events, extended_too_late)
    assert "requests keep their budget" in rules_of_edited(events, not_extended)


def test_a_move_after_an_answer_at_the_deadline_is_accepted(sandbox: Sandbox) -> None:
    events = with_a_move_by_sqs(sandbox)

    def late(event: HistoryEvent) -> HistoryEvent:
        return replace(event, fields={**event.fields, "deadline": event.at}) if event.what == "invoked" else event

    assert "moves by SQS have a cause" not in rules_of_edited(events, late)


def test_a_move_after_crashes_is_accepted(sandbox: Sandbox) -> None:
    @consumer
    def handler(message: Message) -> None: ...

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=2)
    sandbox.connect(handler, "orders")
    sandbox.faults.add("crash", times=2)
    sandbox.send("orders", "1")
    assert rules(sandbox) == set()
    assert sandbox.messages("orders-dlq")[0].failure is None


@pytest.mark.parametrize("retries_errors", [False, True])
def test_a_crash_may_be_dead_lettered_before_the_last_attempt_only_if_errors_are_not_retried(
    retries_errors: bool, sandbox: Sandbox
) -> None:
    """``max_attempts`` beside a list without `RetryInPlace` limits the retries that are asked for (SPEC B7)."""

    @consumer(on_failure=[DeadLetter()], max_attempts=5, attempts=MemoryAttempts())
    def handler(message: Message) -> None:
        os._exit(1)

    sandbox.queue("dlq.fifo")
    sandbox.queue("orders.fifo", dead_letter="dlq.fifo", max_receive_count=100)
    sandbox.connect(handler, "orders.fifo")
    sandbox.send("orders.fifo", "1", group_id="a")
    events = list(sandbox.run(check=False).events)

    def edited(event: HistoryEvent) -> HistoryEvent:
        if event.what != "run_started":
            return event
        ran = {
            delivery_id: each._replace(terms=each.terms._replace(retries_errors=retries_errors))
            for delivery_id, each in event.fields["messages"].items()
        }
        return replace(event, fields={**event.fields, "messages": ran})

    assert sandbox.messages("dlq.fifo")[0].failure.type == "tarry.ProcessCrashed"
    assert ("dead letters say why" in rules_of_edited(events, edited)) == retries_errors


def test_a_move_is_reported_for_custom_failure_steps_too(sandbox: Sandbox) -> None:
    events = with_a_move_by_sqs(sandbox)

    def own_steps(event: HistoryEvent) -> HistoryEvent:
        if event.what != "run_started":
            return event
        messages = event.fields["messages"].items()
        own = {each: message._replace(terms=message.terms._replace(has_own_steps=True)) for each, message in messages}
        return replace(event, fields={**event.fields, "messages": own})

    assert "moves by SQS have a cause" in rules_of_edited(events, own_steps)


# delays


def test_a_delay_that_counts_from_the_settlement_is_reported(sandbox: Sandbox) -> None:
    """In the edited history, the message failed a minute before it was settled."""

    @consumer(max_attempts=2, backoff=Fixed(30))
    def handler(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError("no")

    sandbox.queue("orders")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run().events)
    began = next(event for event in events if event.what == "run_ended")
    place = events.index(began)

    def a_minute_earlier(event: HistoryEvent) -> HistoryEvent:
        return replace(event, at=event.at - 60) if events.index(event) <= place else event

    assert "delays are kept" not in rules_of_edited(events, unchanged)
    assert "delays are kept" in rules_of_edited(events, a_minute_earlier)


def test_the_moment_of_each_verdict_is_recorded(sandbox: Sandbox) -> None:
    @batch_consumer
    def handler(batch: Batch) -> None:
        for message in batch:
            sandbox.sleep(5)
            if message.attempt == 1:
                message.retry(100)
                message.ack()

    sandbox.queue("orders", visibility_timeout=300)
    sandbox.connect(handler, "orders")
    for number in range(3):
        sandbox.send("orders", str(number))
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

    sandbox.queue("orders", retention=40_000)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1", attributes={f"attribute-{number}": "x" for number in range(10)})
    events = list(sandbox.run().events)
    changed = next(event for event in events if event.what == "visibility_changed")

    def at_once(event: HistoryEvent) -> HistoryEvent:
        early = {**event.fields, "seconds": 60, "visible_until": event.at + 60}
        return replace(event, fields=early) if event is changed else event

    assert any(event.fields.get("event") == "unhandled" for event in events)
    assert changed.fields["seconds"] == pytest.approx(20_000, abs=10)
    assert "delays are kept" not in rules_of_edited(events, unchanged)
    assert "delays are kept" in rules_of_edited(events, at_once)


def test_a_delay_that_was_not_requested_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    @consumer(backoff=Fixed(20))
    def handler(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError("no")

    monkeypatch.setattr(Executor, "wait_in_place", lambda self, deliveries, **_: None)
    sandbox.queue("orders")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    assert "delays are kept" in rules(sandbox)


@pytest.mark.parametrize(("asked", "waited"), [(3_600, 900), (1, 900)])
def test_a_deferral_that_cannot_be_sent_keeps_its_delay(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, asked: int, waited: int
) -> None:  # SPEC C8, J5
    """It is at its last delivery, and does not fit its dead-letter queue."""

    @consumer
    def handler(message: Message) -> None:
        message.defer(asked)

    for queue in ("orders", "others"):
        sandbox.queue(f"{queue}-dlq.fifo", maximum_message_size=1_024)
        sandbox.queue(f"{queue}.fifo", dead_letter=f"{queue}-dlq.fifo", max_receive_count=1)
        sandbox.connect(handler, f"{queue}.fifo")
    sandbox.send("orders.fifo", "x" * 2_000, group_id="g")
    assert rules(sandbox) == set()
    monkeypatch.setattr(Planner, "seconds_in_place", lambda *_: waited)
    sandbox.send("others.fifo", "x" * 2_000, group_id="g")
    assert rules(sandbox) == {"delays are kept"}


def test_a_failure_that_cannot_be_copied_before_it_expires_keeps_the_delay_of_the_backoff(
    sandbox: Sandbox,
) -> None:  # SPEC C10
    @consumer(max_attempts=1_000, backoff=Fixed(100))
    def handler(message: Message) -> None:
        raise ValueError("no")

    sandbox.queue("orders", retention=3_600)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1", attributes={f"own-{number}": "x" for number in range(10)})
    assert "delays are kept" not in rules(sandbox)


@pytest.mark.parametrize("later_by", [0, 5])
def test_a_delay_is_longer_only_by_the_requests_that_end_the_claim(
    sandbox: Sandbox, later_by: int
) -> None:  # SPEC C11, K4
    @consumer(idempotency=FailingRecords(0, "slow", 1.2))
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            message.retry(0)

    sandbox.queue("orders")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run(check=False).events)

    def later(event: HistoryEvent) -> HistoryEvent:
        if event.what != "visibility_changed":
            return event
        return replace(event, fields={**event.fields, "visible_until": event.fields["visible_until"] + later_by})

    assert ("delays are kept" in rules_of_edited(events, later)) == (later_by > 0)


@pytest.mark.parametrize("later_by", [0, 5])
def test_a_delay_is_longer_only_by_the_redaction_of_a_line_about_its_verdict(
    sandbox: Sandbox, later_by: int
) -> None:  # SPEC C11, I7
    def redact(fields: dict[str, Any]) -> dict[str, Any]:
        if fields["event"] == "raised_after_verdict":
            sandbox.sleep(10)
        return fields

    @consumer(log=LogOptions(redact=redact))
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            message.defer(1)
            raise ValueError("no")

    sandbox.queue("orders")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1", attributes={f"own-{number}": "x" for number in range(10)})
    events = list(sandbox.run(check=False).events)

    def later(event: HistoryEvent) -> HistoryEvent:
        if event.what != "visibility_changed":
            return event
        return replace(event, fields={**event.fields, "visible_until": event.fields["visible_until"] + later_by})

    assert ("delays are kept" in rules_of_edited(events, later)) == (later_by > 0)


def with_batching_window(sandbox: Sandbox, handler: Consumer[Any], *bodies: str) -> list[HistoryEvent]:
    """Return the history of messages that a function receives after 20 of the 30 seconds of their visibility timeout.

    Lambda keeps them invisible for longer, which the consumer does not know.
    """
    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=30)
    sandbox.connect(handler, "orders", timeout=30, window=20)
    for body in bodies:
        sandbox.send("orders", body)
    return list(sandbox.run(check=False).events)


def test_a_failure_need_not_be_settled_once_its_own_hook_has_taken_the_time_of_its_lease(
    sandbox: Sandbox,
) -> None:  # SPEC E6, I7
    def enrich(failure: Failure) -> dict[str, Any]:
        if failure.message.receive_count == 1:
            sandbox.sleep(15)
        return {}

    @consumer(max_attempts=1, on_failure=[RetryInPlace(), DeadLetter(enrich=enrich)])
    def handler(message: Message) -> None:
        raise ValueError("no")

    events = with_batching_window(sandbox, handler, "1")
    assert sum(event.what == "received" for event in events if event.fields.get("queue") == "orders") == 2
    assert rules_of_edited(events, unchanged) == set()


def test_a_failure_that_may_run_again_here_need_not_be_settled_before_the_end(sandbox: Sandbox) -> None:  # SPEC E6, I5
    """No time is left for the run by `LocalRetry`, and the known lease has ended by then."""

    @consumer(backoff=Fixed(1), on_failure=[LocalRetry(1, 20), RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        if message.body == "long":
            sandbox.sleep(15)
        elif message.receive_count == 1:
            raise ValueError("no")

    events = with_batching_window(sandbox, handler, "fails", "long")
    assert sum(event.what == "run_started" for event in events) == 3
    assert rules_of_edited(events, unchanged) == set()

    def without_local_retries(event: HistoryEvent) -> HistoryEvent:
        if event.what != "run_started":
            return event
        ran = {key: each._replace(terms=each.terms._replace(local_retries=0)) for key, each in runs_of(event)}
        return replace(event, fields={**event.fields, "messages": ran})

    assert "delays are kept" in rules_of_edited(events, without_local_retries)


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
    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=30)
    sandbox.connect(handler, "orders", window=1)
    for number in range(2):
        sandbox.send("orders", str(number))
    events = list(sandbox.run(check=False).events)
    place = next(index for index, event in enumerate(events) if event.what == "answered")
    fields = {"event": "out_of_time", "request_id": events[place].fields["request_id"]}
    counted = [*events[:place], HistoryEvent(events[place].at, "problem", fields), *events[place:]]

    def with_time_left(event: HistoryEvent) -> HistoryEvent:
        if event.what != "invoked":
            return event
        return replace(event, fields={**event.fields, "deadline": events[place].at + left})

    assert "released messages are visible" in rules_of_edited(events, with_time_left)
    assert ("released messages are visible" in rules_of_edited(counted, with_time_left)) == (left == 30)


def test_the_rest_of_a_group_need_not_be_released_if_the_lease_of_its_head_is_lost(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC H4, I6
    @consumer(backoff=Fixed(20))
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            raise ValueError("no")

    wait = Executor.wait_in_place

    def without_releases(self: Executor, deliveries: Any) -> None:
        wait(self, [each for each in deliveries if self.plan_of(each).decided.outcome.kind != "release"])

    monkeypatch.setattr(Executor, "wait_in_place", without_releases)
    sandbox.queue("orders.fifo")
    sandbox.connect(handler, "orders.fifo")
    for number in range(2):
        sandbox.send("orders.fifo", str(number), group_id="a")
    events = list(sandbox.run(check=False).events)

    def lost(event: HistoryEvent) -> HistoryEvent:
        if event.fields.get("event") != "waiting_retry":
            return event
        return replace(event, fields={**event.fields, "not_settled": "the lease is lost"})

    assert "released messages are visible" in rules_of_edited(events, unchanged)
    assert "released messages are visible" not in rules_of_edited(events, lost)


def test_a_run_that_ends_after_its_message_was_decided_was_abandoned(sandbox: Sandbox) -> None:  # SPEC I3
    """Its delay counts from its timeout, also if the invocation has not answered yet."""

    @consumer(concurrency=2, timeout=2, backoff=Fixed(20), max_attempts=2)
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep({"long": 1.9, "hangs": 6, "longer": 1.9}[message.body])

    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=180)
    sandbox.connect(handler, "orders", timeout=30, batch_size=10, window=1)
    for body in ("hangs", "long", "longer", "long", "longer"):
        sandbox.send("orders", body)
    report = sandbox.run(check=False)
    [run] = [run for run in report.history.runs if run.was_abandoned]
    assert run.ended is not None
    assert run.ended.at < report.history.invocations[run.request_id].answered.at
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

    sandbox.queue("dlq.fifo", maximum_message_size=1_024)
    sandbox.queue("orders.fifo", dead_letter="dlq.fifo", max_receive_count=9, visibility_timeout=18)
    sandbox.connect(handler, "orders.fifo", timeout=18)
    sandbox.faults.add("denied", operation="GetQueueAttributes", queue="dlq.fifo", times=1)
    sandbox.send("orders.fifo", "x" * 2_000, group_id="a")
    sandbox.send("orders.fifo", "next", group_id="a")
    events = [event for event in sandbox.run(check=False).events if event.what != "fault"]
    assert any("shorter than" in str(event.fields.get("text")) for event in events if event.what == "refused")
    assert "requests keep their budget" not in rules_of_edited(events, unchanged)


def test_a_step_decides_how_long_a_retry_that_would_expire_waits(sandbox: Sandbox) -> None:  # SPEC C10
    """Its dead-letter queue takes no message of this size, and half of its life that is left is more than was asked."""

    @consumer(on_failure=[lambda failure, next_step: Outcome.retry(40_000), DeadLetter()])
    def handler(message: Message) -> None:
        if delay := {1: 42_000, 2: 40_500, 3: 600}.get(message.receive_count):
            message.retry(delay)

    sandbox.queue("dlq.fifo", maximum_message_size=1_024)
    sandbox.queue("orders.fifo", dead_letter="dlq.fifo", max_receive_count=9, retention=86_400)
    sandbox.connect(handler, "orders.fifo")
    sandbox.send("orders.fifo", "x" * 2_000, group_id="a")
    events = list(sandbox.run(check=False).events)
    waits = [event.fields["seconds"] for event in events if event.what == "visibility_changed"]
    assert any(1_900 < seconds < 2_000 for seconds in waits)
    assert rules_of_edited(events, unchanged) == set()


def test_a_failure_need_not_wait_if_an_earlier_request_has_made_it_visible(sandbox: Sandbox) -> None:
    """SQS ignores a change of the visibility of a message that is visible."""

    @consumer(backoff=Fixed(20))
    def handler(message: Message) -> None:
        if message.receive_count == 1:
            raise ValueError("no")

    sandbox.queue("orders")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run(check=False).events)

    def ignored(event: HistoryEvent) -> HistoryEvent:
        return replace(event, what="visibility_change_ignored") if event.what == "visibility_changed" else event

    def not_made(event: HistoryEvent) -> HistoryEvent | None:
        return None if event.what == "visibility_changed" else event

    assert "delays are kept" not in rules_of_edited(events, ignored)
    assert "delays are kept" in rules_of_edited(events, not_made)


@pytest.mark.parametrize(("queue", "is_reported"), [("orders.fifo", False), ("orders", True)])
def test_a_move_after_a_failed_test_of_a_lease_is_accepted_on_fifo(
    queue: str, is_reported: bool, sandbox: Sandbox
) -> None:  # SPEC C8, E6
    end = ".fifo" if queue.endswith(".fifo") else ""
    events = [
        replace(event, fields={name: _renamed(value, end) for name, value in event.fields.items()})
        for event in with_a_move_by_sqs(sandbox)
    ]
    tested = with_fault(sandbox, events, operation="ChangeMessageVisibilityBatch", queue=queue)
    assert ("moves by SQS have a cause" in rules_of_edited(tested, unchanged)) == is_reported


def _renamed(value: Any, end: str) -> Any:
    return f"{value}{end}" if value in ("orders", "orders-dlq") else value


def runs_of(event: HistoryEvent) -> list[tuple[str, Any]]:
    return list(event.fields["messages"].items())


# attempts


def test_a_message_received_more_than_1000_times_breaks_no_rule(sandbox: Sandbox) -> None:
    @consumer(max_attempts=1_000, backoff=Fixed(900))
    def handler(message: Message) -> None:
        raise ValueError("as always")

    sandbox.queue("orders", retention=720 * 900)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    report = sandbox.run(check=False)
    assert sum(event.what == "received" for event in report.events) > 1_000
    assert report.violations == []


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
    assert rules_of_edited(events, unchanged) == set()

    def to_its_end(event: HistoryEvent) -> HistoryEvent:
        if event.what != "visibility_changed":
            return event
        return replace(event, fields={**event.fields, "visible_until": event.at + 60})

    assert "duplicates have a cause" in rules_of_edited(events, to_its_end)


@pytest.mark.parametrize("seed", range(12))
def test_messages_that_sqs_delivers_twice_run_twice_and_break_no_rule(seed: int) -> None:
    runs: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(message.id)

    with Sandbox(seed=seed, realism=Realism(duplicate=0.5)) as sandbox:
        sandbox.queue("orders")
        sandbox.connect(handler, "orders")
        for number in range(20):
            sandbox.send("orders", str(number))
        report = sandbox.run()
        assert report.count("COMMITTED") == 20
        assert len(runs) > 20
        assert sandbox.messages("orders") == []


def test_a_dead_lettered_message_that_reappears_breaks_no_rule() -> None:
    @consumer(max_attempts=2, backoff=Fixed(5))
    def handler(message: Message) -> None:
        raise ValueError("as always")

    with Sandbox(realism=Realism(duplicate=1)) as sandbox:
        sandbox.queue("orders", dead_letter="orders-dlq")
        sandbox.connect(handler, "orders")
        for number in range(5):
            sandbox.send("orders", str(number))
        report = sandbox.run()
        assert any(event.what == "reappeared" for event in report.events)


# leases


def test_a_visibility_change_after_the_end_of_the_lease_is_reported(sandbox: Sandbox) -> None:
    @consumer(max_attempts=2, backoff=Fixed(30))
    def handler(message: Message) -> None:
        if message.attempt == 1:
            sandbox.sleep(5)
            raise ValueError("no")

    sandbox.queue("orders", visibility_timeout=60)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run().events)

    def received_earlier(event: HistoryEvent) -> HistoryEvent:
        """Move the receive back by almost a minute: the lease ends before the settlement."""
        if event.what == "received":
            return replace(event, at=event.at - 58, fields={**event.fields, "visible_until": event.at + 2})
        return event

    assert "lost leases are left alone" not in rules_of_edited(events, unchanged)
    assert "lost leases are left alone" in rules_of_edited(events, received_earlier)


def test_on_a_slow_cpu_the_check_of_a_lease_may_be_as_old_as_the_readings_of_the_clock_since(sandbox: Sandbox) -> None:
    @consumer(max_attempts=2, backoff=Fixed(30))
    def handler(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError("no")

    sandbox.queue("orders", visibility_timeout=60)
    sandbox.connect(handler, "orders")
    sandbox.faults.add("slow_cpu", seconds=0.05)
    sandbox.send("orders", "1")
    events = list(sandbox.run().events)
    changed_at = next(event.at for event in events if event.what == "visibility_changed")

    def ended_before(seconds: float) -> Callable[[HistoryEvent], HistoryEvent]:
        """Move the first receive back, so that the lease ends ``seconds`` before the visibility change."""

        def edited(event: HistoryEvent) -> HistoryEvent:
            if event.what != "received" or event.at > changed_at:
                return event
            ends_at = changed_at - seconds
            return replace(event, at=ends_at - 60, fields={**event.fields, "visible_until": ends_at})

        return edited

    assert "lost leases are left alone" not in rules_of_edited(events, ended_before(0.3))
    assert "lost leases are left alone" in rules_of_edited(events, ended_before(1))


def test_the_log_decides_which_of_two_messages_with_equal_bodies_was_dead_lettered(sandbox: Sandbox) -> None:
    """The dead letter has no room for a record, so it does not name its message."""
    first: list[str] = []

    @consumer(backoff=Fixed(5))
    def handler(message: Message) -> None:
        if not first:
            first.append(message.id)
            raise ValueError("later")
        if message.id != first[0]:
            raise Reject("never")

    sandbox.queue("orders-dlq", maximum_message_size=1_024)
    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders", batch_size=2, window=1)
    for _ in range(2):
        sandbox.send("orders", "x" * 1_000)
    sandbox.run()
    assert len(sandbox.messages("orders-dlq")) == 1


def test_a_message_without_time_for_its_local_retry_may_be_late(sandbox: Sandbox) -> None:
    runs: list[str] = []

    @consumer(backoff=Fixed(0), max_attempts=2, on_failure=[LocalRetry(times=2, delay=5), RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        runs.append(message.body)
        if message.attempt == 1:
            raise ValueError("no")

    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=90)
    sandbox.connect(handler, "orders", batch_size=2, window=1, timeout=15)
    for body in ("first", "second"):
        sandbox.send("orders", body)
    sandbox.run()
    assert sorted(runs) == ["first"] * 4 + ["second"] * 2


@pytest.mark.parametrize("count", [2, 10])
def test_messages_that_ack_all_deleted_before_a_crash_are_not_lost(count: int, sandbox: Sandbox) -> None:
    """Ten messages are deleted while the handler waits in `ack_all`, fewer a second later."""

    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        batch.ack_all()
        sandbox.sleep(5)

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders", batch_size=count, window=1)
    for number in range(count):
        sandbox.send("orders", str(number))
    sandbox.faults.add("crash_after", operation="DeleteMessageBatch")
    sandbox.run()
    assert sandbox.history.events
