"""The sandbox takes the return value of a handler as its verdict."""

from typing import Any

import pytest

from tarry import Batch, Consumer, Fixed, Message, Reject, Retry, batch_consumer, consumer
from tarry.testing import Sandbox
from tests import hostile


def rejects(message: Message) -> Reject:
    return Reject("declined")


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


HANDLERS: list[tuple[Consumer[Any], int]] = [
    (consumer(rejects), 1),
    (consumer(rejects_later), 1),
    (consumer(retries_once), 0),
    (batch_consumer(backoff=Fixed(60))(names_the_first), 0),
    (batch_consumer(unsaid="fail", backoff=Fixed(60))(acks_the_first), 0),
    (consumer(backoff=Fixed(60))(raises), 0),
]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize(("handler", "dead_per_message"), HANDLERS, ids=lambda value: getattr(value, "name", ""))
def test_returned_verdicts_break_no_rule(
    handler: Consumer[Any], dead_per_message: int, fifo: bool, sandbox: Sandbox
) -> None:  # SPEC A4, B8, N4
    end = ".fifo" if fifo else ""
    sandbox.queue(f"orders{end}", dead_letter=f"orders-dlq{end}", max_receive_count=15, fifo=fifo)
    sandbox.connect(handler, f"orders{end}", batch_size=3)
    for number in range(3):
        sandbox.send(f"orders{end}", {"id": number}, **({"group_id": f"g{number % 2}"} if fifo else {}))
    sandbox.run()
    assert len(sandbox.messages(f"orders-dlq{end}")) == 3 * dead_per_message
