"""What the queues of an SQS hold: what `tarry queues` tells."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from tarry.local.aws.endpoint import is_aws
from tarry.sqs.refusals import error_code, is_no_queue
from tarry.support.arn import QueueArn
from tarry.tooling.queues import queue_name

PATIENCE_SECONDS = 2
AT_ONCE = 10


@dataclass(frozen=True)
class QueueDepth:
    """A queue, and how many messages it holds, about."""

    name: str
    url: str
    ready: int
    in_flight: int
    delayed: int
    oldest: float | None
    """Since when the oldest message is there (epoch seconds), where that can be known: SQS itself does not tell."""
    dead_letter_queue: str | None
    """Its name."""

    @property
    def messages(self) -> int:
        """All of them."""
        return self.ready + self.in_flight + self.delayed


def queue_depths(client: Any) -> list[QueueDepth]:
    """All queues of an SQS, by name. Raises what boto3 raises."""
    pages = client.get_paginator("list_queues").paginate()
    urls = [url for page in pages for url in page.get("QueueUrls") or []]
    endpoint: str = client.meta.endpoint_url
    ages = _oldest(endpoint) if urls and not is_aws(endpoint) else {}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        told = list(threads.map(lambda url: _attributes(client, url), urls))
    depths = [_depth(url, each, ages) for url, each in zip(urls, told, strict=True) if each is not None]
    return sorted(depths, key=lambda depth: depth.name)


def _attributes(client: Any, url: str) -> dict[str, str] | None:
    """None for a queue that was deleted meanwhile."""
    try:
        told: dict[str, str] = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    except ClientError as error:
        if is_no_queue(error_code(error)):
            return None
        raise
    return told


def _depth(url: str, attributes: dict[str, str], ages: dict[str, float]) -> QueueDepth:
    def count(of: str) -> int:
        return int(attributes.get(f"ApproximateNumberOfMessages{of}", 0))

    name = queue_name(url)
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    target = QueueArn(str(policy.get("deadLetterTargetArn", ""))).name or None
    return QueueDepth(name, url, count(""), count("NotVisible"), count("Delayed"), ages.get(name), target)


def _oldest(endpoint_url: str) -> dict[str, float]:
    """Since when each queue's oldest message is there, as a server of ours tells; of others it is not known."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint_url}/queues", timeout=PATIENCE_SECONDS) as answer:
            queues = json.load(answer)["queues"]
            return {queue["name"]: float(queue["oldest"]) for queue in queues if queue["oldest"] is not None}
    except (OSError, ValueError, LookupError, TypeError):
        return {}
