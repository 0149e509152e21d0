"""Consumers with the real client against moto: the effects of the requests, not only their contents."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.sqs.models import sqs_backends

from tarry import Consumer, Fixed, Message, consumer
from tarry.testing import deliver
from tarry.world import World, use
from tests.records import failed

ACCOUNT, REGION = "123456789012", "us-east-1"


class MotoQueues:
    def __init__(self) -> None:
        self.sqs: Any = boto3.client("sqs")

    def queue(self, name: str, dead_letter: str) -> None:
        fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if name.endswith(".fifo") else {}
        self.sqs.create_queue(QueueName=dead_letter, Attributes=fifo)
        target = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{dead_letter}"
        policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 15})}
        self.sqs.create_queue(QueueName=name, Attributes=fifo | policy)

    def send(self, name: str, body: str, **more: Any) -> str:
        return str(self.sqs.send_message(QueueUrl=self.url(name), MessageBody=body, **more)["MessageId"])

    def url(self, name: str) -> str:
        return str(self.sqs.get_queue_url(QueueName=name)["QueueUrl"])

    def receive(self, name: str) -> list[dict[str, Any]]:
        answer = self.sqs.receive_message(
            QueueUrl=self.url(name), MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
        )
        return list(answer.get("Messages", []))

    def deliver(self, name: str, handler: Consumer[Any]) -> list[str]:
        """Deliver a batch of all messages, if there is one; return the ids that the function reports as failed."""
        for message in sqs_backends[ACCOUNT][REGION].queues[name]._messages:
            message.visible_at = 0
        response = deliver(handler, self.url(name), self.sqs).response
        return [] if response is None else failed(response)

    def waits(self, name: str) -> dict[str, float]:
        """Return the messages of a queue, each with the seconds until it becomes visible."""
        messages, now = sqs_backends[ACCOUNT][REGION].queues[name]._messages, datetime.now(UTC).timestamp()
        return {message.id: float(message.visible_at or 0) / 1000 - now for message in messages}

    def redrive(self, source: str, target: str) -> dict[str, Any]:
        """Move a dead letter back as the SQS console does, so that only its id changes; return its envelope."""
        [letter] = self.receive(source)
        kept = ("DataType", "StringValue")
        attributes = {name: {key: value[key] for key in kept} for name, value in letter["MessageAttributes"].items()}
        self.send(target, letter["Body"], MessageAttributes=attributes)
        self.sqs.delete_message(QueueUrl=self.url(source), ReceiptHandle=letter["ReceiptHandle"])
        return dict(json.loads(attributes["Tarry"]["StringValue"]))


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoQueues]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("TARRY_DEAD_LETTER_QUEUE_URL", raising=False)
    with mock_aws(), use(World()):
        yield MotoQueues()


def test_each_message_of_a_batch_is_settled_by_its_own_outcome(cloud: MotoQueues) -> None:  # SPEC A1, C2, C3, F2, G1
    attempts: list[int] = []

    @consumer(backoff=Fixed(600))
    def handler(message: Message) -> None:
        match message.body:
            case "retry":
                attempts.append(message.attempt)
                if message.attempt < 3:
                    raise ValueError("the bank is slow")
            case "reject":
                message.reject("unknown")
            case "discard":
                message.discard("old")

    cloud.queue("orders", "orders-dlq")
    tenant = {"tenant": {"DataType": "String.name", "StringValue": "acme"}}
    ids = {body: cloud.send("orders", body, MessageAttributes=tenant) for body in ("ok", "retry", "reject", "discard")}
    for _ in range(2):
        assert cloud.deliver("orders", handler) == [ids["retry"]]
        assert cloud.waits("orders") == {ids["retry"]: pytest.approx(600, abs=2)}
    assert cloud.deliver("orders", handler) == []
    assert (attempts, cloud.waits("orders")) == ([1, 2, 3], {})
    [dead_letter] = cloud.receive("orders-dlq")
    assert dead_letter["Body"] == "reject"
    assert dead_letter["MessageAttributes"]["tenant"] == tenant["tenant"]
    envelope = json.loads(dead_letter["MessageAttributes"]["Tarry"]["StringValue"])
    assert (envelope["id"], envelope["origin"]) == (ids["reject"], f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders")


def test_a_redriven_message_starts_at_its_first_attempt_and_knows_its_earlier_failures(cloud: MotoQueues) -> None:
    # SPEC C8, F2, K3
    seen: list[tuple[str, int]] = []

    @consumer(max_attempts=3)
    def handler(message: Message) -> None:
        seen.append((message.id, message.attempt))
        if message.failure is None or message.failure.attempts < 6:
            raise ValueError("still not")

    cloud.queue("orders", "orders-dlq")
    message_id = cloud.send("orders", "{}")
    for _ in range(2):
        for _ in range(3):
            cloud.deliver("orders", handler)
        envelope = cloud.redrive("orders-dlq", "orders")
    assert seen == [(message_id, attempt) for attempt in (1, 2, 3, 1, 2, 3)]
    assert (envelope["id"], envelope["failure"]["reason"]) == (message_id, "exhausted")
    assert (envelope["failure"]["message"], envelope["failure"]["attempts"]) == ("still not", 6)
    assert [entry["attempt"] for entry in envelope["history"]] == [3, 3]
    assert cloud.deliver("orders", handler) == []
    assert (len(seen), cloud.waits("orders"), cloud.waits("orders-dlq")) == (7, {}, {})


def test_on_fifo_a_group_continues_in_order_after_a_dead_letter_and_a_failure_delays_only_its_own(
    cloud: MotoQueues,
) -> None:  # SPEC F2, H1
    seen: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(message.body)
        if message.body == "a2":
            message.reject("never")
        if message.body == "b1" and message.attempt == 1:
            raise ValueError("not yet")

    cloud.queue("ledger.fifo", "ledger-dlq.fifo")
    ids = {body: cloud.send("ledger.fifo", body, MessageGroupId=body[0]) for body in ("a1", "a2", "a3", "b1", "b2")}
    deliveries = [cloud.deliver("ledger.fifo", handler) for _ in range(2)]  # moto may deliver one group at a time
    assert [ids["b1"], ids["b2"]] in deliveries
    cloud.deliver("ledger.fifo", handler)
    assert [body for body in seen if body[0] == "a"] == ["a1", "a2", "a3"]
    assert [body for body in seen if body[0] == "b"] == ["b1", "b1", "b2"]
    [dead_letter] = cloud.receive("ledger-dlq.fifo")
    assert (dead_letter["Body"], dead_letter["Attributes"]["MessageGroupId"]) == ("a2", "a")
