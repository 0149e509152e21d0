"""A function whose environments are local processes."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from tarry.failed.usage import UsageError
from tarry.tools.local.functions.code import FunctionCode, is_of_failed_init
from tarry.tools.local.functions.environment import InvocationCost, ProcessCall, ProcessEnvironment
from tarry.tools.local.functions.launcher import Launcher
from tarry.tools.local.functions.loading import CodeLoader
from tarry.tools.local.functions.pool import EnvironmentPool
from tarry.tools.local.functions.runtime_process import Client
from tarry.tools.simulator.functions import RECURSION_STOPPED, WARM_SECONDS
from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import InvocationResult, message_ids
from tarry.tools.simulator.recursion import Lineage
from tarry.tools.template import TemplateFunction

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

    Args:
        function: The function of the template. `warm` raises an error if it has no local code or handler.
        variables: All environment variables of its processes: see `tarry.tools.local.functions.variables`.
        history: The history for the events.
        launcher: The launcher of its processes.
        client: The runtime client; None for the best available.
        on_broken: For a function whose code may change while it runs: called with the error when a new process cannot
            load the code. Its invocation is then throttled instead of failed, and no other process is started until
            `reload` succeeds. None: such an invocation fails, as on Lambda.
        lineage: Detects recursive loops; None for no detection.
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
        self._pool = EnvironmentPool()
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
        return self._pool.all

    async def warm(self) -> None:
        """Start an environment before the first invocation.

        Raises:
            UsageError: the handler cannot be imported; with its traceback.
        """
        self._pool.add_idle(await self._loader.load(self._wanted), self._loop.time())

    async def reload(self, code: FunctionCode | None = None) -> None:
        """Load the code again, or other code; it runs from the next invocation on.

        Current invocations end with the old code. If the new code cannot be loaded, the processes with the old code
        stay in use, and no other process is started until a reload succeeds.

        Raises:
            UsageError: the handler cannot be imported; with its traceback.
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
        self._pool.add_idle(environment, self._loop.time())
        self._set_broken(is_broken=False)

    @property
    def wanted(self) -> FunctionCode:
        """The code that runs now, or will run once it can be loaded."""
        return self._wanted

    def retire(self) -> None:
        """End all environments, the busy ones after their current invocation."""
        for environment in self._pool.retire():
            self._spawn(environment.close())

    def invoke(self, event: Any, done: Done, qualifier: str = "") -> None:
        """Invoke the function; ``done`` is called later, on the loop."""
        name, recursive_loop = self.function.name, self.function.recursive_loop
        if self._lineage is not None and self._lineage.stops(name, event, recursive_loop):
            self._loop.call_soon(done, RECURSION_STOPPED)
            return
        environment = self._free_environment() if self._pool.busy < self.concurrency else None
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
        await asyncio.gather(*(environment.close() for environment in self._pool.clear()))

    def _free_environment(self) -> ProcessEnvironment | None:
        """Return the last used environment, or a new one, for an invocation; None if the code cannot be loaded."""
        environment = self._pool.take(is_loaded=self._is_broken)
        if environment is None and not self._is_broken:
            environment = self._loader.environment(self._code)
            self._pool.add_busy(environment)
        return environment

    async def _run(self, environment: ProcessEnvironment, event: Any, done: Done, qualifier: str) -> None:
        is_cold, init_seconds, loads = environment.is_cold, None, self._loads
        if is_cold and self._on_broken is not None:
            began = self._loop.time()
            try:
                await self._loader.load(self._code, environment)
                init_seconds = self._loop.time() - began
            except UsageError as error:
                self._pool.remove(environment)
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
        if self._pool.is_retired(environment):
            self._pool.remove(environment)
            self._spawn(environment.close())
        else:
            self._pool.add_idle(environment, self._loop.time())
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
        for environment in self._pool.expired(self._loop.time()):
            self._spawn(environment.close())

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
