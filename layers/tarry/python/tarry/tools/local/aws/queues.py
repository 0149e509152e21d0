"""The queues at an endpoint: their URLs, and their numbers of messages."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tarry.failed.queue_names import counts_of, queue_name, redrive_of
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import error_code, is_no_queue
from tarry.tools.common.places import is_aws
from tarry.tools.local.aws.client import sqs_client
from tarry.tools.local.aws.served import served_queues

AT_ONCE = 10


@dataclass(frozen=True)
class QueueDepth:
    """A queue and its approximate numbers of messages."""

    name: str
    url: str
    ready: int
    in_flight: int
    delayed: int
    oldest: float | None
    """When the oldest message was sent (epoch seconds); None if unknown, as with AWS."""
    dead_letter_queue: str | None
    """The name of the dead-letter queue."""

    @property
    def messages(self) -> int:
        """The number of all messages."""
        return self.ready + self.in_flight + self.delayed


def queue_depths(client: Any) -> list[QueueDepth]:
    """Return all queues, sorted by name. Raises the errors of boto3."""
    pages = client.get_paginator("list_queues").paginate()
    urls = [url for page in pages for url in page.get("QueueUrls") or []]
    endpoint: str = client.meta.endpoint_url
    ages = _oldest(endpoint) if urls and not is_aws(endpoint) else {}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        attributes = list(threads.map(lambda url: _attributes(client, url), urls))
    depths = [_depth(url, each, ages) for url, each in zip(urls, attributes, strict=True) if each is not None]
    return sorted(depths, key=lambda depth: depth.name)


def _attributes(client: Any, url: str) -> dict[str, str] | None:
    """Return the attributes of a queue; None if it was deleted in the meantime."""
    try:
        attributes: dict[str, str] = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    except ClientError as error:
        if is_no_queue(error_code(error)):
            return None
        raise
    return attributes


def _depth(url: str, attributes: dict[str, str], ages: dict[str, float]) -> QueueDepth:
    name = queue_name(url)
    redrive = redrive_of(attributes)
    return QueueDepth(name, url, *counts_of(attributes), ages.get(name), redrive.target.name if redrive else None)


def _oldest(endpoint_url: str) -> dict[str, float]:
    """Return when the oldest message of each queue was sent, which only the server of tarry provides."""
    try:
        queues = served_queues(endpoint_url)
        return {name: float(queue["oldest"]) for name, queue in queues.items() if queue["oldest"] is not None}
    except (LookupError, TypeError, ValueError):
        return {}


def queue_urls(endpoint_url: str, names: Iterable[str]) -> dict[str, str]:
    """Return the URLs of the queues that exist at an endpoint.

    Raises:
        UsageError: no SQS answers there.
    """
    client, urls = sqs_client(endpoint_url), {}
    for name in names:
        try:
            urls[name] = client.get_queue_url(QueueName=name)["QueueUrl"]
        except ClientError:
            continue
        except BotoCoreError as error:
            raise UsageError(f"no SQS answers at {endpoint_url}: start tarry local, or give another URL") from error
    return urls
