"""The handlers of a template's functions, for `tarry failed retry --via local`."""

from __future__ import annotations

import os
import sys
import time
import uuid
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from tarry.failed import NowhereToGo
from tarry.failed.requests import lookups
from tarry.failed.usage import UsageError
from tarry.tools.simulator.code import Code
from tarry.tools.simulator.functions import LambdaContext
from tarry.tools.template.model import with_foreign_queues
from tarry.tools.template.variables import variables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tarry.tools.cli.failed.session import CommandSession
    from tarry.tools.template import TemplateFunction

    Handler = Callable[[Any, Any], Any]

TIMEOUT_SECONDS = 900
"""The remaining time that a handler sees: the maximum of Lambda. Only a second Ctrl-C interrupts a handler."""


class Handlers:
    """The handlers of the functions that consume the queues.

    They are imported at construction. They see the environment of this process, and variables of the template that it
    does not set. Raises `UsageError` and `TemplateError`.
    """

    def __init__(self, run: CommandSession, queues: Iterable[str]) -> None:
        if run.targets.template is None:
            raise UsageError("--via local needs a template, to find the handlers: name one (--template FILE)")
        self._stopping = run.stopping
        self._template = run.targets.template
        self._names = run.targets.template_names
        self._codes: dict[str, tuple[TemplateFunction, Code]] = {}
        sqs, beside, real = lookups(), run.queues[0].arn, {name: given for given, name in self._names.items()}
        names = with_foreign_queues(self._template)
        self._urls = {name: sqs.url(beside.sibling(real.get(name, name))) for name in names}
        self._endpoint = {"AWS_ENDPOINT_URL": run.where.endpoint_url} if run.where.endpoint_url else {}
        for queue in queues:
            self._load(queue)

    def of(self, queue: str) -> Handler:
        """Return the handler of the function that consumes a queue.

        The handler of a queue that SQS does not list as a source is imported on first use. Raises `NowhereToGo`.
        """
        try:
            function, code = self._codes.get(queue) or self._load(queue)
        except UsageError as error:
            raise NowhereToGo(str(error)) from error

        def handler(event: Any, _: Any) -> Any:
            with redirect_stdout(sys.stderr), code.running(), self._stopping.at_work():
                return code.handler(event, _context(function))

        return handler

    def _load(self, queue: str) -> tuple[TemplateFunction, Code]:
        function = self._function(queue)
        own = {name: os.environ[name] for name in function.environment if name in os.environ}
        code = Code(function, {**self._endpoint, **variables_of(function, self._template, self._urls, own)})
        with redirect_stdout(sys.stderr):
            code.load()
        self._codes[queue] = function, code
        return function, code

    def _function(self, queue: str) -> TemplateFunction:
        name = self._names.get(queue, queue)
        names = dict.fromkeys(mapping.function for mapping in self._template.mappings if mapping.queue == name)
        functions = [self._template.functions[name] for name in names if name in self._template.functions]
        if len(functions) == 1:
            return functions[0]
        path, several = self._template.path, ", ".join(function.logical_id for function in functions)
        if functions:
            raise UsageError(
                f"{path}: several functions consume {queue} ({several}): --via local cannot choose a handler"
            )
        raise UsageError(f"{path}: no function consumes {queue}: --via local has no handler to run")


def _context(function: TemplateFunction) -> LambdaContext:
    ends_at = time.monotonic() + TIMEOUT_SECONDS
    return LambdaContext(
        function_name=function.name,
        invoked_function_arn=function.arn,
        memory_limit_in_mb=str(function.memory_mb),
        aws_request_id=str(uuid.uuid4()),
        time_left=lambda: ends_at - time.monotonic(),
        log_stream_name="tarry failed retry --via local",
    )
