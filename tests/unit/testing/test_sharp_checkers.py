"""Checkers that compare with the promises of SPEC C8, C11 and E6: what they accuse, and whom they leave alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tarry import Batch, DeadLetter, Fixed, LocalRetry, Message, Reject, RetryInPlace, batch_consumer, consumer
from tarry.settlement.executor import Executor
from tarry.simulator.history import HistoryEvent
from tarry.testing import Realism, Sandbox
from tarry.testing.checkers import check
from tarry.testing.history import RecordedHistory


def rules(sandbox: Sandbox) -> set[str]:
    return {violation.rule for violation in sandbox.run(check=False).violations}


def doctored(events: list[HistoryEvent], edit: Callable[[HistoryEvent], HistoryEvent | None]) -> set[str]:
    edited = [each for event in events if (each := edit(event)) is not None]
    return {violation.rule for violation in check(RecordedHistory(edited, settled=True))}


# bare moves


def without_its_letter(sandbox: Sandbox) -> list[HistoryEvent]:
    """The history of a message whose dead letter was taken out of it, as if SQS had moved it bare instead."""

    @consumer(max_attempts=2, backoff=Fixed(5))
    def handler(message: Message) -> None:
        raise ValueError("no")

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=2)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    events = list(sandbox.run().events)
    deleted = next(event for event in events if event.what == "deleted")
    letter = next(event for event in events if event.what == "sent" and event.fields["queue"] == "orders-dlq")
    kept = [event for event in events if event not in (deleted, letter)]
    fields = {"queue": "orders", "delivery_id": deleted.fields["delivery_id"], "to": "orders-dlq", "receive_count": 2}
    return [*kept, HistoryEvent(events[-1].at + 900, "moved", {**fields, "origin": "redrive policy"})]


def as_it_is(event: HistoryEvent) -> HistoryEvent:
    return event


def test_a_bare_move_of_what_failed_is_accused(sandbox: Sandbox) -> None:
    assert "bare moves have a cause" in doctored(without_its_letter(sandbox), as_it_is)


def fault(sandbox: Sandbox, events: list[HistoryEvent], **fields: Any) -> list[HistoryEvent]:
    request_id = next(e for e in reversed(events) if e.what == "answered").fields["request_id"]
    place = next(index for index, event in enumerate(events) if event.fields.get("request_id") == request_id) + 1
    struck = HistoryEvent(events[place].at, "fault", {"fault": 0, "kind": "denied", "request_id": request_id, **fields})
    return [*events[:place], struck, *events[place:]]


def test_a_send_to_the_dead_letter_queue_that_failed_excuses_a_bare_move(sandbox: Sandbox) -> None:
    events = without_its_letter(sandbox)
    to_dlq = fault(sandbox, events, operation="SendMessageBatch", queue="orders-dlq")
    assert "bare moves have a cause" not in doctored(to_dlq, as_it_is)


def test_a_send_to_another_queue_that_failed_is_no_excuse(sandbox: Sandbox) -> None:
    events = without_its_letter(sandbox)
    elsewhere = fault(sandbox, events, operation="SendMessageBatch", queue="elsewhere")
    assert "bare moves have a cause" in doctored(elsewhere, as_it_is)


def test_a_function_that_answered_at_its_deadline_had_no_time_to_say_why(sandbox: Sandbox) -> None:
    events = without_its_letter(sandbox)

    def late(event: HistoryEvent) -> HistoryEvent:
        return replace(event, fields={**event.fields, "deadline": event.at}) if event.what == "invoked" else event

    assert "bare moves have a cause" not in doctored(events, late)


def test_what_a_process_that_died_leaves_may_be_moved_bare(sandbox: Sandbox) -> None:
    @consumer
    def handler(message: Message) -> None: ...

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=2)
    sandbox.connect(handler, "orders")
    sandbox.faults.add("crash", times=2)
    sandbox.send("orders", "1")
    assert rules(sandbox) == set()
    assert sandbox.messages("orders-dlq")[0].failure is None


def test_a_list_with_a_step_of_the_users_is_no_excuse(sandbox: Sandbox) -> None:
    events = without_its_letter(sandbox)

    def own_steps(event: HistoryEvent) -> HistoryEvent:
        if event.what != "run_started":
            return event
        own = dict.fromkeys(event.fields["own_steps"], True)
        return replace(event, fields={**event.fields, "own_steps": own})

    assert "bare moves have a cause" in doctored(events, own_steps)


# delays


def test_a_wait_that_counts_from_the_settlement_is_accused(sandbox: Sandbox) -> None:
    """The history of a batch whose first message is made to have failed a minute before it was settled."""

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

    assert "delays are kept" not in doctored(events, as_it_is)
    assert "delays are kept" in doctored(events, a_minute_earlier)


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
    given = [run.first_verdicts.get(each) for each in run.delivery_ids]
    assert [each is not None and round(each.at - run.began.at) for each in given] == [5, 10, 15]
    promised = [run.promised(each) for each in run.delivery_ids]
    assert [each is not None and round(each[0] - run.began.at) for each in promised] == [105, 110, 115]


def test_a_wait_that_was_not_asked_for_is_accused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    @consumer(backoff=Fixed(20))
    def handler(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError("no")

    monkeypatch.setattr(Executor, "wait_in_place", lambda self, deliveries, **_: None)
    sandbox.queue("orders")
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    assert "delays are kept" in rules(sandbox)


# attempts


def test_a_message_that_is_received_more_than_1000_times_is_no_fault_of_tarrys(sandbox: Sandbox) -> None:
    @consumer(max_attempts=1_000, backoff=Fixed(900))
    def handler(message: Message) -> None:
        raise ValueError("as always")

    sandbox.queue("orders", retention=1_010 * 900)
    sandbox.connect(handler, "orders")
    sandbox.send("orders", "1")
    report = sandbox.run(check=False)
    assert sum(event.what == "received" for event in report.events) > 1_000
    assert report.violations == []


# duplicates


@pytest.mark.parametrize("seed", range(12))
def test_messages_that_come_twice_run_twice_and_are_no_fault_of_tarrys(seed: int) -> None:
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


def test_a_message_that_died_and_comes_again_is_no_fault_of_tarrys() -> None:
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


def test_a_change_in_the_name_of_a_lost_lease_is_accused(sandbox: Sandbox) -> None:
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
        """As if it had been received almost a minute before: its lease has ended by the time it is settled."""
        if event.what == "received":
            return replace(event, at=event.at - 58, fields={**event.fields, "visible_until": event.at + 2})
        return event

    assert "lost leases are left alone" not in doctored(events, as_it_is)
    assert "lost leases are left alone" in doctored(events, received_earlier)


def test_of_two_messages_with_one_body_the_log_tells_which_was_dead_lettered(sandbox: Sandbox) -> None:
    """Its dead letter has no room for a record, so that nothing in it names the message."""
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


def test_a_message_whose_turn_to_run_again_did_not_come_is_late_for_a_reason(sandbox: Sandbox) -> None:
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
def test_what_ack_all_deleted_before_its_process_died_is_not_lost(count: int, sandbox: Sandbox) -> None:
    """Ten are deleted while the handler waits in `ack_all`, fewer a second later."""

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
