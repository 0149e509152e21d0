"""The model of SQS: answers requests as SQS would."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from botocore.exceptions import ParamValidationError

from tarry.support.values import queue_arn
from tarry.tools.simulator.sqs.errors import NO_SUCH_QUEUE, SqsError, check_range, check_request
from tarry.tools.simulator.sqs.queue import IN_FLIGHT_LIMIT, QueueContext, Realism
from tarry.tools.simulator.sqs.registry import Registry
from tarry.tools.simulator.sqs.requests import SqsRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tarry.tools.simulator.history import History
    from tarry.tools.simulator.sqs.message import StoredMessage
    from tarry.tools.simulator.sqs.message_store import Depth
    from tarry.tools.simulator.sqs.queue import SimulatedQueue

MAX_LISTED_TASKS = 10
MAX_PER_SECOND = 500


class TaskFailed(Exception):
    """A task cannot go on; the text is its failure reason."""


@dataclass
class MoveTask:
    """A message move task. Without a rate it moves everything at its start."""

    handle: str
    source: str
    destination: str | None
    """The ARN of the target; None to move each message to the queue that it comes from."""
    per_second: int | None
    started_at: float
    to_move: int
    """The number of messages when the task started."""
    moved: int = 0
    status: str = "RUNNING"
    failure: str | None = None

    def next_at(self) -> float:
        """Return when the task moves its next message, or ends."""
        return self.started_at + (self.moved / self.per_second if self.per_second else 0)

    def described(self) -> dict[str, Any]:
        """Return the task's entry in the answer to ListMessageMoveTasks."""
        entry = {
            "TaskHandle": self.handle if self.status == "RUNNING" else None,
            "Status": self.status,
            "SourceArn": self.source,
            "ApproximateNumberOfMessagesMoved": self.moved,
            "ApproximateNumberOfMessagesToMove": self.to_move,
            "StartedTimestamp": int(self.started_at * 1000),
            "DestinationArn": self.destination,
            "MaxNumberOfMessagesPerSecond": self.per_second,
            "FailureReason": self.failure,
        }
        return {name: value for name, value in entry.items() if value is not None}


