"""Each checker reports violations of its rule: by a runtime broken on purpose, or in an edited history."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tarry import (
    Batch,
    BatchError,
    Consumer,
    DeadLetter,
    Defer,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.consumer import Consumer as ConsumerClass
from tarry.message import failure_record as records
from tarry.message.delivery import Delivery, QueueFacts
from tarry.message.invocation import Invocation
from tarry.message.message import delivery_of
from tarry.record.attribute import attempt_number
from tarry.run.outcomes import Outcomes
from tarry.run.run import Run
from tarry.run.sequential import Sequential
from tarry.run.verdicts import Verdicts
from tarry.settle import copies, executor
from tarry.settle import copies as copy_writer
from tarry.settle import requests as sending
from tarry.settle.executor import Executor
from tarry.settle.planner import Planner
from tarry.testing import Sandbox
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.testing.checkers import check
from tarry.tools.testing.recorded_history import RecordedHistory

Edit = Callable[[HistoryEvent], HistoryEvent | None]


@pytest.fixture
def sandbox() -> Iterable[Sandbox]:
    with Sandbox() as made:
        yield made


def rules(sandbox: Sandbox, **run: Any) -> set[str]:
    """Run the sandbox; return the rules that were broken."""
    return {violation.rule for violation in sandbox.run(check=False, **run).violations}


def work(sandbox: Sandbox, handler: Consumer[Any], *bodies: str, **settings: Any) -> None:
    """Make a queue with a dead-letter queue, connect the handler, and send the bodies."""
    name = "work.fifo" if settings.pop("fifo", False) else "work"
    batch_size = settings.pop("batch_size", 10)
    dead_letters = "dead-letters.fifo" if name.endswith(".fifo") else "dead-letters"
    sandbox.queue(dead_letters, delay=settings.pop("dead_letter_delay", 0), retention=14 * 86_400)
    sandbox.queue(name, dead_letter=dead_letters, **settings)
    sandbox.connect(handler, name, batch_size=batch_size)
    for body in bodies:
        sandbox.send(name, body, group_id="g" if name.endswith(".fifo") else None)


def fails(**settings: Any) -> Consumer[Any]:
    @consumer(**settings)
    def handler(message: Message) -> None:
        raise ValueError("as always")

    return handler


def rejects() -> Consumer[Any]:
    @consumer
    def handler(message: Message) -> None:
        raise Reject("no")

    return handler


def succeeds() -> Consumer[Any]:
    @consumer
    def handler(message: Message) -> None: ...

    return handler


# the runtime, broken on purpose


def test_an_unchanged_runtime_breaks_no_rule(sandbox: Sandbox) -> None:
    work(sandbox, fails(max_attempts=3), "a", "b")
    assert rules(sandbox) == set()


def test_deleting_a_message_before_its_dead_letter_is_sent_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_then_send(chunk: Any, lookups: Any) -> Any:
        sending.delete([copy.delivery for copy in chunk], lookups)
        errors = sending._send(chunk, 0, lookups, set())
        return [sending.Sent(copy, errors[copy.delivery.delivery_id]) for copy in chunk]

    monkeypatch.setattr(sending, "_send_then_delete", delete_then_send)
    work(sandbox, rejects(), "a")
    assert "no message is lost" in rules(sandbox)


def test_an_answer_without_the_failed_message_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerClass, "__call__", _answering(lambda answer: {"batchItemFailures": []}))
    work(sandbox, fails(), "a")
    assert "no message is lost" in rules(sandbox)


def test_an_unchecked_md5_of_a_dead_letter_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "doubt", lambda body, receipt: None)
    work(sandbox, rejects(), "a")
    sandbox.faults.add("garbled", operation="SendMessageBatch")
    assert "no message is lost" in rules(sandbox)


def test_an_ignored_refusal_of_an_entry_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "failed_entries", lambda answer: {})
    work(sandbox, fails(), "a")
    sandbox.faults.add("partial_failure", operation="ChangeMessageVisibilityBatch")
    assert "the log is true" in rules(sandbox)


def test_a_deduplication_id_used_for_two_messages_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = sending._entry

    def same_id(*given: Any) -> dict[str, Any]:
        return {**entry(*given), "MessageDeduplicationId": "always-the-same"}

    monkeypatch.setattr(sending, "_entry", same_id)
    work(sandbox, rejects(), "a", "b", fifo=True)
    assert "no message is lost" in rules(sandbox)


def test_a_wait_beyond_the_retention_of_the_queue_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueFacts, "seconds_left_if_short", lambda *_: None)
    work(sandbox, fails(max_attempts=9, backoff=Fixed(40_000)), "a", retention=86_400)
    assert "no message expires waiting" in rules(sandbox)


def raises(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
    raise RuntimeError("the step's own error")


LETS_EXPIRE = {
    "retry": lambda failure, next_step: Outcome.retry(40_000),
    "defer": lambda failure, next_step: Outcome.defer(40_000),
    "unhandled": lambda failure, next_step: Outcome.unhandled(),
    "raises": raises,
}
"""Failure steps that answer each failure with a wait."""


@pytest.mark.parametrize("step", LETS_EXPIRE.values(), ids=LETS_EXPIRE)
def test_a_fifo_message_that_a_failure_step_lets_expire_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    monkeypatch.setattr(QueueFacts, "seconds_left_if_short", lambda *_: None)
    handler = fails(on_failure=[step, RetryInPlace()], backoff=Fixed(40_000))
    work(sandbox, handler, "a", fifo=True, retention=86_400)
    assert "no message expires waiting" in rules(sandbox)


@pytest.mark.parametrize("lost", ["body", "trace header", "attributes"])
def test_a_copy_without_a_part_of_its_original_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    entry = sending._entry

    def without(*given: Any) -> dict[str, Any]:
        made = entry(*given)
        match lost:
            case "body":
                made["MessageBody"] = "another"
            case "trace header":
                made.pop("MessageSystemAttributes")
            case "attributes":
                made["MessageAttributes"].pop("kind")
        return made

    monkeypatch.setattr(sending, "_entry", without)
    monkeypatch.setattr(sending, "doubt", lambda body, receipt: None)
    work(sandbox, rejects())
    sandbox.client().send_message(
        QueueUrl=sandbox.sqs.url("work"),
        MessageBody="a",
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "order"}},
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}},
    )
    # A copy with another body has no original: its record belongs to another body.
    assert ("no message is lost" if lost == "body" else "copies match their originals") in rules(sandbox)


def test_a_handled_message_in_the_response_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([True])
    reported = lambda answer: _naming_handled_message(answer, sandbox) if next(runs, False) else answer  # noqa: E731
    monkeypatch.setattr(ConsumerClass, "__call__", _answering(reported))
    work(sandbox, succeeds(), "a")
    assert "duplicates have a cause" in rules(sandbox)


def test_a_dead_letter_sent_twice_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    send = sending._send

    def twice(*given: Any) -> Any:
        send(*given)
        return send(*given)

    monkeypatch.setattr(sending, "_send", twice)
    work(sandbox, rejects(), "a")
    assert "duplicates have a cause" in rules(sandbox)


def test_a_second_run_of_a_handled_message_in_one_invocation_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = Sequential._each

    def twice(self: Sequential) -> None:
        todo = list(self._not_started.current)
        for _ in range(2):
            self._not_started.current = iter(todo)
            self._run.pending.update(dict(todo))
            each(self)

    monkeypatch.setattr(Sequential, "_each", twice)
    work(sandbox, succeeds(), "a")
    assert "finished messages do not run again" in rules(sandbox)


def test_a_run_behind_a_failed_message_of_its_group_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outcomes, "stops", lambda self, message: False)
    work(sandbox, fails(), "a", "b", fifo=True)
    assert "groups keep their order" in rules(sandbox)


def test_an_unreleased_rest_of_a_group_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Executor.wait_in_place

    def without_releases(self: Executor, deliveries: Any) -> None:
        wait(self, [each for each in deliveries if self.plan_of(each).decided.outcome.kind != "release"])

    monkeypatch.setattr(Executor, "wait_in_place", without_releases)
    work(sandbox, fails(), "a", "b", fifo=True)
    assert "released messages are visible" in rules(sandbox)


def test_an_unreleased_rest_of_a_batch_after_a_system_exit_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    @consumer
    def handler(message: Message) -> None:
        raise SystemExit

    monkeypatch.setattr(Verdicts, "release", lambda self, message: None)
    work(sandbox, handler, "a", "b")
    assert "released messages are visible" in rules(sandbox)


@pytest.mark.parametrize("seconds", [0, 29, 3_000])
def test_a_wait_of_another_length_than_the_backoff_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setattr(Planner, "seconds_in_place", lambda self, plan, situation, now: seconds)
    work(sandbox, fails(backoff=Fixed(30)), "a")
    assert "delays are kept" in rules(sandbox)


def test_a_retry_without_its_visibility_change_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "wait_in_place", lambda self, deliveries: None)
    work(sandbox, fails(backoff=Fixed(300)), "a")
    assert "delays are kept" in rules(sandbox)


def test_a_deferred_copy_without_delay_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    @consumer
    def handler(message: Message) -> None:
        if message.receive_count == 1 and message.sent_at and delivery_of(message).envelope is None:
            raise Defer(600)

    monkeypatch.setattr(copies.Copy, "delay_seconds", lambda self, now: 0)
    work(sandbox, handler, "a")
    assert "delays are kept" in rules(sandbox)


def test_a_run_before_the_due_time_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "waits", lambda self, message: False)
    work(sandbox, succeeds())
    sandbox.send("work", "a", delay=5_000)
    assert "no message runs before it is due" in rules(sandbox)


def test_a_wait_beyond_12_hours_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delivery, "longest_wait", lambda self, now=None: 43_200)
    work(sandbox, fails(max_attempts=2, backoff=Fixed(43_200)), "a")
    assert "no wait exceeds SQS limits" in rules(sandbox)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_miscounted_attempt_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, off: int) -> None:
    def miscounted(*given: Any, **more: Any) -> tuple[int, bool]:
        number, is_bound = attempt_number(*given, **more)
        return max(1, number + off), is_bound

    monkeypatch.setattr("tarry.message.delivery.attempt_number", miscounted)
    work(sandbox, fails(max_attempts=4), "a")
    assert "attempts are counted" in rules(sandbox)


def test_a_copy_without_the_earlier_attempts_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    again = copy_writer.copy_record
    monkeypatch.setattr(copy_writer, "copy_record", lambda *given, **more: again(*given, **{**more, "carried": 0}))
    work(sandbox, fails(on_failure=[SendAgain("again", times=3)]), "a")
    assert "attempts are counted" in rules(sandbox)


def test_a_retry_after_the_last_attempt_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    @consumer(max_attempts=2)
    def handler(message: Message) -> None:
        if message.receive_count < 5:
            message.retry(30)

    monkeypatch.setattr("tarry.decide.decision._exhausted", lambda failure, *_: failure)
    work(sandbox, handler, "a")
    assert "attempts are within the policy" in rules(sandbox)


def test_a_retry_of_an_undecodable_body_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    @consumer
    def handler(message: Message) -> None:
        message.json()

    monkeypatch.setattr("tarry.decide.retry_policy.RetryPolicy.reason", lambda self, error: "error")
    work(sandbox, handler, "{")
    assert "attempts are within the policy" in rules(sandbox)


def test_a_dead_letter_without_its_record_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_writer, "_with_record", lambda attributes, text: attributes)
    work(sandbox, rejects(), "a")
    assert "dead letters say why" in rules(sandbox)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "another"},
        {"origin": "arn:aws:sqs:us-east-1:123456789012:elsewhere"},
        {"carried": 3},
        {"steps": {"again": 1}},
        {"failure": {}},
        {"failure": {"reason": "rejected", "attempts": 9}},
        {"failure": {"reason": "rejected", "request_id": "another"}},
        {"failure": {"reason": "exhausted"}},
        {"failure": {"reason": "expiring"}},
    ],
)
def test_a_dead_letter_with_a_wrong_record_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    sound = copy_writer.dead_letter_record
    monkeypatch.setattr(copy_writer, "dead_letter_record", lambda *given, **more: {**sound(*given, **more), **wrong})
    work(sandbox, rejects(), "a")
    assert rules(sandbox) & {"dead letters say why", "copies match their originals", "no message is lost"}


@pytest.mark.parametrize("forgets", [False, True])
def test_a_dead_letter_without_the_attempts_before_its_redrives_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """They are in the record of the last dead letter, also behind copies; each time, three attempts are added."""
    if forgets:
        monkeypatch.setattr(records, "_attempts_before", lambda delivery: 0)
    work(sandbox, fails(on_failure=[SendAgain("again", times=2), DeadLetter()]), "a")
    for total in (3, 6, 9):
        broken = rules(sandbox)
        failure = sandbox.messages("dead-letters")[0].failure
        assert failure is not None
        assert failure.attempts == (3 if forgets else total)
        assert broken == ({"dead letters say why"} if forgets and total > 3 else set())
        sandbox.redrive("dead-letters", to="work")


def test_a_dead_letter_with_the_default_delay_of_its_queue_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = sending._entry

    def without_delay(*given: Any) -> dict[str, Any]:
        made = entry(*given)
        made.pop("DelaySeconds")
        return made

    monkeypatch.setattr(sending, "_entry", without_delay)
    work(sandbox, rejects(), "a", dead_letter_delay=60)
    assert "dead letters say why" in rules(sandbox)


def test_dead_lettering_into_the_source_queue_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    @consumer
    def handler(message: Message) -> None:
        if delivery_of(message).envelope is None:
            raise Reject("no")

    monkeypatch.setattr(copy_writer, "dead_letter_queue", lambda delivery, named, lookups: delivery.source)
    work(sandbox, handler, "a")
    assert "dead letters say why" in rules(sandbox)


def test_an_unnoticed_last_delivery_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueFacts, "is_last_delivery", lambda self, message: False)
    work(sandbox, fails(), "a", max_receive_count=2)
    assert "moves by SQS have a cause" in rules(sandbox)


def test_a_logged_dead_letter_that_was_not_sent_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend_to_send(copies: Any, lookups: Any) -> Any:
        return [sending.Sent(copy, None) for copy in copies]

    monkeypatch.setattr(executor, "send_copies", pretend_to_send)
    work(sandbox, rejects(), "a")
    assert {"the log is true", "no message is lost"} <= rules(sandbox)


def test_an_unexpected_error_of_tarry_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_over(*_: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Verdicts, "finish", fall_over)
    work(sandbox, fails(max_attempts=1), "a")
    assert "tarry itself does not fail" in rules(sandbox, for_=300)


@pytest.mark.parametrize("operation", ["get_queue_attributes", "change_message_visibility_batch"])
def test_unneeded_requests_for_a_clean_batch_are_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def ask(sandbox: Sandbox, invocation: Invocation) -> None:
        parameters: dict[str, Any] = {"QueueUrl": sandbox.sqs.url("work")}
        if operation == "change_message_visibility_batch":
            parameters["Entries"] = [{"Id": "0", "ReceiptHandle": "none", "VisibilityTimeout": 5}]
        getattr(sandbox.client(), operation)(**parameters)

    init = Invocation.__init__

    def asks_first(self: Invocation, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        ask(sandbox, self)

    monkeypatch.setattr(Invocation, "__init__", asks_first)
    work(sandbox, succeeds(), "a")
    assert "requests keep their budget" in rules(sandbox)


def test_requests_with_one_entry_each_are_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "tens_by_queue", lambda changes, _: [[change] for change in changes])
    work(sandbox, fails(), *"abcdefgh")
    assert "requests keep their budget" in rules(sandbox)


# answers


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"batchItemFailures": None},
        {"batchItemFailures": [{"itemIdentifier": "unknown"}]},
        {"batchItemFailures": [{"id": "a wrong key"}]},
        {"batchItemFailures": [], "more": 1},
        None,
    ],
)
def test_a_malformed_answer_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    monkeypatch.setattr(ConsumerClass, "__call__", _answering(lambda answer: wrong))
    work(sandbox, succeeds(), "a")
    assert "answers are well-formed" in rules(sandbox, for_=30)


@pytest.mark.parametrize("edit", [lambda failed: failed[::-1], lambda failed: failed * 2])
def test_an_answer_out_of_order_or_with_duplicates_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, edit: Any
) -> None:
    changed = _answering(lambda answer: {"batchItemFailures": edit(answer["batchItemFailures"])})
    monkeypatch.setattr(ConsumerClass, "__call__", changed)
    work(sandbox, fails(max_attempts=1, on_failure=[RetryInPlace()]), "a", "b", batch_size=2)
    assert "answers are well-formed" in rules(sandbox, for_=30)


def test_a_consumer_that_raises_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_over(answer: Any) -> Any:
        raise ValueError("all have failed")

    monkeypatch.setattr(ConsumerClass, "__call__", _answering(fall_over))
    work(sandbox, succeeds(), "a")
    assert "answers are well-formed" in rules(sandbox, for_=30)


def _answering(change: Callable[[Any], Any]) -> Any:
    call = ConsumerClass.__call__

    def answer(self: Any, event: Any, context: Any = None) -> Any:
        return change(call(self, event, context))

    return answer


def _naming_handled_message(answer: Any, sandbox: Sandbox) -> Any:
    """Return an answer that reports a handled message as failed."""
    return {"batchItemFailures": [{"itemIdentifier": sandbox.messages("work")[0].delivery_id}]}


# edited histories: mistakes that only SQS, Lambda or the mapping can make


def rules_of_edited(events: Iterable[HistoryEvent], edit: Edit) -> set[str]:
    kept = [changed for event in events if (changed := edit(event)) is not None]
    return {violation.rule for violation in check(RecordedHistory(kept, settled=True))}


def test_a_message_left_in_its_queue_at_the_end_is_reported(sandbox: Sandbox) -> None:
    work(sandbox, succeeds(), "a")
    events = sandbox.run().events
    assert "every message settles" in rules_of_edited(events, lambda event: None if event.what == "deleted" else event)


def test_a_receive_of_a_deleted_message_is_reported(sandbox: Sandbox) -> None:
    work(sandbox, succeeds(), "a")
    events = list(sandbox.run().events)
    received = next(event for event in events if event.what == "received")
    again = replace(received, at=events[-1].at + 60, fields={**received.fields, "receive_count": 2})
    assert "finished messages do not run again" in rules_of_edited([*events, again], lambda event: event)


def test_a_run_outside_the_batch_of_its_invocation_is_reported(sandbox: Sandbox) -> None:
    work(sandbox, succeeds(), "a", "b", batch_size=1)

    def without_batch(event: HistoryEvent) -> HistoryEvent:
        if event.what != "invoked":
            return event
        return replace(event, fields={**event.fields, "delivery_ids": []})

    assert "copies match their originals" in rules_of_edited(sandbox.run().events, without_batch)


def test_a_second_delivery_without_a_cause_is_reported(sandbox: Sandbox) -> None:
    work(sandbox, succeeds(), "a")
    events = list(sandbox.run().events)
    received = next(event for event in events if event.what == "received")
    again = replace(received, at=received.at + 1, fields={**received.fields, "receive_count": 2})
    place = next(index for index, event in enumerate(events) if event.what == "answered")
    assert "duplicates have a cause" in rules_of_edited([*events[:place], again, *events[place:]], lambda event: event)


def test_concurrent_runs_in_a_group_are_reported(sandbox: Sandbox) -> None:
    work(sandbox, succeeds(), "a", "b", fifo=True)

    def overlapping(event: HistoryEvent) -> HistoryEvent:
        return replace(event, at=event.at + 5) if event.what == "run_ended" else event

    events = sorted((overlapping(event) for event in sandbox.run().events), key=lambda event: event.at)
    assert "groups keep their order" in rules_of_edited(events, lambda event: event)


# correct runs


@pytest.mark.parametrize("kind", ["lost_answer", "hang", "throttle", "unavailable", "unreachable", "partial_failure"])
@pytest.mark.parametrize("operation", ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
def test_a_failed_request_breaks_no_rule(sandbox: Sandbox, kind: str, operation: str) -> None:
    work(sandbox, fails(max_attempts=2), "a", "b")
    sandbox.faults.add(kind, operation=operation, times=1 if kind == "partial_failure" else 2)
    assert rules(sandbox) == set()


@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
@pytest.mark.parametrize("operation", ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
def test_a_crash_breaks_no_rule(sandbox: Sandbox, kind: str, operation: str) -> None:
    work(sandbox, fails(max_attempts=2), "a", "b")
    sandbox.faults.add(kind, operation=operation)
    assert rules(sandbox) == set()


def test_verdicts_of_all_kinds_break_no_rule(sandbox: Sandbox) -> None:
    verdicts = {"0": Retry(5), "1": Defer(5), "2": Reject("no"), "3": SystemExit(), "4": ValueError("x")}
    bodies = list(verdicts)

    @consumer(max_attempts=2, on_failure=[LocalRetry(1), RetryInPlace(), SendAgain("again", times=1)])
    def handler(message: Message) -> None:
        if (verdict := verdicts.pop(message.body, None)) is not None:
            raise verdict

    work(sandbox, handler, *bodies)
    assert rules(sandbox) == set()


def test_a_batch_error_on_fifo_breaks_no_rule(sandbox: Sandbox) -> None:
    @batch_consumer(backoff=Fixed(5))
    def handler(batch: Batch) -> None:
        if batch[0].receive_count == 1 and len(batch) > 2:
            raise BatchError(index=1)

    work(sandbox, handler, "a", "b", "c", "d", fifo=True)
    assert rules(sandbox) == set()


@pytest.mark.parametrize("fifo", [False, True])
def test_an_abandoned_handler_breaks_no_rule(sandbox: Sandbox, fifo: bool) -> None:
    """On FIFO its process exits, after dead-lettering the message at its last attempt (SPEC I3)."""

    @consumer(concurrency=2, timeout=1, max_attempts=2, backoff=Fixed(5))
    def handler(message: Message) -> None:
        sandbox.sleep(40)

    work(sandbox, handler, "a", "b", fifo=fifo, visibility_timeout=180)
    assert rules(sandbox) == set()


def test_a_copy_that_sqs_moves_and_redrives_keeps_its_attempts(sandbox: Sandbox) -> None:
    """The copy was not due at its last delivery, so SQS moved it; after the redrive it continues its count."""

    @consumer(on_failure=[SendAgain("again", times=2, delay=3_000)])
    def handler(message: Message) -> None:
        raise ValueError("no")

    work(sandbox, handler, "a", max_receive_count=1)
    sandbox.run(check=False)
    sandbox.redrive("dead-letters", to="work")
    assert "attempts are counted" not in rules(sandbox)


@dataclass(frozen=True)
class Stubborn:
    """A user's failure step that returns the same outcome for every failure, at most three times."""

    outcome: Outcome

    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        is_over = failure.tries > 2 or failure.message.receive_count + failure.note("hops") > 2
        return next_step(failure) if is_over else self.outcome


