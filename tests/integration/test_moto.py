"""Consumers with the real client against moto: the effects of the requests, not only their contents."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto import mock_aws

from tarry import Consumer, Fixed, Message, Queue, Reject, consumer
from tarry.testing import deliver
from tarry.world import WallClock, World, use
from tests.records import failed

ACCOUNT, REGION = "123456789012", "us-east-1"


class MotoQueues:
    """Queues in moto."""

    def __init__(self, sqs: Any) -> None:
        self.sqs = sqs

    def queue(self, name: str, dead_letter: str | None = None, visibility: int = 30) -> str:
        attributes = {"VisibilityTimeout": str(visibility)}
        if name.endswith(".fifo"):
            attributes |= {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        if dead_letter is not None:
            self.queue(dead_letter)
            target = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{dead_letter}"
            attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 15})
        url: str = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def send(self, name: str, body: Any, **more: Any) -> str:
        text = body if isinstance(body, str) else json.dumps(body)
        message_id: str = self.sqs.send_message(QueueUrl=self.url(name), MessageBody=text, **more)["MessageId"]
        return message_id

    def url(self, name: str) -> str:
        url: str = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        return url

    def receive(self, name: str) -> list[dict[str, Any]]:
        answer = self.sqs.receive_message(
            QueueUrl=self.url(name), MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def deliver(self, name: str, handler: Consumer[Any]) -> list[str]:
        """Deliver a batch, if there is one; return the ids that the function reports as failed."""
        response = deliver(handler, self.url(name), self.sqs).response
        return [] if response is None else failed(response)

    def depth(self, name: str) -> tuple[int, int]:
        """Return the numbers of visible and of invisible messages."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        attributes = self.sqs.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=names)["Attributes"]
        return int(attributes[names[0]]), int(attributes[names[1]])

    def make_visible(self, name: str) -> None:
        """End the visibility timeouts of all messages in a queue."""
        for message in moto_queue(name)._messages:
            message.visible_at = 0


def moto_queue(name: str) -> Any:
    from moto.sqs.models import sqs_backends

    return sqs_backends[ACCOUNT][REGION].queues[name]


def seconds_until_visible(name: str, message_id: str) -> float:
    """Return the seconds until a message becomes visible."""
    [message] = [message for message in moto_queue(name)._messages if message.id == message_id]
    return float(message.visible_at) / 1000 - datetime.now(UTC).timestamp()


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoQueues]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("TARRY_DEAD_LETTER_QUEUE_URL", raising=False)
    with mock_aws(), use(World()):
        yield MotoQueues(boto3.client("sqs"))


def test_a_message_that_succeeds_is_deleted(cloud: MotoQueues) -> None:  # SPEC A1
    cloud.queue("orders", "orders-dlq")
    for number in range(5):
        cloud.send("orders", {"id": number})
    assert cloud.deliver("orders", consumer(lambda message: None)) == []
    assert cloud.depth("orders") == (0, 0)
    assert cloud.depth("orders-dlq") == (0, 0)


