"""An external SQS, accessed with boto3: an emulator on this machine, or AWS.

It may start after `tarry local`, stop, and come back empty. `tarry local` waits for it, and creates the queues of the
template whenever they are missing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004
    HTTPClientError,
)

from tarry.failed.queue_names import counts_of, queue_name
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import error_code, failed_entries, is_no_queue
from tarry.tools.simulator.history import History
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.simulator.scheduler import AsyncioScheduler
from tarry.tools.simulator.sqs.message_store import Depth
from tarry.tools.template import Template, TemplateFunction, TemplateQueue
from tarry.tools.template.model import make_queues
from tarry.tools.template.variables import variables_of

POLL_SECONDS = 2
"""The wait of a poll. A poll cannot be cancelled, so stopping may take as long."""
LEAST_POLL_SECONDS = 0.5
"""The minimum interval of polls, for emulators that do not support long polling."""
MAX_RECEIPTS = 1_000

PAUSE_SECONDS = 1.0
COUNT_SECONDS = 2.0
MOST_THREADS = 50

Message = dict[str, Any]
T = TypeVar("T")


class ForeignSqs:
    """An external SQS behind a boto3 client, with the queues of the template; its other resources exist there.

    Made on the running loop and used from there. ``note`` is called once when SQS does not answer, when it is back, and
    when queues were created.
    """

    others: str | None = None
    """The endpoint URL of the other services; None if it is that of SQS."""

    def __init__(
        self,
        client: Any,
        queues: Iterable[TemplateQueue],
        scheduler: AsyncioScheduler,
        history: History,
        note: Callable[[str], None],
    ) -> None:
        self.scheduler = scheduler
        self.history = history
        self.urls: dict[str, str] = {}
        """The queue URLs by name; set by `ready`."""
        self.arns: dict[str, str] = {}
        """The queue ARNs by name, in the account of this SQS."""
        self.closed = False
        self._client = client
        self._queues = {queue.name: queue for queue in queues}
        self._created: set[str] = set()
        self._note = note
        self._where: str = client.meta.endpoint_url
        self._is_unreachable = False
        self._depths: dict[str, Depth] = {}
        self._next_count_at = 0.0
        self._creating: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._template: Template
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="sqs")

    async def ready(self) -> None:
        """Wait until SQS can be reached and has all queues, however long that takes.

        Raises `UsageError` if SQS refuses to create a queue.
        """
        while True:
            try:
                return await self._create_missing()
            except (BotoCoreError, ClientError) as error:
                if not _is_unreachable(error):
                    raise UsageError(f"SQS at {self._where} cannot be used: {error}") from error
            await asyncio.sleep(PAUSE_SECONDS)

    async def check(self, queues: Iterable[TemplateQueue]) -> dict[str, str]:
        """Create the missing queues; return the URLs. Raises `UsageError` if SQS refuses one, or does not answer."""
        before = self._queues
        self._queues = before | {queue.name: queue for queue in queues if queue.name not in before}
        try:
            await self._create_missing()
        except (BotoCoreError, ClientError) as error:
            self._queues = before
            raise UsageError(f"SQS at {self._where} cannot be used: {error}") from error
        return self.urls

    async def update(self, queues: Iterable[TemplateQueue]) -> list[str]:
        """Return notes about the changed queues: they exist, and `tarry local` does not change them."""
        stays = f"stays as it is: tarry local changes no existing queue at {self._where}."
        return [f"Queue {queue.name} {stays}" for queue in queues if self._queues[queue.name] != queue]

    async def make_resources(self, template: Template, _: Mapping[str, str]) -> list[str]:
        """Use the names of a template for the environment variables of its functions."""
        self._template = template
        return []

    def environment(self, function: TemplateFunction, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a function. Raises `TemplateError` if one cannot be resolved."""
        return variables_of(function, self._template, self.urls, given)

    def port(self, settings: MappingSettings) -> "ForeignPort":
        """Return the access of a mapping to its queue; its settings have the ARN of the queue."""
        return ForeignPort(self, settings)

    async def send(self, request: Mapping[str, Any]) -> str:
        """Send a message; return its id. Raises the errors of boto3."""
        answer = await self.call("send_message", **request)
        self.history.record(
            "sent",
            queue=queue_name(request["QueueUrl"]),
            delivery_id=answer["MessageId"],
            body=request["MessageBody"],
            attributes=request.get("MessageAttributes") or {},
        )
        return str(answer["MessageId"])

    def depths(self) -> dict[str, Depth]:
        """Return the numbers of messages at the last count; start a new count if that was some time ago."""
        now = self.scheduler.now
        if now > self._next_count_at and not self.closed:
            self._next_count_at = now + COUNT_SECONDS
            self.start(self._count())
        return {name: self._depths.get(name, Depth(0, 0, 0, None)) for name in self._queues}

    async def close(self) -> None:
        """Stop all polls. Messages that one of them still receives are released at once."""
        self.closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # used by the ports

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a request. Raises the errors of boto3; if the queue does not exist, it is created again."""
        try:
            method: Callable[..., dict[str, Any]] = getattr(self._client, operation)
            return await self._in_thread(partial(method, **parameters))
        except ClientError as error:
            if is_no_queue(error_code(error)) and not self.closed and self._creating is None:
                self._creating = self.start(self._recreate())
            raise

    # queues

    async def _count(self) -> None:
        for name, url in list(self.urls.items()):
            with suppress(BotoCoreError, ClientError):
                answer = await self.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
                self._depths[name] = Depth(*counts_of(answer["Attributes"]), None)

    async def _recreate(self) -> None:
        try:
            await self._create_missing()
        except (BotoCoreError, ClientError) as error:
            if not _is_unreachable(error):
                self._note(f"SQS at {self._where} refuses to create the queues: {error}")
        finally:
            self._creating = None

    async def _create_missing(self) -> None:
        if created := await self._in_thread(self._create_queues):
            self._note(f"created at {self._where}: {', '.join(created)}")

    def _create_queues(self) -> list[str]:
        """Create the missing queues, in a thread; existing queues of others stay unchanged."""
        missing = []
        for name in self._queues:
            try:
                self.urls[name] = self._client.get_queue_url(QueueName=name)["QueueUrl"]
            except ClientError as error:
                if not is_no_queue(error_code(error)):
                    raise
                missing.append(name)
        self._created.update(missing)
        created = [self._queues[name] for name in self._queues if name in self._created]
        # Redrive policies need the ARNs, which are known only after the queues were created.
        self.urls |= make_queues(self._client, [replace(queue, dead_letter_arn=None) for queue in created])
        for name, url in self.urls.items():
            answer = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
            self.arns[name] = answer["Attributes"]["QueueArn"]
        make_queues(self._client, [replace(queue, arn=self.arns[queue.name]) for queue in created])
        return missing

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run in a thread; raise its exception; record whether SQS could be reached."""
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (BotoCoreError, ClientError) as error:
            self._set_reachable(not _is_unreachable(error))
            raise
        self._set_reachable(True)
        return result

    def _set_reachable(self, is_reachable: bool) -> None:
        if is_reachable == self._is_unreachable:
            self._is_unreachable = not is_reachable
            self._note(f"SQS at {self._where} {'is back' if is_reachable else 'does not answer: waiting for it'}")


