"""A dead-letter queue, and the queues its dead letters go back to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.failed.errors import NowhereToGo, UnknownQueue
from tarry.failed.requests import lookups
from tarry.sqs.refusals import error_code, is_denied, is_no_queue
from tarry.sqs.topology import Topology
from tarry.support.arn import QueueArn, named_queue, queue_arn
from tarry.support.value import Value
from tarry.tooling.queues import counts_of, queue_name, redrive_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.sqs.lookups import Lookups

NAMES_TOLD = 10
ALL = ["All"]


class DeadLetterQueue(Value):
    """A queue whose messages are dead letters. Made by `find`."""

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
    names = [queue_name(url) for url in urls]
    more = (f"and {len(names) - NAMES_TOLD} more",) if len(names) > NAMES_TOLD else ()
    return (*names[:NAMES_TOLD], *more)


class Routes(Value):
    """The ways back from one dead-letter queue. ``known`` are names of queues that are trusted too."""

    queue: DeadLetterQueue
    to: QueueArn | None
    known: frozenset[str]

    def __init__(self, queue: DeadLetterQueue, to: str | None = None, known: Iterable[str] = ()) -> None:
        target = None if to is None else arn_of(to, queue.arn)
        if target == queue.arn:
            raise NowhereToGo(f"{queue.name} is the dead-letter queue itself: send its dead letters to another queue")
        self._freeze(queue=queue, to=target, known=frozenset(known))

    def target(self, dead_letter: DeadLetterMessage) -> QueueArn:
        """The queue that the letter goes back to. Raises `NowhereToGo`."""
        if self.to is not None:
            return self.to
        if dead_letter.origin is None:
            raise NowhereToGo(
                f"dead letter {dead_letter.id} does not say which queue it came from (it has no tarry envelope): "
                "name a queue to send it to (--to QUEUE)"
            )
        origin, queue = queue_arn(dead_letter.origin), self.queue
        if origin == queue.arn:
            pass
        elif queue.sources is not None and origin in queue.sources:
            return origin
        elif origin.name and origin.name in self.known:
            return queue.arn.sibling(origin.name)  # the one beside it, whatever account and region the letter names
        elif queue.sources is None and origin.name and is_dead_letter_queue_of(queue.arn, origin):
            return origin
        sources = ", ".join(source.name for source in queue.sources or ()) or "none that SQS tells of"
        raise NowhereToGo(
            f"dead letter {dead_letter.id} says that it came from {dead_letter.origin!r:.200}, which is no source of "
            f"{queue.name} (its sources: {sources}): name a queue to send it to (--to QUEUE)"
        )
