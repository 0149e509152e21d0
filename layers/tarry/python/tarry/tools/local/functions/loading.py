"""Starting environments of a function, and why its code cannot be loaded."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tarry.failed.usage import UsageError
from tarry.tools.local.functions.code import CannotImport, FunctionCode, plain
from tarry.tools.local.functions.environment import MAX_INIT_SECONDS, ProcessEnvironment, Starts
from tarry.tools.local.functions.launcher import Launcher
from tarry.tools.local.functions.runtime_api import InitError
from tarry.tools.local.functions.runtime_process import Client, Exited, Program, RuntimeProcess, best_client
from tarry.tools.template.runtimes import is_node, not_run_here


class CodeLoader:
    """A maker of environments. It is made on the running loop and used from there.

    Args:
        launcher: The launcher of the processes.
        client: The runtime client; None for the best available.
        on_line: Called with the request id of the current invocation, if any, and a line of the log.
    """

    def __init__(self, launcher: Launcher, client: Client | None, on_line: Callable[[str | None, str], None]) -> None:
        self._launcher = launcher
        self._client: Client = client or best_client()
        self._on_line = on_line
        self._starts = Starts()
        self._made = 0
        self._loading = 0

    @property
    def is_loading(self) -> bool:
        """Whether a process is loading the code."""
        return self._loading > 0

    def environment(self, code: FunctionCode) -> ProcessEnvironment:
        """Return a new environment; its process starts with the first invocation, or with `load`."""
        self._made += 1
        program = self._program(code, self._client, f"environment-{self._made}")
        return ProcessEnvironment(program, code.function.timeout_seconds, self._launcher, self._starts, self._on_line)

    def worked(self) -> None:
        """Let the next process start at once: the code has changed and can be loaded."""
        self._starts.worked()

    async def load(self, code: FunctionCode, environment: ProcessEnvironment | None = None) -> ProcessEnvironment:
        """Return an environment that has loaded the code, a new one unless it is given.

        Raises:
            UsageError: the handler cannot be imported; with its traceback.
        """
        _check(code)
        environment = environment or self.environment(code)
        self._loading += 1
        try:
            await environment.warm()
        except InitError as error:
            raise CannotImport(code, plain(str(error)), await self._explained(code, error.error)) from error
        except Exited as error:
            raise CannotImport(code, f"the process ended, {str(error) or 'exit status 0'}") from error
        except TimeoutError as error:
            raise CannotImport(code, "importing it takes more than 10 seconds") from error
        finally:
            self._loading -= 1
        return environment

    async def _explained(self, code: FunctionCode, error: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the error with its frames. Only the client of tarry reports them for a failed import, so use that."""
        if error.get("stackTrace") or self._client == "own" or is_node(code.function.runtime):
            return error
        process = RuntimeProcess(self._program(code, "own", "explanation"), self._launcher, lambda line: None)
        try:
            async with asyncio.timeout(MAX_INIT_SECONDS):
                await process.start()
        except InitError as explained:
            return explained.error
        except (Exited, TimeoutError):
            return {}
        await process.end()
        return {}

    def _program(self, code: FunctionCode, client: Client, log_stream: str) -> Program:
        function = code.function
        assert function.code is not None
        assert function.handler is not None
        variables = {"AWS_LAMBDA_LOG_STREAM_NAME": log_stream, **code.variables}
        return Program(
            function.handler, function.code.resolve(), variables, function.arn, client, runtime=function.runtime
        )


def _check(code: FunctionCode) -> None:
    """Raise `UsageError` if the function cannot run on this machine."""
    function = code.function
    if problem := not_run_here(function.runtime):
        raise UsageError(f"{function.logical_id} cannot run here: {problem}")
    if function.code is None or not function.handler:
        raise UsageError(f"{function.logical_id} cannot run here: it needs a local CodeUri and a Handler")
    if not function.code.is_dir():
        raise UsageError(f"{function.logical_id}: its CodeUri {function.code} is not a directory")
