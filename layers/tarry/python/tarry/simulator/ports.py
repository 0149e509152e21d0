"""A mapping's way to a queue of the model in this process."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.simulator.mapping_settings import MappingSettings
from tarry.simulator.sqs import Sqs, SqsError
from tarry.simulator.timeline import Timeline
from tarry.sqs.refusals import is_no_queue
from tarry.support.arn import QueueArn

if TYPE_CHECKING:
    from tarry.simulator.timeline import Timer

ONE_WAY_SECONDS = 0.003
LONG_POLL_SECONDS = 20
"""Asks all of SQS's servers. Nobody waits in it: the port looks again when there is something."""


class SqsPort:
    """`tarry.simulator.mapping.QueuePort`, for the mapping with these settings."""

    def __init__(self, timeline: Timeline, sqs: Sqs, settings: MappingSettings) -> None:
        self._timeline = timeline
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
        self._look: Callable[[], None] = lambda: None
        self._shown: Timer | None = None

    def receive(self, most: int, then: Callable[[list[dict[str, Any]] | Exception], None]) -> None:
        def told(answer: dict[str, Any] | Exception) -> None:
            self._watch()
            if isinstance(answer, SqsError) and is_no_queue(answer.code):
                answer = {}  # it was deleted: there is nothing to receive until it is made again
            then(answer if isinstance(answer, Exception) else answer.get("Messages", []))

        self._request("ReceiveMessage", {**self._receive, "MaxNumberOfMessages": most}, told)

    def delete(self, receipt_handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        def told(answer: dict[str, Any] | Exception) -> None:
            then(answer if isinstance(answer, Exception) else None)

        entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(receipt_handles)]
        self._request("DeleteMessageBatch", {"QueueUrl": self._url, "Entries": entries}, told)

    def on_change(self, look: Callable[[], None]) -> None:
        self._look = look
        self._sqs.subscribe(self._queue, self._changed)
        self._watch()

    def _changed(self) -> None:
        self._watch()
        self._look()

    def _watch(self) -> None:
        """Look when the next message is shown, whatever else happens."""
        try:
            when = self._sqs.next_visible_at(self._queue)
        except SqsError:  # the queue was deleted
            when = None
        if self._shown is not None:
            if self._shown.when == when:
                return
            self._shown.cancel()
            self._shown = None
        if when is not None:
            self._shown = self._timeline.at(when, self._on_shown)

    def _on_shown(self) -> None:
        self._shown = None
        self._watch()
        self._look()

    def _request(
        self, operation: str, parameters: dict[str, Any], then: Callable[[dict[str, Any] | Exception], None]
    ) -> None:
        """There in a few milliseconds, and back in as many."""

        def arrive() -> None:
            answer: dict[str, Any] | Exception
            self._sqs.history.by = "mapping"
            try:
                answer = self._answer(operation, parameters)
            except SqsError as error:
                answer = error
            finally:
                self._sqs.history.by = None
            self._timeline.after(ONE_WAY_SECONDS, partial(then, answer))

        self._timeline.after(ONE_WAY_SECONDS, arrive)

    def _answer(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        return self._sqs.answer(operation, parameters)
