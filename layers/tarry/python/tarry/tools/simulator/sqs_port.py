"""The connection of an event source mapping to a queue of the SQS model in this process."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.sqs.refusals import is_no_queue
from tarry.support.values import QueueArn
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.simulator.scheduler import Scheduler
from tarry.tools.simulator.sqs import Sqs, SqsError

if TYPE_CHECKING:
    from tarry.tools.simulator.scheduler import Timer

ONE_WAY_SECONDS = 0.003
LONG_POLL_SECONDS = 20
"""Makes each receive a long poll, which queries all servers of SQS. The port does not wait: it watches the queue."""


class SqsPort:
    """The `tarry.tools.simulator.mapping.QueuePort` of a mapping with these settings."""

    def __init__(self, scheduler: Scheduler, sqs: Sqs, settings: MappingSettings) -> None:
        self._scheduler = scheduler
        self._sqs = sqs
        self._queue = QueueArn(settings.queue_arn).name
        self._url = sqs.url(self._queue)
        self._receive: dict[str, Any] = {
            "QueueUrl": self._url,
            "WaitTimeSeconds": LONG_POLL_SECONDS,
            "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        }
        if settings.visibility_timeout_seconds > settings.queue_visibility_seconds:
            self._receive["VisibilityTimeout"] = int(settings.visibility_timeout_seconds)
        self._callback: Callable[[], None] = lambda: None
        self._next_visible: Timer | None = None

    def receive(self, max_messages: int, then: Callable[[list[dict[str, Any]] | Exception], None]) -> None:
        def answered(answer: dict[str, Any] | Exception) -> None:
            self._watch()
            if isinstance(answer, SqsError) and is_no_queue(answer.code):
                answer = {}  # the queue was deleted: no messages until it is created again
            then(answer if isinstance(answer, Exception) else answer.get("Messages", []))

        self._request("ReceiveMessage", {**self._receive, "MaxNumberOfMessages": max_messages}, answered)

    def delete(self, receipt_handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        def answered(answer: dict[str, Any] | Exception) -> None:
            then(answer if isinstance(answer, Exception) else None)

        entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(receipt_handles)]
        self._request("DeleteMessageBatch", {"QueueUrl": self._url, "Entries": entries}, answered)

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._sqs.subscribe(self._queue, self._changed)
        self._watch()

    def _changed(self) -> None:
        self._watch()
        self._callback()

    def _watch(self) -> None:
        """Set the timer for when the next message becomes visible."""
        try:
            when = self._sqs.next_visible_at(self._queue)
        except SqsError:  # the queue was deleted
            when = None
        if self._next_visible is not None:
            if self._next_visible.when == when:
                return
            self._next_visible.cancel()
            self._next_visible = None
        if when is not None:
            self._next_visible = self._scheduler.at(when, self._on_visible)

    def _on_visible(self) -> None:
        self._next_visible = None
        self._watch()
        self._callback()

    def _request(
        self, operation: str, parameters: dict[str, Any], then: Callable[[dict[str, Any] | Exception], None]
    ) -> None:
        """Make a request that takes `ONE_WAY_SECONDS` to arrive; so does its answer."""

        def arrive() -> None:
            answer: dict[str, Any] | Exception
            self._sqs.history.by = "mapping"
            try:
                answer = self._answer(operation, parameters)
            except SqsError as error:
                answer = error
            finally:
                self._sqs.history.by = None
            self._scheduler.after(ONE_WAY_SECONDS, partial(then, answer))

        self._scheduler.after(ONE_WAY_SECONDS, arrive)

    def _answer(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        return self._sqs.answer(operation, parameters)