class MoveTasks:
    """The message move tasks of an account. `catch_up` moves the messages that are due."""

    def __init__(self, now: Callable[[], float], queue_of: Callable[[str], SimulatedQueue | None]) -> None:
        self._now = now
        self._queue_of = queue_of
        self._tasks: list[MoveTask] = []
        self._running: dict[str, MoveTask] = {}  # by the ARN of the source queue

    # time

    def catch_up(self) -> None:
        """Move the messages that have become due since the last call."""
        if self._running:  # else this costs every request
            for task in list(self._running.values()):
                self._advance(task)

    def next_move_to(self, queue: SimulatedQueue) -> float | None:
        """Return when a task may move a message to this queue; None if no task runs that can."""
        if not self._running:
            return None
        moves = [each.next_at() for each in self._running.values() if each.destination in (None, queue.arn)]
        return min(moves, default=None)

    def _advance(self, task: MoveTask) -> None:
        try:
            while task.next_at() <= self._now():
                source = self._existing_or_fail(task.source)
                message = source.first_visible(task.next_at())
                if message is None:
                    self._end(task, "COMPLETED")
                    return
                source.redrive_to(self._target(task, message), message, task.next_at())
                task.moved += 1
        except TaskFailed as failure:
            task.failure = str(failure)
            self._end(task, "FAILED")

    def _target(self, task: MoveTask, message: StoredMessage) -> SimulatedQueue:
        destination = task.destination or message.dead_letter_source
        if destination is None:
            raise TaskFailed("CouldNotDetermineMessageSource")
        return self._existing_or_fail(destination)

    def _existing_or_fail(self, arn: str) -> SimulatedQueue:
        queue = self._queue_of(arn)
        if queue is None:
            raise TaskFailed(NO_SUCH_QUEUE)
        return queue

    def _end(self, task: MoveTask, status: str) -> None:
        task.status = status
        del self._running[task.source]

    # requests

    def start(self, request: Mapping[str, Any], sources: list[SimulatedQueue]) -> str:
        """Start a task, which moves its first message at once; return the task's handle.

        ``sources`` are the queues whose dead-letter queue is the request's ``SourceArn``. Raises `SqsError` if SQS
        would refuse the request.
        """
        source, destination = request["SourceArn"], request.get("DestinationArn")
        per_second = request.get("MaxNumberOfMessagesPerSecond")
        if per_second is not None:
            check_range(per_second, "MaxNumberOfMessagesPerSecond", 1, MAX_PER_SECOND)
        queue = self._existing(source, "SourceArn")
        if not sources:
            raise SqsError("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
        if destination:
            _check_destination(queue, self._existing(destination, "DestinationArn"))
        if source in self._running:
            text = "There is already a task running. Only one active task is allowed for a source queue arn at a given "
            raise SqsError("InvalidParameterValue", f"{text}time.")
        task_id = str(uuid5(NAMESPACE_URL, f"{len(self._tasks)} {source}"))
        handle = b64encode(json.dumps({"taskId": task_id, "sourceArn": source}).encode()).decode()
        task = MoveTask(handle, source, destination or None, per_second, self._now(), queue.depth().ready)
        self._tasks.append(task)
        self._running[source] = task
        self._advance(task)
        return handle

    def list(self, source: str, max_results: int) -> list[dict[str, Any]]:
        self._existing(source, "SourceArn")
        tasks = [task for task in reversed(self._tasks) if task.source == source]
        return [task.described() for task in tasks[: min(max_results, MAX_LISTED_TASKS)]]

    def cancel(self, handle: str) -> int:
        """Cancel a running task; return how many messages it has moved, which stay where they are."""
        try:
            fields = json.loads(b64decode(handle, validate=True))
            _, source = fields["taskId"], str(fields["sourceArn"])
        except (NotBase64, ValueError, LookupError, TypeError):
            raise SqsError("InvalidParameterValue", "Value for parameter TaskHandle is invalid.") from None
        self._existing(source, "SourceArn")
        task = self._running.get(source)
        if task is None or task.handle != handle:
            raise SqsError("ResourceNotFoundException", "Task does not exist.")
        self._end(task, "CANCELLED")
        return task.moved

    def _existing(self, arn: str, parameter: str) -> SimulatedQueue:
        queue = self._queue_of(arn) if queue_arn(arn).name else None
        if queue is None:
            text = f"The resource that you specified for the {parameter} parameter doesn't exist."
            raise SqsError("ResourceNotFoundException", text)
        return queue


def _check_destination(source: SimulatedQueue, destination: SimulatedQueue) -> None:
    if destination is source:
        raise SqsError("InvalidParameterValue", "Source queue and destination queue must not be the same.")
    if destination.settings.fifo != source.settings.fifo:
        raise SqsError("InvalidParameterValue", "Source queue and destination queue must be of the same type.")


ORDERLY = Realism()


class Sqs:
    """The SQS of one account and region.

    The same requests at the same times (``now``, in epoch seconds) with the same ``random`` get the same answers. The
    model never waits, not even in a ReceiveMessage: for a long poll the caller receives again when `subscribe` calls
    it back, or at `next_visible_at`.
    """

    def __init__(
        self,
        now: Callable[[], float],
        random: Random,
        history: History,
        *,
        account: str = "123456789012",
        region: str = "us-east-1",
        realism: Realism = ORDERLY,
        in_flight_limit: int = IN_FLIGHT_LIMIT,
    ) -> None:
        self.region = region
        self.random = random
        self.history = history
        self.other_services: str | None = None
        """The endpoint URL of other AWS services that belong to this SQS, for clients that look for them."""
        self.find_story: Callable[[str], Mapping[str, Any]] | None = None
        """Answers `GET /story?id=ID` of its server, if it is set."""
        self.latest_errors: Callable[[], Mapping[str, str]] | None = None
        """Tells `GET /queues` why the latest message came to each dead-letter queue, by its name, if it is set."""
        self.event_source_mappings: Callable[..., tuple[int, dict[str, Any]]] | None = None
        """Answers Lambda's requests for event source mappings, if it is set: method, UUID, query, body."""
        self._registry = Registry(account, region)
        self._trace_header: str | None = None
        context = QueueContext(
            now,
            random,
            history,
            realism,
            in_flight_limit,
            self._registry.with_arn,
            self._note_change,
            lambda: self._trace_header,
        )
        self.now = now
        """Return the time of this SQS, in epoch seconds."""
        self._move_tasks = MoveTasks(now, self._registry.with_arn)
        self._requests = SqsRequests(self._registry, context, self._move_tasks)
        self._changed: dict[str, None] = {}
        self._subscribers: dict[str, list[Callable[[], None]]] = {}

    @property
    def endpoint_url(self) -> str:
        """The endpoint in the URLs of the queues."""
        return self._registry.endpoint

    @endpoint_url.setter
    def endpoint_url(self, url: str) -> None:
        self._registry.endpoint = url

    def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Check a request against SQS's service model and answer it. Raises `SqsError` if SQS would refuse it."""
        try:
            check_request(operation, parameters)
        except ParamValidationError as error:
            raise SqsError("SerializationException", str(error)) from None
        return self.answer(operation, parameters)

    def called_by(
        self,
        source: str,
        operation: str,
        parameters: Mapping[str, Any],
        invocation: str | None = None,
        trace_header: str | None = None,
    ) -> dict[str, Any]:
        """Answer a request that comes from outside; the history records its source and its invocation.

        The messages that it sends get ``trace_header``, the ``X-Amzn-Trace-Id`` of the request, as their
        ``AWSTraceHeader`` if they have none of their own. Raises `SqsError` if SQS would refuse the request.
        """
        before, self.history.by, self.history.invocation = self.history.by, source, invocation
        self._trace_header = trace_header
        try:
            return self.call(operation, parameters)
        finally:
            self.history.by, self.history.invocation, self._trace_header = before, None, None

    def answer(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request that was checked by the caller. Raises `SqsError`."""
        method = self._requests.operations.get(operation)
        if method is None:
            text = f"The simulator does not know the operation {operation}."
            raise SqsError("AWS.SimpleQueueService.UnsupportedOperation", text)
        try:
            self._move_tasks.catch_up()
            return method(dict(parameters))
        finally:
            if self._changed:
                self._notify_subscribers()

    def wait_seconds(self, receive: Mapping[str, Any]) -> int:
        """Return how long this ReceiveMessage request is to wait for a message. Raises `SqsError`."""
        return self._requests.wait_seconds(receive)

    # inspection, which does not count as a receive

    def subscribe(self, queue: str, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after each request that lets a message of the queue be received, now or at a new time."""
        self._subscribers.setdefault(queue, []).append(on_change)

    def next_visible_at(self, queue: str) -> float | None:
        """Return when the next message becomes visible, or arrives by a move task, if no request changes that.

        None if all messages are visible and no task runs.
        """
        self._move()
        found = self._registry.named(queue)
        visible_at, moves_at = found.next_visible_at(), self._move_tasks.next_move_to(found)
        if visible_at is None or moves_at is None:
            return moves_at if visible_at is None else visible_at
        return min(visible_at, moves_at)

    def depth(self, queue: str) -> Depth:
        self._move()
        return self._registry.named(queue).depth()

    def peek(self, queue: str) -> list[StoredMessage]:
        """Return all messages of a queue, visible or not, in the order of their arrival."""
        self._move()
        return self._registry.named(queue).messages()

    def queues(self) -> list[str]:
        """Return the names of all queues, in the order of their creation."""
        return [queue.name for queue in self._registry]

    def has_queue(self, name: str) -> bool:
        return self._registry.has(name)

    def url(self, queue: str) -> str:
        return self._registry.url(queue)

    def arn(self, queue: str) -> str:
        return self._registry.named(queue).arn

    def deliver_duplicate(self, queue: str, handle: str, seconds: float) -> None:
        """Deliver a message of a standard queue once more after ``seconds``, even if it is deleted by then."""
        self._registry.named(queue).deliver_duplicate(handle, seconds)
        self._notify_subscribers()

    def catch_up(self) -> None:
        """Record in the history what has become due in any queue since the last request, such as expiries."""
        self._move()
        for queue in self._registry:
            queue.catch_up()

    def _move(self) -> None:
        """Move the messages that are due in a move task, and notify the subscribers of their queues."""
        self._move_tasks.catch_up()
        if self._changed:
            self._notify_subscribers()

    def _note_change(self, queue: SimulatedQueue) -> None:
        self._changed[queue.name] = None

    def _notify_subscribers(self) -> None:
        changed, self._changed = self._changed, {}
        for queue in changed:
            for on_change in self._subscribers.get(queue, ()):
                on_change()
