"""A function whose environments are local processes, which are restarted after they ended."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from tarry.failed.text import one_line
from tarry.failed.usage import UsageError
from tarry.tools.local.functions.code import CannotImport, FunctionCode, is_of_failed_init, plain
from tarry.tools.local.functions.runtime import (
    Client,
    Exited,
    InitError,
    Launcher,
    RuntimeInvocation,
    RuntimeProcess,
)
from tarry.tools.simulator.functions import RECURSION_STOPPED, WARM_SECONDS, Done
from tarry.tools.simulator.history import History, HistoryEvent
from tarry.tools.simulator.invocations import InvocationResult, exited, message_ids, read_response, timed_out
from tarry.tools.simulator.record_errors import read_line
from tarry.tools.simulator.recursion import Lineage
from tarry.tools.template import TemplateFunction
from tarry.tools.template.code import is_node, missing_code

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0


class Starts:
    """The backoff for starting the environments of a function: after a failed start a pause, which doubles each time.

    Without it, a handler that cannot be imported would be started for every message. Made on the running loop.
    """

    def __init__(self) -> None:
        self._pause = 0.0
        self._free = asyncio.Event()
        self._free.set()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until another start is allowed."""
        await self._free.wait()

    def failed(self) -> None:
        """Record a failed start. Concurrent starts count once."""
        if self._free.is_set():
            self._pause = min(MAX_PAUSE_SECONDS, self._pause * 2 or FIRST_PAUSE_SECONDS)
            self._free.clear()
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._free.set)

    def worked(self) -> None:
        """Reset the pause: a start succeeded, or the code has changed."""
        self._pause = 0.0
        self._free.set()
        if self._timer is not None:
            self._timer.cancel()


MAX_INIT_SECONDS = 10.0
"""Lambda's limit on loading a handler; after that, it loads again within the time of the invocation."""


class ProcessEnvironment:
    """An environment that runs one invocation after the other.

    The first start does not count towards the time of an invocation; a restart does. ``on_line`` is called with the
    request id of the current invocation, if any, and a line of the log.
    """

    def __init__(
        self,
        code: FunctionCode,
        client: Client,
        launcher: Launcher,
        starts: Starts,
        on_line: Callable[[str | None, str], None],
    ) -> None:
        self._code = code
        self._client = client
        self._launcher = launcher
        self._starts = starts
        self._on_line = on_line
        self._process: RuntimeProcess | None = None
        self._has_died = False
        self._call: RuntimeInvocation | None = None
        self._errors: dict[str, str] = {}
        """The errors of messages of the current invocation."""

    @property
    def is_cold(self) -> bool:
        """Whether the next invocation starts a process."""
        return self._process is None

    async def warm(self) -> None:
        """Start the process, within the limit of Lambda.

        Raises `InitError` if the handler could not be loaded, `Exited` if the process ended, `TimeoutError` if it took
        too long.
        """
        try:
            async with asyncio.timeout(MAX_INIT_SECONDS):
                await self._start()
        except BaseException:
            self._has_died = True
            raise

    async def run(
        self, call: RuntimeInvocation, init_seconds: float | None = None
    ) -> tuple[InvocationResult, float, float | None]:
        """Run an invocation; return its result, whether it succeeds or not, its seconds and those of its cold start.

        ``init_seconds`` is the duration of a cold start for this invocation that has been made already.
        """
        self._call, self._errors = call, {}
        loop, timeout = asyncio.get_running_loop(), self._code.function.timeout_seconds
        began = loop.time()
        try:
            if self._process is None:
                await self._starts.turn()
                began = loop.time()
                if not self._has_died:
                    with suppress(TimeoutError):  # then it loads again, within the time of the invocation
                        await self.warm()
                        init_seconds = loop.time() - began
                    began = loop.time()
            async with asyncio.timeout_at(began + timeout):
                if self._process is None:
                    await self._start()
                call.deadline = time.time() + began + timeout - loop.time()
                assert self._process is not None
                got = await self._process.invoke(call)
            value = read_response(got.body.decode(errors="replace"))
            if got.is_error:
                answer = _error(value, call.request_id)
            else:
                answer = InvocationResult("returned", value, request_id=call.request_id)
        except TimeoutError:
            answer = timed_out(timeout, call.request_id)
        except Exited as error:
            answer = exited(str(error), call.request_id)
        except InitError as error:
            answer = _error(error.error, call.request_id)
        seconds = loop.time() - began
        has_replied = answer.kind == "returned" or answer.kind == "error"
        if not has_replied or (self._process and self._process.has_ended):
            self._has_died = True
            await self.close()
        self._call = None
        return replace(answer, errors=self._errors), seconds, init_seconds

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _start(self) -> None:
        process = RuntimeProcess(self._code, self._client, self._launcher, self._line)
        try:
            await process.start()
        except (InitError, Exited):
            self._starts.failed()
            raise
        self._starts.worked()
        self._process = process

    def _line(self, line: str) -> None:
        if (found := read_line(line)) is not None:
            self._errors[found[0]] = one_line(found[1])
            return
        self._on_line(self._call.request_id if self._call else None, line)