@pytest.mark.parametrize(
    "outcome", [Outcome.again(0.1), Outcome.defer(5), Outcome.retry(0), Outcome.dead_letter("mine"), Outcome.discard()]
)
@pytest.mark.parametrize("error", [Retry(5), Reject("no"), ValueError("x")])
def test_an_outcome_of_a_custom_step_breaks_no_rule(sandbox: Sandbox, outcome: Outcome, error: Exception) -> None:
    runs = iter(range(6))

    @consumer(max_attempts=3, on_failure=[Stubborn(outcome), RetryInPlace()])
    def handler(message: Message) -> None:
        if next(runs, None) is not None:
            raise error

    work(sandbox, handler, "a")
    assert rules(sandbox) == set()


def test_a_group_whose_head_expires_breaks_no_rule(sandbox: Sandbox) -> None:
    """SQS refuses its receipt handle when the leases are renewed, so the group is only reported (SPEC H4)."""

    @batch_consumer(backoff=Fixed(50))
    def handler(batch: Batch) -> None:
        raise ValueError("no")

    work(sandbox, handler, fifo=True, retention=60)
    sandbox.send("work.fifo", "a", group_id="g")
    sandbox.advance(20)
    sandbox.send("work.fifo", "b", group_id="g")
    sandbox.faults.add("slow", times=None, seconds=15)
    assert rules(sandbox) == set()


