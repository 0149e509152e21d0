"""Letters run through their handler in this process."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tarry import DeadLetter, Discard, DropMessage, Fixed, Message, Queue, Reject, Retry, SendAgain, consumer, failed
from tarry.failed import Result, Routes
from tarry.testing import Sandbox
from tests.unit.failed.letters import record_of

Handler = Callable[[Any, Any], Any]


class Declined(Exception): ...


def put(sandbox: Sandbox, count: int = 1, queue: str = "orders", **more: Any) -> None:
    """Letters of a queue."""
    fifo = ".fifo" if queue.endswith(".fifo") else ""
    dlq = f"orders-dlq{fifo}"
    sandbox.queue(queue, dead_letter=dlq)
    for index in range(count):
        body = json.dumps({"id": index})
        record = json.dumps(record_of(body, f"id-{index}", origin=queue, **more))
        group = {"MessageGroupId": "a", "MessageDeduplicationId": str(index)} if fifo else {}
        told = {"Tarry": {"DataType": "String", "StringValue": record}}
        sandbox.sqs.call(
            "SendMessage", {"QueueUrl": sandbox.sqs.url(dlq), "MessageBody": body, "MessageAttributes": told, **group}
        )


def run(handler: Handler, *ids: str, dlq: str = "orders-dlq") -> list[Result]:
    with failed.opened(dlq) as look:
        selection = failed.select(ids, everything=not ids)
        return list(failed.run(look, selection, Routes(look.queue), lambda queue: handler))


def told(results: list[Result]) -> list[tuple[str, str, str | None]]:
    return [(result.id, result.outcome, result.error) for result in results]


def test_what_succeeds_is_deleted(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, 3)
    seen: list[Message] = []
    assert [result.outcome for result in run(consumer(seen.append))] == ["retried"] * 3
    assert sandbox.messages("orders-dlq") == []
    first = seen[0]
    assert (first.id, first.queue, first.attempt, first.json()) == ("id-0", "orders", 1, {"id": 0})
    assert first.failure is not None
    assert first.failure.attempts == 5


def test_what_is_discarded_is_deleted(sandbox: Sandbox) -> None:  # SPEC B2
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        raise Discard("not needed")

    assert told(run(handler)) == [("id-0", "retried", None)]
    assert sandbox.messages("orders-dlq") == []


def test_what_fails_is_dead_with_its_new_error_and_one_attempt_more(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, history=[{"attempt": 5, "error": "app.CardDeclined: no"}])

    @consumer
    def handler(message: Message) -> None:
        raise Declined("still not")

    assert told(run(handler)) == [("id-0", "failed", f"{__name__}.Declined: still not")]
    [letter] = sandbox.messages("orders-dlq")
    failure = letter.failure
    assert failure is not None
    assert (letter.id, letter.body, letter.hidden_seconds) == ("id-0", '{"id": 0}', 0)
    assert (failure.attempts, failure.reason, failure.message) == (6, "exhausted", "still not")
    assert "raise Declined" in str(failure.traceback)
    assert [entry["error"] for entry in failure.history] == ["app.CardDeclined: no", f"{__name__}.Declined: still not"]


def test_a_letter_that_was_run_for_another_queue_still_belongs_to_its_own(sandbox: Sandbox) -> None:  # SPEC M3
    """A later retry goes back to where it came from."""
    put(sandbox)
    sandbox.queue("tryout")

    @consumer
    def handler(message: Message) -> None:
        raise Declined(f"in {message.queue}")

    with failed.opened("orders-dlq") as look:
        [result] = failed.run(look, failed.select(everything=True), Routes(look.queue, "tryout"), lambda _: handler)
    assert result.error == f"{__name__}.Declined: in tryout"
    with failed.opened("orders-dlq") as look:
        assert [each.outcome for each in failed.retry(look, failed.select(everything=True), Routes(look.queue))] == [
            "retried"
        ]
    assert [message.body for message in sandbox.messages("orders")] == ['{"id": 0}']


def test_a_letter_is_run_once_in_a_run_though_it_is_written_anew(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, 12)
    runs: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(message.id)
        raise Declined

    assert len(run(handler)) == 12
    assert sorted(runs) == sorted({*runs})
    assert len(sandbox.messages("orders-dlq")) == 12


@pytest.mark.parametrize(
    "steps",
    [[SendAgain("slow", times=3, queue="orders")], [DropMessage()], [DeadLetter(queue="elsewhere")]],
    ids=["send again", "drop", "another dead-letter queue"],
)
def test_the_failure_steps_of_its_consumer_do_nothing(sandbox: Sandbox, steps: list[Any]) -> None:  # SPEC M3
    """They are for what comes from its queue. Here a failure leaves it dead, and where it is."""
    put(sandbox)

    @consumer(on_failure=steps)
    def handler(message: Message) -> None:
        raise Declined

    assert [result.outcome for result in run(handler)] == ["failed"]
    assert (len(sandbox.messages("orders-dlq")), sandbox.messages("orders")) == (1, [])


@pytest.mark.parametrize("word", [Retry(60), Retry(), Reject("no")])
def test_a_retry_or_a_rejection_is_a_failure_too(sandbox: Sandbox, word: Exception) -> None:  # SPEC M3
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        raise word

    assert [result.outcome for result in run(handler)] == ["failed"]
    [letter] = sandbox.messages("orders-dlq")
    assert letter.failure is not None
    assert letter.failure.attempts == 6


def test_what_is_deferred_waits_in_its_queue(sandbox: Sandbox) -> None:  # SPEC J5
    """The consumer sends it there, as it always does; it is no dead letter any more."""
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        message.defer(60)

    assert [result.outcome for result in run(handler)] == ["retried"]
    assert sandbox.messages("orders-dlq") == []
    [copy] = sandbox.messages("orders")
    assert copy.id == "id-0"


def test_on_fifo_what_is_deferred_is_left_as_it_was(sandbox: Sandbox) -> None:  # SPEC J5
    put(sandbox, queue="orders.fifo")

    @consumer
    def handler(message: Message) -> None:
        message.defer(60)

    assert [result.outcome for result in run(handler, dlq="orders-dlq.fifo")] == ["skipped"]
    [letter] = sandbox.messages("orders-dlq.fifo")
    assert letter.failure is not None
    assert letter.failure.attempts == 5


def test_on_fifo_a_failure_leaves_it_dead(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, 3, queue="orders.fifo")

    @consumer(backoff=Fixed(5))
    def handler(message: Message) -> None:
        if message.json()["id"] != 1:
            raise Declined

    results = run(handler, dlq="orders-dlq.fifo")
    assert [result.outcome for result in results] == ["failed", "retried", "failed"]
    assert sorted(letter.id for letter in sandbox.messages("orders-dlq.fifo")) == ["id-0", "id-2"]


def test_private_texts_stay_private(sandbox: Sandbox) -> None:  # SPEC F3
    put(sandbox)

    def redact(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "failure": {**record["failure"], "message": "***"}}

    @consumer(on_failure=[DeadLetter(redact=redact, include_traceback=False)])
    def handler(message: Message) -> None:
        raise Declined("card 4711")

    run(handler)
    [letter] = sandbox.messages("orders-dlq")
    assert letter.failure is not None
    assert (letter.failure.message, letter.failure.traceback) == ("***", None)


def test_a_handler_that_is_none_of_tarrys_runs_too(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, 3)

    def handler(event: Any, context: Any) -> Any:
        match json.loads(event["Records"][0]["body"])["id"]:
            case 0:
                raise Declined("plainly")
            case 1:
                return {"batchItemFailures": [{"itemIdentifier": event["Records"][0]["messageId"]}]}
        return {"batchItemFailures": []}

    assert told(run(handler)) == [
        ("id-0", "failed", f"{__name__}.Declined: plainly"),
        ("id-1", "failed", "its handler wants it to be retried"),
        ("id-2", "retried", None),
    ]
    assert [letter.failure and letter.failure.attempts for letter in sandbox.messages("orders-dlq")] == [6, 6]


def test_a_consumer_below_a_decorator_is_found(sandbox: Sandbox) -> None:  # SPEC A9
    put(sandbox)

    @consumer(on_failure=[DropMessage()])
    def inner(message: Message) -> None:
        raise Declined("below")

    def decorated(event: Any, context: Any) -> Any:
        return inner(event, context)

    assert told(run(decorated)) == [("id-0", "failed", f"{__name__}.Declined: below")]
    assert len(sandbox.messages("orders-dlq")) == 1


def test_a_handler_that_ends_its_process_ends_only_its_letter(sandbox: Sandbox) -> None:  # SPEC A5
    put(sandbox, 2)

    @consumer
    def handler(message: Message) -> None:
        raise SystemExit(3)

    assert [result.outcome for result in run(handler)] == ["failed", "failed"]
    assert len(sandbox.messages("orders-dlq")) == 2


def test_ctrl_c_within_a_handler_leaves_its_letter_as_it_was(sandbox: Sandbox) -> None:  # SPEC M5
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        raise KeyboardInterrupt

    assert told(run(handler)) == [("id-0", "failed", "interrupted: it is left as it was")]
    [letter] = sandbox.messages("orders-dlq")
    assert letter.failure is not None
    assert (letter.failure.attempts, letter.hidden_seconds) == (5, 0)


def test_while_a_handler_runs_its_letter_is_held(sandbox: Sandbox) -> None:  # SPEC M5
    put(sandbox)
    held: list[float] = []

    @consumer
    def handler(message: Message) -> None:
        sandbox.sleep(300)
        held.append(sandbox.messages("orders-dlq")[0].hidden_seconds)

    assert [result.outcome for result in run(handler)] == ["retried"]
    assert held[0] > 0


def test_a_handler_sends_as_it_does_in_its_function(sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.queue("next")

    @consumer
    def handler(message: Message) -> None:
        Queue("next").send(message.body)

    run(handler)
    assert len(sandbox.messages("next")) == 1


def test_nothing_is_logged_of_a_settlement_that_is_none(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    put(sandbox)

    @consumer(keepalive=5, ack="eager")
    def handler(message: Message) -> None:
        raise Declined

    with caplog.at_level(logging.WARNING, "tarry"):
        run(handler)
    assert caplog.records == []


def test_undecodable_ones_are_not_run_unless_edited(sandbox: Sandbox) -> None:  # SPEC M4
    put(sandbox, reason="undecodable")
    runs: list[Any] = []
    handler = consumer(lambda message: runs.append(message.json()))
    assert [result.outcome for result in run(handler)] == ["skipped"]
    assert [result.outcome for result in run(handler, "id-0")] == ["failed"]
    with failed.opened("orders-dlq") as look:
        [letter] = failed.show(look, failed.select()).dead_letters
        edited = failed.edit(letter, '{"id": 7}', sandbox.now)
        assert failed.run_dead_letter(look, edited, Routes(look.queue), lambda queue: handler).outcome == "retried"
    assert runs == [{"id": 7}]


# what goes wrong


@pytest.mark.parametrize("fault", ["lost_answer", "garbled", "denied", "unreachable"])
def test_if_its_new_error_cannot_be_written_it_is_as_it_was(sandbox: Sandbox, fault: str) -> None:  # SPEC M3
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        raise Declined

    sandbox.faults.add(fault, operation="SendMessageBatch", times=2)
    [result] = run(handler)
    assert (result.outcome, "could not be written into its record" in str(result.error)) == ("failed", True)
    letters = sandbox.messages("orders-dlq")
    assert {letter.id for letter in letters} == {"id-0"}
    assert any(letter.failure is not None and letter.failure.attempts == 5 for letter in letters)


def test_if_it_cannot_be_deleted_though_its_handler_is_done_that_is_said(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        sandbox.faults.add("unreachable", operation="DeleteMessageBatch", times=2)

    [result] = run(handler)
    assert (result.outcome, "its handler is done with it" in str(result.error)) == ("failed", True)
    assert len(sandbox.messages("orders-dlq")) == 1
