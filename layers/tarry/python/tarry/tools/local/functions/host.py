"""A function whose environments are local processes."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from tarry.failed.usage import UsageError
from tarry.tools.local.functions.code import CannotImport, FunctionCode, is_of_failed_init, plain
from tarry.tools.local.functions.environment import (
    MAX_INIT_SECONDS,
    InvocationCost,
    ProcessCall,
    ProcessEnvironment,
    Starts,
)
from tarry.tools.local.functions.launcher import Launcher
from tarry.tools.local.functions.runtime import Client, Exited, InitError, Program, RuntimeProcess, best_client
from tarry.tools.simulator.functions import RECURSION_STOPPED, WARM_SECONDS
from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import InvocationResult, message_ids
from tarry.tools.simulator.recursion import Lineage
from tarry.tools.template import TemplateFunction
from tarry.tools.template.code import is_node, not_run_here


class CodeLoader:
    """A maker of environments. It is made on the running loop and used from there.

    ``client`` is the runtime client; None for the best available. ``on_line`` is called with the request id of the
    current invocation, if any, and a line of the log.
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
        """Return an environment that has loaded the code. Raises `UsageError` with the traceback if that fails."""
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


Done = Callable[[InvocationResult], None]

MOST_ENVIRONMENTS = 10
"""The concurrency of a function without a reserved one; the 1,000 of an account are too many for a laptop."""


