"""A mapping's way to a queue of an SQS that is not ours: long polls, one after the other."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from tarry.sqs.refusals import error_code, failed_entries, is_no_queue
from tarry.support.arn import QueueArn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tarry.local.aws.foreign import ForeignSqs
    from tarry.simulator.mapping_settings import MappingSettings

POLL_SECONDS = 2
"""How long a poll waits at SQS. Nobody can call it back, so this is also what an end may have to wait for."""
LEAST_POLL_SECONDS = 0.5
"""An SQS that does not wait, as some emulators, is not asked more often."""
MANY_RECEIPTS = 1_000

Message = dict[str, Any]


@dataclass(frozen=True)
class _Receipt:
    """What is to be told when a message is deleted."""

    delivery_id: str
    receive_count: int
    until: float


class ForeignPort:
    """`tarry.simulator.mapping.QueuePort`: a mapping's way to a queue of an SQS that is not ours."""

    def __init__(self, sqs: ForeignSqs, settings: MappingSettings) -> None:
        self._sqs = sqs
        self._queue = QueueArn(settings.queue_arn).name
        self._visibility_seconds = int(settings.visibility_timeout_seconds)
        self._receipts: dict[str, _Receipt] = {}
        self._look: Callable[[], None] = lambda: None

    def receive(self, most: int, then: Callable[[list[Message] | Exception], None]) -> None:
        if not self._sqs.closed:
            self._sqs.start(self._receive(most, then))

    def delete(self, receipt_handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        if not self._sqs.closed:
            self._sqs.start(self._delete(receipt_handles, then))

    def on_change(self, look: Callable[[], None]) -> None:
        self._look = look

    async def _receive(self, most: int, then: Callable[[list[Message] | Exception], None]) -> None:
        asked_at = self._sqs.timeline.now
        try:
            answer = await self._sqs.call(
                "receive_message",
                QueueUrl=self._sqs.urls[self._queue],
                MaxNumberOfMessages=most,
                WaitTimeSeconds=POLL_SECONDS,
                VisibilityTimeout=self._visibility_seconds,
                AttributeNames=["All"],  # its old name, which every emulator knows
                MessageAttributeNames=["All"],
            )
        except (BotoCoreError, ClientError) as error:
            then(error)
            return
        messages: list[Message] = answer.get("Messages") or []
        if self._sqs.closed:
            await self._give_back(messages)
            return
        for message in messages:
            self._received(message, asked_at + self._visibility_seconds)
        then(messages)
        if not messages:
            self._sqs.timeline.at(asked_at + LEAST_POLL_SECONDS, self._look)

    async def _give_back(self, messages: Sequence[Message]) -> None:
        if messages:
            entries = [
                {"Id": str(index), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
                for index, message in enumerate(messages)
            ]
            with suppress(BotoCoreError, ClientError):  # they come back when their visibility ends
                await self._request("change_message_visibility_batch", entries)

    async def _delete(self, handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(handles)]
        try:
            answer = await self._request("delete_message_batch", entries)
        except (BotoCoreError, ClientError) as error:
            then(None if is_no_queue(error_code(error)) else error)  # with the queue the message has gone
            return
        for entry in answer.get("Successful") or []:
            self._deleted(handles[int(entry["Id"])])
        failed = failed_entries(answer)
        passing = [failed[entry["Id"]] for entry in answer.get("Failed") or [] if not entry.get("SenderFault")]
        then(passing[0] if passing else None)

    async def _request(self, operation: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return await self._sqs.call(operation, QueueUrl=self._sqs.urls[self._queue], Entries=entries)

    # what is told of it

    def _received(self, message: Message, until: float) -> None:
        attributes: Mapping[str, str] = message.get("Attributes") or {}
        count = int(attributes.get("ApproximateReceiveCount", 1))
        self._receipts[message["ReceiptHandle"]] = _Receipt(message["MessageId"], count, until)
        self._forget_the_ended()
        self._record(
            "received",
            delivery_id=message["MessageId"],
            receive_count=count,
            receipt_handle=message["ReceiptHandle"],
            visible_until=until,
            group=attributes.get("MessageGroupId"),
            # Of a queue of the model these are in its "sent".
            body=message["Body"],
            attributes=message.get("MessageAttributes") or {},
            sent_at=int(attributes.get("SentTimestamp", 0)) / 1000,
        )

    def _deleted(self, handle: str) -> None:
        receipt = self._receipts.pop(handle, None)
        if receipt is not None:
            self._record(
                "deleted",
                delivery_id=receipt.delivery_id,
                receipt_handle=handle,
                receive_count=receipt.receive_count,
            )

    def _forget_the_ended(self) -> None:
        """Nobody deletes with a receipt whose time is over."""
        if len(self._receipts) > MANY_RECEIPTS:
            now = self._sqs.timeline.now
            self._receipts = {handle: each for handle, each in self._receipts.items() if each.until > now}

    def _record(self, what: str, **fields: Any) -> None:
        history = self._sqs.history
        history.by = "mapping"
        try:
            history.record(what, queue=self._queue, **fields)
        finally:
            history.by = None
