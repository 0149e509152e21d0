"""The platform on which a probe runs: queues, time, and a function with an event source mapping."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from botocore.exceptions import ClientError, ParamValidationError

T = TypeVar("T")

Need = Literal["mapping", "loop detection", "in-flight limit", "stopped moto"]
"""A feature that not every platform has: event source mappings, Lambda's recursive loop detection, a reachable limit of
messages in flight, moto under a clock that stands still."""

Message = dict[str, Any]
MAX_PER_RECEIVE = 10
TIMEOUT_SECONDS = 10
"""The timeout of the function on every platform."""
PATIENCE_SECONDS = 90
"""The longest wait for the first invocation after a mapping was created."""


@dataclass
class ReportedInvocation:
    """An invocation as the function reported it. Times are those of the function's own clock."""

    began: float
    left_ms: int
    records: list[dict[str, Any]]
    ended: float | None = None
    """None while it runs, and if it was killed."""

    @property
    def ids(self) -> list[str]:
        return [record["messageId"] for record in self.records]

    @property
    def receives(self) -> list[int]:
        return [int(record["attributes"]["ApproximateReceiveCount"]) for record in self.records]


class Platform(ABC):
    """A platform with SQS, on which a probe creates its own queues."""

    has: frozenset[Need] = frozenset()
    in_flight_limit = 120_000
    patience_seconds = 0
    """How long a queue may take to reflect a change."""
    long_poll_seconds = 0
    """The wait time of a receive."""

    def __init__(self, sqs: Any, prefix: str, journal_url: str | None = None) -> None:
        self.sqs = sqs
        self.queues: list[str] = []
        self.prefix = prefix
        """The beginning of the names of all queues."""
        self._journal_url = journal_url
        self._invocations: dict[str, ReportedInvocation] = {}

    # time

    @abstractmethod
    def now(self) -> float:
        """Return the seconds since the epoch."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait for ``seconds`` and a moment more."""

    def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition is true, at most ``seconds``; the probe checks the condition again."""
        ends_at = self.now() + seconds
        while not condition() and self.now() < ends_at:
            self.wait(1)

    # queues

    def queue(self, *, fifo: bool = False, **attributes: Any) -> str:
        """Create a queue and return its URL. Values of attributes may be numbers, texts or dicts."""
        name = f"{self.prefix}{len(self.queues)}"
        texts = {key: json.dumps(value) if isinstance(value, dict) else str(value) for key, value in attributes.items()}
        if fifo:
            name, texts = f"{name}.fifo", {"FifoQueue": "true", **texts}
        url: str = self.sqs.create_queue(QueueName=name, Attributes=texts)["QueueUrl"]
        self.queues.append(url)
        return url

    def queue_with_dlq(self, max_receive_count: int, *, fifo: bool = False, **attributes: Any) -> tuple[str, str]:
        """Create a queue with a dead-letter queue; return the URLs of both."""
        dead = self.queue(fifo=fifo)
        policy = {"deadLetterTargetArn": self.arn(dead), "maxReceiveCount": max_receive_count}
        return self.queue(fifo=fifo, RedrivePolicy=policy, **attributes), dead

    def attribute(self, url: str, name: str) -> str:
        value: str = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]
        return value

    def arn(self, url: str) -> str:
        return self.attribute(url, "QueueArn")

    def send(self, url: str, body: Any = "a message", **more: Any) -> str:
        """Send a message and return its id; a body that is not a str is sent as JSON."""
        text = body if isinstance(body, str) else json.dumps(body)
        message_id: str = self.sqs.send_message(QueueUrl=url, MessageBody=text, **more)["MessageId"]
        return message_id

    def send_traced(self, url: str, trace: str) -> None:
        """Send a message in a request with this ``X-Amzn-Trace-Id``."""

        def add_header(params: dict[str, Any], **_: Any) -> None:
            params["headers"]["X-Amzn-Trace-Id"] = trace

        events = self.sqs.meta.events
        events.register("before-call.sqs.SendMessage", add_header)
        try:
            self.send(url)
        finally:
            events.unregister("before-call.sqs.SendMessage", add_header)

    def receive(self, url: str, count: int = 1, **more: Any) -> list[Message]:
        """Receive up to ``count`` messages, until a receive returns none."""
        messages: list[Message] = []
        while len(messages) < count:
            answer = self.sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=min(MAX_PER_RECEIVE, count - len(messages)),
                WaitTimeSeconds=self.long_poll_seconds,
                MessageSystemAttributeNames=["All"],
                **{"MessageAttributeNames": ["All"], **more},
            )
            found: list[Message] = answer.get("Messages", [])
            if not found:
                break
            messages += found
        return messages

    def gather(self, url: str, count: int, seconds: float, **more: Any) -> list[Message]:
        """Receive until there are ``count`` messages or ``seconds`` have passed."""
        messages: list[Message] = []

        def has_all() -> bool:
            messages.extend(self.receive(url, count - len(messages), **more))
            return len(messages) == count

        self.until(has_all, seconds)
        return messages

    def receive_one(self, url: str) -> Message:
        """Receive a message. Raises `AssertionError` if there is none."""
        messages = self.gather(url, 1, self.patience_seconds)
        assert messages, "nothing was received"
        return messages[0]

    def received(self, visibility: int, **attributes: Any) -> tuple[str, Message]:
        """Create a queue with a message, and receive it; return the URL of the queue and the message."""
        url = self.queue(VisibilityTimeout=visibility, **attributes)
        self.send(url)
        return url, self.receive_one(url)

    def change_visibility(self, url: str, message: Message, seconds: int) -> None:
        handle = message["ReceiptHandle"]
        self.sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)

    def delete(self, url: str, message: Message) -> None:
        self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def depth(self, url: str) -> dict[str, int]:
        """Return the numbers of messages that are ready, in flight and delayed, from the queue attributes."""
        names = {"ready": "", "in_flight": "NotVisible", "delayed": "Delayed"}
        attributes = {key: f"ApproximateNumberOfMessages{name}" for key, name in names.items()}
        names_to_ask = list(attributes.values())
        values = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names_to_ask)["Attributes"]
        return {key: int(values[name]) for key, name in attributes.items()}

    def expect_depth(self, url: str, **expected: int) -> None:
        """Check that the numbers of messages become these; the ones not given must be 0."""
        figures = {"ready": 0, "in_flight": 0, "delayed": 0, **expected}
        self.until(lambda: self.depth(url) == figures, self.patience_seconds)
        expect(self.depth(url), figures, "the queue's figures")

    # a function on a queue

    def connect(self, url: str, *, throttled: bool = False, **settings: Any) -> None:
        """Create an event source mapping from the queue to the function, and wait until it is enabled.

        Args:
            url: The URL of the queue.
            throttled: Use a function whose concurrency is 0.
            settings: Parameters of CreateEventSourceMapping.
        """
        raise NotImplementedError

    def journal(self) -> str:
        """Return the URL of the queue to which the function reports."""
        self._journal_url = self._journal_url or self.queue()
        return self._journal_url

    def invocations(self, url: str) -> list[ReportedInvocation]:
        """Return the invocations for this queue that the function has reported so far, in order."""
        while entries := self.receive(self.journal(), MAX_PER_RECEIVE):
            for entry in entries:
                self._note(json.loads(entry["Body"]))
                self.delete(self.journal(), entry)
        arn = self.arn(url)
        mine = [each for each in self._invocations.values() if each.records[0]["eventSourceARN"] == arn]
        return sorted(mine, key=lambda each: each.began)

    def invoked(self, url: str, count: int = 1, seconds: float = PATIENCE_SECONDS) -> list[ReportedInvocation]:
        """Wait for ``count`` invocations and return them. Raises `AssertionError` after ``seconds``."""
        self.until(lambda: len(self.invocations(url)) >= count, seconds)
        invocations = self.invocations(url)
        assert len(invocations) >= count, f"invoked {len(invocations)} times instead of {count}"
        return invocations[:count]

    def _note(self, report: dict[str, Any]) -> None:
        """Store a report from the beginning or the end of an invocation; they may arrive in any order."""
        known = self._invocations.get(report["request"])
        if known is None or known.ended is None:
            invocation = ReportedInvocation(report["began"], report["left_ms"], report["records"], report.get("ended"))
            self._invocations[report["request"]] = invocation


def expect(seen: T, expected: T, what: str) -> None:
    """Check that a value is as expected. Raises `AssertionError` with both values if not."""
    assert seen == expected, f"{what}: {seen!r} instead of {expected!r}"


def refused(what: str, request: Callable[..., object], *given: Any, text: str = "", **parameters: Any) -> None:
    """Check that a request is refused with an error that contains ``text``. Raises `AssertionError` if not.

    The refusal may be that of botocore, which validates requests against AWS's service models.
    """
    try:
        request(*given, **parameters)
    except (ClientError, ParamValidationError) as error:
        seen = str(error)
    else:
        raise AssertionError(f"accepted: {what}")
    assert text in seen, f"{what} was refused without the text {text}"
