"""A consumer with the real client against moto: the effects of the requests, not only their contents."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.sqs.models import sqs_backends

from tarry import Fixed, Message, consumer
from tarry.testing import deliver
from tarry.world import World, use
from tests.records import failed
from tests.wire import ACCOUNT, arn, url

REGION = "us-east-1"


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("TARRY_DEAD_LETTER_QUEUE_URL", raising=False)
    with mock_aws(), use(World()):
        client = boto3.client("sqs")
        client.create_queue(QueueName="orders-dlq")
        policy = json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 15})
        client.create_queue(QueueName="orders", Attributes={"RedrivePolicy": policy})
        yield client


def waits() -> dict[str, float]:
    """Return the messages of the queue, each with the seconds until it becomes visible; make them visible."""
    messages, now = sqs_backends[ACCOUNT][REGION].queues["orders"]._messages, datetime.now(UTC).timestamp()
    found = {message.id: float(message.visible_at or 0) / 1000 - now for message in messages}
    for message in messages:
        message.visible_at = 0
    return found


def test_each_message_of_a_batch_is_settled_by_its_own_outcome(sqs: Any) -> None:  # SPEC A1, C2, C3, F2, G1
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

    tenant = {"tenant": {"DataType": "String.name", "StringValue": "acme"}}
    ids = {
        body: sqs.send_message(QueueUrl=url("orders"), MessageBody=body, MessageAttributes=tenant)["MessageId"]
        for body in ("ok", "retry", "reject", "discard")
    }
    for reported in ([ids["retry"]], [ids["retry"]], []):
        response = deliver(handler, url("orders"), sqs).response
        assert response is not None
        assert failed(response) == reported
        assert waits() == {message_id: pytest.approx(600, abs=2) for message_id in reported}
    assert attempts == [1, 2, 3]
    [dead_letter] = sqs.receive_message(
        QueueUrl=url("orders-dlq"), MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    )["Messages"]
    assert (dead_letter["Body"], dead_letter["MessageAttributes"]["tenant"]) == ("reject", tenant["tenant"])
    envelope = json.loads(dead_letter["MessageAttributes"]["Tarry"]["StringValue"])
    assert (envelope["id"], envelope["origin"]) == (ids["reject"], arn("orders"))
