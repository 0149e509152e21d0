"""Message move tasks: SQS itself moves all messages of a dead-letter queue, without a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.errors import ConfigurationError
from tarry.failed.requests import MoveUnconfirmed, NowhereToGo, lookups
from tarry.sqs.refusals import may_be_applied
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.failed.queues import DeadLetterQueue, Routes
    from tarry.support.values import QueueArn

MAX_MOVES_PER_SECOND = 500
MAX_LISTED_TASKS = 10


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
    return next(iter(_moves(queue, 1)), None)


def moved_since(queue: DeadLetterQueue, earlier: MessageMoveTask | None) -> MessageMoveTask | None:
    """Return the last task that was started after ``earlier``, with the number of messages that all of these moved.

    There are several if boto3 has repeated a start whose answer was lost.
    """
    tasks = [each for each in _moves(queue) if earlier is None or each.started_at > earlier.started_at]
    return tasks[0]._changed(moved=sum(each.moved for each in tasks)) if tasks else None


def _moves(queue: DeadLetterQueue, most: int = MAX_LISTED_TASKS) -> list[MessageMoveTask]:
    answer = lookups().requests.call("list_message_move_tasks", SourceArn=queue.arn.text, MaxResults=most)
    return [MessageMoveTask(each) for each in answer.get("Results", [])]


def destination(routes: Routes) -> QueueArn:
    """Return the queue that a message move task moves to: the one that was named, or the only source queue.

    SQS itself knows the origin only of messages that it has moved, not of those that tarry has dead-lettered. Raises
    `NowhereToGo`.
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
        MoveUnconfirmed: SQS may have started the task, or not.
        botocore.exceptions.ClientError: SQS refuses the request, for example because a task is running.
    """
    parameters: dict[str, Any] = {"SourceArn": routes.queue.arn.text, "DestinationArn": destination(routes).text}
    if rate is not None:
        if not 1 <= rate <= MAX_MOVES_PER_SECOND:
            raise ConfigurationError(
                f"a message move task takes a rate from 1 to {MAX_MOVES_PER_SECOND} messages a second, got {rate:g}"
            )
        parameters["MaxNumberOfMessagesPerSecond"] = int(rate)
    try:
        lookups().requests.call("start_message_move_task", **parameters)
    except Exception as error:
        if may_be_applied(error):
            raise MoveUnconfirmed(
                f"{routes.queue}: SQS may have started a message move task, or not: {error}"
            ) from error
        raise


def cancel_move(task: MessageMoveTask) -> int:
    """Cancel a running task; return about how many messages it has moved, which stay in their queue.

    Raises:
        botocore.exceptions.ClientError: SQS refuses the request, for example because the task has ended.
    """
    answer = lookups().requests.call("cancel_message_move_task", TaskHandle=task.handle)
    return int(answer.get("ApproximateNumberOfMessagesMoved", task.moved))
