"""Each checker reports violations of its rule: by a runtime broken on purpose, or in an edited history."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tarry import (
    Batch,
    Consumer,
    DeadLetter,
    Defer,
    Failure,
    Fixed,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.decide import decision
from tarry.decide.retry_policy import RetryPolicy
from tarry.message import delivery as deliveries
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
from tarry.settle import requests as sending
from tarry.settle.executor import Executor
from tarry.settle.planner import Planner
from tarry.testing import Sandbox
from tarry.tools.simulator.history import HistoryEvent
from tests.sandboxes import work
from tests.unit.testing.histories import FIFO, broken, changed, events_of, failing, first, having, leave_out, rules

LOST, TRUE, DELAYS, BUDGET = "no message is lost", "the log is true", "delays are kept", "requests keep their budget"
EXPIRES, DUPLICATES, WHY = "no message expires waiting", "duplicates have a cause", "dead letters say why"
RELEASED, COUNTED = "released messages are visible", "attempts are counted"
POLICY, ANSWERS = "attempts are within the policy", "answers are well-formed"


@consumer
def rejects(message: Message) -> None:
    raise Reject("no")


@consumer
def succeeds(message: Message) -> None: ...


@consumer
def exits(message: Message) -> None:
    raise SystemExit


@consumer
def defers_the_original(message: Message) -> None:
    if message.receive_count == 1 and delivery_of(message).envelope is None:
        raise Defer(600)


@consumer
def rejects_the_original(message: Message) -> None:
    if delivery_of(message).envelope is None:
        raise Reject("no")


@consumer(max_attempts=2)
def retries(message: Message) -> None:
    if message.receive_count < 5:
        message.retry(30)


@consumer
def decodes(message: Message) -> None:
    message.json()


# the runtime, broken on purpose

CALL, ENTRY, SEND = Consumer.__call__, sending._entry, sending._send
WAIT, EACH = Executor.wait_in_place, Sequential._each
RECORD, COPY_RECORD = records.dead_letter_record, records.copy_record


def delete_then_send(chunk: Any, lookups: Any) -> Any:
    sending.delete([copy.delivery for copy in chunk], lookups)
    errors = sending._send(chunk, 0, lookups, set())
    return [sending.Sent(copy, errors[copy.delivery.delivery_id]) for copy in chunk]


def send_twice(*given: Any) -> Any:
    SEND(*given)
    return SEND(*given)


def run_twice(self: Sequential) -> None:
    todo = list(self._not_started.current)
    for _ in range(2):
        self._not_started.current = iter(todo)
        self._run.pending.update(dict(todo))
        EACH(self)


def release_none(self: Executor, deliveries: Any) -> None:
    WAIT(self, [each for each in deliveries if self.plan_of(each).decided.outcome.kind != "release"])


def miscounted(off: int) -> Any:
    def count(*given: Any, **more: Any) -> tuple[int, bool]:
        number, is_bound = attempt_number(*given, **more)
        return max(1, number + off), is_bound

    return count


def without_delay(*given: Any) -> dict[str, Any]:
    return {name: value for name, value in ENTRY(*given).items() if name != "DelaySeconds"}


def fall_over(*_: Any) -> Any:
    raise KeyError("a bug")


def answering(change: Callable[[Any, Any], Any]) -> Any:
    return (Consumer, "__call__", lambda self, event, context=None: change(CALL(self, event, context), event))


def naming_a_handled_message(answer: Any, event: Any) -> Any:
    [record] = event["Records"]
    is_first = record["attributes"]["ApproximateReceiveCount"] == "1"
    return {"batchItemFailures": [{"itemIdentifier": record["messageId"]}]} if is_first else answer


def failures(change: Callable[[list[Any]], Any]) -> Any:
    return answering(lambda answer, event: {"batchItemFailures": change(answer["batchItemFailures"])})


def lets_expire(step: Any) -> Consumer[Any]:
    return failing(on_failure=[step, RetryInPlace()], backoff=Fixed(40_000))


EXPIRING = (QueueFacts, "seconds_left_if_short", lambda *_: None)
A_DAY = {"retention": 86_400}
ON_FIFO: dict[str, Any] = {"queue": FIFO, **A_DAY}
KEPT = failing(max_attempts=1, on_failure=[RetryInPlace()])
NOTHING = lambda *_: None  # noqa: E731

BROKEN: dict[str, tuple[str, Any, Consumer[Any], str, dict[str, Any]]] = {
    "a message is deleted before its dead letter is sent": (
        LOST, (sending, "_send_then_delete", delete_then_send), rejects, "a", {}),
    "an answer lacks the failed message": (LOST, failures(lambda failed: []), failing(), "a", {}),
    "the MD5 of a dead letter is not checked": (
        LOST, (sending, "doubt", NOTHING), rejects, "a", {"fault": ("garbled", "SendMessageBatch")}),
    "the refusal of an entry is ignored": (
        TRUE, (sending, "failed_entries", lambda answer: {}), failing(), "a",
        {"fault": ("partial_failure", "ChangeMessageVisibilityBatch")}),
    "two messages have one deduplication id": (
        LOST, (sending, "_entry", lambda *given: {**ENTRY(*given), "MessageDeduplicationId": "same"}), rejects, "ab",
        {"queue": FIFO}),
    "a wait exceeds the retention": (EXPIRES, EXPIRING, failing(max_attempts=9, backoff=Fixed(40_000)), "a", A_DAY),
    "a step retries until a FIFO message expires": (
        EXPIRES, EXPIRING, lets_expire(lambda failure, next_step: Outcome.retry(40_000)), "a", ON_FIFO),
    "a step defers until a FIFO message expires": (
        EXPIRES, EXPIRING, lets_expire(lambda failure, next_step: Outcome.defer(40_000)), "a", ON_FIFO),
    "a step leaves a FIFO message that expires": (
        EXPIRES, EXPIRING, lets_expire(lambda failure, next_step: Outcome.unhandled()), "a", ON_FIFO),
    "a step raises until a FIFO message expires": (EXPIRES, EXPIRING, lets_expire(fall_over), "a", ON_FIFO),
    "a handled message is in the response": (DUPLICATES, answering(naming_a_handled_message), succeeds, "a", {}),
    "a dead letter is sent twice": (DUPLICATES, (sending, "_send", send_twice), rejects, "a", {}),
    "a message runs twice in an invocation": (
        "finished messages do not run again", (Sequential, "_each", run_twice), succeeds, "a", {}),
    "a message runs behind a failed one of its group": (
        "groups keep their order", (Outcomes, "stops", lambda self, message: False), failing(), "ab", {"queue": FIFO}),
    "the rest of a group is not released": (
        RELEASED, (Executor, "wait_in_place", release_none), failing(), "ab", {"queue": FIFO}),
    "the rest of a batch is not released after an exit": (RELEASED, (Verdicts, "release", NOTHING), exits, "ab", {}),
    **{
        f"a wait of {seconds} s is not that of the backoff": (
            DELAYS, (Planner, "seconds_in_place", lambda *_, seconds=seconds: seconds), failing(backoff=Fixed(30)), "a",
            {})
        for seconds in (0, 29, 3_000)
    },
    "a retry does not change the visibility": (
        DELAYS, (Executor, "wait_in_place", NOTHING), failing(backoff=Fixed(300)), "a", {}),
    "a deferred copy has no delay": (
        DELAYS, (copies.Copy, "delay_seconds", lambda self, now: 0), defers_the_original, "a", {}),
    "a message runs before it is due": (
        "no message runs before it is due", (Run, "waits", lambda self, message: False), succeeds, "a",
        {"send": {"delay": 5_000}}),
    "a wait is longer than 12 hours": (
        "no wait exceeds SQS limits", (Delivery, "longest_wait", lambda self, now=None: 43_200),
        failing(max_attempts=2, backoff=Fixed(43_200)), "a", {}),
    "an attempt is counted too low": (COUNTED, (deliveries, "attempt_number", miscounted(-1)), failing(), "a", {}),
    "an attempt is counted too high": (COUNTED, (deliveries, "attempt_number", miscounted(1)), failing(), "a", {}),
    "a copy lacks the earlier attempts": (
        COUNTED, (copies, "copy_record", lambda *given, **more: COPY_RECORD(*given, **{**more, "carried": 0})),
        failing(on_failure=[SendAgain("again", times=3)]), "a", {}),
    "a message is retried after its last attempt": (
        POLICY, (decision, "_exhausted", lambda failure, *_: failure), retries, "a", {}),
    "an undecodable message is retried": (POLICY, (RetryPolicy, "reason", lambda *_: "error"), decodes, "{", {}),
    "a dead letter has no record": (
        WHY, (copies, "_with_record", lambda attributes, text: attributes), rejects, "a", {}),
    "a dead letter has the default delay of its queue": (
        WHY, (sending, "_entry", without_delay), rejects, "a", {"dead_letters": {"delay": 60}}),
    "a message is dead-lettered into its source": (
        WHY, (copies, "dead_letter_queue", lambda delivery, *_: delivery.source), rejects_the_original, "a", {}),
    "a last delivery is not noticed": (
        "moves by SQS have a cause", (QueueFacts, "is_last_delivery", lambda *_: False), failing(), "a",
        {"max_receive_count": 2}),
    "a logged dead letter was not sent": (
        f"{LOST}, {TRUE}", (executor, "send_copies", lambda copies, _: [sending.Sent(each, None) for each in copies]),
        rejects, "a", {}),
    "tarry has a bug": (
        "tarry itself does not fail", (Verdicts, "finish", fall_over), failing(max_attempts=1), "a", {"for_": 300}),
    "requests have one entry each": (
        BUDGET, (sending, "tens_by_queue", lambda changes, _: [[each] for each in changes]), failing(), "abcdefgh", {}),
    **{
        f"the answer is {wrong}": (ANSWERS, answering(lambda *_, wrong=wrong: wrong), succeeds, "a", {"for_": 30})
        for wrong in (
            {},
            {"batchItemFailures": None},
            {"batchItemFailures": [{"itemIdentifier": "unknown"}]},
            {"batchItemFailures": [{"id": "a wrong key"}]},
            {"batchItemFailures": [], "more": 1},
            None,
        )
    },
    "an answer is out of order": (
        ANSWERS, failures(lambda failed: failed[::-1]), KEPT, "ab", {"batch_size": 2, "for_": 30}),
    "an answer has duplicates": (
        ANSWERS, failures(lambda failed: failed * 2), KEPT, "ab", {"batch_size": 2, "for_": 30}),
    "a consumer raises": (ANSWERS, answering(fall_over), succeeds, "a", {"for_": 30}),
}  # fmt: skip
"""The rules, what is broken, the handler, its messages, and the settings of `work` and of the run."""


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    named, patch, handler, bodies, settings = BROKEN[what]
    monkeypatch.setattr(*patch)
    run = {"for_": settings["for_"]} if "for_" in settings else {}
    work(sandbox, handler, *bodies, **{name: each for name, each in settings.items() if name not in ("for_", "fault")})
    if "fault" in settings:
        sandbox.faults.add(*settings["fault"])
    assert {*named.split(", ")} <= rules(sandbox, **run)


@pytest.mark.parametrize("lost", ["body", "trace header", "attributes"])
def test_a_copy_without_a_part_of_its_original_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    def without(*given: Any) -> dict[str, Any]:
        made = ENTRY(*given)
        match lost:
            case "body":
                made["MessageBody"] = "another"
            case "trace header":
                made.pop("MessageSystemAttributes")
            case "attributes":
                made["MessageAttributes"].pop("kind")
        return made

    monkeypatch.setattr(sending, "_entry", without)
    monkeypatch.setattr(sending, "doubt", NOTHING)
    work(sandbox, rejects)
    sandbox.client().send_message(
        QueueUrl=sandbox.sqs.url("orders"),
        MessageBody="a",
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "order"}},
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}},
    )
    # A copy with another body has no original: its record belongs to another body.
    assert (LOST if lost == "body" else "copies match their originals") in rules(sandbox)


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
    monkeypatch.setattr(copies, "dead_letter_record", lambda *given, **more: {**RECORD(*given, **more), **wrong})
    work(sandbox, rejects, "a")
    assert rules(sandbox) & {WHY, "copies match their originals", LOST}


@pytest.mark.parametrize("forgets", [False, True])
def test_a_dead_letter_without_the_attempts_before_its_redrives_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """They are in the record of the last dead letter, also behind copies; each time, three attempts are added."""
    if forgets:
        monkeypatch.setattr(records, "_attempts_before", lambda delivery: 0)
    work(sandbox, failing(on_failure=[SendAgain("again", times=2), DeadLetter()]), "a")
    for total in (3, 6, 9):
        found = rules(sandbox)
        failure = sandbox.messages("orders-dlq")[0].failure
        assert failure is not None
        assert failure.attempts == (3 if forgets else total)
        assert found == ({WHY} if forgets and total > 3 else set())
        sandbox.redrive("orders-dlq", to="orders")


@pytest.mark.parametrize("operation", ["get_queue_attributes", "change_message_visibility_batch"])
def test_unneeded_requests_for_a_clean_batch_are_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    init = Invocation.__init__

    def asks_first(self: Invocation, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        parameters: dict[str, Any] = {"QueueUrl": sandbox.sqs.url("orders")}
        if operation == "change_message_visibility_batch":
            parameters["Entries"] = [{"Id": "0", "ReceiptHandle": "none", "VisibilityTimeout": 5}]
        getattr(sandbox.client(), operation)(**parameters)

    monkeypatch.setattr(Invocation, "__init__", asks_first)
    work(sandbox, succeeds, "a")
    assert BUDGET in rules(sandbox)


# edited histories: mistakes that only SQS, Lambda or the mapping can make


def again(event: HistoryEvent, at: float) -> HistoryEvent:
    return changed(event, at=at, fields={**event.fields, "receive_count": 2})


def test_a_message_that_is_not_deleted_or_received_again_is_reported(sandbox: Sandbox) -> None:
    events = events_of(sandbox, succeeds, "a")
    assert "every message settles" in broken(events, "deleted", leave_out)
    received = first(events, "received")
    afterwards = [*events, again(received, events[-1].at + 60)]
    assert "finished messages do not run again" in broken(afterwards)
    place = events.index(first(events, "answered"))
    meanwhile = [*events[:place], again(received, received.at + 1), *events[place:]]
    assert DUPLICATES in broken(meanwhile)


def test_a_run_outside_the_batch_of_its_invocation_is_reported(sandbox: Sandbox) -> None:
    events = events_of(sandbox, succeeds, "a", "b", batch_size=1)
    assert "copies match their originals" in broken(events, "invoked", having(delivery_ids=[]))


def test_concurrent_runs_in_a_group_are_reported(sandbox: Sandbox) -> None:
    events = events_of(sandbox, succeeds, "a", "b", queue=FIFO)
    later = [changed(event, at=event.at + 5) if event.what == "run_ended" else event for event in events]
    assert "groups keep their order" in broken(sorted(later, key=lambda event: event.at))


# correct runs

ONCE = ("partial_failure", "crash_before", "crash_after")


@pytest.mark.parametrize("kind", ["lost_answer", "hang", "throttle", "unavailable", "unreachable", *ONCE])
@pytest.mark.parametrize("operation", ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
def test_a_failed_request_or_a_crash_breaks_no_rule(sandbox: Sandbox, kind: str, operation: str) -> None:
    work(sandbox, failing(max_attempts=2), "a", "b")
    sandbox.faults.add(kind, operation=operation, times=1 if kind in ONCE else 2)
    assert rules(sandbox) == set()


@pytest.mark.parametrize("queue", ["orders", FIFO])
def test_an_abandoned_handler_breaks_no_rule(sandbox: Sandbox, queue: str) -> None:
    """On FIFO its process exits, after dead-lettering the message at its last attempt (SPEC I3)."""

    @consumer(concurrency=2, timeout=1, max_attempts=2, backoff=Fixed(5))
    def handler(message: Message) -> None:
        sandbox.sleep(40)

    work(sandbox, handler, "a", "b", queue=queue, visibility_timeout=180)
    assert rules(sandbox) == set()


def test_a_copy_that_sqs_moves_and_redrives_keeps_its_attempts(sandbox: Sandbox) -> None:
    """The copy was not due at its last delivery, so SQS moved it; after the redrive it continues its count."""
    handler = failing(on_failure=[SendAgain("again", times=2, delay=3_000)])
    work(sandbox, handler, "a", max_receive_count=1)
    sandbox.run(check=False)
    sandbox.redrive("orders-dlq", to="orders")
    assert COUNTED not in rules(sandbox)


@dataclass(frozen=True)
class Stubborn:
    """A user's failure step that returns the same outcome for every failure, at most three times."""

    outcome: Outcome

    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        is_over = failure.tries > 2 or failure.message.receive_count + int(failure.note("hops")) > 2
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

    work(sandbox, handler, "a", queue=FIFO, retention=60)
    sandbox.advance(20)
    sandbox.send(FIFO, "b", group_id="g")
    sandbox.faults.add("slow", times=None, seconds=15)
    assert rules(sandbox) == set()


