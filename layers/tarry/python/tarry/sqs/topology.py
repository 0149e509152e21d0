"""Queues as AWS knows them: their URLs, limits and redrive policies, looked up at the first need and kept a while."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tarry.arn import QueueArn, queue_arn
from tarry.sqs.client import NoAnswer, OutOfTime, client_of
from tarry.sqs.limits import MAX_REQUEST_BYTES
from tarry.value import Value

if TYPE_CHECKING:
    from tarry.sqs.client import Requests
    from tarry.world import World

KEPT_SECONDS = 900
FAILURE_KEPT_SECONDS = 30
LOOK_UP_SHARE = 1 / 3  # of the time left: what is looked up must not cost the messages theirs

SOURCE_ATTRIBUTES = ("RedrivePolicy", "VisibilityTimeout", "MessageRetentionPeriod", "MaximumMessageSize")
TARGET_ATTRIBUTES = ("MaximumMessageSize",)

DEAD_LETTER_QUEUE_VARIABLE = "TARRY_DEAD_LETTER_QUEUE_URL"


class Source(Value):
    """What is known of a queue that messages come from; None is unknown or unset."""

    __slots__ = ("dead_letter", "max_receive_count", "retention", "visibility_timeout")
    dead_letter: QueueArn | None
    max_receive_count: int | None
    visibility_timeout: int | None
    """In seconds, as is the retention."""
    retention: int | None

    def __init__(self, attributes: dict[str, str]) -> None:
        redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
        target = redrive.get("deadLetterTargetArn")
        self._freeze(
            dead_letter=queue_arn(target) if target else None,
            max_receive_count=_whole(redrive.get("maxReceiveCount")),
            visibility_timeout=_whole(attributes.get("VisibilityTimeout")),
            retention=_whole(attributes.get("MessageRetentionPeriod")),
        )


class Lookup(Value):
    """The attributes of a queue, or the error with which SQS refused to tell them."""

    __slots__ = ("attributes", "error", "until")
    attributes: dict[str, str]
    error: Exception | None
    until: float

    def __init__(self, attributes: dict[str, str], error: Exception | None, until: float) -> None:
        self._freeze(attributes=attributes, error=error, until=until)


class Topology:
    """What was looked up of queues. It outlives invocations: one for a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lookups: dict[str, Lookup] = {}

    def knows(self, queue: QueueArn) -> bool:
        """Whether it was looked up as a queue messages come from."""
        return self._known(queue, SOURCE_ATTRIBUTES) is not None

    def last_known_retention(self, queue: QueueArn) -> int | None:
        """In seconds, as the latest look-up told it, even one of long ago: a queue's retention hardly ever changes."""
        lookup = self._lookups.get(_key(queue, SOURCE_ATTRIBUTES))
        return None if lookup is None else _whole(lookup.attributes.get("MessageRetentionPeriod"))

    def source(self, queue: QueueArn, requests: Requests) -> tuple[Source, Exception | None]:
        """What is known of the queue messages come from, and the error if SQS did not tell it."""
        lookup = self._look_up(queue, SOURCE_ATTRIBUTES, requests)
        try:
            return Source(lookup.attributes), lookup.error
        except (AttributeError, TypeError, ValueError) as error:
            return Source({}), error

    def maximum_message_size(self, queue: QueueArn, requests: Requests) -> tuple[int, Exception | None]:
        """In bytes; 1 MiB, and the error, if SQS does not tell it. Of a source it is known with all else."""
        lookup = self._known(queue, SOURCE_ATTRIBUTES) or self._look_up(queue, TARGET_ATTRIBUTES, requests)
        return _whole(lookup.attributes.get("MaximumMessageSize")) or MAX_REQUEST_BYTES, lookup.error

    def url(self, queue: QueueArn) -> str:
        """Made of the ARN and the client's endpoint: no request. Raises `ValueError` for a queue without a name."""
        if not queue.name:
            raise ValueError(f"{queue.text!r} is not the ARN of an SQS queue: there is nothing to ask of it")
        endpoint = client_of(self._world).meta.endpoint_url.rstrip("/")
        return f"{endpoint}/{queue.account}/{queue.name}"

    def _look_up(self, queue: QueueArn, attributes: tuple[str, ...], requests: Requests) -> Lookup:
        if (known := self._known(queue, attributes)) is not None:
            return known
        key = _key(queue, attributes)

        def ask() -> Lookup:
            url = self.url(queue)
            answer = requests.call("get_queue_attributes", QueueUrl=url, AttributeNames=list(attributes))
            return self._keep(key, Lookup(answer.get("Attributes", {}), None, self._until(KEPT_SECONDS)))

        [answer] = requests.all([ask], share=LOOK_UP_SHARE)
        if isinstance(answer, Lookup):
            return answer
        failed = Lookup({}, answer, self._until(FAILURE_KEPT_SECONDS))
        says_nothing_of_the_queue = isinstance(answer, OutOfTime) and not isinstance(answer, NoAnswer)
        return failed if says_nothing_of_the_queue else self._keep(key, failed)

    def _known(self, queue: QueueArn, attributes: tuple[str, ...]) -> Lookup | None:
        known = self._lookups.get(_key(queue, attributes))
        return known if known is not None and known.until > self._world.clock.time() else None

    def _keep(self, key: str, lookup: Lookup) -> Lookup:
        """An answer that nobody waits for any more is kept too."""
        self._lookups[key] = lookup
        return lookup

    def _until(self, seconds: float) -> float:
        return self._world.clock.time() + seconds


def _key(queue: QueueArn, attributes: tuple[str, ...]) -> str:
    return f"{queue} {attributes[0]}"


def _whole(value: object) -> int | None:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return None


def dead_letter_override() -> str | None:
    """The dead-letter queue that the function's environment names, whatever the redrive policies say."""
    return os.environ.get(DEAD_LETTER_QUEUE_VARIABLE) or None


def named_queue(name: str, beside: QueueArn) -> QueueArn:
    """The ARN of a queue given as ARN, URL or name, where a name is one beside the queue ``beside``."""
    if name.startswith("arn:"):
        return queue_arn(name)
    if "/" not in name:
        return beside.sibling(name)
    parts = urlsplit(name).path.strip("/").split("/")
    return beside.sibling(parts[-1], account=parts[-2] if len(parts) > 1 else None)
