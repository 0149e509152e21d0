"""The model of SQS, moto and MiniStack on one clock, which the caller moves."""

import io
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Protocol
from unittest.mock import patch

import boto3
from botocore import UNSIGNED
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.sqs.models import sqs_backends

from tarry.tools.simulator.history import History
from tarry.tools.simulator.sqs import Realism, Sqs, SqsError
from tests.deploy.environment import interpreter
from tests.leftovers import MARK
from tests.processes import started
from tests.wire import ACCOUNT

REGION = "us-east-1"
SERVER = Path(__file__).with_name("server.py")


class Refusal(Exception):
    """A request was refused as a whole. ``code`` is the one that SDKs show."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Clock:
    """The time in whole milliseconds, which all implementations round in the same way."""

    def __init__(self) -> None:
        self.milliseconds = 1_800_000_000_000

    def now(self) -> float:
        return self.milliseconds / 1000

    def wait(self, seconds: float) -> None:
        self.milliseconds += round(seconds * 1000)


class Implementation(Protocol):
    """An implementation of SQS."""

    def reset(self, clock: Clock) -> None:
        """Remove all queues, and use this clock from now on."""

    def call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Answer a request. Raises `Refusal`."""


class Model:
    """tarry's model of SQS."""

    def __init__(self, realism: Realism | None = None) -> None:
        self._realism = realism or Realism()

    def reset(self, clock: Clock) -> None:
        self.sqs = Sqs(clock.now, Random(1), History(clock.now), account=ACCOUNT, realism=self._realism)

    def call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.sqs.call(operation, parameters)
        except SqsError as error:
            raise Refusal(error.code) from None


class _Remote:
    """An implementation with a client of botocore, which does not check the requests: the implementation is to."""

    client: Any

    def call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self.client._make_api_call(operation, parameters)
        except ClientError as error:
            raise Refusal(error.response["Error"]["Code"]) from None
        del answer["ResponseMetadata"]
        return answer


def _client(endpoint: str | None = None) -> Any:
    config = Config(parameter_validation=False, signature_version=UNSIGNED, retries={"total_max_attempts": 1})
    return boto3.client("sqs", region_name=REGION, config=config, endpoint_url=endpoint)


class Moto(_Remote):
    """moto, in this process. Two functions of moto are patched so that it uses the clock."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._clock = Clock()

    def reset(self, clock: Clock) -> None:
        sqs_backends[ACCOUNT][REGION].reset()
        self._clock = clock

    def now(self) -> float:
        return self._clock.now()

    def milliseconds(self) -> int:
        return self._clock.milliseconds


@contextmanager
def running_moto() -> Iterator[Moto]:
    with mock_aws():
        moto = Moto(_client())
        with (
            patch("moto.sqs.models.unix_time", moto.now),
            patch("moto.sqs.models.unix_time_millis", moto.milliseconds),
        ):
            yield moto


class MiniStack(_Remote):
    """MiniStack's SQS, in a process with an environment of its own; see `server.py`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._clock = Clock()
        self.client = _client("http://ministack.test")  # moto would answer requests to an endpoint of AWS too
        self.client.meta.events.register("before-send.sqs", self._send)

    def reset(self, clock: Clock) -> None:
        self._clock = clock
        self._ask({})

    def _send(self, request: Any, **_: Any) -> AWSResponse:
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        answer = self._ask({"headers": headers, "body": _text(request.body)})
        return AWSResponse(request.url, answer["status"], answer["headers"], _Body(answer["body"].encode()))

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"at": self._clock.milliseconds, **request}) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError("MiniStack ended; its errors are above.")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Body(io.BytesIO):
    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


@contextmanager
def running_ministack() -> Iterator[MiniStack]:
    """Run MiniStack's SQS until the end of the block. It writes its errors to this process' stderr."""
    environment = {
        "PATH": os.environ["PATH"],
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        "LOG_LEVEL": "ERROR",
        MARK: os.environ.get(MARK, ""),
    }
    command = [str(interpreter()), "-P", str(SERVER)]
    with started(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield MiniStack(process)


@contextmanager
def running_all() -> Iterator[dict[str, Implementation]]:
    """Provide all implementations by name, the model first."""
    with ExitStack() as stack:
        yield {
            "model": Model(),
            "moto": stack.enter_context(running_moto()),
            "MiniStack": stack.enter_context(running_ministack()),
        }
