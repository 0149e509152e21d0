"""One invocation of a function without a queue, for `tarry invoke`."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tarry.failed.usage import UsageError
from tarry.tools.common.places import is_aws
from tarry.tools.local.aws.client import HOST, other_services
from tarry.tools.local.aws.queues import queue_urls
from tarry.tools.local.functions.host import ProcessFunction
from tarry.tools.local.functions.launcher import Launcher
from tarry.tools.local.functions.variables import Endpoints, Overrides, variables_of
from tarry.tools.local.samples import json_of
from tarry.tools.simulator.history import History, HistoryEvent
from tarry.tools.simulator.invocations import InvocationResult
from tarry.tools.template import Template, TemplateFunction
from tarry.tools.template.model import ACCOUNT, with_foreign_queues
from tarry.tools.template.variables import variables_of as own_variables_of

STDIN = "-"
NO_AWS = f"http://{HOST}:9/tarry-invoke-has-no-AWS"
"""The AWS endpoint of a function without ``--endpoint-url``. No server listens; the text appears in errors."""


def read_event(name: str) -> Any:
    """Read an event from a file, or from stdin for ``-``. Raises `UsageError` if it cannot be read, or is not JSON."""
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}; give a file with the event") from error
    return json_of(data, "stdin" if name == STDIN else name)


def variables(
    function: TemplateFunction, template: Template, overrides: Overrides, endpoint_url: str | None
) -> dict[str, str]:
    """Return the environment variables of a function, with the queues, tables and buckets at the endpoint URL.

    Without one they do not exist, and no request of the function is answered. Raises `TemplateError` if a variable
    refers to a resource without a known name, `UsageError` if no SQS answers at the endpoint URL.
    """
    queues = with_foreign_queues(template)
    endpoints = Endpoints(sqs=NO_AWS) if endpoint_url is None else _endpoints_at(endpoint_url)
    urls = {name: f"{endpoints.sqs.rstrip('/')}/{ACCOUNT}/{name}" for name in queues}
    if endpoint_url is not None:
        urls |= queue_urls(endpoint_url, queues)
    own = own_variables_of(function, template, urls, overrides.of(function))
    once = {} if endpoint_url else {"AWS_MAX_ATTEMPTS": "1"}
    return variables_of(function, once | own, endpoints)


def _endpoints_at(url: str) -> Endpoints:
    """Return the endpoints for the SQS at a URL.

    Beside the SQS of `tarry local` these are its tables, buckets and topics, if it has any; another emulator, or AWS,
    has all services at one place.
    """
    if is_aws(url):
        return Endpoints(url, is_foreign=True)
    is_tarry, others = other_services(url)
    return Endpoints(url, (others or NO_AWS) if is_tarry else None, is_foreign=True)


async def call(
    function: TemplateFunction, environment: Mapping[str, str], event: Any, on_event: Callable[[HistoryEvent], None]
) -> InvocationResult:
    """Invoke a function once, in a new process; ``on_event`` is called with the events, which include its log.

    Raises `UsageError` if the handler cannot be imported.
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
