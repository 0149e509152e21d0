"""A dead-letter queue, and the queues its dead letters go back to, also by a message move task.

Such a task is SQS's own: it moves all messages of a dead-letter queue, without a filter.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.errors import ConfigurationError
from tarry.failed.queue_names import counts_of, queue_name, redrive_of
from tarry.failed.requests import MoveUnconfirmed, NowhereToGo, UnknownQueue, lookups
from tarry.sqs.refusals import error_code, is_denied, is_no_queue, may_be_applied
from tarry.support.values import QueueArn, Value, named_queue, queue_arn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.sqs.client import Lookups

MAX_NAMES = 10
ALL = ["All"]


class DeadLetterQueue(Value):
    """A dead-letter queue. Made by `find`."""

    arn: QueueArn
    name: str
    about: int
    """The approximate number of messages, in flight or not."""
    in_flight: int
    """The approximate number of messages that other consumers have in flight."""
    visibility_timeout: int
    """In seconds."""
    sources: tuple[QueueArn, ...] | None
    """The queues that have it as their dead-letter queue; None if SQS does not list them: the permission is missing,
    or an emulator does not have the operation."""
    moves_to: str | None
    """The name of its own dead-letter queue, to which an inspection can move messages; None if it has none."""
    moves_after: int | None
    """The number of receives after which SQS moves a message to ``moves_to``."""
    counted_at: float
    """When SQS counted the messages, by the clock of SQS, in epoch seconds."""

    def __init__(
        self, attributes: dict[str, str], sources: tuple[QueueArn, ...] | None, counted_at: float = math.inf
    ) -> None:
        arn, redrive, counts = queue_arn(attributes["QueueArn"]), redrive_of(attributes), counts_of(attributes)
        self._freeze(
            arn=arn,
            name=arn.name,
            about=sum(counts),
            in_flight=counts.in_flight,
            visibility_timeout=int(attributes.get("VisibilityTimeout", 30)),
            sources=sources,
            moves_to=redrive.target.name if redrive else None,
            moves_after=redrive.max_receive_count if redrive else None,
            counted_at=counted_at,
        )

    def __str__(self) -> str:
        return self.name


def find(name_or_url: str) -> DeadLetterQueue:
    """Find a dead-letter queue by name, URL or ARN.

    Raises:
        UnknownQueue: the queue does not exist.
        botocore.exceptions.ClientError: SQS refuses a request.
    """
    sqs = lookups()
    url, answer = _asked(name_or_url, ALL, sqs)
    attributes = part_of(answer, "Attributes", "GetQueueAttributes")
    sources = _sources(url, queue_arn(attributes["QueueArn"]), sqs)
    return DeadLetterQueue(attributes, sources, _answered_at(answer))


def _answered_at(answer: dict[str, Any]) -> float:
    """Return when SQS answered, by its own clock: this machine may have another, and `tarry local` a virtual one."""
    from email.utils import parsedate_to_datetime

    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return parsedate_to_datetime(date).timestamp() + 1  # the header has no fraction of a second
    except ValueError:
        return world.current().clock.time()


def _asked(name_or_url: str, names: list[str], sqs: Lookups) -> tuple[str, dict[str, Any]]:
    """Return the URL of a queue, and the answer with its attributes. Raises `UnknownQueue` if it does not exist."""
    url, arn = name_or_url, queue_arn(name_or_url)
    owner = {"QueueOwnerAWSAccountId": arn.account} if arn.account else {}
    try:
        if "://" not in url:
            answer = sqs.requests.call("get_queue_url", QueueName=arn.name or name_or_url, **owner)
            url = str(part_of(answer, "QueueUrl", "GetQueueUrl"))
        return url, sqs.requests.call("get_queue_attributes", QueueUrl=url, AttributeNames=names)
    except Exception as error:
        if is_no_queue(error_code(error)):
            raise UnknownQueue(name_or_url, _names(sqs)) from error
        raise


def part_of(answer: Mapping[str, Any], name: str, operation: str) -> Any:
    """Return a part of an answer that SQS always gives."""
    if name not in answer:  # boto3 returns the page of another server as an answer without fields
        raise ConfigurationError(f"{operation} was answered without {name}: check that the endpoint is SQS")
    return answer[name]


def arn_of(name_or_url: str, beside: QueueArn) -> QueueArn:
    """Return the ARN of an existing queue in the region of ``beside``. Raises `UnknownQueue`."""
    try:
        _, answer = _asked(name_or_url, ["QueueArn"], lookups())
    except Exception as error:
        if is_denied(error_code(error)):  # sending to the queue may still be allowed
            return named_queue(name_or_url, beside)
        raise
    return queue_arn(part_of(answer, "Attributes", "GetQueueAttributes")["QueueArn"])


def _sources(url: str, arn: QueueArn, sqs: Lookups) -> tuple[QueueArn, ...] | None:
    urls: list[str] = []
    more: dict[str, Any] = {}
    try:
        while True:
            answer = sqs.requests.call("list_dead_letter_source_queues", QueueUrl=url, **more)
            urls += answer.get("queueUrls", [])
            if not (token := answer.get("NextToken")):
                return tuple(named_queue(each, arn) for each in urls)
            more = {"NextToken": token, "MaxResults": 1000}
    except Exception as error:
        if is_denied(error_code(error)) or _is_unsupported(error):
            return None
        raise


def _is_unsupported(error: Exception) -> bool:
    """Whether the endpoint does not have the operation, as some emulators of SQS."""
    code, response = error_code(error), getattr(error, "response", None)
    if any(part in code for part in ("InvalidAction", "UnknownOperation", "UnsupportedOperation", "NotImplemented")):
        return True
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    return status in {404, 405, 501} and not is_no_queue(code)


def _names(sqs: Lookups) -> tuple[str, ...]:
    """Return names of existing queues, for the error about an unknown one."""
    try:
        urls = sqs.requests.call("list_queues").get("QueueUrls", [])
    except Exception:  # noqa: BLE001 the error is reported without names
        return ()
    names = [queue_name(url) for url in urls]
    more = (f"and {len(names) - MAX_NAMES} more",) if len(names) > MAX_NAMES else ()
    return (*names[:MAX_NAMES], *more)


class Routes(Value):
    """The queues that the messages of a dead-letter queue go back to.

    Args:
        queue: The dead-letter queue.
        to: Send all messages to this queue (name, URL or ARN) instead of the one each came from.
        known: Names of queues that are trusted as origins although SQS does not list them as sources.

    Raises:
        UnknownQueue: ``to`` does not exist.
        NowhereToGo: ``to`` is the dead-letter queue itself.
    """

    queue: DeadLetterQueue
    to: QueueArn | None
    known: frozenset[str]

    def __init__(self, queue: DeadLetterQueue, to: str | None = None, known: Iterable[str] = ()) -> None:
        target = None if to is None else arn_of(to, queue.arn)
        if target == queue.arn:
            raise NowhereToGo(f"{queue.name} is the dead-letter queue itself: name another queue to send to")
        self._freeze(queue=queue, to=target, known=frozenset(known))

    def target(self, dead_letter: DeadLetterMessage) -> QueueArn:
        """Return the queue to send the dead letter to. Raises `NowhereToGo`."""
        if self.to is not None:
            return self.to
        if dead_letter.origin is None:
            raise NowhereToGo(
                f"the origin of dead letter {dead_letter.id} is unknown (it has no Tarry attribute): "
                "name a queue to send it to (--to QUEUE)"
            )
        origin, queue = queue_arn(dead_letter.origin), self.queue
        if origin == queue.arn:
            pass
        elif queue.sources is not None and origin in queue.sources:
            return origin
        elif origin.name and origin.name in self.known:
            return queue.arn.sibling(origin.name)  # in this account and region, whatever ARN the envelope has
        elif queue.sources is None and origin.name and lookups().facts(origin).dead_letter == queue.arn:
            return origin
        sources = ", ".join(source.name for source in queue.sources or ()) or "none listed by SQS"
        raise NowhereToGo(
            f"dead letter {dead_letter.id} names {dead_letter.origin!r:.200} as its origin, which is not a source of "
            f"{queue.name} (sources: {sources}): name a queue to send it to (--to QUEUE)"
        )


# message move tasks

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
