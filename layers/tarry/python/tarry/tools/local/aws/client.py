"""The SQS of a command: its endpoint and its client.

By default this is the SQS of `tarry local`, so that no message goes to AWS by mistake.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

from tarry.failed.queue_names import endpoint_host
from tarry.tools.common.answers import checking_answers
from tarry.tools.common.places import is_aws
from tarry.tools.local.aws.isolation import HOST
from tarry.tools.local.instances import Instance

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

    ``running`` returns the `tarry local` to use; None for the default port.

    Raises:
        UsageError: it is not a URL.
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
