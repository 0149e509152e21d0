"""Dead letters run through their handlers in this process."""

import json
import logging
from typing import Any

import pytest

from tarry import DeadLetter, Discard, DropMessage, Fixed, Message, Queue, Reject, Retry, SendAgain, consumer, failed
from tarry.failed import Result, Routes
from tarry.testing import Sandbox
from tests.integration.failed.sandboxed import dlq_of, held, outcomes, retry, there
from tests.integration.failed.sandboxed import put as put_one
from tests.unit.failed.dead_letters import envelope_of


class CardExpired(Exception): ...


def put(sandbox: Sandbox, count: int = 1, queue: str = "orders", **more: Any) -> None:
    """Put dead letters of a queue into its dead-letter queue."""
    sandbox.queue(queue, dead_letter=dlq_of(queue))
    for index in range(count):
        body = json.dumps({"id": index})
        group = {"MessageGroupId": "a", "MessageDeduplicationId": str(index)} if ".fifo" in queue else {}
        put_one(sandbox, body, envelope_of(body, f"id-{index}", origin=queue, **more), dlq_of(queue), **group)


def raising(error: BaseException, **settings: Any) -> Any:
    """Return a consumer whose handler raises this."""

    @consumer(**settings)
    def handler(message: Message) -> None:
        raise error

    return handler


def run(handler: Any, *ids: str, dlq: str = "orders-dlq", to: str | None = None) -> list[Result]:
    with failed.opened(dlq) as inspection:
        selection = failed.select(ids, everything=not ids)
        return list(failed.run(inspection, selection, Routes(inspection.queue, to), lambda _: handler))


def attempts(sandbox: Sandbox, dlq: str = "orders-dlq") -> list[int | None]:
    """Return the attempts of the dead letters, all of which must be visible."""
    assert held(sandbox, dlq) == 0
    return [each.failure and each.failure.attempts for each in sandbox.messages(dlq)]


def test_a_message_that_succeeds_is_deleted(sandbox: Sandbox) -> None:  # SPEC M3
    """Its handler sees the failure, and can send messages; while it runs, its dead letter stays in flight."""
    put(sandbox, 3)
    sandbox.queue("next")
    seen: list[Message] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(message)
        sandbox.sleep(300)
        assert held(sandbox) >= 1
        Queue("next").send(message.body)

    assert [result.outcome for result in run(handler)] == ["retried"] * 3
    assert (sandbox.messages("orders-dlq"), len(sandbox.messages("next"))) == ([], 3)
    first = seen[0]
    assert (first.id, first.queue, first.attempt, first.json()) == ("id-0", "orders", 1, {"id": 0})
    assert first.failure is not None
    assert first.failure.attempts == 5


