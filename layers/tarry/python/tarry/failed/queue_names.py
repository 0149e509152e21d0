"""Parsing of queue URLs, ARNs and attributes: names, regions, hosts, counts, redrive policies."""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple
from urllib.parse import urlsplit

from tarry.failed.usage import UsageError
from tarry.support.values import QueueArn, queue_arn


class Redrive(NamedTuple):
    """The redrive policy of a queue: its dead-letter queue, and the receives after which SQS moves a message there."""

    target: QueueArn
    max_receive_count: int | None


class MessageCounts(NamedTuple):
    """The approximate numbers of messages in a queue."""

    ready: int
    in_flight: int
    delayed: int


def queue_name(name_url_or_arn: str) -> str:
    """Return the name of a queue, from its name, URL or ARN."""
    arn = queue_arn(name_url_or_arn)
    return arn.name or name_url_or_arn.rpartition("/")[2].rpartition(":")[2]


def existing_queues(name: str, known: Sequence[str]) -> str:
    """Return the names of the existing queues for an error about an unknown one, with the most similar name."""
    if not known:
        return ""
    names = ", ".join(known)
    nearest = get_close_matches(queue_name(name), known, n=1)
    return f"; did you mean {nearest[0]}? Existing queues: {names}" if nearest else f"; existing queues: {names}"


def region_of(arn: str) -> str:
    """Return the region of an ARN."""
    return arn.split(":")[3]


def endpoint_host(url: str) -> str:
    """Return the host of an endpoint URL. Raises `UsageError` if it is not one."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.hostname
    except ValueError:  # a port that is not a number, an unclosed bracket
        pass
    raise UsageError(f"{url!r} is not an endpoint URL; an example is http://127.0.0.1:4576")


def redrive_of(attributes: Mapping[str, str]) -> Redrive | None:
    """Return the redrive policy in the attributes of a queue; None if there is none."""
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    target, count = queue_arn(policy.get("deadLetterTargetArn")), policy.get("maxReceiveCount")
    return Redrive(target, int(count) if count else None) if target.name else None


def counts_of(attributes: Mapping[str, str]) -> MessageCounts:
    """Return the numbers of messages in the attributes of a queue."""
    ready, in_flight, delayed = (
        int(attributes.get(f"ApproximateNumberOfMessages{kind}", 0)) for kind in ("", "NotVisible", "Delayed")
    )
    return MessageCounts(ready, in_flight, delayed)
