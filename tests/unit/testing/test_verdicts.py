"""The verdicts that the sandbox takes from the return value of a handler (SPEC A4)."""

from typing import Any

import pytest

from tarry import Batch, Consumer, Fixed, Message, Reject, Retry, batch_consumer, consumer
from tarry.testing import Sandbox
from tests import hostile
from tests.sandboxes import work


@pytest.mark.parametrize(
    ("answer", "verdicts"),
    [
        (lambda ids: None, ["ack", "ack"]),
        (lambda ids: "whatever", ["ack", "ack"]),
        (lambda ids: {"batchItemFailures": []}, ["ack", "ack"]),
        (lambda ids: {"batchItemFailures": [{"itemIdentifier": ids[1]}]}, ["ack", "fail"]),
        (lambda ids: {"batchItemFailures": [{"itemIdentifier": "unknown"}]}, ["fail", "fail"]),
        (lambda ids: {"batchItemFailures": [{}]}, ["fail", "fail"]),
        (lambda ids: Retry(5), ["retry", "retry"]),
        (lambda ids: ValueError("no"), ["fail", "fail"]),
    ],
)
def test_a_return_value_gives_a_verdict_on_each_message(sandbox: Sandbox, answer: Any, verdicts: list[str]) -> None:
    @batch_consumer(max_attempts=1)
    def handler(batch: Batch) -> Any:
        return answer([message.delivery_id for message in batch])

    work(sandbox, handler, *"01")
    run = sandbox.run(check=False).history.runs[0]
    assert [run.verdict(each) for each in run.messages] == verdicts


def retries_once(message: Message) -> Retry | None:
    return Retry(30) if message.attempt == 1 else None


def names_the_first(batch: Batch) -> Any:
    failed = [message for message in batch if message.attempt == 1][:1]
    return {"batchItemFailures": [{"itemIdentifier": message.delivery_id} for message in failed]}


def acks_the_first(batch: Batch) -> None:
    batch[0].ack()


def raises(message: Message) -> None:
    if message.attempt == 1:
        raise hostile.HostileError


async def rejects_later(message: Message) -> Reject:
    return Reject("declined")


HANDLERS: dict[str, tuple[Consumer[Any], int]] = {
    "rejects": (consumer(lambda message: Reject("declined")), 1),
    "rejects later": (consumer(rejects_later), 1),
    "retries once": (consumer(retries_once), 0),
    "names the first": (batch_consumer(backoff=Fixed(60))(names_the_first), 0),
    "acks the first": (batch_consumer(unsaid="fail", backoff=Fixed(60))(acks_the_first), 0),
    "raises": (consumer(backoff=Fixed(60))(raises), 0),
}


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("name", HANDLERS)
def test_returned_verdicts_break_no_rule(sandbox: Sandbox, name: str, queue: str) -> None:  # SPEC A4, B8, N4
    handler, dead_per_message = HANDLERS[name]
    work(sandbox, handler, *"012", queue=queue, groups="aba", max_receive_count=15, batch_size=3)
    sandbox.run()
    assert len(sandbox.messages(queue.replace("orders", "orders-dlq"))) == 3 * dead_per_message
