"""Whole stories through the real client, against moto: what the requests do, not only what they say."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto import mock_aws

from tarry import Consumer, Fixed, Message, Queue, Reject, consumer
from tarry.world import WallClock, World, use
from tests.records import Context, failed

ACCOUNT, REGION = "123456789012", "us-east-1"


class Cloud:
    """Queues in moto, and what the event source mapping does between them and a function."""

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
        """Receives a batch, invokes the function with it, deletes what it does not report; the ids it reports."""
        messages = self.receive(name)
        if not messages:
            return []
        reported = failed(handler({"Records": [as_record(message, name) for message in messages]}, Context()))
        for message in messages:
            if message["MessageId"] not in reported:
                self.sqs.delete_message(QueueUrl=self.url(name), ReceiptHandle=message["ReceiptHandle"])
        return reported

    def waiting(self, name: str) -> tuple[int, int]:
        """How many messages are visible, and how many hidden."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        attributes = self.sqs.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=names)["Attributes"]
        return int(attributes[names[0]]), int(attributes[names[1]])

    def show(self, name: str) -> None:
        """Ends all waits in a queue, as time would."""
        for message in moto_queue(name)._messages:
            message.visible_at = 0


def moto_queue(name: str) -> Any:
    from moto.sqs.models import sqs_backends

    return sqs_backends[ACCOUNT][REGION].queues[name]


def hidden_for(name: str, message_id: str) -> float:
    """The seconds that a message stays hidden from now."""
    [message] = [message for message in moto_queue(name)._messages if message.id == message_id]
    return float(message.visible_at) / 1000 - datetime.now(UTC).timestamp()


def as_record(message: dict[str, Any], queue: str) -> dict[str, Any]:
    def attribute(value: dict[str, Any]) -> dict[str, Any]:
        return {"dataType": value["DataType"], "stringValue": value["StringValue"]}

    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {name: attribute(value) for name, value in message.get("MessageAttributes", {}).items()},
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}",
        "awsRegion": REGION,
    }


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("TARRY_DEAD_LETTER_QUEUE_URL", raising=False)
    with mock_aws(), use(World()):
        yield Cloud(boto3.client("sqs"))


def test_a_message_that_succeeds_is_gone(cloud: Cloud) -> None:  # SPEC A1
    cloud.queue("orders", "orders-dlq")
    for number in range(5):
        cloud.send("orders", {"id": number})
    assert cloud.deliver("orders", consumer(lambda message: None)) == []
    assert cloud.waiting("orders") == (0, 0)
    assert cloud.waiting("orders-dlq") == (0, 0)


def test_a_message_is_retried_after_its_delay_until_it_succeeds(cloud: Cloud) -> None:  # SPEC C2, C3, G1
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
        assert hidden_for("orders", message_id) == pytest.approx(600, abs=2)
        assert cloud.deliver("orders", handler) == []
        cloud.show("orders")
    assert cloud.deliver("orders", handler) == []
    assert attempts == [1, 2, 3]
    assert cloud.waiting("orders") == (0, 0)


def test_of_a_batch_each_message_goes_its_own_way(cloud: Cloud) -> None:  # SPEC A1, G1
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
    assert cloud.waiting("orders") == (0, 1)
    assert [letter["Body"] for letter in cloud.receive("orders-dlq")] == ["reject"]


def fails(message: Message) -> None:
    raise ValueError("no such customer")


def exhaust(cloud: Cloud, queue: str, handler: Consumer[Any], attempts: int) -> None:
    for _ in range(attempts):
        cloud.show(queue)
        cloud.deliver(queue, handler)


def test_a_message_that_keeps_failing_ends_in_its_dead_letter_queue_with_a_record(cloud: Cloud) -> None:  # SPEC C8, F2
    cloud.queue("orders", "orders-dlq")
    tenant = {"tenant": {"DataType": "String.name", "StringValue": "acme"}}
    message_id = cloud.send("orders", {"id": 1}, MessageAttributes=tenant)
    exhaust(cloud, "orders", consumer(max_attempts=3)(fails), 3)
    assert cloud.waiting("orders") == (0, 0)
    [letter] = cloud.receive("orders-dlq")
    assert json.loads(letter["Body"]) == {"id": 1}
    assert letter["MessageAttributes"]["tenant"] == tenant["tenant"]
    told = json.loads(letter["MessageAttributes"]["Tarry"]["StringValue"])
    assert told["id"] == message_id
    assert told["origin"] == f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"
    assert (told["failure"]["reason"], told["failure"]["attempts"]) == ("exhausted", 3)
    assert told["failure"]["message"] == "no such customer"