def test_a_message_that_fails_stays_with_its_new_error_and_one_more_attempt(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC M3
    """No settlement is logged."""
    put(sandbox, history=[{"attempt": 5, "error": "app.CardDeclined: no"}])
    error = f"{__name__}.CardExpired: still not"
    with caplog.at_level(logging.WARNING, "tarry"):
        [result] = run(raising(CardExpired("still not"), keepalive=5, ack="eager"))
    assert (result.id, result.outcome, result.error, caplog.records) == ("id-0", "failed", error, [])
    [dead_letter] = sandbox.messages("orders-dlq")
    failure = dead_letter.failure
    assert failure is not None
    assert (dead_letter.id, dead_letter.body, dead_letter.invisible_seconds) == ("id-0", '{"id": 0}', 0)
    assert (failure.attempts, failure.reason, failure.message) == (6, "exhausted", "still not")
    assert "raise error" in str(failure.traceback)
    assert [entry["error"] for entry in failure.history] == ["app.CardDeclined: no", error]


@pytest.mark.parametrize(
    ("error", "outcome", "left"),
    [
        (Discard("not needed"), "retried", []),  # SPEC B2
        (Retry(60), "failed", [6]),
        (Retry(), "failed", [6]),
        (Reject("no"), "failed", [6]),
        (SystemExit(3), "failed", [6]),  # SPEC A5
        (KeyboardInterrupt(), "failed", [5]),  # SPEC M5
    ],
    ids=repr,
)
def test_what_a_handler_raises_decides(
    sandbox: Sandbox, error: BaseException, outcome: str, left: list[int]
) -> None:  # SPEC M3
    put(sandbox)
    [result] = run(raising(error))
    assert (result.outcome, attempts(sandbox)) == (outcome, left)
    assert (result.error == "interrupted; the dead letter is unchanged") == (left == [5])


def test_a_dead_letter_that_fails_is_not_run_again_in_the_inspection(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox, 12)
    assert sorted(result.id for result in run(raising(SystemExit()))) == sorted(f"id-{index}" for index in range(12))
    assert attempts(sandbox) == [6] * 12


@pytest.mark.parametrize(
    "steps",
    [[SendAgain("slow", times=3, queue="orders")], [DropMessage()], [DeadLetter(queue="elsewhere")]],
    ids=["send again", "drop", "another dead-letter queue"],
)
def test_failure_steps_do_not_run_and_the_origin_stays(sandbox: Sandbox, steps: list[Any]) -> None:  # SPEC M3, A9
    """Also if the consumer is in another decorator, and if the dead letter is run for another queue."""
    put(sandbox)
    sandbox.queue("tryout")
    inner = raising(CardExpired("below"), on_failure=steps)

    def decorated(event: Any, context: Any) -> Any:
        return inner(event, context)

    [result] = run(decorated, to="tryout")
    assert (result.outcome, result.error) == ("failed", f"{__name__}.CardExpired: below")
    assert (there(sandbox), sandbox.messages("orders")) == (["id-0"], [])
    assert outcomes(retry()) == {"retried": 1}
    assert there(sandbox, "orders") == ["id-0"]


def test_a_deferred_message_goes_back_to_its_queue(sandbox: Sandbox) -> None:  # SPEC J5
    """The consumer sends a copy there, as usual, and the dead letter is deleted."""
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        message.defer(60)

    assert outcomes(run(handler)) == {"retried": 1}
    assert (there(sandbox), there(sandbox, "orders")) == ([], ["id-0"])


def test_on_fifo_a_message_that_fails_or_is_deferred_stays_in_the_dead_letter_queue(
    sandbox: Sandbox,
) -> None:  # SPEC J5, M3
    put(sandbox, 3, queue="orders.fifo")

    @consumer(backoff=Fixed(5))
    def handler(message: Message) -> None:
        if message.json()["id"] == 0:
            message.defer(60)
        if message.json()["id"] == 2:
            raise CardExpired

    results = run(handler, dlq="orders-dlq.fifo")
    assert [result.outcome for result in results] == ["skipped", "retried", "failed"]
    left = {each.id: each.failure and each.failure.attempts for each in sandbox.messages("orders-dlq.fifo")}
    assert left == {"id-0": 5, "id-2": 6}


def test_redaction_applies_to_the_new_failure(sandbox: Sandbox) -> None:  # SPEC F3
    put(sandbox)

    def redact(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "failure": {**record["failure"], "message": "***"}}

    run(raising(CardExpired("card 4711"), on_failure=[DeadLetter(redact=redact, include_traceback=False)]))
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

    assert [(result.id, result.outcome, result.error) for result in run(handler)] == [
        ("id-0", "failed", f"{__name__}.CardExpired: plainly"),
        ("id-1", "failed", "its handler asked for a retry"),
        ("id-2", "retried", None),
    ]
    assert attempts(sandbox) == [6, 6]


def test_undecodable_dead_letters_are_run_only_after_an_edit(sandbox: Sandbox) -> None:  # SPEC M4
    put(sandbox, reason="undecodable")
    runs: list[Any] = []
    handler = consumer(lambda message: runs.append(message.json()))
    assert (outcomes(run(handler)), outcomes(run(handler, "id-0"))) == ({"skipped": 1}, {"failed": 1})
    with failed.opened("orders-dlq") as inspection:
        [dead_letter] = failed.show(inspection, failed.select()).dead_letters
        edited = failed.edit(dead_letter, '{"id": 7}', sandbox.now)
        result = failed.run_dead_letter(inspection, edited, Routes(inspection.queue), lambda queue: handler)
    assert (result.outcome, runs) == ("retried", [{"id": 7}])


# errors


@pytest.mark.parametrize("fault", ["lost_answer", "garbled", "denied", "unreachable"])
def test_if_the_new_failure_cannot_be_recorded_the_dead_letter_is_unchanged(
    sandbox: Sandbox, fault: str
) -> None:  # SPEC M3
    put(sandbox)
    sandbox.faults.add(fault, operation="SendMessageBatch", times=2)
    [result] = run(raising(CardExpired()))
    outcome, why = ("unconfirmed", "may be there as well")
    if fault == "denied":
        outcome, why = ("failed", "this failure could not be recorded")
    assert (result.outcome, why in str(result.error)) == (outcome, True)
    assert {*there(sandbox)} == {"id-0"}
    assert 5 in attempts(sandbox)


def test_a_delete_that_fails_after_a_success_is_reported(sandbox: Sandbox) -> None:  # SPEC M3
    put(sandbox)

    @consumer
    def handler(message: Message) -> None:
        sandbox.faults.add("unreachable", operation="DeleteMessageBatch", times=2)

    [result] = run(handler)
    assert (result.outcome, there(sandbox)) == ("unconfirmed", ["id-0"])
    assert "its handler succeeded, but it may still be there" in str(result.error)
