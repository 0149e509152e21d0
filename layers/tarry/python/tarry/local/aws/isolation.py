"""An environment from which no call can reach the real AWS."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from botocore.session import Session

from tarry.simulator.code import environment

HOST = "127.0.0.1"
NOWHERE = f"http://{HOST}:9/tarry-local-has-only-sqs-here"
"""Where AWS's other services are looked for if there is nothing of theirs in the template: nobody listens."""


@contextmanager
def isolated_from_aws(region: str, endpoint_url: str) -> Iterator[None]:
    """The environment without this machine's AWS settings: no profile or credentials are left to be found.

    All services are looked for at ``endpoint_url``.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    kept |= {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        **{name: ",".join(filter(None, [os.environ.get(name), HOST])) for name in ("NO_PROXY", "no_proxy")},
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_SESSION_TOKEN": "local",
    }
    if endpoint_url == NOWHERE:
        kept["AWS_MAX_ATTEMPTS"] = "1"
    with environment(kept, replace=True), _no_session():
        yield


@contextmanager
def _no_session() -> Iterator[None]:
    """boto3's default session is made anew: one that was made before, or here, would keep its credentials."""
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


@contextmanager
def simulated_clients(make: Callable[[], Any]) -> Iterator[None]:
    """What boto3 gives out as an SQS client is one that ``make`` makes, for as long as the context lasts."""
    real = Session.create_client

    def create_client(session: Session, service_name: str, *args: Any, **kwargs: Any) -> Any:
        return make() if service_name == "sqs" else real(session, service_name, *args, **kwargs)

    Session.create_client = create_client  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Session.create_client = real  # type: ignore[method-assign]
