"""The model of SQS: the queues of an account, its message move tasks, and answers as SQS would give them."""

import json
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from sys import intern
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from botocore import xform_name
from botocore.exceptions import ParamValidationError

from tarry.tools.simulator.history import History
from tarry.tools.simulator.scheduler import Scheduler, Timer
from tarry.tools.simulator.sqs.errors import (
    NO_SUCH_QUEUE,
    SqsError,
    check_range,
    check_request,
    no_such_queue,
    service_model,
)
from tarry.tools.simulator.sqs.message import StoredMessage
from tarry.tools.simulator.sqs.message_store import Depth, Realism
from tarry.tools.simulator.sqs.queue import IN_FLIGHT_LIMIT, SimulatedQueue
from tarry.tools.simulator.sqs.requests import SqsRequests

MAX_LISTED_TASKS = 10
MAX_PER_SECOND = 500


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

    def __init__(self, sqs: "Sqs") -> None:
        self._sqs = sqs
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
        while task.status == "RUNNING" and task.next_at() <= self._sqs.now():
            source = self._sqs.with_arn(task.source)
            if source is None:
                self._end(task, "FAILED", NO_SUCH_QUEUE)
            elif (message := source.first_visible(task.next_at())) is None:
                self._end(task, "COMPLETED")
            elif (destination := task.destination or message.dead_letter_source) is None:
                self._end(task, "FAILED", "CouldNotDetermineMessageSource")
            elif (target := self._sqs.with_arn(destination)) is None:
                self._end(task, "FAILED", NO_SUCH_QUEUE)
            else:
                source.redrive_to(target, message, task.next_at())
                task.moved += 1

    def _end(self, task: MoveTask, status: str, failure: str | None = None) -> None:
        task.status, task.failure = status, failure
        del self._running[task.source]

    # requests, by boto3's names

    def start_message_move_task(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a task, which moves its first message at once."""
        source, destination = request["SourceArn"], request.get("DestinationArn")
        per_second = request.get("MaxNumberOfMessagesPerSecond")
        if per_second is not None:
            check_range(per_second, "MaxNumberOfMessagesPerSecond", 1, MAX_PER_SECOND)
        queue = self._existing(source, "SourceArn")
        if not self._sqs.sources_of(source):
            raise SqsError("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
        if destination:
            target = self._existing(destination, "DestinationArn")
            if target is queue:
                raise SqsError("InvalidParameterValue", "Source queue and destination queue must not be the same.")
            if target.settings.fifo != queue.settings.fifo:
                raise SqsError("InvalidParameterValue", "Source queue and destination queue must be of the same type.")
        if source in self._running:
            text = "There is already a task running. Only one active task is allowed for a source queue arn at a given "
            raise SqsError("InvalidParameterValue", f"{text}time.")
        task_id = str(uuid5(NAMESPACE_URL, f"{len(self._tasks)} {source}"))
        handle = b64encode(json.dumps({"taskId": task_id, "sourceArn": source}).encode()).decode()
        task = MoveTask(handle, source, destination or None, per_second, self._sqs.now(), queue.depth().ready)
        self._tasks.append(task)
        self._running[source] = task
        self._advance(task)
        return {"TaskHandle": handle}

    def list_message_move_tasks(self, request: dict[str, Any]) -> dict[str, Any]:
        source = request["SourceArn"]
        self._existing(source, "SourceArn")
        tasks = [task for task in reversed(self._tasks) if task.source == source]
        listed = tasks[: min(request.get("MaxResults", 1), MAX_LISTED_TASKS)]
        return {"Results": [task.described() for task in listed]}

    def cancel_message_move_task(self, request: dict[str, Any]) -> dict[str, Any]:
        """Cancel a running task; the messages that it has moved stay where they are."""
        handle = request["TaskHandle"]
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
        return {"ApproximateNumberOfMessagesMoved": task.moved}

    def _existing(self, arn: str, parameter: str) -> SimulatedQueue:
        queue = self._sqs.with_arn(arn)
        if queue is None:
            text = f"The resource that you specified for the {parameter} parameter doesn't exist."
            raise SqsError("ResourceNotFoundException", text)
        return queue


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
        self.now = now
        """Return the time of this SQS, in epoch seconds."""
        self.random = random
        self.history = history
        self.region = region
        self.realism = realism
        self.in_flight_limit = in_flight_limit
        self.endpoint_url = f"https://sqs.{region}.amazonaws.com"
        """The endpoint in the URLs of the queues."""
        self.other_services: str | None = None
        """The endpoint URL of other AWS services that belong to this SQS, for clients that look for them."""
        self.find_story: Callable[[str], Mapping[str, Any]] | None = None
        """Answers `GET /story?id=ID` of its server, if it is set."""
        self.latest_errors: Callable[[], Mapping[str, str]] | None = None
        """Tells `GET /queues` why the latest message came to each dead-letter queue, by its name, if it is set."""
        self.event_source_mappings: Callable[..., tuple[int, dict[str, Any]]] | None = None
        """Answers Lambda's requests for event source mappings, if it is set: method, path, query, body."""
        self.by_name: dict[str, SimulatedQueue] = {}
        """The queues, in the order of their creation."""
        self.arn_prefix = f"arn:aws:sqs:{region}:{account}:"
        self.trace_header: str | None = None
        """The X-Ray header of the current request."""
        self.account = account
        self._move_tasks = MoveTasks(self)
        self._requests = SqsRequests(self)
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            name: getattr(owner, method)
            for name in service_model().operation_names
            for owner in (self._requests, self._move_tasks)
            if hasattr(owner, method := xform_name(name))
        }
        self._changed: dict[str, None] = {}
        self._subscribers: dict[str, list[Callable[[], None]]] = {}

    # requests

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
        self.trace_header = trace_header
        try:
            return self.call(operation, parameters)
        finally:
            self.history.by, self.history.invocation, self.trace_header = before, None, None

    def answer(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request that was checked by the caller. Raises `SqsError`."""
        method = self._operations.get(operation)
        if method is None:
            text = f"The simulator does not know the operation {operation}."
            raise SqsError("AWS.SimpleQueueService.UnsupportedOperation", text)
        try:
            self._move_tasks.catch_up()
            return method(dict(parameters)) or {}
        finally:
            if self._changed:
                self._notify_subscribers()

    def wait_seconds(self, receive: Mapping[str, Any]) -> int:
        """Return how long this ReceiveMessage request is to wait for a message. Raises `SqsError`."""
        return self._requests.wait_seconds(receive)

    # the queues

    def queues(self) -> list[str]:
        """Return the names of all queues, in the order of their creation."""
        return list(self.by_name)

    def url(self, queue: str) -> str:
        return f"{self.endpoint_url}/{self.account}/{queue}"

    def arn(self, queue: str) -> str:
        return self.named(queue).arn

    def named(self, name: str) -> SimulatedQueue:
        """Return the queue with a name. Raises `SqsError` if there is none."""
        queue = self.by_name.get(name)
        if queue is None:
            raise no_such_queue()
        return queue

    def at(self, url: str) -> SimulatedQueue:
        """Return the queue with a URL; the host does not matter. Raises `SqsError` if there is none."""
        path, _, name = url.rpartition("/")
        if path and not path.endswith("/" + self.account):
            raise no_such_queue()
        return self.named(name)

    def with_arn(self, arn: str) -> SimulatedQueue | None:
        return self.by_name.get(arn.removeprefix(self.arn_prefix)) if arn.startswith(self.arn_prefix) else None

    def sources_of(self, dead_letter: str) -> list[SimulatedQueue]:
        """Return the queues whose dead-letter queue has the ARN ``dead_letter``."""
        queues = self.by_name.values()
        return [queue for queue in queues if (policy := queue.settings.redrive) and policy.target == dead_letter]

    def new_id(self) -> str:
        text = f"{self.random.getrandbits(128):032x}"
        return intern(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")  # the history names it often

    # inspection, which does not count as a receive

    def subscribe(self, queue: str, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after each request that lets a message of the queue be received, now or at a new time."""
        self._subscribers.setdefault(queue, []).append(on_change)

    def next_visible_at(self, queue: str) -> float | None:
        """Return when the next message becomes visible, or arrives by a move task, if no request changes that.

        None if all messages are visible and no task runs.
        """
        self._move()
        found = self.named(queue)
        visible_at, moves_at = found.next_visible_at(), self._move_tasks.next_move_to(found)
        if visible_at is None or moves_at is None:
            return moves_at if visible_at is None else visible_at
        return min(visible_at, moves_at)

    def depth(self, queue: str) -> Depth:
        self._move()
        return self.named(queue).depth()

    def peek(self, queue: str) -> list[StoredMessage]:
        """Return all messages of a queue, visible or not, in the order of their arrival."""
        self._move()
        return self.named(queue).messages()

    def deliver_duplicate(self, queue: str, handle: str, seconds: float) -> None:
        """Deliver a message of a standard queue once more after ``seconds``, even if it is deleted by then."""
        self.named(queue).deliver_duplicate(handle, seconds)
        self._notify_subscribers()

    def catch_up(self) -> None:
        """Record in the history what has become due in any queue since the last request, such as expiries."""
        self._move()
        for queue in self.by_name.values():
            queue.catch_up()

    def changed(self, queue: SimulatedQueue) -> None:
        """Note that a message of a queue can be received, now or at a new time."""
        self._changed[queue.name] = None

    def _move(self) -> None:
        """Move the messages that are due in a move task, and notify the subscribers of their queues."""
        self._move_tasks.catch_up()
        if self._changed:
            self._notify_subscribers()

    def _notify_subscribers(self) -> None:
        changed, self._changed = self._changed, {}
        for queue in changed:
            for on_change in self._subscribers.get(queue, ()):
                on_change()


class QueueWatch:
    """Calls ``on_change`` when a queue may have messages to receive: after a request, or when one becomes visible."""

    def __init__(self, sqs: Sqs, scheduler: Scheduler, queue: str, on_change: Callable[[], None]) -> None:
        self._sqs = sqs
        self._scheduler = scheduler
        self._queue = queue
        self._on_change = on_change
        self._timer: Timer | None = None
        sqs.subscribe(queue, self._changed)
        self.update()

    def update(self) -> None:
        """Set the timer for when the next message becomes visible. A receive may have moved that without a call."""
        try:
            when = self._sqs.next_visible_at(self._queue)
        except SqsError:  # the queue was deleted
            when = None
        if self._timer is not None:
            if self._timer.when == when:
                return
            self._timer.cancel()
        self._timer = None if when is None else self._scheduler.at(when, self._on_visible)

    def _on_visible(self) -> None:
        self._timer = None
        self._changed()

    def _changed(self) -> None:
        self.update()
        self._on_change()
