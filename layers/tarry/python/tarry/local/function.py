"""A Lambda function, run in this process: its handler, its context, its world."""

import contextlib
import json
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tarry.local.errors import UsageError
from tarry.simulator.code import Code, CodeError
from tarry.template import Function
from tarry.world import World, use


class FunctionError(Exception):
    """The invocation failed as a whole; the text is what Lambda would report."""


@dataclass
class LambdaContext:
    """What a handler gets as its context."""

    function_name: str
    invoked_function_arn: str
    memory_limit_in_mb: str
    deadline: float
    """On the monotonic clock."""
    function_version: str = "$LATEST"
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    log_group_name: str = ""
    log_stream_name: str = "local"
    identity: None = None
    client_context: None = None

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self.deadline - time.monotonic()) * 1000))


class LocalFunction:
    """A function whose handler has been imported. Its world (the SQS client that tarry keeps) is its own."""

    def __init__(self, function: Function, variables: Mapping[str, str]) -> None:
        self.function = function
        self._world = World()
        try:
            with _quiet():
                self._code = Code(function, variables)
                self._code.load()
        except CodeError as error:
            raise UsageError(str(error), error.details) from error

    def invoke(self, event: dict[str, Any]) -> Any:
        """The handler's answer to an event, as JSON would carry it.

        Raises:
            FunctionError: it raised, answered what is no JSON, or took longer than its timeout (it cannot be killed
                here: it runs to its end, and its answer is then thrown away).
        """
        timeout_seconds = self.function.timeout_seconds
        began = time.monotonic()
        context = LambdaContext(
            self.function.name,
            self.function.arn,
            str(self.function.memory_mb),
            deadline=began + timeout_seconds,
            log_group_name=f"/aws/lambda/{self.function.name}",
        )
        with self._code.active(), use(self._world), _quiet():
            try:
                answer = json.loads(json.dumps(self._code.handler(event, context)))
            except BaseException as error:  # a SystemExit ends a Lambda function as surely as any other error
                raise FunctionError(f"{type(error).__name__}: {error}") from error
        if time.monotonic() - began > timeout_seconds:
            raise FunctionError(f"Task timed out after {timeout_seconds:.2f} seconds")
        return answer


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the function prints goes to stderr, as a log does."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
