"""One invocation of a function without a queue, for `tarry invoke`."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tarry.local.aws.isolation import HOST
from tarry.local.functions.host import ProcessFunction
from tarry.local.functions.launcher import Launcher
from tarry.local.functions.variables import Endpoints, Overrides, variables_of
from tarry.simulator.history import History, HistoryEvent
from tarry.simulator.invocations import InvocationResult
from tarry.template import Template, TemplateFunction
from tarry.template.model import ACCOUNT
from tarry.template.queues import with_foreign_queues
from tarry.template.variables import variables_of as own_variables_of
from tarry.tooling.errors import UsageError

STDIN = "-"
NO_AWS = f"http://{HOST}:9/tarry-invoke-has-no-AWS"
"""The AWS endpoint of a function without ``--endpoint-url``. No server listens; the text appears in errors."""


def read_event(name: str) -> Any:
    """Read an event from a file, or from stdin for ``-``.

    Raises:
        UsageError: the file cannot be read, or is not JSON.
    """
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return json.loads(data)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from error
    except ValueError as error:
        where = "stdin" if name == STDIN else name
        raise UsageError(f"{where} is not JSON: {error}") from error


def variables(
    function: TemplateFunction, template: Template, overrides: Overrides, endpoint_url: str | None
) -> dict[str, str]:
    """Return the environment variables of a function, with names of queues, tables and buckets that do not exist.

    Raises:
        TemplateError: a variable refers to a resource without a known name.
    """
    endpoints = Endpoints(sqs=endpoint_url or NO_AWS, is_foreign=endpoint_url is not None)
    urls = {name: f"{endpoints.sqs.rstrip('/')}/{ACCOUNT}/{name}" for name in with_foreign_queues(template)}
    own = own_variables_of(function, template, urls, overrides.of(function))
    once = {} if endpoint_url else {"AWS_MAX_ATTEMPTS": "1"}
    return variables_of(function, once | own, endpoints)


async def call(
    function: TemplateFunction, environment: Mapping[str, str], event: Any, on_event: Callable[[HistoryEvent], None]
) -> InvocationResult:
    """Invoke a function once, in a new process; ``on_event`` is called with the events, which include its log.

    Raises:
        UsageError: the handler cannot be imported.
    """
    history = History(time.time, keep=False)
    history.listen(on_event)
    launcher = Launcher()
    host = ProcessFunction(function, environment, history, launcher)
    try:
        await host.warm()
        answer: asyncio.Future[InvocationResult] = asyncio.get_running_loop().create_future()
        host.invoke(event, answer.set_result)
        return await answer
    finally:
        await host.close()
        launcher.close()
