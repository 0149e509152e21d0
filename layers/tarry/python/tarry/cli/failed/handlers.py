"""The handlers of a template's functions, to run dead letters in this process."""

from __future__ import annotations

import os
import sys
import time
import uuid
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from tarry.failed import NowhereToGo
from tarry.simulator.code import Code, CodeError
from tarry.simulator.context import LambdaContext
from tarry.template.queues import with_foreign_queues
from tarry.template.variables import variables_of
from tarry.tooling.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tarry.cli.failed.signals import Stopping
    from tarry.cli.failed.targets import TargetOptions, Targets
    from tarry.template import TemplateFunction

    Handler = Callable[[Any, Any], Any]

TIMEOUT_SECONDS = 900
"""What a handler is told it has left: Lambda's longest. Nothing ends it here but a second Ctrl-C."""


class Handlers:
    """The handlers by the names of the queues that feed them.

    They are imported now, and see this process's environment, with the template's variables where it has none of these.

    Raises `CodeError` for one that cannot be imported, `UsageError`, `TemplateError`.
    """

    def __init__(
        self,
        targets: Targets,
        queues: Iterable[str],
        url_of: Callable[[str], str],
        where: TargetOptions,
        stopping: Stopping,
    ) -> None:
        if targets.template is None:
            raise UsageError("--via local needs the template whose functions it is to run (--template FILE)")
        self._stopping = stopping
        self._template = targets.template
        self._names = targets.template_names
        self._codes: dict[str, tuple[TemplateFunction, Code]] = {}
        real = {name: given for given, name in targets.template_names.items()}
        self._urls = {name: url_of(real.get(name, name)) for name in with_foreign_queues(self._template)}
        self._endpoint = {"AWS_ENDPOINT_URL": where.endpoint_url} if where.endpoint_url else {}
        for queue in queues:
            self._load(queue)

    def of(self, queue: str) -> Handler:
        """The handler for what comes from a queue.

        A letter may come from a queue that SQS does not tell of as a source: its handler is imported when it is wanted.

        Raises `NowhereToGo` if there is none.
        """
        try:
            function, code = self._codes.get(queue) or self._load(queue)
        except (UsageError, CodeError) as error:
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
            raise UsageError(f"{queue} feeds {several} in {path}: it is not clear whose handler is to run")
        raise UsageError(f"no function of {path} is fed by {queue}: --via local has no handler to run")


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
