"""Dead letters run through their handlers in this process."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tarry import DeadLetter, Discard, DropMessage, Fixed, Message, Queue, Reject, Retry, SendAgain, consumer, failed
from tarry.failed import Result, Routes
from tarry.testing import Sandbox
from tests.unit.failed.dead_letters import envelope_of

Handler = Callable[[Any, Any], Any]


class CardExpired(Exception): ...


def put(sandbox: Sandbox, count: int = 1, queue: str = "orders", **more: Any) -> None:
    """Put dead letters of a queue into its dead-letter queue."""
    fifo = ".fifo" if queue.endswith(".fifo") else ""
    dlq = f"orders-dlq{fifo}"
    sandbox.queue(queue, dead_letter=dlq)
    for index in range(count):
        body = json.dumps({"id": index})
        envelope = json.dumps(envelope_of(body, f"id-{index}", origin=queue, **more))
        group = {"MessageGroupId": "a", "MessageDeduplicationId": str(index)} if fifo else {}
        attributes = {"Tarry": {"DataType": "String", "StringValue": envelope}}
        sandbox.sqs.call(
            "SendMessage",
            {"QueueUrl": sandbox.sqs.url(dlq), "MessageBody": body, "MessageAttributes": attributes, **group},
        )


def run(handler: Handler, *ids: str, dlq: str = "orders-dlq") -> list[Result]:
    with failed.opened(dlq) as inspection:
        selection = failed.select(ids, everything=not ids)
        return list(failed.run(inspection, selection, Routes(inspection.queue), lambda queue: handler))


def summary(results: list[Result]) -> list[tuple[str, str, str | None]]:
    return [(result.id, result.outcome, result.error) for result in results]


def test_a_message_that_succeeds_is_deleted(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, 3)
    seen: list[Message] = []
    assert [result.outcome for result in run(consumer(seen.append))] == ["retried"] * 3
    assert sandbox.messages("orders-dlq") == []
    first = seen[0]
    assert (first.id, first.queue, first.attempt, first.json()) == ("id-0", "orders", 1, {"id": 0})
    assert first.failure is not None
    assert first.failure.attempts == 5


def test_a_discarded_message_is_deleted(sandbox: Sandbox) -> None:  # SPEC B2
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        raise Discard("not needed")

    assert summary(run(handler)) == [("id-0", "retried", None)]
    assert sandbox.messages("orders-dlq") == []


def test_a_message_that_fails_stays_with_its_new_error_and_one_more_attempt(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, history=[{"attempt": 5, "error": "app.CardDeclined: no"}])

    @consumer
    def handler(message: Message) -> None:
        raise CardExpired("still not")

    assert summary(run(handler)) == [("id-0", "failed", f"{__name__}.CardExpired: still not")]
    [dead_letter] = sandbox.messages("orders-dlq")
    failure = dead_letter.failure
    assert failure is not None
    assert (dead_letter.id, dead_letter.body, dead_letter.invisible_seconds) == ("id-0", '{"id": 0}', 0)
    assert (failure.attempts, failure.reason, failure.message) == (6, "exhausted", "still not")
    assert "raise CardExpired" in str(failure.traceback)
    assert [entry["error"] for entry in failure.history] == [
        "app.CardDeclined: no",
        f"{__name__}.CardExpired: still not",
    ]


def test_a_dead_letter_run_for_another_queue_keeps_its_origin(sandbox: Sandbox) -> None:  # SPEC M3
    """A later retry sends it to the queue it came from."""
    put(sandbox)
    sandbox.queue("tryout")

    @consumer
    def handler(message: Message) -> None:
        raise CardExpired(f"in {message.queue}")

    with failed.opened("orders-dlq") as inspection:
        [result] = failed.run(
            inspection, failed.select(everything=True), Routes(inspection.queue, "tryout"), lambda _: handler
        )
    assert result.error == f"{__name__}.CardExpired: in tryout"
    with failed.opened("orders-dlq") as inspection:
        assert [
            each.outcome for each in failed.retry(inspection, failed.select(everything=True), Routes(inspection.queue))
        ] == ["retried"]
    assert [message.body for message in sandbox.messages("orders")] == ['{"id": 0}']


def test_a_dead_letter_that_fails_is_not_run_again_in_the_inspection(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, 12)
    runs: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(message.id)
        raise CardExpired

    assert len(run(handler)) == 12
    assert sorted(runs) == sorted({*runs})
    assert len(sandbox.messages("orders-dlq")) == 12


@pytest.mark.parametrize(
    "steps",
    [[SendAgain("slow", times=3, queue="orders")], [DropMessage()], [DeadLetter(queue="elsewhere")]],
    ids=["send again", "drop", "another dead-letter queue"],
)
def test_failure_steps_do_not_run(sandbox: Sandbox, steps: list[Any]) -> None:  # SPEC M3
    """A failure leaves the message in its dead-letter queue, whatever the steps of its consumer."""
    put(sandbox)

    @consumer(on_failure=steps)
    def handler(message: Message) -> None:
        raise CardExpired

    assert [result.outcome for result in run(handler)] == ["failed"]
    assert (len(sandbox.messages("orders-dlq")), sandbox.messages("orders")) == (1, [])


@pytest.mark.parametrize("verdict", [Retry(60), Retry(), Reject("no")])
def test_a_retry_or_reject_is_a_failure(sandbox: Sandbox, verdict: Exception) -> None:  # SPEC M3
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        raise verdict

    assert [result.outcome for result in run(handler)] == ["failed"]
    [dead_letter] = sandbox.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert dead_letter.failure.attempts == 6


def test_a_deferred_message_goes_back_to_its_queue(sandbox: Sandbox) -> None:  # SPEC J5
    """The consumer sends a copy there, as usual, and the dead letter is deleted."""
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        message.defer(60)

    assert [result.outcome for result in run(handler)] == ["retried"]
    assert sandbox.messages("orders-dlq") == []
    [copy] = sandbox.messages("orders")
    assert copy.id == "id-0"


def test_on_fifo_a_deferred_dead_letter_is_unchanged(sandbox: Sandbox) -> None:  # SPEC J5
    put(sandbox, queue="orders.fifo")

    @consumer
    def handler(message: Message) -> None:
        message.defer(60)

    assert [result.outcome for result in run(handler, dlq="orders-dlq.fifo")] == ["skipped"]
    [dead_letter] = sandbox.messages("orders-dlq.fifo")
    assert dead_letter.failure is not None
    assert dead_letter.failure.attempts == 5


def test_on_fifo_a_message_that_fails_stays_in_the_dead_letter_queue(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, 3, queue="orders.fifo")

    @consumer(backoff=Fixed(5))
    def handler(message: Message) -> None:
        if message.json()["id"] != 1:
            raise CardExpired

    results = run(handler, dlq="orders-dlq.fifo")
    assert [result.outcome for result in results] == ["failed", "retried", "failed"]
    assert sorted(dead_letter.id for dead_letter in sandbox.messages("orders-dlq.fifo")) == ["id-0", "id-2"]


def test_redaction_applies_to_the_new_failure(sandbox: Sandbox) -> None:  # SPEC F3
    put(sandbox)

    def redact(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "failure": {**record["failure"], "message": "***"}}

    @consumer(on_failure=[DeadLetter(redact=redact, include_traceback=False)])
    def handler(message: Message) -> None:
        raise CardExpired("card 4711")

    run(handler)
    [dead_letter] = sandbox.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert (dead_letter.failure.message, dead_letter.failure.traceback) == ("***", None)


def test_a_handler_without_tarry_runs_too(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, 3)

    def handler(event: Any, context: Any) -> Any:
        match json.loads(event["Records"][0]["body"])["id"]:
            case 0:
                raise CardExpired("plainly")
            case 1:
                return {"batchItemFailures": [{"itemIdentifier": event["Records"][0]["messageId"]}]}
        return {"batchItemFailures": []}

    assert summary(run(handler)) == [
        ("id-0", "failed", f"{__name__}.CardExpired: plainly"),
        ("id-1", "failed", "its handler asked for a retry"),
        ("id-2", "retried", None),
    ]
    assert [dead_letter.failure and dead_letter.failure.attempts for dead_letter in sandbox.messages("orders-dlq")] == [
        6,
        6,
    ]


def test_a_decorated_consumer_is_found(sandbox: Sandbox) -> None:  # SPEC A9
    put(sandbox)

    @consumer(on_failure=[DropMessage()])
    def inner(message: Message) -> None:
        raise CardExpired("below")

    def decorated(event: Any, context: Any) -> Any:
        return inner(event, context)

    assert summary(run(decorated)) == [("id-0", "failed", f"{__name__}.CardExpired: below")]
    assert len(sandbox.messages("orders-dlq")) == 1


def test_a_handler_that_exits_fails_only_its_message(sandbox: Sandbox) -> None:  # SPEC A5
    put(sandbox, 2)

    @consumer
    def handler(message: Message) -> None:
        raise SystemExit(3)

    assert [result.outcome for result in run(handler)] == ["failed", "failed"]
    assert len(sandbox.messages("orders-dlq")) == 2


def test_ctrl_c_in_a_handler_leaves_the_dead_letter_unchanged(sandbox: Sandbox) -> None:  # SPEC M5
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        raise KeyboardInterrupt

    assert summary(run(handler)) == [("id-0", "failed", "interrupted; the dead letter is unchanged")]
    [dead_letter] = sandbox.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert (dead_letter.failure.attempts, dead_letter.invisible_seconds) == (5, 0)


def test_while_a_handler_runs_its_dead_letter_stays_in_flight(sandbox: Sandbox) -> None:  # SPEC M5
    put(sandbox)
    remaining: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        sandbox.sleep(300)
        remaining.append(sandbox.messages("orders-dlq")[0].invisible_seconds)

    assert [result.outcome for result in run(handler)] == ["retried"]
    assert remaining[0] > 0


def test_a_handler_can_send_messages(sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.queue("next")

    @consumer
    def handler(message: Message) -> None:
        Queue("next").send(message.body)

    run(handler)
    assert len(sandbox.messages("next")) == 1


def test_no_settlement_is_logged(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    put(sandbox)

    @consumer(keepalive=5, ack="eager")
    def handler(message: Message) -> None:
        raise CardExpired

    with caplog.at_level(logging.WARNING, "tarry"):
        run(handler)
    assert caplog.records == []


def test_undecodable_dead_letters_are_run_only_after_an_edit(sandbox: Sandbox) -> None:  # SPEC M4
    put(sandbox, reason="undecodable")
    runs: list[Any] = []
    handler = consumer(lambda message: runs.append(message.json()))
    assert [result.outcome for result in run(handler)] == ["skipped"]
    assert [result.outcome for result in run(handler, "id-0")] == ["failed"]
    with failed.opened("orders-dlq") as inspection:
        [dead_letter] = failed.show(inspection, failed.select()).dead_letters
        edited = failed.edit(dead_letter, '{"id": 7}', sandbox.now)
        assert (
            failed.run_dead_letter(inspection, edited, Routes(inspection.queue), lambda queue: handler).outcome
            == "retried"
        )
    assert runs == [{"id": 7}]


# errors


@pytest.mark.parametrize("fault", ["lost_answer", "garbled", "denied", "unreachable"])
def test_if_the_new_failure_cannot_be_recorded_the_dead_letter_is_unchanged(
    sandbox: Sandbox, fault: str
) -> None:  # SPEC M3
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        raise CardExpired

    sandbox.faults.add(fault, operation="SendMessageBatch", times=2)
    [result] = run(handler)
    if fault == "denied":
        assert (result.outcome, "this failure could not be recorded" in str(result.error)) == ("failed", True)
    else:
        assert (result.outcome, "may be there as well" in str(result.error)) == ("unconfirmed", True)
    left = sandbox.messages("orders-dlq")
    assert {dead_letter.id for dead_letter in left} == {"id-0"}
    assert any(dead_letter.failure is not None and dead_letter.failure.attempts == 5 for dead_letter in left)


def test_a_delete_that_fails_after_a_success_is_reported(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        sandbox.faults.add("unreachable", operation="DeleteMessageBatch", times=2)

    [result] = run(handler)
    assert result.outcome == "unconfirmed"
    assert "its handler succeeded, but it may still be there" in str(result.error)
    assert len(sandbox.messages("orders-dlq")) == 1
