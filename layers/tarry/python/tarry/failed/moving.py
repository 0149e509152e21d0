"""Message move tasks: SQS itself moves all messages of a dead-letter queue, without a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.errors import ConfigurationError
from tarry.failed.errors import NowhereToGo
from tarry.failed.requests import lookups
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.failed.queues import DeadLetterQueue, Routes
    from tarry.support.values import QueueArn

MAX_MOVES_PER_SECOND = 500


class MessageMoveTask(Value):
    """A message move task, as SQS describes it."""

    handle: str | None
    """The handle to cancel it with; None if it has ended."""
    status: str
    """``RUNNING``, ``COMPLETED``, ``CANCELLING``, ``CANCELLED`` or ``FAILED``."""
    started_at: float
    """In epoch seconds."""
    moved: int
    """The approximate number of messages moved so far."""
    to_move: int | None
    """The approximate number of messages when it started; None if SQS does not tell."""
    failure: str | None
    """Why it failed."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._freeze(
            handle=described.get("TaskHandle"),
            status=described["Status"],
            started_at=described["StartedTimestamp"] / 1000,
            moved=described.get("ApproximateNumberOfMessagesMoved", 0),
            to_move=described.get("ApproximateNumberOfMessagesToMove"),
            failure=described.get("FailureReason"),
        )

    @property
    def is_running(self) -> bool:
        """Whether it moves messages."""
        return self.status in ("RUNNING", "CANCELLING")


def last_move(queue: DeadLetterQueue) -> MessageMoveTask | None:
    """Return the last message move task of a dead-letter queue, which may have ended; None if there was none."""
    answer = lookups().requests.call("list_message_move_tasks", SourceArn=queue.arn.text, MaxResults=1)
    found = answer.get("Results", [])
    return MessageMoveTask(found[0]) if found else None


def destination(routes: Routes) -> QueueArn:
    """Return the queue that a message move task moves to: the one that was named, or the only source queue.

    SQS itself knows the origin only of messages that it has moved, not of those that tarry has dead-lettered.

    Raises:
        NowhereToGo: there are several sources, or none.
    """
    if routes.to is not None:
        return routes.to
    sources = routes.queue.sources or ()
    if len(sources) == 1:
        return sources[0]
    names = f"has {len(sources)} source queues ({', '.join(each.name for each in sources)})" if sources else ""
    raise NowhereToGo(
        f"{routes.queue} {names or 'has no source queue that SQS lists'}, and a message move task has one destination: "
        "name it (--to QUEUE)"
    )


def start_move(routes: Routes, rate: float | None = None) -> None:
    """Start a message move task, which moves all messages of the dead-letter queue.

    Args:
        routes: The dead-letter queue, and where to move its messages.
        rate: Messages a second, a whole number up to 500; None for as fast as SQS can.

    Raises:
        ConfigurationError: the rate is out of range.
        NowhereToGo: the destination is not known.
        botocore.exceptions.ClientError: SQS refuses the request, for example because a task is running.
    """
    parameters: dict[str, Any] = {"SourceArn": routes.queue.arn.text, "DestinationArn": destination(routes).text}
    if rate is not None:
        if not 1 <= rate <= MAX_MOVES_PER_SECOND:
            raise ConfigurationError(
                f"a message move task takes a rate from 1 to {MAX_MOVES_PER_SECOND} messages a second, got {rate:g}"
            )
        parameters["MaxNumberOfMessagesPerSecond"] = int(rate)
    lookups().requests.call("start_message_move_task", **parameters)


def cancel_move(task: MessageMoveTask) -> int:
    """Cancel a running task; return about how many messages it has moved, which stay in their queue.

    Raises:
        botocore.exceptions.ClientError: SQS refuses the request, for example because the task has ended.
    """
    answer = lookups().requests.call("cancel_message_move_task", TaskHandle=task.handle)
    return int(answer.get("ApproximateNumberOfMessagesMoved", task.moved))
