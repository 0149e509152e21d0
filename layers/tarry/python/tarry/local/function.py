"""A Lambda function, run in this process: its code, its environment, its context."""

import contextlib
import importlib
import json
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tarry.local.errors import UsageError
from tarry.local.server import environment
from tarry.template import Function
from tarry.world import World, use


class FunctionError(Exception):
    """The invocation failed as a whole; the text is what Lambda would report, ``details`` the handler's traceback."""

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details


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
    """A function whose handler has been imported.

    Two functions of a template both have an ``app.py``: the modules of each, its directory on ``sys.path`` and its
    world (the SQS client that tarry keeps) are there only while it runs.
    """

    def __init__(self, function: Function, variables: Mapping[str, str]) -> None:
        if function.code is None or not function.handler:
            raise UsageError(f"{function.logical_id} has no code here: it needs a local CodeUri and a Handler")
        if not function.code.is_dir():
            raise UsageError(f"{function.logical_id}: its CodeUri {function.code} is no directory")
        self.function = function
        self._code = function.code.resolve()
        self._roots = _module_roots(self._code, function.handler)
        self._modules: dict[str, ModuleType] = {}
        self._world = World()
        self._environment = {**_lambda_environment(function, self._code), **variables}
        self._handler = self._load(function.handler)

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
        with self._active():
            try:
                answer = json.loads(json.dumps(self._handler(event, context)))
            except BaseException as error:  # a SystemExit ends a Lambda function as surely as any other error
                raise FunctionError(f"{type(error).__name__}: {error}", _their_part(error, self._code)) from error
        if time.monotonic() - began > timeout_seconds:
            raise FunctionError(f"Task timed out after {timeout_seconds:.2f} seconds")
        return answer

    def _load(self, handler: str) -> Any:
        module_name, _, attribute = handler.replace("/", ".").rpartition(".")
        what = f"{self.function.logical_id}: its handler {handler}"
        with self._active():
            try:
                return getattr(importlib.import_module(module_name), attribute)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                text = f"{what} cannot be imported from {self.function.code}: {type(error).__name__}: {error}"
                raise UsageError(text, _their_part(error, self._code)) from error

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        """This function's environment, path and modules; what it prints goes to stderr, as a log does."""
        outside = self._own_modules()
        path = list(sys.path)
        for name in outside:
            del sys.modules[name]
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self._code))
        importlib.invalidate_caches()
        try:
            with environment(self._environment), use(self._world), contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            sys.path[:] = path
            self._modules = self._own_modules()
            for name in self._modules:
                del sys.modules[name]
            sys.modules.update(outside)

    def _own_modules(self) -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in self._roots}


def _module_roots(code: Path, handler: str) -> set[str]:
    """The names of the modules and packages in the function's own directory."""
    files = {path.stem for path in code.glob("*.py")}
    packages = {path.parent.name for path in code.glob("*/*.py")}
    return (files | packages | {handler.replace("/", ".").partition(".")[0]}) - sys.stdlib_module_names - {"tarry"}


def _lambda_environment(function: Function, code: Path) -> dict[str, str]:
    return {
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": "local",
        "LAMBDA_TASK_ROOT": str(code),
        "_HANDLER": function.handler or "",
        "POWERTOOLS_TRACE_DISABLED": "true",  # there is no X-Ray daemon to send to
    }


def _their_part(error: BaseException, code: Path) -> str:
    """The traceback from where the function's own code begins; nothing if it never began."""
    tb = error.__traceback__
    while tb and not Path(tb.tb_frame.f_code.co_filename).is_relative_to(code):
        tb = tb.tb_next
    if tb is None and not isinstance(error, SyntaxError):
        return ""
    return "".join(traceback.format_exception(type(error), error, tb)).rstrip()