def _is_unreachable(error: Exception) -> bool:
    """Whether there is no answer, or a server error, as while an emulator starts."""
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) >= 500
    return isinstance(error, (ConnectionError, HTTPClientError))


class ForeignPort:
    """A `tarry.tools.simulator.mapping.QueuePort` for a queue of an external SQS."""

    def __init__(self, sqs: ForeignSqs, settings: MappingSettings) -> None:
        self._sqs = sqs
        self._queue = settings.mapping.queue
        self._visibility_seconds = int(settings.visibility_timeout_seconds)
        self._receipts: dict[str, tuple[float, dict[str, Any]]] = {}
        """The visible messages' time and names, for the events of their deletion, by receipt handle."""
        self._on_change: Callable[[], None] = lambda: None

    def receive(self, most: int, then: Callable[[list[Message] | Exception], None]) -> None:
        if not self._sqs.closed:
            self._sqs.start(self._receive(most, then))

    def delete(self, receipt_handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        if not self._sqs.closed:
            self._sqs.start(self._delete(receipt_handles, then))

    def on_change(self, look: Callable[[], None]) -> None:
        self._on_change = look

    async def _receive(self, most: int, then: Callable[[list[Message] | Exception], None]) -> None:
        asked_at = self._sqs.scheduler.now
        try:
            answer = await self._sqs.call(
                "receive_message",
                QueueUrl=self._sqs.urls[self._queue],
                MaxNumberOfMessages=most,
                WaitTimeSeconds=POLL_SECONDS,
                VisibilityTimeout=self._visibility_seconds,
                AttributeNames=["All"],  # the old name, which all emulators support
                MessageAttributeNames=["All"],
            )
        except (BotoCoreError, ClientError) as error:
            then(error)
            return
        messages: list[Message] = answer.get("Messages") or []
        if self._sqs.closed:  # they are released
            handles = enumerate(message["ReceiptHandle"] for message in messages)
            entries = [{"Id": str(index), "ReceiptHandle": each, "VisibilityTimeout": 0} for index, each in handles]
            with suppress(BotoCoreError, ClientError):  # they become visible when their timeout ends
                if entries:
                    await self._request("change_message_visibility_batch", entries)
            return
        for message in messages:
            self._received(message, asked_at + self._visibility_seconds)
        then(messages)
        if not messages:
            self._sqs.scheduler.at(asked_at + LEAST_POLL_SECONDS, self._on_change)

    async def _delete(self, handles: Sequence[str], then: Callable[[Exception | None], None]) -> None:
        entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(handles)]
        try:
            answer = await self._request("delete_message_batch", entries)
        except (BotoCoreError, ClientError) as error:
            then(None if is_no_queue(error_code(error)) else error)  # the message was deleted with its queue
            return
        for entry in answer.get("Successful") or []:
            if (receipt := self._receipts.pop(handles[int(entry["Id"])], None)) is not None:
                self._record("deleted", **receipt[1])
        failed = failed_entries(answer)
        passing = [failed[entry["Id"]] for entry in answer.get("Failed") or [] if not entry.get("SenderFault")]
        then(passing[0] if passing else None)

    async def _request(self, operation: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return await self._sqs.call(operation, QueueUrl=self._sqs.urls[self._queue], Entries=entries)

    # history

    def _received(self, message: Message, until: float) -> None:
        attributes: Mapping[str, str] = message.get("Attributes") or {}
        handle, count = message["ReceiptHandle"], int(attributes.get("ApproximateReceiveCount", 1))
        names = {"delivery_id": message["MessageId"], "receive_count": count, "receipt_handle": handle}
        self._receipts[handle] = until, names
        if len(self._receipts) > MAX_RECEIPTS:  # forget those whose visibility timeout has ended
            now = self._sqs.scheduler.now
            self._receipts = {handle: each for handle, each in self._receipts.items() if each[0] > now}
        self._record(
            "received",
            **names,
            visible_until=until,
            group=attributes.get("MessageGroupId"),
            # For the embedded SQS these are in the "sent" event.
            body=message["Body"],
            attributes=message.get("MessageAttributes") or {},
            sent_at=int(attributes.get("SentTimestamp", 0)) / 1000,
        )

    def _record(self, what: str, **fields: Any) -> None:
        self._sqs.history.record(what, by="mapping", queue=self._queue, **fields)
