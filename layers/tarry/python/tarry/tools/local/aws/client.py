"""The SQS of a command, its endpoint and its client; the variables that keep programs away from AWS.

By default this is the SQS of `tarry local`, so that no message goes to AWS by mistake.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from textwrap import wrap
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

from tarry.failed.queue_names import endpoint_host
from tarry.failed.usage import UsageError
from tarry.tools.common.places import checking_answers, is_aws
from tarry.tools.local.instances import Instance
from tarry.tools.simulator.code import environment

HOST = "127.0.0.1"


@contextmanager
def isolated_from_aws(region: str, endpoint_url: str) -> Iterator[None]:
    """Remove the AWS settings of this machine, profiles and credentials included, from the environment.

    All AWS services have ``endpoint_url`` as their endpoint.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    kept |= {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DISABLE_HOST_PREFIX_INJECTION": "true",  # of some operations, such as cp.maps.127.0.0.1
        **{name: ",".join(filter(None, [os.environ.get(name), HOST])) for name in ("NO_PROXY", "no_proxy")},
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_SESSION_TOKEN": "local",
    }
    with environment(kept, replace=True), _no_session():
        yield


@contextmanager
def _no_session() -> Iterator[None]:
    """Reset the default session of boto3, before and after: a session keeps its credentials."""
    before = getattr(sys.modules.get("boto3"), "DEFAULT_SESSION", None)
    _set_session(None)
    try:
        yield
    finally:
        _set_session(before)


def _set_session(session: object) -> None:
    boto3 = sys.modules.get("boto3")
    if boto3 is not None:
        boto3.DEFAULT_SESSION = session  # type: ignore[attr-defined]


PATIENCE_SECONDS = 2


def served_queues(endpoint_url: str) -> dict[str, Mapping[str, Any]]:
    """Return the queues by name as the server of tarry describes them; empty for another SQS."""
    return queues_in(description(endpoint_url))


def queues_in(about: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the queues of a description by name."""
    try:
        return {queue["name"]: queue for queue in about["queues"]}
    except (LookupError, TypeError):
        return {}


def other_services(endpoint_url: str) -> tuple[bool, str | None]:
    """Return whether `tarry local` serves the SQS at a URL, and the endpoint URL of its tables, buckets and topics."""
    about = description(endpoint_url)
    url = about.get("other_services")
    return "queues" in about, url if isinstance(url, str) else None


def description(endpoint_url: str) -> dict[str, Any]:
    """Return the description at an endpoint; empty for another SQS."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint_url}/queues", timeout=PATIENCE_SECONDS) as answer:
            found = json.load(answer)
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
    session = session_without_profile(region_name=region(), **made_up)
    # Without proxies: a company proxy cannot reach this machine.
    return session.client(service, endpoint_url=url, config=config.merge(Config(proxies={})))  # type: ignore[call-overload]


def session_without_profile(**settings: Any) -> boto3.session.Session:
    """Make a session of boto3 that does not read ``AWS_PROFILE``."""
    without_profile = botocore.session.Session(session_vars={"profile": (None, None, None, None)})
    return boto3.session.Session(botocore_session=without_profile, **settings)


def region() -> str:
    """Return the region of the environment variables, or the default."""
    return given_region() or DEFAULT_REGION


def given_region() -> str | None:
    """Return the region of the environment variables."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None
