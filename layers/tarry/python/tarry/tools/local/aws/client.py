"""The SQS of a command: its endpoint, its client and its queues; the variables that keep programs away from AWS.

By default this is the SQS of `tarry local`, so that no message goes to AWS by mistake.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tarry import Queue, SendError
from tarry.failed.queue_names import counts_of, endpoint_host, listed, queue_name, redrive_of
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import error_code, is_no_queue
from tarry.tools.common.answers import checking_answers
from tarry.tools.common.places import is_aws
from tarry.tools.local.instances import Instance, asked
from tarry.tools.simulator.code import environment

HOST = "127.0.0.1"
WITHOUT_AWS = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DISABLE_HOST_PREFIX_INJECTION": "true",  # of some operations, such as cp.maps.127.0.0.1
}
"""Variables with which an SDK finds no settings and no credentials of this machine."""


def direct(outside: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment with which no proxy is used for this machine."""
    return {name: ",".join(filter(None, [outside.get(name), HOST])) for name in ("NO_PROXY", "no_proxy")}


@contextmanager
def isolated_from_aws(region: str, endpoint_url: str) -> Iterator[None]:
    """Remove the AWS settings of this machine, profiles and credentials included, from the environment.

    All AWS services have ``endpoint_url`` as their endpoint.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    kept |= {
        **WITHOUT_AWS,
        **direct(os.environ),
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_SESSION_TOKEN": "local",
    }
    before, boto3.DEFAULT_SESSION = boto3.DEFAULT_SESSION, None  # a session keeps its credentials
    try:
        with environment(kept, replace=True):
            yield
    finally:
        boto3.DEFAULT_SESSION = before


PATIENCE_SECONDS = 2


def queues_in(about: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the queues of a description by name."""
    try:
        return {queue["name"]: queue for queue in about["queues"]}
    except (LookupError, TypeError):
        return {}


def description(endpoint_url: str) -> dict[str, Any]:
    """Return how `tarry local` describes itself at the URL of its SQS; empty for another SQS.

    ``queues`` are its queues, ``other_services`` is the endpoint URL of its tables, buckets and topics.
    """
    try:
        found = asked(f"{endpoint_url}/queues", PATIENCE_SECONDS)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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

    Raises `UsageError` if none runs there.
    """
    about = description(endpoint_url)
    if "queues" not in about:
        raise UsageError(
            f"no tarry local runs at {endpoint_url}: start it, or name its port (tarry local env --port N)"
        )
    return " ".join(exports(endpoint_url, about.get("other_services"), about.get("region", DEFAULT_REGION), width=None))


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
    running: Callable[[], Instance | None] = lambda: None,
) -> str:
    """Return the endpoint URL: ``given``, or that of the AWS variables, or `tarry local`.

    ``running`` returns the `tarry local` to use; None for the default port. Raises `UsageError` if it is not a URL.
    """
    url = given or environment.get("AWS_ENDPOINT_URL_SQS") or environment.get("AWS_ENDPOINT_URL")
    if not url:
        found = running()
        return found.url if found else f"http://{HOST}:{DEFAULT_PORT}"
    endpoint_host(url)
    return url.rstrip("/")


def sqs_client(url: str | None) -> Any:
    """Make a boto3 client of SQS for an endpoint, without retries."""
    return checking_answers(client_at(url, "sqs"))


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
        at_aws = boto3.session.Session(region_name=given_region())  # boto3 itself reads only AWS_DEFAULT_REGION
        return at_aws.client(service, endpoint_url=url, config=config)  # type: ignore[call-overload]
    has_keys = "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ
    made_up = {} if has_keys else {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    session = session_without_profile(region_name=given_region() or DEFAULT_REGION, **made_up)
    # Without proxies: a company proxy cannot reach this machine.
    return session.client(service, endpoint_url=url, config=config.merge(Config(proxies={})))  # type: ignore[call-overload]


def session_without_profile(**settings: Any) -> boto3.session.Session:
    """Make a session of boto3 that does not read ``AWS_PROFILE``."""
    without_profile = botocore.session.Session(session_vars={"profile": (None, None, None, None)})
    return boto3.session.Session(botocore_session=without_profile, **settings)


def given_region() -> str | None:
    """Return the region of the environment variables."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


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

    @property
    def messages(self) -> int:
        """The number of all messages."""
        return self.ready + self.in_flight + self.delayed


def queue_depths(client: Any) -> list[QueueDepth]:
    """Return all queues, sorted by name. Raises the errors of boto3."""
    urls = [*listed(client, "list_queues", "QueueUrls")]
    endpoint: str = client.meta.endpoint_url
    oldest: dict[str, float] = {}
    if urls and not is_aws(endpoint):
        with suppress(LookupError, TypeError, ValueError):  # only the server of tarry tells it
            found = description(endpoint)["queues"]
            oldest = {each["name"]: float(each["oldest"]) for each in found if each["oldest"] is not None}

    def depth(url: str) -> QueueDepth | None:
        """Return the depth of a queue; None if it was deleted in the meantime."""
        try:
            attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        except ClientError as error:
            if is_no_queue(error_code(error)):
                return None
            raise
        name, redrive = queue_name(url), redrive_of(attributes)
        target = redrive.target.name if redrive else None
        return QueueDepth(name, url, *counts_of(attributes), oldest.get(name), target)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return sorted(filter(None, threads.map(depth, urls)), key=lambda depth: depth.name)


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


def send_lines(
    queue: Queue, stream: Iterable[bytes], on_read: Callable[[int], None], **settings: Any
) -> tuple[dict[int, str], dict[int, Exception]]:
    """Send each line of a stream that is not empty as a message, while the stream is read.

    ``on_read`` is called with the number of messages that were read so far. Checks and raises like
    `tarry.Queue.send_batch`, which gets the ``settings``, except that it returns the ids of the messages, and why the
    others could not be sent; both by the number of the line.
    """
    failed: dict[int, Exception] = {}
    numbers: list[int] = []

    def bodies() -> Iterator[str]:
        for number, line in enumerate(stream, start=1):
            content = line.rstrip(b"\r\n")
            if not content.strip():
                continue
            try:
                body = content.decode()
            except UnicodeDecodeError as error:
                failed[number] = UsageError(f"byte {error.start} is not UTF-8, and SQS accepts only text")
                continue
            numbers.append(number)
            yield body
            on_read(len(numbers))

    try:
        sent: Sequence[str | None] = queue.send_batch(bodies(), **settings)
    except SendError as error:
        sent = error.message_ids
        failed |= {numbers[unsent.index]: unsent.reason for unsent in error.failed}
    ids = {number: message_id for number, message_id in zip(numbers, sent, strict=True) if message_id is not None}
    return ids, dict(sorted(failed.items()))


def target_of(client: Any, queue: str, group_id: str | None) -> Queue:
    """Return the queue to send to. Raises `UsageError` for a FIFO queue without a message group id."""
    target = Queue(queue, sqs=client)
    if target.is_fifo and not group_id:
        raise UsageError(f"{queue} is a FIFO queue: give a message group id (--group-id ID)")
    return target