def test_a_rejected_message_whose_step_asks_for_a_wait_beyond_the_retention_breaks_no_rule(sandbox: Sandbox) -> None:
    """On FIFO it is dead-lettered as expiring (SPEC C10), although its handler rejected it."""
    handler = rejects.replace(on_failure=[lambda failure, next_step: Outcome.retry(40_000), DeadLetter()])
    work(sandbox, handler, "a", queue=FIFO, retention=3_600)
    assert rules(sandbox) == set()
    failure = sandbox.messages("orders-dlq.fifo")[0].failure
    assert failure is not None
    assert failure.reason == "expiring"


def test_a_last_attempt_that_there_was_no_time_to_settle_breaks_no_rule(sandbox: Sandbox) -> None:
    """Its receipt handle was tested before the send (SPEC E6), which got no answer in time."""

    @consumer(max_attempts=1)
    async def handler(message: Message) -> None:
        await asyncio.sleep(60)

    sandbox.faults.add("hang", operation="SendMessageBatch", seconds=6)
    events = events_of(sandbox, handler, "a", queue=FIFO, visibility_timeout=40, timeout=30)

    def not_logged(event: HistoryEvent) -> HistoryEvent | None:
        return None if event.fields["event"] == "out_of_time" else event

    assert broken(events) == set()
    assert POLICY in broken(events, "problem", not_logged)
    assert POLICY in broken(events, "invoked", having(deadline=lambda event: event.fields["deadline"] + 60))
