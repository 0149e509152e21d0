"""The model of SQS and moto side by side, with one clock that tests move."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.sqs.models import sqs_backends

from tarry.simulator.history import History
from tarry.simulator.sqs import Realism, Sqs, SqsError
from tests.wire import ACCOUNT

REGION = "us-east-1"
AS_MOTO = Realism(late_changes_are_ignored=False)
"""In moto, a visibility change takes effect after the lease has expired (PLATFORM 33a)."""
ALL_ATTRIBUTES = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"], "WaitTimeSeconds": 0}


@dataclass(frozen=True)
class Handles:
    """The receipt handles of one message, in the model and in moto."""

    model: str
    moto: str


class ModelBesideMoto:
    """The model and moto; each request goes to both."""

    def __init__(self, moto_client: Any, realism: Realism) -> None:
        self.milliseconds = 1_800_000_000_000  # whole, so that both round the same way
        self.model = Sqs(self.now, Random(1), History(self.now), realism=realism)
        self.moto = moto_client

    def now(self) -> float:
        return self.milliseconds / 1000

    def wait(self, seconds: float) -> None:
        self.milliseconds += round(seconds * 1000)

    def request(self, operation: str, queue: str, **parameters: Any) -> tuple[Any, Any]:
        """Return the two answers, or the error codes if the request was refused."""
        try:
            ours: Any = self.model.call(operation, {"QueueUrl": self.model.url(queue), **_side("model", parameters)})
        except SqsError as error:
            ours = error.code
        url = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{queue}"
        try:
            moto = self.moto._make_api_call(operation, {"QueueUrl": url, **_side("moto", parameters)})
            del moto["ResponseMetadata"]
        except ClientError as error:
            moto = error.response["Error"]["Code"]
        return ours, moto

    def receive(self, queue: str, limit: int, **parameters: Any) -> tuple[list[Any], list[Any]]:
        ours, moto = self.request("ReceiveMessage", queue, MaxNumberOfMessages=limit, **ALL_ATTRIBUTES, **parameters)
        return ours.get("Messages", []), moto.get("Messages", [])

    def lease(self, queue: str, **parameters: Any) -> Handles:
        """Receive one message and return its handles."""
        [ours], [moto] = self.receive(queue, 1, **parameters)
        return Handles(ours["ReceiptHandle"], moto["ReceiptHandle"])

    def queue(self, name: str, dead_letter: str | None = None, **attributes: str) -> None:
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        if dead_letter is not None:
            arn = self.model.arn(dead_letter)
            attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
        self.model.call("CreateQueue", {"QueueName": name, "Attributes": attributes})
        self.moto.create_queue(QueueName=name, Attributes=attributes)

    def in_moto(self, queue: str) -> Any:
        """Return moto's object for a queue."""
        return sqs_backends[ACCOUNT][REGION].queues[queue]


def _side(name: str, value: Any) -> Any:
    """Return the parameters with the handles of one side."""
    if isinstance(value, Handles):
        return getattr(value, name)
    if isinstance(value, dict):
        return {key: _side(name, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_side(name, each) for each in value]
    return value


@contextmanager
def moto_client() -> Iterator[Any]:
    """Provide a client of moto that does not validate requests, so that moto does."""
    config = Config(parameter_validation=False, signature_version=UNSIGNED)
    with mock_aws():
        yield boto3.client("sqs", region_name=REGION, config=config)


@contextmanager
def side_by_side(client: Any, realism: Realism = AS_MOTO) -> Iterator[ModelBesideMoto]:
    """Provide both without a queue; two functions of moto are patched so that it uses the same clock."""
    sqs_backends[ACCOUNT][REGION].reset()
    both = ModelBesideMoto(client, realism)
    with (
        patch("moto.sqs.models.unix_time", both.now),
        patch("moto.sqs.models.unix_time_millis", lambda: both.milliseconds),
    ):
        yield both
