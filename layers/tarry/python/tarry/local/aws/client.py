"""The SQS that a command talks to: its endpoint, its client, what its queues hold, a message sent to one of them.

Nothing goes to AWS by mistake: a command talks to `tarry local` unless it is told otherwise.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError

from tarry import Queue
from tarry.local.aws.isolation import HOST
from tarry.sqs.refusals import error_code, is_no_queue
from tarry.tooling.errors import UsageError
from tarry.tooling.queues import counts_of, endpoint_host, queue_name, redrive_of

DEFAULT_PORT = 4576
"""Where `tarry local` serves SQS."""
DEFAULT_REGION = "us-east-1"
CONNECT_SECONDS = 2
ANSWER_SECONDS = 10  # longer than any poll of ours
MOST_CONNECTIONS = 50


def endpoint_of(given: str | None, environment: Mapping[str, str], *, aws: bool = False) -> str | None:
    """The endpoint URL: the one given, else what AWS's own variables say, else `tarry local`; None is AWS itself.

    Raises:
        UsageError: it is no URL.
    """
    if aws:
        return None
    url = given or environment.get("AWS_ENDPOINT_URL_SQS") or environment.get("AWS_ENDPOINT_URL")
    if not url:
        return f"http://{HOST}:{DEFAULT_PORT}"
    endpoint_host(url)
    return url.rstrip("/")


def sqs_client(url: str | None) -> Any:
    """A boto3 client of the SQS there. It tries once: whoever asks knows best whether to ask again.

    For AWS (None, or an endpoint of its own) with the usual settings, but for an endpoint that they name. Elsewhere
    with the credentials of the environment's variables, or made up ones: no profile is read, and no secret of it sent.
    """
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"total_max_attempts": 1},
        max_pool_connections=MOST_CONNECTIONS,
    )
    if url is None or is_aws(url):
        config = config.merge(Config(ignore_configured_endpoint_urls=True))  # type: ignore[call-arg] # its stubs' gap
        return boto3.session.Session().client("sqs", endpoint_url=url, config=config)
    without_profile = botocore.session.Session(session_vars={"profile": (None, None, None, None)})
    has_keys = "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ
    made_up = {} if has_keys else {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    session = boto3.session.Session(botocore_session=without_profile, region_name=region(), **made_up)
    # No proxies: a company's would be asked for this machine.
    return session.client("sqs", endpoint_url=url, config=config.merge(Config(proxies={})))


def is_aws(url: str) -> bool:
    """Whether that is AWS itself."""
    host = urlsplit(url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def region() -> str:
    """The region that the environment names."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION


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
    name = queue_name(url)
    redrive = redrive_of(attributes)
    return QueueDepth(name, url, *counts_of(attributes), ages.get(name), redrive.target.name if redrive else None)


def _oldest(endpoint_url: str) -> dict[str, float]:
    """Since when each queue's oldest message is there, as a server of ours tells; of others it is not known."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint_url}/queues", timeout=PATIENCE_SECONDS) as answer:
            queues = json.load(answer)["queues"]
            return {queue["name"]: float(queue["oldest"]) for queue in queues if queue["oldest"] is not None}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def body_of(given: str) -> str:
    """The body that an argument stands for: itself, a file's content (``@file``) or what stdin gives (``-``).

    Byte for byte, a newline at the end included.

    Raises:
        UsageError: there is no such file, or it is no text.
    """
    if given != "-" and not given.startswith("@"):
        return given
    name = given.removeprefix("@")
    try:
        content = sys.stdin.buffer.read() if given == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        where = "stdin" if given == "-" else name
        raise UsageError(f"{where} is no text: byte {error.start} is not UTF-8, and SQS takes text alone") from error


def send(
    client: Any,
    queue: str,
    body: str,
    *,
    count: int = 1,
    delay: float | None = None,
    group_id: str | None = None,
    attributes: Mapping[str, str] | None = None,
    deduplication_id: str | None = None,
) -> list[str]:
    """Sends a message ``count`` times; the ids. Checked as `tarry.Queue` checks, and raises what that raises."""
    target = Queue(queue, sqs=client)
    entry = target.entry(body, delay, attributes, group_id, deduplication_id)
    if count > 1:
        return target.send_batch(entry for _ in range(count))
    return [target.send(body, delay, attributes, group_id, deduplication_id)]
