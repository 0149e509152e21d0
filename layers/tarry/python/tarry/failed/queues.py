"""A dead-letter queue, as SQS tells of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.failed.errors import UnknownQueue
from tarry.failed.requests import lookups
from tarry.sqs.refusals import error_code, is_denied, is_no_queue
from tarry.sqs.topology import Topology
from tarry.support.arn import QueueArn, named_queue, queue_arn
from tarry.support.value import Value

if TYPE_CHECKING:
    from tarry.sqs.lookups import Lookups

NAMES_TOLD = 10
ALL = ["All"]


class DeadLetterQueue(Value):
    """A queue whose messages are dead letters. Made by `find`."""

    __slots__ = ("arn", "name", "about", "in_flight", "visibility_timeout", "sources", "moves_to", "moves_after")  # noqa: RUF023
    arn: QueueArn
    name: str
    about: int
    """About how many messages are in it: SQS does not know exactly."""
    in_flight: int
    """About how many of these somebody else holds."""
    visibility_timeout: int
    """In seconds."""
    sources: tuple[QueueArn, ...] | None
    """The queues whose dead-letter queue it is; None if SQS does not tell."""
    moves_to: str | None
    """The name of its own dead-letter queue: a look can move a letter there. None if it has none."""
    moves_after: int | None
    """After how many receives."""

    def __init__(self, attributes: dict[str, str], sources: tuple[QueueArn, ...] | None) -> None:
        arn, redrive = queue_arn(attributes["QueueArn"]), json.loads(attributes.get("RedrivePolicy") or "{}")
        counts = [
            int(attributes.get(f"ApproximateNumberOfMessages{what}", 0)) for what in ("", "NotVisible", "Delayed")
        ]
        self._freeze(
            arn=arn,
            name=arn.name,
            about=sum(counts),
            in_flight=counts[1],
            visibility_timeout=int(attributes.get("VisibilityTimeout", 30)),
            sources=sources,
            moves_to=queue_arn(redrive.get("deadLetterTargetArn")).name or None,
            moves_after=int(redrive["maxReceiveCount"]) if redrive.get("maxReceiveCount") else None,
        )

    def __str__(self) -> str:
        return self.name


def find(name_or_url: str) -> DeadLetterQueue:
    """The queue of a name, URL or ARN, and the queues that it is the dead-letter queue of.

    Raises `UnknownQueue`, and whatever botocore raises.
    """
    ways = lookups()
    url = url_of(name_or_url, ways)
    try:
        told = ways.requests.call("get_queue_attributes", QueueUrl=url, AttributeNames=ALL)["Attributes"]
    except Exception as error:
        if is_no_queue(error_code(error)):
            raise UnknownQueue(name_or_url, _names(ways)) from error
        raise
    return DeadLetterQueue(told, _sources(url, queue_arn(told["QueueArn"]), ways))


def url_of(name_or_url: str, ways: Lookups) -> str:
    """The URL of a queue. Raises `UnknownQueue` for a name that SQS does not know."""
    if "://" in name_or_url:
        return name_or_url
    arn = queue_arn(name_or_url)
    owner = {"QueueOwnerAWSAccountId": arn.account} if arn.account else {}
    try:
        answer = ways.requests.call("get_queue_url", QueueName=arn.name or name_or_url, **owner)
    except Exception as error:
        if is_no_queue(error_code(error)):
            raise UnknownQueue(name_or_url, _names(ways)) from error
        raise
    return str(answer["QueueUrl"])


def arn_of(name_or_url: str, beside: QueueArn) -> QueueArn:
    """The ARN of a queue that is there, in the region of another. Raises `UnknownQueue`."""
    ways = lookups()
    try:
        url = url_of(name_or_url, ways)
        told = ways.requests.call("get_queue_attributes", QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    except Exception as error:
        if is_denied(error_code(error)):  # it may be allowed to send to it all the same
            return named_queue(name_or_url, beside)
        if is_no_queue(error_code(error)):
            raise UnknownQueue(name_or_url, _names(ways)) from error
        raise
    return queue_arn(told["QueueArn"])


def is_dead_letter_queue_of(queue: QueueArn, source: QueueArn) -> bool:
    """Whether the source's own redrive policy says so; False where it cannot be read."""
    ways = lookups()
    facts = world.current().keep(Topology).source(source, ways.requests)
    return facts.error is None and facts.dead_letter == queue


def _sources(url: str, arn: QueueArn, ways: Lookups) -> tuple[QueueArn, ...] | None:
    urls: list[str] = []
    more: dict[str, Any] = {}
    try:
        while True:
            answer = ways.requests.call("list_dead_letter_source_queues", QueueUrl=url, **more)
            urls += answer.get("queueUrls", [])
            if not (token := answer.get("NextToken")):
                return tuple(named_queue(each, arn) for each in urls)
            more = {"NextToken": token, "MaxResults": 1000}
    except Exception as error:
        if is_denied(error_code(error)):
            return None
        raise


def _names(ways: Lookups) -> tuple[str, ...]:
    """Names of queues that there are, to be told to whom has named another."""
    try:
        urls = ways.requests.call("list_queues").get("QueueUrls", [])
    except Exception:  # noqa: BLE001 it was only to help
        return ()
    names = [url.rpartition("/")[2] for url in urls]
    more = (f"and {len(names) - NAMES_TOLD} more",) if len(names) > NAMES_TOLD else ()
    return (*names[:NAMES_TOLD], *more)
