"""The message move tasks of an account, and the requests about them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from tarry.tools.simulator.sqs.errors import NO_SUCH_QUEUE, SqsError, check_range

if TYPE_CHECKING:
    from tarry.tools.simulator.sqs.model import Sqs
    from tarry.tools.simulator.sqs.queue import SimulatedQueue

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

    def __init__(self, sqs: Sqs) -> None:
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
            _check_destination(queue, self._existing(destination, "DestinationArn"))
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


def _check_destination(source: SimulatedQueue, destination: SimulatedQueue) -> None:
    if destination is source:
        raise SqsError("InvalidParameterValue", "Source queue and destination queue must not be the same.")
    if destination.settings.fifo != source.settings.fifo:
        raise SqsError("InvalidParameterValue", "Source queue and destination queue must be of the same type.")