def test_a_message_is_retried_after_its_delay_until_it_succeeds(cloud: MotoQueues) -> None:  # SPEC C2, C3, G1
    attempts: list[int] = []

    @consumer(backoff=Fixed(600))
    def handler(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise TimeoutError("the bank is slow")

    cloud.queue("orders", "orders-dlq")
    message_id = cloud.send("orders", {"id": 1})
    for _ in range(2):
        assert cloud.deliver("orders", handler) == [message_id]
        assert seconds_until_visible("orders", message_id) == pytest.approx(600, abs=2)
        assert cloud.deliver("orders", handler) == []
        cloud.make_visible("orders")
    assert cloud.deliver("orders", handler) == []
    assert attempts == [1, 2, 3]
    assert cloud.depth("orders") == (0, 0)


def test_each_message_of_a_batch_is_settled_by_its_own_outcome(cloud: MotoQueues) -> None:  # SPEC A1, G1
    @consumer(backoff=Fixed(600))
    def handler(message: Message) -> None:
        match message.body:
            case "retry":
                raise ValueError
            case "reject":
                message.reject("unknown")
            case "discard":
                message.discard("old")

    cloud.queue("orders", "orders-dlq")
    ids = {body: cloud.send("orders", body) for body in ("ok", "retry", "reject", "discard")}
    assert cloud.deliver("orders", handler) == [ids["retry"]]
    assert cloud.depth("orders") == (0, 1)
    assert [dead_letter["Body"] for dead_letter in cloud.receive("orders-dlq")] == ["reject"]


def fails(message: Message) -> None:
    raise ValueError("no such customer")


def exhaust(cloud: MotoQueues, queue: str, handler: Consumer[Any], attempts: int) -> None:
    for _ in range(attempts):
        cloud.make_visible(queue)
        cloud.deliver(queue, handler)


def test_a_message_that_keeps_failing_is_dead_lettered_with_a_failure_record(cloud: MotoQueues) -> None:  # SPEC C8, F2
    cloud.queue("orders", "orders-dlq")
    tenant = {"tenant": {"DataType": "String.name", "StringValue": "acme"}}
    message_id = cloud.send("orders", {"id": 1}, MessageAttributes=tenant)
    exhaust(cloud, "orders", consumer(max_attempts=3)(fails), 3)
    assert cloud.depth("orders") == (0, 0)
    [dead_letter] = cloud.receive("orders-dlq")
    assert json.loads(dead_letter["Body"]) == {"id": 1}
    assert dead_letter["MessageAttributes"]["tenant"] == tenant["tenant"]
    envelope = json.loads(dead_letter["MessageAttributes"]["Tarry"]["StringValue"])
    assert envelope["id"] == message_id
    assert envelope["origin"] == f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"
    assert (envelope["failure"]["reason"], envelope["failure"]["attempts"]) == ("exhausted", 3)
    assert envelope["failure"]["message"] == "no such customer"


def redrive(cloud: MotoQueues, source: str, target: str, **more: Any) -> None:
    """Move the messages of a dead-letter queue back as the SQS console does: only their ids change."""
    for dead_letter in cloud.receive(source):
        attributes = {
            name: {"DataType": value["DataType"], "StringValue": value["StringValue"]}
            for name, value in dead_letter.get("MessageAttributes", {}).items()
        }
        cloud.send(target, dead_letter["Body"], MessageAttributes=attributes, **more)
        cloud.sqs.delete_message(QueueUrl=cloud.url(source), ReceiptHandle=dead_letter["ReceiptHandle"])


def test_a_redriven_message_starts_at_its_first_attempt_and_its_next_failure_record_has_the_total(
    cloud: MotoQueues,
) -> None:  # SPEC F2, K3
    seen: list[tuple[str, int]] = []

    @consumer(max_attempts=3)
    def handler(message: Message) -> None:
        seen.append((message.id, message.attempt))
        raise ValueError("still not")

    cloud.queue("orders", "orders-dlq")
    message_id = cloud.send("orders", {"id": 1})
    exhaust(cloud, "orders", handler, 3)
    redrive(cloud, "orders-dlq", "orders")
    exhaust(cloud, "orders", handler, 3)
    assert seen == [(message_id, attempt) for attempt in (1, 2, 3, 1, 2, 3)]
    [dead_letter] = cloud.receive("orders-dlq")
    envelope = json.loads(dead_letter["MessageAttributes"]["Tarry"]["StringValue"])
    assert envelope["id"] == message_id
    assert envelope["failure"]["attempts"] == 6
    assert [entry["attempt"] for entry in envelope["history"]] == [3, 3]


def test_a_redriven_message_that_succeeds_is_deleted(cloud: MotoQueues) -> None:  # SPEC F2
    cloud.queue("orders", "orders-dlq")
    cloud.send("orders", {"id": 1})
    exhaust(cloud, "orders", consumer(max_attempts=1)(fails), 1)
    redrive(cloud, "orders-dlq", "orders")
    earlier: list[Any] = []
    assert cloud.deliver("orders", consumer(lambda message: earlier.append(message.failure.type))) == []
    assert earlier == ["ValueError"]
    assert cloud.depth("orders") == cloud.depth("orders-dlq") == (0, 0)


def test_without_a_dead_letter_queue_an_exhausted_message_waits_in_its_queue(cloud: MotoQueues) -> None:  # SPEC F5, E4
    cloud.queue("orders")
    message_id = cloud.send("orders", {"id": 1})
    exhaust(cloud, "orders", consumer(max_attempts=1)(fails), 1)
    assert cloud.depth("orders") == (0, 1)
    assert seconds_until_visible("orders", message_id) == pytest.approx(900, abs=2)


def test_an_exhausted_message_stays_if_its_dead_letter_queue_was_deleted(cloud: MotoQueues) -> None:  # SPEC F4
    cloud.queue("orders", "orders-dlq")
    cloud.send("orders", {"id": 1})
    cloud.sqs.delete_queue(QueueUrl=cloud.url("orders-dlq"))
    exhaust(cloud, "orders", consumer(max_attempts=1)(fails), 1)
    assert cloud.depth("orders") == (0, 1)


# long delays


class ShiftedClock(WallClock):
    """A wall clock that is ``seconds`` ahead."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return super().time() + self._seconds


def test_a_message_delayed_by_901_seconds_waits_twice_and_runs_at_its_first_attempt(
    cloud: MotoQueues,
) -> None:  # SPEC J4
    seen: list[tuple[str, int]] = []
    handler = consumer(lambda message: seen.append((message.id, message.attempt)))
    cloud.queue("orders", "orders-dlq", visibility=1_800)
    stable_id = Queue("orders").send({"id": 1}, delay=901)
    [delayed] = moto_queue("orders")._messages
    assert delayed.delayed_until / 1000 - datetime.now(UTC).timestamp() == pytest.approx(900, abs=2)
    delayed.delayed_until = 0
    with use(World(clock=ShiftedClock(890))):
        assert cloud.deliver("orders", handler) == [delayed.id]
    assert (seen, seconds_until_visible("orders", delayed.id)) == ([], pytest.approx(11, abs=2))
    cloud.make_visible("orders")
    with use(World(clock=ShiftedClock(902))):
        assert cloud.deliver("orders", handler) == []
    assert seen == [(stable_id, 1)]
    assert cloud.depth("orders") == (0, 0)


# FIFO


def test_on_fifo_a_group_continues_in_order_after_a_dead_letter(cloud: MotoQueues) -> None:  # SPEC H1, F2
    seen: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(message.body)
        if message.body == "poison":
            raise Reject("never")

    cloud.queue("ledger.fifo", "ledger-dlq.fifo")
    for body in ("first", "poison", "last"):
        cloud.send("ledger.fifo", body, MessageGroupId="account-1")
    assert cloud.deliver("ledger.fifo", handler) == []
    assert seen == ["first", "poison", "last"]
    [dead_letter] = cloud.receive("ledger-dlq.fifo")
    assert dead_letter["Body"] == "poison"
    assert dead_letter["Attributes"]["MessageGroupId"] == "account-1"
    assert json.loads(dead_letter["MessageAttributes"]["Tarry"]["StringValue"])["failure"]["reason"] == "rejected"


def test_on_fifo_a_failed_message_delays_only_its_own_group(cloud: MotoQueues) -> None:  # SPEC H1
    seen: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        seen.append(message.body)
        if message.body == "a1" and message.attempt == 1:
            raise ValueError("not yet")

    cloud.queue("ledger.fifo", "ledger-dlq.fifo")
    ids = {body: cloud.send("ledger.fifo", body, MessageGroupId=body[0]) for body in ("a1", "a2", "b1", "b2")}
    reported = [ids["a1"], ids["a2"]]
    deliveries = [cloud.deliver("ledger.fifo", handler) for _ in range(2)]  # moto may deliver one group at a time
    assert sorted(name for delivery in deliveries for name in delivery) == sorted(reported)
    cloud.make_visible("ledger.fifo")
    assert cloud.deliver("ledger.fifo", handler) == []
    assert [body for body in seen if body[0] == "a"] == ["a1", "a1", "a2"]
    assert [body for body in seen if body[0] == "b"] == ["b1", "b2"]
