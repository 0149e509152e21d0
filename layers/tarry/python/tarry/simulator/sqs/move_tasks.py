"""Message move tasks: StartMessageMoveTask, ListMessageMoveTasks, CancelMessageMoveTask."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs.errors import SqsError
from tarry.support.arn import queue_arn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tarry.simulator.sqs.queue import SimulatedQueue

MAX_LISTED_TASKS = 10


@dataclass(frozen=True)
class MoveTask:
    """A message move task. It moves all messages at its start, then stays RUNNING as long as its rate implies."""

    handle: str
    source: str
    destination: str | None
    started_at: float
    ends_at: float
    to_move: int
    moved: int
    per_second: int | None
    failure: str | None
    cancelled: bool = False

    def status(self, now: float) -> str:
        if self.failure:
            return "FAILED"
        if self.cancelled:
            return "CANCELLED"
        return "RUNNING" if now < self.ends_at else "COMPLETED"

    def described(self, now: float) -> dict[str, Any]:
        """Return the task's entry in the answer to ListMessageMoveTasks."""
        status = self.status(now)
        entry = {
            "TaskHandle": self.handle if status == "RUNNING" else None,
            "Status": status,
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
    """The message move tasks of an account."""

    def __init__(self, now: Callable[[], float], queue_of: Callable[[str], SimulatedQueue | None]) -> None:
        self._now = now
        self._queue_of = queue_of
        self._tasks: list[MoveTask] = []

    def start(self, request: Mapping[str, Any], sources: list[SimulatedQueue]) -> str:
        """Move all visible messages; return the task's handle.

        Args:
            request: A StartMessageMoveTask.
            sources: The queues that have the request's ``SourceArn`` as their dead-letter queue.
        """
        source, destination = request["SourceArn"], request.get("DestinationArn")
        queue = self._existing(source, "SourceArn")
        if not sources:
            raise SqsError("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
        target = self._existing(destination, "DestinationArn") if destination else None
        if any(task.source == source and task.status(self._now()) == "RUNNING" for task in self._tasks):
            text = "There is already a task running. Only one active task is allowed for a source queue arn at a given "
            raise SqsError("InvalidParameterValue", f"{text}time.")
        messages = queue.visible()
        moved, failure = 0, None
        for message in messages:
            to = target or self._queue_of(message.dead_letter_source or "")
            if to is None:
                failure = "CouldNotDetermineMessageSource"
                break
            queue.redrive_to(to, message)
            moved += 1
        per_second = request.get("MaxNumberOfMessagesPerSecond")
        now = self._now()
        ends_at = now + (moved / per_second if per_second else 0)
        handle = b64encode(f"{len(self._tasks)}:{source}".encode()).decode()
        task = MoveTask(handle, source, destination, now, ends_at, len(messages), moved, per_second, failure)
        self._tasks.append(task)
        return handle

    def list(self, source: str, max_results: int) -> list[dict[str, Any]]:
        self._existing(source, "SourceArn")
        tasks = [task for task in reversed(self._tasks) if task.source == source]
        return [task.described(self._now()) for task in tasks[: min(max_results, MAX_LISTED_TASKS)]]

    def cancel(self, handle: str) -> int:
        """Cancel a running task; return how many messages it has moved, which is all of them here."""
        try:
            text, _, source = b64decode(handle, validate=True).decode().partition(":")
            number = int(text)
        except (NotBase64, ValueError):
            raise SqsError("InvalidParameterValue", "Value for parameter TaskHandle is invalid.") from None
        self._existing(source, "SourceArn")
        task = self._tasks[number] if 0 <= number < len(self._tasks) else None
        if task is None or task.handle != handle or task.status(self._now()) != "RUNNING":
            raise SqsError("ResourceNotFoundException", "Task does not exist.")
        self._tasks[number] = replace(task, cancelled=True)
        return task.moved

    def _existing(self, arn: str, parameter: str) -> SimulatedQueue:
        queue = self._queue_of(arn) if queue_arn(arn).name else None
        if queue is None:
            text = f"The resource that you specified for the {parameter} parameter doesn't exist."
            raise SqsError("ResourceNotFoundException", text)
        return queue
