"""A queue whose messages are delivered to a function process, which is restarted after a crash.

The queue is that of the simulator. It is served to the function over HTTP, and waits are skipped.
"""

import json
import time
from contextlib import ExitStack
from typing import Any, Self

from tarry.failed.dead_letters import event_record
from tests.acceptance.runtime import Start
from tests.acceptance.runtime_api import FakeRuntimeApi, ProcessEnded
from tests.served import served

QUEUE, DEAD_LETTER_QUEUE = "orders", "orders-dlq"


class Redelivery:
    """The delivery of batches of ten, one at a time, to a function process that is restarted after a crash.

    ``start`` starts a function process under the runtime client of Lambda, with environment variables.
    """

    def __init__(self, start: Start, *, timeout: float, receives: int, is_fifo: bool = False) -> None:
        self._start = start
        self._timeout = timeout
        self._skipped = 0.0
        end = ".fifo" if is_fifo else ""
        self._queue, self._dead_letter_queue, self._is_fifo = f"{QUEUE}{end}", f"{DEAD_LETTER_QUEUE}{end}", is_fifo
        self._receives = receives
        self.crashes: list[list[str]] = []
        """The bodies of the messages in the process at each crash that were not deleted."""
        self.exits: list[int | None] = []
        """The exit code of each process that ended; None if it was killed at its timeout."""
        self.done: list[str] = []

    def __enter__(self) -> Self:
        self._open = ExitStack()
        self._server = self._open.enter_context(served())
        self._sqs = self._server.sqs
        self._sqs.now = self._now
        self._server.queue(self._dead_letter_queue)
        redrive = {"deadLetterTargetArn": self._sqs.arn(self._dead_letter_queue), "maxReceiveCount": self._receives}
        self._url = self._server.queue(self._queue, RedrivePolicy=json.dumps(redrive), VisibilityTimeout="180")
        self._process = self._open.enter_context(ExitStack())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def send(self, *bodies: str) -> None:
        """Send messages; on FIFO, each in its own group."""
        for body in bodies:
            fifo = {"MessageGroupId": body, "MessageDeduplicationId": body} if self._is_fifo else {}
            self._call("SendMessage", QueueUrl=self._url, MessageBody=body, **fifo)

    def play(self) -> Self:
        """Deliver until the queue is empty."""
        api: FakeRuntimeApi | None = None
        while messages := self._receive():
            records = [event_record(each, self._sqs.arn(self._queue), self._sqs.region) for each in messages]
            api = api or self._new_process()
            try:
                answer = api.invoke({"Records": records}, self._timeout)
                failed = {each["itemIdentifier"] for each in answer["batchItemFailures"]}
            except (ProcessEnded, TimeoutError) as error:
                self.exits.append(getattr(error, "exit_code", None))
                self._process.close()
                api = None
                left = {stored.delivery_id for stored in self._peek(self._queue)}
                self.crashes.append([each["Body"] for each in messages if each["MessageId"] in left])
                continue
            for each in messages:
                if each["MessageId"] not in failed:
                    self.done.append(each["Body"])
                    self._call("DeleteMessage", QueueUrl=self._url, ReceiptHandle=each["ReceiptHandle"])
        return self

    @property
    def dead_letters(self) -> list[str]:
        """The bodies of the messages in the dead-letter queue."""
        return [stored.body for stored in self._peek(self._dead_letter_queue)]

    def _new_process(self) -> FakeRuntimeApi:
        api: FakeRuntimeApi = self._process.enter_context(self._start(AWS_ENDPOINT_URL=self._server.url))
        return api

    def _receive(self) -> list[dict[str, Any]]:
        """Receive the next messages, skipping waits; return none if the queue is empty."""
        asked = {"QueueUrl": self._url, "MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"]}
        while not (messages := self._call("ReceiveMessage", **asked).get("Messages", [])):
            at = self._server.on_the_loop(lambda: self._sqs.next_visible_at(self._queue))
            if at is None:
                return []
            self._skipped += max(0.0, at - self._now()) + 0.001
        return list(messages)

    def _peek(self, queue: str) -> list[Any]:
        return self._server.on_the_loop(lambda: self._sqs.peek(queue))

    def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return self._server.on_the_loop(lambda: self._sqs.call(operation, parameters))

    def _now(self) -> float:
        return time.time() + self._skipped
