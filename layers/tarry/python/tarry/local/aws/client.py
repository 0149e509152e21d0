"""The SQS of a command: its endpoint, its client, its queues, and sending to them.

By default this is the SQS of `tarry local`, so that no message goes to AWS by mistake.
"""

import json
import os
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tarry import Queue, SendError
from tarry.local.aws.isolation import HOST
from tarry.local.instances import Instance
from tarry.sqs.refusals import error_code, is_no_queue
from tarry.tooling.errors import UsageError
from tarry.tooling.queues import counts_of, endpoint_host, queue_name, redrive_of

DEFAULT_PORT = 4576
"""The port of the SQS of `tarry local`."""
DEFAULT_REGION = "us-east-1"
CONNECT_SECONDS = 2
ANSWER_SECONDS = 10  # longer than a poll of `tarry local`
MOST_CONNECTIONS = 50


def endpoint_of(
    given: str | None,
    environment: Mapping[str, str],
    *,
    aws: bool = False,
    running: Callable[[], Instance | None] = lambda: None,
) -> str | None:
    """Return the endpoint URL: ``given``, or that of the AWS variables, or `tarry local`; None for AWS.

    ``running`` returns the `tarry local` to use; None for the default port.

    Raises:
        UsageError: it is not a URL.
    """
    if aws:
        return None
    url = given or environment.get("AWS_ENDPOINT_URL_SQS") or environment.get("AWS_ENDPOINT_URL")
    if not url:
        found = running()
        return found.url if found else f"http://{HOST}:{DEFAULT_PORT}"
    endpoint_host(url)
    return url.rstrip("/")


def sqs_client(url: str | None) -> Any:
    """Make a boto3 client of SQS for an endpoint, without retries."""
    return client_at(url, "sqs")