class ProcessFunction:
    """A `tarry.tools.simulator.invocations.FunctionHost` with environments up to the concurrency of the function.

    The last used environment is used first. The host is made on the running loop and used from there. It records the
    events

    - ``invoked``: ``function``, ``request_id``, ``delivery_ids``, ``cold``;
    - ``logged``, for each line of stdout or stderr: ``function``, ``request_id`` (None between invocations), ``line``,
      ``fields`` (the fields of a JSON object, else None);
    - ``report``, just before the result: ``function``, ``request_id``, ``kind`` (of the result), ``seconds``,
      ``init_seconds`` (None without a cold start), ``batch`` (the number of messages), ``memory_mb`` (the peak memory
      of the process, None if unknown).

    ``variables`` are all environment variables of its processes. ``on_broken``, for a function whose code may change
    while it runs, is called with the error when a new process cannot load the code: its invocation is then throttled
    instead of failed, and no other process is started until `reload` succeeds. Without it, such an invocation fails, as
    on Lambda. ``lineage`` detects recursive loops; None for no detection.
    """

    def __init__(
        self,
        function: TemplateFunction,
        variables: Mapping[str, str],
        history: History,
        launcher: Launcher,
        client: Client | None = None,
        *,
        on_broken: Callable[[UsageError], None] | None = None,
        lineage: Lineage | None = None,
    ) -> None:
        self._code = self._wanted = FunctionCode(function, variables)
        self._history = history
        self._loader = CodeLoader(launcher, client, self._log)
        self._on_broken = on_broken
        self._lineage = lineage
        self._is_broken = False
        self._loads = 0
        """The number of reloads that succeeded."""
        self.on_limit: Callable[[int | None], None] = lambda limit: None
        """Called with the `limit` whenever it may have changed."""
        self._idle: list[tuple[float, ProcessEnvironment]] = []
        """The environments that wait for an invocation, with the time of their last use, the oldest first."""
        self._busy: set[ProcessEnvironment] = set()
        self._retired: set[ProcessEnvironment] = set()
        """The busy ones that end after their invocation."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def function(self) -> TemplateFunction:
        """The function whose code runs now."""
        return self._code.function

    @property
    def concurrency(self) -> int:
        """The maximum number of concurrent invocations; more are throttled."""
        reserved = self.function.reserved_concurrency
        return MOST_ENVIRONMENTS if reserved is None else reserved

    @property
    def limit(self) -> int | None:
        """The number of processes that can run invocations while the code cannot be loaded; None if it can."""
        return sum(not environment.is_cold for environment in self.environments) if self._is_broken else None

    @property
    def environments(self) -> list[ProcessEnvironment]:
        """The existing environments, busy or idle."""
        return [*self._busy, *(environment for _, environment in self._idle)]

    async def warm(self) -> None:
        """Start an environment before the first invocation. Raises the errors of `CodeLoader.load`."""
        self._idle.append((self._loop.time(), await self._loader.load(self._wanted)))

    async def reload(self, code: FunctionCode | None = None) -> None:
        """Load the code again, or other code; it runs from the next invocation on.

        Current invocations end with the old code. If the new code cannot be loaded, the processes with the old code
        stay in use, and no other process is started until a reload succeeds. Raises `UsageError` if the handler cannot
        be imported; with its traceback.
        """
        self._wanted = code or self._wanted
        try:
            environment = await self._loader.load(self._wanted)
        except UsageError:
            self._set_broken(is_broken=True)
            raise
        self._code = self._wanted
        self._loads += 1
        self._loader.worked()
        self.retire()
        self._idle.append((self._loop.time(), environment))
        self._set_broken(is_broken=False)

    @property
    def wanted(self) -> FunctionCode:
        """The code that runs now, or will run once it can be loaded."""
        return self._wanted

    def retire(self) -> None:
        """End all environments, the busy ones after their current invocation."""
        self._retired |= self._busy
        idle, self._idle = self._idle, []
        for _, environment in idle:
            self._spawn(environment.close())

    def invoke(self, event: Any, done: Done, qualifier: str = "") -> None:
        """Invoke the function; ``done`` is called later, on the loop."""
        name, recursive_loop = self.function.name, self.function.recursive_loop
        if self._lineage is not None and self._lineage.stops(name, event, recursive_loop):
            self._loop.call_soon(done, RECURSION_STOPPED)
            return
        environment = self._free_environment() if len(self._busy) < self.concurrency else None
        if environment is None:
            self._loop.call_soon(done, InvocationResult("throttled", text="Rate Exceeded."))
            return
        self._spawn(self._run(environment, event, done, qualifier))

    async def close(self) -> None:
        """End all environments. Current invocations get no result."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        environments = self.environments
        self._busy.clear()
        self._idle.clear()
        await asyncio.gather(*(environment.close() for environment in environments))

    def _free_environment(self) -> ProcessEnvironment | None:
        """Return the last used environment, or a new one, for an invocation; None if the code cannot be loaded.

        The last used one is used first, so that those which are not needed grow old.
        """
        place = next((at for at in reversed(range(len(self._idle))) if self._can_run(self._idle[at][1])), None)
        if place is None and self._is_broken:
            return None
        environment = self._loader.environment(self._code) if place is None else self._idle.pop(place)[1]
        self._busy.add(environment)
        return environment

    def _can_run(self, environment: ProcessEnvironment) -> bool:
        """Whether an environment has its process, or may start one."""
        return not (self._is_broken and environment.is_cold)

    async def _run(self, environment: ProcessEnvironment, event: Any, done: Done, qualifier: str) -> None:
        is_cold, init_seconds, loads = environment.is_cold, None, self._loads
        if is_cold and self._on_broken is not None:
            began = self._loop.time()
            try:
                await self._loader.load(self._code, environment)
                init_seconds = self._loop.time() - began
            except UsageError as error:
                self._busy.discard(environment)
                self._retired.discard(environment)
                if loads == self._loads and not self._is_broken:
                    self._set_broken(is_broken=True)
                    self._on_broken(error)
                self._loop.call_soon(done, InvocationResult("throttled", text="Rate Exceeded."))
                return
        call = ProcessCall(json.dumps(event).encode(), qualifier=qualifier)
        delivery_ids = message_ids(event)
        name = self.function.name
        self._history.record(
            "invoked",
            function=name,
            request_id=call.request_id,
            delivery_ids=delivery_ids,
            cold=is_cold,
        )
        if self._lineage is not None:
            self._lineage.begin(call.request_id, name, event)
        answer, report = await environment.run(call, init_seconds)
        if self._lineage is not None:
            self._lineage.end(call.request_id)
        self._busy.discard(environment)
        if environment in self._retired:
            self._retired.discard(environment)
            self._spawn(environment.close())
        else:
            self._idle.append((self._loop.time(), environment))
            self._loop.call_later(WARM_SECONDS, self._sweep)
        self._record(answer, report, len(delivery_ids))
        if self._is_broken:
            self.on_limit(self.limit)
        self._loop.call_soon(done, answer)

    def _set_broken(self, *, is_broken: bool) -> None:
        self._is_broken = is_broken
        self.on_limit(self.limit)

    def _record(self, answer: InvocationResult, report: InvocationCost, batch: int) -> None:
        self._history.record(
            "report",
            function=self.function.name,
            request_id=answer.request_id,
            kind=answer.kind,
            seconds=report.seconds,
            init_seconds=report.init_seconds,
            batch=batch,
            memory_mb=report.memory_mb,
        )

    def _log(self, request_id: str | None, line: str) -> None:
        fields = _fields(line)
        if self._loader.is_loading and fields and is_of_failed_init(fields):
            return  # `CodeLoader.load` raises the error
        logged_id = fields.get("requestId") if fields else None
        if isinstance(logged_id, str) and logged_id:
            request_id = logged_id
        self._history.record("logged", function=self.function.name, request_id=request_id, line=line, fields=fields)

    def _sweep(self) -> None:
        """End environments that have been idle for long, unless the code that they run cannot be loaded again."""
        if self._is_broken:
            return
        while self._idle and self._idle[0][0] <= self._loop.time() - WARM_SECONDS + 1:
            self._spawn(self._idle.pop(0)[1].close())

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": f"{self.function.name} is not served", "exception": error})


def _fields(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None