def _error(value: Any, request_id: str) -> InvocationResult:
    fields = value if isinstance(value, dict) else {}
    text = f"{fields.get('errorType')}: {fields.get('errorMessage')}" if fields else json.dumps(value)
    return InvocationResult("error", value, text, request_id)


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
      ``init_seconds`` (None without a cold start), ``batch`` (the number of messages).

    ``variables`` are all environment variables of its processes; ``client`` is the runtime client; by default that
    of AWS if it is installed, which has builds only for Linux. ``on_broken``, for a function whose code may change
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
        self._code = self.wanted = FunctionCode(function, variables)
        """The code that runs now; ``wanted`` is the code that will run once it can be loaded."""
        self._history = history
        self._launcher = launcher
        self._client: Client = client or ("awslambdaric" if find_spec("awslambdaric") else "own")
        self._on_broken = on_broken
        self._lineage = lineage
        self._starts = Starts()
        self._made = 0
        self._loading = 0
        """The number of processes that are loading the code."""
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
        """Start an environment before the first invocation. Raises `UsageError` if it cannot load the code."""
        self._idle.append((self._loop.time(), await self._load(self.wanted)))

    async def reload(self, code: FunctionCode | None = None) -> None:
        """Load the code again, or other code; it runs from the next invocation on.

        Current invocations end with the old code. If the new code cannot be loaded, the processes with the old code
        stay in use, and no other process is started until a reload succeeds. Raises `UsageError` if the handler cannot
        be imported; with its traceback.
        """
        self.wanted = code or self.wanted
        try:
            environment = await self._load(self.wanted)
        except UsageError:
            self._set_broken(is_broken=True)
            raise
        self._code = self.wanted
        self._loads += 1
        self._starts.worked()  # the next process may start at once
        self.retire()
        self._idle.append((self._loop.time(), environment))
        self._set_broken(is_broken=False)  # last: batches that wait are invoked at once, in the new environment

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
        places = reversed(range(len(self._idle)))
        place = next((at for at in places if not (self._is_broken and self._idle[at][1].is_cold)), None)
        if place is None and self._is_broken:
            return None
        environment = self._new_environment(self._code) if place is None else self._idle.pop(place)[1]
        self._busy.add(environment)
        return environment

    def _new_environment(self, code: FunctionCode) -> ProcessEnvironment:
        """Return an environment whose process starts with the first invocation, or with `_load`."""
        self._made += 1
        code = _with_log_stream(code, f"environment-{self._made}")
        return ProcessEnvironment(code, self._client, self._launcher, self._starts, self._log)

    async def _load(self, code: FunctionCode, environment: ProcessEnvironment | None = None) -> ProcessEnvironment:
        """Return an environment that has loaded the code. Raises `UsageError` with the traceback if that fails."""
        if problem := missing_code(code.function, any_handler=True):
            raise UsageError(problem)
        environment = environment or self._new_environment(code)
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
        process = RuntimeProcess(_with_log_stream(code, "explanation"), "own", self._launcher, lambda line: None)
        try:
            async with asyncio.timeout(MAX_INIT_SECONDS):
                await process.start()
        except InitError as explained:
            return explained.error
        except (Exited, TimeoutError):
            return {}
        await process.end()
        return {}

    async def _run(self, environment: ProcessEnvironment, event: Any, done: Done, qualifier: str) -> None:
        is_cold, init_seconds, loads = environment.is_cold, None, self._loads
        if is_cold and self._on_broken is not None:
            began = self._loop.time()
            try:
                await self._load(self._code, environment)
                init_seconds = self._loop.time() - began
            except UsageError as error:
                self._busy.discard(environment)
                self._retired.discard(environment)
                if loads == self._loads and not self._is_broken:
                    self._set_broken(is_broken=True)
                    self._on_broken(error)
                self._loop.call_soon(done, InvocationResult("throttled", text="Rate Exceeded."))
                return
        call = RuntimeInvocation(json.dumps(event).encode(), qualifier)
        name, request_id, delivery_ids = self.function.name, call.request_id, message_ids(event)
        self._history.record("invoked", function=name, request_id=request_id, delivery_ids=delivery_ids, cold=is_cold)
        if self._lineage is not None:
            self._lineage.begin(request_id, name, event)
        answer, seconds, init_seconds = await environment.run(call, init_seconds)
        if self._lineage is not None:
            self._lineage.end(request_id)
        self._busy.discard(environment)
        if environment in self._retired:
            self._retired.discard(environment)
            self._spawn(environment.close())
        else:
            self._idle.append((self._loop.time(), environment))
            self._loop.call_later(WARM_SECONDS, self._sweep)
        self._history.record(
            "report",
            function=self.function.name,
            request_id=answer.request_id,
            kind=answer.kind,
            seconds=seconds,
            init_seconds=init_seconds,
            batch=len(delivery_ids),
        )
        if self._is_broken:
            self.on_limit(self.limit)
        self._loop.call_soon(done, answer)

    def _set_broken(self, *, is_broken: bool) -> None:
        self._is_broken = is_broken
        self.on_limit(self.limit)

    def _log(self, request_id: str | None, line: str) -> None:
        fields = _fields(line)
        if self._loading and fields and is_of_failed_init(fields):
            return  # `_load` raises the error
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


def _with_log_stream(code: FunctionCode, name: str) -> FunctionCode:
    return replace(code, variables={"AWS_LAMBDA_LOG_STREAM_NAME": name, **code.variables})


def _fields(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None
