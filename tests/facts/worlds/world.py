"""What a probe is given: queues of its own, time that can be waited for, a function on a queue."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Need = Literal["mapping", "loop detection", "in-flight limit", "stopped moto"]
"""What not every world has: an event source mapping, Lambda's detection of loops, a limit of messages in flight, moto
under a clock that stands still."""

Message = dict[str, Any]
MOST_A_RECEIVE = 10
TIMEOUT_SECONDS = 10
"""The function's, in every world."""
PATIENCE_SECONDS = 90
"""For the first invocation after a mapping was made."""


@dataclass
class Invocation:
    """What the function told of one of its invocations. Times are those of the function's own clock."""

    began: float
    left_ms: int
    records: list[dict[str, Any]]
    ended: float | None = None
    """None as long as it has not ended by itself."""

    @property
    def ids(self) -> list[str]:
        return [record["messageId"] for record in self.records]

    @property
    def receives(self) -> list[int]:
        return [int(record["attributes"]["ApproximateReceiveCount"]) for record in self.records]


class World(ABC):
    """A place with SQS in it. It is left as it was found."""

    has: frozenset[Need] = frozenset()
    in_flight_limit = 120_000
    patience_seconds = 0
    """How long a queue may take to show what was done to it."""
    look_seconds = 0
    """How long one look into a queue may take."""

    def __init__(self, sqs: Any, prefix: str, journal_url: str | None = None) -> None:
        self.sqs = sqs
        self.queues: list[str] = []
        self._prefix = prefix
        self._journal_url = journal_url
        self._invocations: dict[str, Invocation] = {}

    # time

    @abstractmethod
    def now(self) -> float:
        """Seconds since the epoch."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Let so much time go by, and a moment more."""

    def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until something holds, at most so long; whether it then does is for the probe to say."""
        ends_at = self.now() + seconds
        while not condition() and self.now() < ends_at:
            self.wait(1)

    # queues

    def queue(self, *, fifo: bool = False, **attributes: Any) -> str:
        """The URL of a queue of its own; attributes by their names, values as they are meant."""
        name = f"{self._prefix}{len(self.queues)}"
        texts = {key: json.dumps(value) if isinstance(value, dict) else str(value) for key, value in attributes.items()}
        if fifo:
            name, texts = f"{name}.fifo", {"FifoQueue": "true", **texts}
        url: str = self.sqs.create_queue(QueueName=name, Attributes=texts)["QueueUrl"]
        self.queues.append(url)
        return url

    def with_dead_letters(self, max_receive_count: int, *, fifo: bool = False, **attributes: Any) -> tuple[str, str]:
        """A queue and its dead-letter queue."""
        dead = self.queue(fifo=fifo)
        policy = {"deadLetterTargetArn": self.arn(dead), "maxReceiveCount": max_receive_count}
        return self.queue(fifo=fifo, RedrivePolicy=policy, **attributes), dead

    def attribute(self, url: str, name: str) -> str:
        told = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        value: str = told["Attributes"][name]
        return value

    def arn(self, url: str) -> str:
        return self.attribute(url, "QueueArn")

    def send(self, url: str, body: Any = "a message", **more: Any) -> str:
        """The id of a message that was sent; a body that is no text is sent as JSON."""
        text = body if isinstance(body, str) else json.dumps(body)
        message_id: str = self.sqs.send_message(QueueUrl=url, MessageBody=text, **more)["MessageId"]
        return message_id

    def receive(self, url: str, count: int = 1, **more: Any) -> list[Message]:
        """Up to ``count`` messages: as many looks as it takes, until one finds nothing."""
        messages: list[Message] = []
        while len(messages) < count:
            answer = self.sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=min(MOST_A_RECEIVE, count - len(messages)),
                WaitTimeSeconds=self.look_seconds,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
                **more,
            )
            found: list[Message] = answer.get("Messages", [])
            if not found:
                break
            messages += found
        return messages

    def gather(self, url: str, count: int, seconds: float, **more: Any) -> list[Message]:
        """``count`` messages that are still to come, or as many as have come after so long."""
        messages: list[Message] = []

        def has_all() -> bool:
            messages.extend(self.receive(url, count - len(messages), **more))
            return len(messages) == count

        self.until(has_all, seconds)
        return messages

    def receive_one(self, url: str) -> Message:
        """The message that has to be there."""
        messages = self.gather(url, 1, self.patience_seconds)
        assert messages, "nothing was received"
        return messages[0]

    def hide(self, url: str, message: Message, seconds: int) -> None:
        handle = message["ReceiptHandle"]
        self.sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)

    def delete(self, url: str, message: Message) -> None:
        self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def depth(self, url: str) -> dict[str, int]:
        """How many messages are ready, in flight and delayed, as SQS tells it."""
        names = {"ready": "", "in_flight": "NotVisible", "delayed": "Delayed"}
        attributes = {key: f"ApproximateNumberOfMessages{name}" for key, name in names.items()}
        told = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(attributes.values()))["Attributes"]
        return {key: int(told[name]) for key, name in attributes.items()}

    def expect_depth(self, url: str, **expected: int) -> None:
        """Raises `AssertionError` unless the figures become these; those that are not given are 0."""
        figures = {"ready": 0, "in_flight": 0, "delayed": 0, **expected}
        self.until(lambda: self.depth(url) == figures, self.patience_seconds)
        expect(self.depth(url), figures, "the queue's figures")

    # a function on a queue

    def connect(self, url: str, *, throttled: bool = False, **settings: Any) -> None:
        """An event source mapping from the queue to the function that does what its messages say.

        ``settings`` are those of CreateEventSourceMapping. ``throttled``: the function's concurrency is 0. Returns when
        it works.
        """
        raise NotImplementedError

    def journal(self) -> str:
        """The URL of the queue where the function tells what it does."""
        self._journal_url = self._journal_url or self.queue()
        return self._journal_url

    def invocations(self, url: str) -> list[Invocation]:
        """What the function has told so far of its invocations for this queue, in order."""
        while entries := self.receive(self.journal(), MOST_A_RECEIVE):
            for entry in entries:
                self._note(json.loads(entry["Body"]))
                self.delete(self.journal(), entry)
        arn = self.arn(url)
        mine = [each for each in self._invocations.values() if each.records[0]["eventSourceARN"] == arn]
        return sorted(mine, key=lambda each: each.began)

    def invoked(self, url: str, count: int = 1, seconds: float = PATIENCE_SECONDS) -> list[Invocation]:
        """The first ``count`` invocations, which have to begin within so long."""
        self.until(lambda: len(self.invocations(url)) >= count, seconds)
        invocations = self.invocations(url)
        assert len(invocations) >= count, f"invoked {len(invocations)} times instead of {count}"
        return invocations[:count]

    def _note(self, told: dict[str, Any]) -> None:
        """What was told when an invocation began, or once more when it ended; the two may come in any order."""
        known = self._invocations.get(told["request"])
        if known is None or known.ended is None:
            invocation = Invocation(told["began"], told["left_ms"], told["records"], told.get("ended"))
            self._invocations[told["request"]] = invocation


def expect(seen: T, expected: T, what: str) -> None:
    """Raises `AssertionError` unless they are equal."""
    assert seen == expected, f"{what}: {seen!r} instead of {expected!r}"
