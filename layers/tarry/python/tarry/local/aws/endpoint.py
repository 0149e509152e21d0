"""Which SQS a command speaks to, and a client of it.

Nothing goes to AWS by mistake: a command speaks to `tarry local` unless it is told otherwise.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config

from tarry.local.aws.isolation import HOST
from tarry.tooling.errors import UsageError

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
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no endpoint URL: it looks like http://{HOST}:{DEFAULT_PORT}")
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
