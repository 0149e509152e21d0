"""tarry's own SQS client in a test run: it sends requests to AWS only in tests that ask for it.

A test that calls a consumer must neither change the queues of an account nor wait for credentials or a network. Mocks
such as moto answer first, and local endpoints are reached as always. Clients that a user makes are not affected.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from tarry.sqs.client import make_client
from tarry.tools.common.places import is_aws

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse
    from botocore.session import Session

CODE = "NotSentInTests"
REMEDY = "use the fixture `sandbox`, or moto with the queue; @pytest.mark.tarry_aws lets a test reach AWS"
ANSWER = {"__type": CODE, "message": f"tests do not reach AWS: {REMEDY}"}


def make_own_client(reaches_aws: bool) -> Any:
    """Make tarry's SQS client for a test run."""
    if reaches_aws:
        return make_client()
    client = make_client(_session())
    client.meta.events.register_last("before-send", _answer)
    client.meta.events.register("after-call.sqs", _warn)
    return client


def _session() -> Session:
    """Return a session with credentials of the environment or invalid ones: looking for others may take seconds."""
    from botocore.session import Session

    session = Session()
    if session.get_config_variable("region") is None:
        session.set_config_variable("region", "us-east-1")
    key, secret = (os.environ.get(f"AWS_{name}", "testing") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    session.set_credentials(key, secret, os.environ.get("AWS_SESSION_TOKEN"))
    return session


def _answer(request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
    """Answer a request to AWS that no mock has answered. botocore takes the first answer; this one comes last."""
    if not is_aws(request.url):
        return None
    from botocore.awsrequest import AWSResponse
    from botocore.compat import HTTPHeaders

    return AWSResponse(request.url, 403, HTTPHeaders(), _Body(json.dumps(ANSWER).encode()))


class _Body(io.BytesIO):
    def stream(self, **_: Any) -> Any:
        yield self.read()


def _warn(parsed: dict[str, Any], **_: Any) -> None:
    if parsed.get("Error", {}).get("Code") == CODE:
        text = "tarry sent no request to SQS, since tests do not reach AWS; failed messages are only reported as failed"
        warnings.warn(f"{text}. To test more, {REMEDY}.", pytest.PytestWarning, stacklevel=1)