def redrive(cloud: Cloud, source: str, target: str, **more: Any) -> None:
    """Moves what is in a dead-letter queue back, as the console does: new ids, all else kept."""
    for letter in cloud.receive(source):
        attributes = {
            name: {"DataType": value["DataType"], "StringValue": value["StringValue"]}
            for name, value in letter.get("MessageAttributes", {}).items()
        }
        cloud.send(target, letter["Body"], MessageAttributes=attributes, **more)
        cloud.sqs.delete_message(QueueUrl=cloud.url(source), ReceiptHandle=letter["ReceiptHandle"])


def test_a_redriven_message_begins_anew_and_dies_with_the_total_of_its_attempts(cloud: Cloud) -> None:  # SPEC F2, K3
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
    [letter] = cloud.receive("orders-dlq")
    told = json.loads(letter["MessageAttributes"]["Tarry"]["StringValue"])
    assert told["id"] == message_id
    assert told["failure"]["attempts"] == 6
    assert [entry["attempt"] for entry in told["history"]] == [3, 3]


def test_a_redriven_message_that_then_succeeds_is_gone(cloud: Cloud) -> None:  # SPEC F2
    cloud.queue("orders", "orders-dlq")
    cloud.send("orders", {"id": 1})
    exhaust(cloud, "orders", consumer(max_attempts=1)(fails), 1)
    redrive(cloud, "orders-dlq", "orders")
    earlier: list[Any] = []
    assert cloud.deliver("orders", consumer(lambda message: earlier.append(message.failure.type))) == []
    assert earlier == ["ValueError"]
    assert cloud.waiting("orders") == cloud.waiting("orders-dlq") == (0, 0)


def test_without_a_dead_letter_queue_a_dead_message_stays_and_waits(cloud: Cloud) -> None:  # SPEC F5, E4
    cloud.queue("orders")
    message_id = cloud.send("orders", {"id": 1})
    exhaust(cloud, "orders", consumer(max_attempts=1)(fails), 1)
    assert cloud.waiting("orders") == (0, 1)
    assert hidden_for("orders", message_id) == pytest.approx(900, abs=2)


def test_a_dead_letter_queue_that_was_deleted_loses_nothing(cloud: Cloud) -> None:  # SPEC F4
    cloud.queue("orders", "orders-dlq")
    cloud.send("orders", {"id": 1})
    cloud.sqs.delete_queue(QueueUrl=cloud.url("orders-dlq"))
    exhaust(cloud, "orders", consumer(max_attempts=1)(fails), 1)
    assert cloud.waiting("orders") == (0, 1)


# long delays


class Later(WallClock):
    """The clock of a consumer so many seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return super().time() + self._seconds


def test_a_delay_of_901_seconds_is_parked_then_hidden_then_run_at_its_first_attempt(cloud: Cloud) -> None:  # SPEC J4
    seen: list[tuple[str, int]] = []
    handler = consumer(lambda message: seen.append((message.id, message.attempt)))
    cloud.queue("orders", "orders-dlq", visibility=1_800)
    stable_id = Queue("orders").send({"id": 1}, delay=901)
    [parked] = moto_queue("orders")._messages
    assert parked.delayed_until / 1000 - datetime.now(UTC).timestamp() == pytest.approx(900, abs=2)
    parked.delayed_until = 0
    with use(World(clock=Later(890))):
        assert cloud.deliver("orders", handler) == [parked.id]
    assert (seen, hidden_for("orders", parked.id)) == ([], pytest.approx(11, abs=2))
    cloud.show("orders")
    with use(World(clock=Later(902))):
        assert cloud.deliver("orders", handler) == []
    assert seen == [(stable_id, 1)]
    assert cloud.waiting("orders") == (0, 0)


# FIFO


def test_on_fifo_a_group_goes_on_behind_a_dead_letter_in_order(cloud: Cloud) -> None:  # SPEC H1, F2
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
    [letter] = cloud.receive("ledger-dlq.fifo")
    assert letter["Body"] == "poison"
    assert letter["Attributes"]["MessageGroupId"] == "account-1"
    assert json.loads(letter["MessageAttributes"]["Tarry"]["StringValue"])["failure"]["reason"] == "rejected"


def test_on_fifo_a_failing_head_holds_up_its_group_and_no_other(cloud: Cloud) -> None:  # SPEC H1
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
    cloud.show("ledger.fifo")
    assert cloud.deliver("ledger.fifo", handler) == []
    assert [body for body in seen if body[0] == "a"] == ["a1", "a1", "a2"]
    assert [body for body in seen if body[0] == "b"] == ["b1", "b2"]