def client_at(url: str | None, service: str) -> Any:
    """Make a boto3 client of a service for an endpoint, without retries.

    For AWS (None or an endpoint of AWS) it has the usual AWS settings, except a configured endpoint. For other
    endpoints it has the credentials of the environment variables or made-up ones: no profile is read or sent.
    """
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"total_max_attempts": 1},
        max_pool_connections=MOST_CONNECTIONS,
    )
    if url is None or is_aws(url):
        config = config.merge(Config(ignore_configured_endpoint_urls=True))  # type: ignore[call-arg] # missing in its stubs
        return boto3.session.Session().client(service, endpoint_url=url, config=config)  # type: ignore[call-overload]
    without_profile = botocore.session.Session(session_vars={"profile": (None, None, None, None)})
    has_keys = "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ
    made_up = {} if has_keys else {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    session = boto3.session.Session(botocore_session=without_profile, region_name=region(), **made_up)
    # Without proxies: a company proxy cannot reach this machine.
    return session.client(service, endpoint_url=url, config=config.merge(Config(proxies={})))  # type: ignore[call-overload]


def is_aws(url: str) -> bool:
    """Whether the URL is an endpoint of AWS."""
    host = urlsplit(url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def region() -> str:
    """Return the region of the environment variables, or the default."""
    return given_region() or DEFAULT_REGION


def given_region() -> str | None:
    """Return the region of the environment variables."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


PATIENCE_SECONDS = 2
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


def served_queues(endpoint_url: str) -> dict[str, Mapping[str, Any]]:
    """Return the queues by name as the server of tarry describes them; empty for another SQS."""
    try:
        return {queue["name"]: queue for queue in _about(endpoint_url)["queues"]}
    except (LookupError, TypeError):
        return {}


def other_services(endpoint_url: str) -> tuple[bool, str | None]:
    """Return whether `tarry local` serves the SQS at a URL, and the endpoint URL of its tables, buckets and topics."""
    about = _about(endpoint_url)
    url = about.get("other_services")
    return "queues" in about, url if isinstance(url, str) else None


SHELL_WIDTH = 70
"""The length of a line for a shell, without `export`: it fits into a terminal, so that it can be copied."""


def exports(sqs: str, others: str | None, region: str, width: int | None = SHELL_WIDTH) -> list[str]:
    """Return lines for a shell, after which an AWS SDK uses the services of `tarry local`; one line without a width."""
    found = {"AWS_ENDPOINT_URL_SQS": sqs, "AWS_ENDPOINT_URL": others, "AWS_DEFAULT_REGION": region}
    found |= {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    given = " ".join(f"{name}={value}" for name, value in found.items() if value)
    lines = wrap(given, width, break_long_words=False, break_on_hyphens=False) if width else [given]
    return [f"export {line}" for line in lines]


def exports_at(endpoint_url: str) -> str:
    """Return the command for a shell after which AWS SDKs use the `tarry local` that runs at a URL.

    Raises:
        UsageError: none runs there.
    """
    about = _about(endpoint_url)
    if "queues" not in about:
        raise UsageError(
            f"no tarry local runs at {endpoint_url}: start it, or name its port (tarry local env --port N)"
        )
    return " ".join(exports(endpoint_url, about.get("other_services"), about.get("region", DEFAULT_REGION), width=None))


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


def _about(endpoint_url: str) -> dict[str, Any]:
    """Return what the server of tarry tells about itself; empty for another SQS."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint_url}/queues", timeout=PATIENCE_SECONDS) as answer:
            found = json.load(answer)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def body_of(given: str) -> str:
    """Return the body for an argument: the text itself, or the content of a file (``@file``).

    The content is unchanged, including a newline at the end.

    Raises:
        UsageError: the file cannot be read, or is not text.
    """
    if not given.startswith("@"):
        return given
    name = given.removeprefix("@")
    try:
        return Path(name).read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not text: byte {error.start} is not UTF-8, and SQS accepts only text") from error


def lines_of(stream: Iterable[bytes]) -> Iterator[tuple[int, str | UsageError]]:
    """Yield the lines of a stream that are not empty, each with its number and without its end.

    A line that is not text is yielded as an error.
    """
    for number, line in enumerate(stream, start=1):
        content = line.rstrip(b"\r\n")
        if not content.strip():
            continue
        try:
            yield number, content.decode()
        except UnicodeDecodeError as error:
            yield number, UsageError(f"byte {error.start} is not UTF-8, and SQS accepts only text")


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
    """Send a message ``count`` times; return the ids. Checks and raises like `tarry.Queue`."""
    target = Queue(queue, sqs=client)
    entry = target.entry(body, delay, attributes, group_id, deduplication_id)
    if count > 1:
        return target.send_batch(entry for _ in range(count))
    return [target.send(body, delay, attributes, group_id, deduplication_id)]


@dataclass(frozen=True)
class SentLines:
    """The lines that were sent, each with the id of its message, and the others with the reason; by line number."""

    ids: Mapping[int, str]
    failed: Mapping[int, Exception]


def send_lines(
    client: Any,
    queue: str,
    stream: Iterable[bytes],
    on_read: Callable[[int], None],
    *,
    delay: float | None = None,
    group_id: str | None = None,
    attributes: Mapping[str, str] | None = None,
) -> SentLines:
    """Send each line of a stream that is not empty as a message, while the stream is read.

    ``on_read`` is called with the number of messages that were read so far. Checks and raises like
    `tarry.Queue.send_batch`, except that it returns the messages that could not be sent.
    """
    target = Queue(queue, sqs=client)
    if target.is_fifo and not group_id:
        raise UsageError(f"{queue} is a FIFO queue: give the message group of the lines (--group ID)")
    failed: dict[int, Exception] = {}
    numbers: list[int] = []

    def bodies() -> Iterator[str]:
        for number, line in lines_of(stream):
            if isinstance(line, UsageError):
                failed[number] = line
                continue
            numbers.append(number)
            yield line
            on_read(len(numbers))

    try:
        sent: Sequence[str | None] = target.send_batch(bodies(), delay=delay, group_id=group_id, attributes=attributes)
    except SendError as error:
        sent = error.message_ids
        failed |= {numbers[unsent.index]: unsent.reason for unsent in error.failed}
    ids = {number: message_id for number, message_id in zip(numbers, sent, strict=True) if message_id is not None}
    return SentLines(ids, dict(sorted(failed.items())))
