"""An SQS that is not ours, by boto3: another emulator on this machine, or AWS itself.

It may come later than we do, go away, and come back with nothing in it. It is waited for, and its queues are declared
as the template has them whenever they are not there.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError  # noqa: A004

from tarry.local.aws.foreign_port import ForeignPort
from tarry.simulator.history import History
from tarry.simulator.mapping_settings import MappingSettings
from tarry.simulator.sqs.stock import Depth
from tarry.simulator.wall import LoopTimeline
from tarry.sqs.refusals import error_code, is_no_queue
from tarry.template.model import Queue
from tarry.template.queues import make_queues
from tarry.tooling.errors import UsageError
from tarry.tooling.queues import queue_name

PAUSE_SECONDS = 1.0
COUNT_SECONDS = 2.0
COUNTED = tuple(f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed"))
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
        queues: Iterable[Queue],
        timeline: LoopTimeline,
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
                ready, hidden, delayed = (int(told.get(each, 0)) for each in COUNTED)
                self._depths[name] = Depth(ready, hidden, delayed, None)

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
