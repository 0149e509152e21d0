"""An environment in which no call can reach AWS."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
