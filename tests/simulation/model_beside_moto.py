"""The model of SQS and moto side by side, with one clock that tests move."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from moto.sqs.models import sqs_backends

from tests.simulation.referee.implementations import REGION, Clock, Model, Moto, Refusal, running_moto
from tests.wire import ACCOUNT

ALL_ATTRIBUTES = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"], "WaitTimeSeconds": 0}


@dataclass(frozen=True)
class Handles:
    """The receipt handles of one message, in the model and in moto."""

    model: str
    moto: str


class ModelBesideMoto:
    """The model and moto; each request goes to both."""

    def __init__(self, model: Model, moto: Moto) -> None:
        self._clock = Clock()
        self._model, self._moto = model, moto
        model.reset(self._clock)
        moto.reset(self._clock)
        self.model = model.sqs
        self.moto = moto.client

    def wait(self, seconds: float) -> None:
        self._clock.wait(seconds)

    def request(self, operation: str, queue: str, **parameters: Any) -> tuple[Any, Any]:
        """Return the two answers, or the error codes if the request was refused."""
        answers: list[Any] = []
        for name, each in (("model", self._model), ("moto", self._moto)):
            url = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{queue}"
            try:
                answers.append(each.call(operation, {"QueueUrl": url, **_side(name, parameters)}))
            except Refusal as refusal:
                answers.append(refusal.code)
        ours, moto = answers
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
def side_by_side() -> Iterator[ModelBesideMoto]:
    """Provide both without a queue."""
    with running_moto() as moto:
        yield ModelBesideMoto(Model(), moto)
