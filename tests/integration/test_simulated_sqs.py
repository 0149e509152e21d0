"""Consumers on the simulated SQS with a clock that the test moves."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tarry import Consumer, Exponential, Fixed, Message, Queue, consumer
from tarry.failed.dead_letters import event_record
from tarry.tools.simulator.client import SimulatedClient
from tarry.tools.simulator.history import History
from tarry.tools.simulator.sqs import Sqs
from tarry.world import World, use
from tests.records import Context, event, failed
from tests.wire import TestClock


class SimulatedQueues:
    """Simulated queues, with the work of the event source mapping between a queue and a function."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.sqs = Sqs(self.clock.time, Random(1), History(self.clock.time))
        self.client: Any = SimulatedClient(self.sqs, self.clock)
        self.world = World(
            clock=self.clock, random=Random(2), client_factory=lambda: SimulatedClient(self.sqs, self.clock)
        )

    def queue(self, name: str) -> None:
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        dead = f"dead-{name}"
        self.client.create_queue(QueueName=dead, Attributes=fifo)
        policy = json.dumps({"deadLetterTargetArn": self.sqs.arn(dead), "maxReceiveCount": 15})
        self.client.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy, **fifo})

    def deliver(self, name: str, handler: Consumer[Any]) -> list[str]:
        """Deliver one batch, if there is one; return the ids that are reported as failed."""
        url = self.sqs.url(name)
        answer = self.client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
        )
        messages = answer.get("Messages", [])
        records = [event_record(message, self.sqs.arn(name), self.sqs.region) for message in messages]
        reported = failed(handler(event(*records), Context()))
        for message in messages:
            if message["MessageId"] not in reported:
                self.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return reported

    def run(self, name: str, handler: Consumer[Any]) -> float:
        """Deliver until the queue is empty; return the seconds it took."""
        began = self.clock.now
        while self.sqs.peek(name):
            self.deliver(name, handler)
            self.clock.now = self.sqs.next_visible_at(name) or self.clock.now
        return self.clock.now - began


@pytest.fixture
def cloud() -> Iterator[SimulatedQueues]:
    cloud = SimulatedQueues()
    for name in ("orders", "ledger.fifo"):
        cloud.queue(name)
    with use(cloud.world):
        yield cloud


def failing(*errors: Exception | None, **settings: Any) -> tuple[Consumer[Any], list[int]]:
    """Return a consumer whose runs fail with these errors in turn, and its list of attempts."""
    attempts: list[int] = []

    @consumer(**settings)
    def handler(message: Message) -> None:
        attempts.append(message.attempt)
        if (error := errors[len(attempts) - 1]) is not None:
            raise error

    return handler, attempts


def test_a_message_is_retried_after_growing_delays(cloud: SimulatedQueues) -> None:  # SPEC C3, G1
    handler, attempts = failing(ValueError(), ValueError(), None, backoff=Exponential(3600, 10, maximum=36_000))
    Queue(cloud.sqs.url("orders")).send({"id": 1})
    assert cloud.run("orders", handler) == pytest.approx(3600 + 36_000, abs=1)
    assert attempts == [1, 2, 3]
    assert cloud.sqs.peek("dead-orders") == []


def test_an_exhausted_message_is_dead_lettered_with_a_failure_record(cloud: SimulatedQueues) -> None:  # SPEC C8, F2
    handler, attempts = failing(*[ValueError("broken")] * 3, max_attempts=3, backoff=Fixed(43_000))
    Queue(cloud.sqs.url("orders")).send({"id": 1})
    cloud.run("orders", handler)
    assert attempts == [1, 2, 3]
    [dead_letter] = cloud.sqs.peek("dead-orders")
    envelope = json.loads(dead_letter.attributes["Tarry"]["StringValue"])
    assert dead_letter.body == '{"id":1}'
    assert (envelope["failure"]["reason"], envelope["failure"]["attempts"]) == ("exhausted", 3)


def test_a_fifo_group_waits_for_its_first_message_and_is_redelivered_in_order(
    cloud: SimulatedQueues,
) -> None:  # SPEC H1
    runs: list[str] = []

    @consumer(backoff=Fixed(600))
    def handler(message: Message) -> None:
        runs.append(message.body)
        if message.body == "a1" and len(runs) < 3:
            raise ValueError

    queue = Queue(cloud.sqs.url("ledger.fifo"))
    for body in ("a1", "a2", "b1"):
        queue.send(body, group_id=body[0])
    assert cloud.run("ledger.fifo", handler) >= 600
    assert [body for body in runs if body[0] == "a"] == ["a1", "a1", "a2"]
    assert runs.count("b1") == 1


def test_a_delay_of_12_hours_is_kept(cloud: SimulatedQueues) -> None:  # SPEC J4
    handler, attempts = failing(None)
    Queue(cloud.sqs.url("orders")).send("later", delay=43_200)
    cloud.clock.now = cloud.sqs.next_visible_at("orders") or 0
    assert cloud.run("orders", handler) == pytest.approx(43_200 - 900, abs=1)
    assert attempts == [1]
