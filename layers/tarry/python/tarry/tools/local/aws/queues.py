"""The queues at an endpoint: their URLs, and their numbers of messages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tarry import Queue, SendError
from tarry.failed.queue_names import counts_of, listed, queue_name, redrive_of
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import error_code, is_no_queue
from tarry.tools.common.places import is_aws
from tarry.tools.local.aws.client import served_queues, sqs_client

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
    urls = [*listed(client, "list_queues", "QueueUrls")]
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
    """Return the URLs of the queues that exist at an endpoint. Raises `UsageError` if no SQS answers there."""
    client, urls = sqs_client(endpoint_url), {}
    for name in names:
        try:
            urls[name] = client.get_queue_url(QueueName=name)["QueueUrl"]
        except ClientError:
            continue
        except BotoCoreError as error:
            raise UsageError(f"no SQS answers at {endpoint_url}: start tarry local, or give another URL") from error
    return urls


def body_of(given: str) -> str:
    """Return the body for an argument: the text itself, or the content of a file (``@file``).

    The content is unchanged, including a newline at the end. Raises `UsageError` if the file cannot be read, or is not
    text.
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
    target = _target(client, queue, group_id)
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
    target = _target(client, queue, group_id)
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


def _target(client: Any, queue: str, group_id: str | None) -> Queue:
    """Return the queue to send to. Raises `UsageError` for a FIFO queue without a message group id."""
    target = Queue(queue, sqs=client)
    if target.is_fifo and not group_id:
        raise UsageError(f"{queue} is a FIFO queue: give a message group id (--group-id ID)")
    return target