def test_a_rejected_message_whose_step_asks_for_a_wait_beyond_the_retention_breaks_no_rule(sandbox: Sandbox) -> None:
    """On FIFO it is dead-lettered as expiring (SPEC C10), although its handler rejected it."""

    @consumer(on_failure=[lambda failure, next_step: Outcome.retry(40_000), DeadLetter()])
    def handler(message: Message) -> None:
        raise Reject("no")

    work(sandbox, handler, "a", fifo=True, retention=3_600)
    assert rules(sandbox) == set()
    failure = sandbox.messages("dead-letters.fifo")[0].failure
    assert failure is not None
    assert failure.reason == "expiring"


def test_a_last_attempt_that_there_was_no_time_to_settle_breaks_no_rule(sandbox: Sandbox) -> None:
    """Its receipt handle was tested before the send (SPEC E6), which got no answer in time."""

    @consumer(max_attempts=1)
    async def handler(message: Message) -> None:
        await asyncio.sleep(60)

    sandbox.queue("dead-letters.fifo")
    sandbox.queue("work.fifo", dead_letter="dead-letters.fifo", visibility_timeout=40)
    sandbox.connect(handler, "work.fifo", timeout=30)
    sandbox.faults.add("hang", operation="SendMessageBatch", seconds=6)
    sandbox.send("work.fifo", "a", group_id="g")
    events = list(sandbox.run(check=False).events)

    def broken(edit: Edit) -> set[str]:
        edited = [each for event in events if (each := edit(event)) is not None]
        return {violation.rule for violation in check(RecordedHistory(edited, settled=True))}

    def not_logged(event: HistoryEvent) -> HistoryEvent | None:
        return None if event.fields.get("event") == "out_of_time" else event

    def early(event: HistoryEvent) -> HistoryEvent:
        later = {**event.fields, "deadline": event.fields.get("deadline", 0) + 60}
        return replace(event, fields=later) if event.what == "invoked" else event

    assert broken(lambda event: event) == set()
    assert "attempts are within the policy" in broken(not_logged)
    assert "attempts are within the policy" in broken(early)
