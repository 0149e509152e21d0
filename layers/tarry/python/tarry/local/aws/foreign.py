"""Another SQS than the embedded one, by boto3: an emulator on this machine, or AWS itself.

It may start later than `tarry local`, stop, and come back empty. `tarry local` waits for it, and declares the
template's queues whenever they are missing.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004
    HTTPClientError,
)

from tarry.simulator.sqs.message_store import Depth
from tarry.sqs.refusals import error_code, failed_entries, is_no_queue
from tarry.support.arn import QueueArn
from tarry.template.queues import make_queues
from tarry.tooling.errors import UsageError
from tarry.tooling.queues import counts_of, queue_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from tarry.simulator.asyncio_scheduler import AsyncioScheduler
    from tarry.simulator.history import History
    from tarry.simulator.mapping_settings import MappingSettings
    from tarry.template.model import TemplateQueue

POLL_SECONDS = 2
"""How long a poll waits at SQS. Nobody can call it back, so this is also what an end may have to wait for."""
LEAST_POLL_SECONDS = 0.5
"""An SQS that does not wait, as some emulators, is not asked more often."""
MANY_RECEIPTS = 1_000

Message = dict[str, Any]


PAUSE_SECONDS = 1.0
COUNT_SECONDS = 2.0
MOST_THREADS = 50

T = TypeVar("T")


class ForeignSqs:
    """The SQS behind a boto3 client, and the queues that are to be there.

    Made on the running loop, and used from there. ``note`` is told, once each, when SQS is waited for, when it is back,
    and when queues were declared.
    """

    def __init__(
        self,
        client: Any,
        queues: Iterable[TemplateQueue],
        timeline: AsyncioScheduler,
        history: History,
        note: Callable[[str], None],
    ) -> None:
        self.timeline = timeline
        self.history = history
        self.urls: dict[str, str] = {}
        """The queues' URLs there, by name; filled by `ready`."""
        self.arns: dict[str, str] = {}
        """Their ARNs, in whatever account it believes in."""
        self.closed = False
        self._client = client
        self._queues = {queue.name: queue for queue in queues}
        self._ours: set[str] = set()
        self._note = note
        self._where: str = client.meta.endpoint_url
        self._is_away = False
        self._depths = {name: Depth(0, 0, 0, None) for name in self._queues}
        self._count_again_at = 0.0
        self._declaring: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="sqs")

    async def ready(self) -> None:
        """Return when SQS is there and has all queues, however long that takes.

        Raises:
            UsageError: SQS refuses to make a queue.
        """
        while True:
            try:
                return await self._declare()
            except (BotoCoreError, ClientError) as error:
                if not _is_absence(error):
                    raise UsageError(f"SQS at {self._where} cannot be used: {error}") from error
            await asyncio.sleep(PAUSE_SECONDS)

    def port(self, settings: MappingSettings) -> ForeignPort:
        """The way of a mapping to its queue here; its settings name the queue by ARN."""
        return ForeignPort(self, settings)

    async def send(self, request: Mapping[str, Any]) -> str:
        """Send a message; its id.

        Raises:
            UsageError: it is refused.
        """
        try:
            answer = await self.call("send_message", **request)
        except (BotoCoreError, ClientError) as error:
            raise UsageError(str(error)) from error
        self.history.record(
            "sent",
            queue=queue_name(request["QueueUrl"]),
            delivery_id=answer["MessageId"],
            body=request["MessageBody"],
            attributes=request.get("MessageAttributes") or {},
        )
        return str(answer["MessageId"])

    def depths(self) -> dict[str, Depth]:
        """What each queue held when it was last counted, which this has done again if that is some time ago."""
        now = self.timeline.now
        if now > self._count_again_at and not self.closed:
            self._count_again_at = now + COUNT_SECONDS
            self.start(self._count())
        return dict(self._depths)

    async def close(self) -> None:
        """End all polls. What one of them still receives goes back to its queue at once."""
        self.closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # for its ports

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """One request. Raises what boto3 raises; if it is that the queue is gone, it will be declared again."""
        try:
            method: Callable[..., dict[str, Any]] = getattr(self._client, operation)
            return await self._in_thread(partial(method, **parameters))
        except ClientError as error:
            if is_no_queue(error_code(error)) and not self.closed and self._declaring is None:
                self._declaring = self.start(self._declare_again())
            raise

    # what there is

    async def _count(self) -> None:
        for name, url in list(self.urls.items()):
            with suppress(BotoCoreError, ClientError):
                told = (await self.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"]))["Attributes"]
                self._depths[name] = Depth(*counts_of(told), None)

    async def _declare_again(self) -> None:
        try:
            await self._declare()
        except (BotoCoreError, ClientError) as error:
            if not _is_absence(error):
                self._note(f"SQS at {self._where} does not take the queues: {error}")
        finally:
            self._declaring = None

    async def _declare(self) -> None:
        made = await self._in_thread(self._make_queues)
        if made:
            self._note(f"made at {self._where}: {', '.join(made)}")

    def _make_queues(self) -> list[str]:
        """Makes the queues that are not there; what somebody else has made is left as it is. In a thread."""
        missing = [name for name in self._queues if not self._is_there(name)]
        self._ours.update(missing)
        ours = [self._queues[name] for name in self._queues if name in self._ours]
        # Its ARNs are known when its queues are there, and only then can one be another's dead-letter queue.
        self.urls |= make_queues(self._client, [replace(queue, dead_letter_arn=None) for queue in ours])
        for name, url in self.urls.items():
            told = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
            self.arns[name] = told["Attributes"]["QueueArn"]
        make_queues(self._client, [replace(queue, arn=self.arns[queue.name]) for queue in ours])
        return missing

    def _is_there(self, name: str) -> bool:
        try:
            self.urls[name] = self._client.get_queue_url(QueueName=name)["QueueUrl"]
        except ClientError as error:
            if not is_no_queue(error_code(error)):
                raise
            return False
        return True

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Raises what it raises, and notes whether anybody has answered."""
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (BotoCoreError, ClientError) as error:
            self._is_there_now(not _is_absence(error))
            raise
        self._is_there_now(True)
        return result

    def _is_there_now(self, is_there: bool) -> None:
        if is_there == self._is_away:
            self._is_away = not is_there
            self._note(f"SQS at {self._where} {'is back' if is_there else 'does not answer: waiting for it'}")


def _is_absence(error: Exception) -> bool:
    """Whether nobody answers, or somebody who has yet to get ready."""
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) >= 500
    return isinstance(error, (ConnectionError, HTTPClientError))


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
