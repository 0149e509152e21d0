"""Execution environments: processes that run one invocation at a time, and are restarted after they ended."""

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tarry.failed.text import one_line
from tarry.tools.local.functions.launcher import Launcher
from tarry.tools.local.functions.runtime import Exited, InitError, Program, Reply, RuntimeInvocation, RuntimeProcess
from tarry.tools.simulator.invocations import InvocationResult, exited, read_response, timed_out
from tarry.tools.simulator.record_errors import read_line

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0


class Starts:
    """The backoff for starting the environments of a function: after a failed start a pause, which doubles each time.

    Without it, a handler that cannot be imported would be started for every message. Made on the running loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
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
            self._timer = self._loop.call_later(self._pause, self._free.set)

    def worked(self) -> None:
        """Reset the pause: a start succeeded, or the code has changed."""
        self._pause = 0.0
        self._free.set()
        if self._timer is not None:
            self._timer.cancel()


MAX_INIT_SECONDS = 10.0
"""Lambda's limit on loading a handler; after that, it loads again within the time of the invocation."""


@dataclass
class ProcessCall:
    """An invocation of the function."""

    event: bytes
    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    qualifier: str = ""
    """The alias or version that is invoked."""


@dataclass(frozen=True)
class InvocationCost:
    """The cost of an invocation. ``init_seconds`` is the duration of a cold start before it, else None."""

    seconds: float
    init_seconds: float | None
    memory_mb: int | None


class ProcessEnvironment:
    """An environment that runs one invocation after the other.

    The first start does not count towards the time of an invocation; a restart does. ``on_line`` is called with the
    request id of the current invocation, if any, and a line of the log.
    """

    def __init__(
        self,
        program: Program,
        timeout_seconds: float,
        launcher: Launcher,
        starts: Starts,
        on_line: Callable[[str | None, str], None],
    ) -> None:
        self._program = program
        self._timeout_seconds = timeout_seconds
        self._launcher = launcher
        self._starts = starts
        self._on_line = on_line
        self._process: RuntimeProcess | None = None
        self._has_died = False
        self._call: ProcessCall | None = None
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
        self, call: ProcessCall, init_seconds: float | None = None
    ) -> tuple[InvocationResult, InvocationCost]:
        """Run an invocation; return its result and cost, whether it succeeds or not.

        ``init_seconds`` is the duration of a cold start for this invocation that has been made already.
        """
        self._call, self._errors = call, {}
        loop = asyncio.get_running_loop()
        began, memory_mb = loop.time(), None
        try:
            if self._process is None:
                await self._starts.turn()
                began = loop.time()
                if not self._has_died:
                    init_seconds = await self._first_start()
                    began = loop.time()
            async with asyncio.timeout_at(began + self._timeout_seconds):
                if self._process is None:
                    await self._start()
                deadline = time.time() + began + self._timeout_seconds - loop.time()
                answer = await self._invoke(call, deadline)
        except TimeoutError:
            answer = timed_out(self._timeout_seconds, call.request_id)
        except Exited as error:
            answer = exited(str(error), call.request_id)
        except InitError as error:
            answer = _error(error.error, call.request_id)
        seconds = loop.time() - began
        has_replied = answer.kind == "returned" or answer.kind == "error"
        if has_replied and not (self._process and self._process.has_ended):
            memory_mb = self._process.peak_memory_mb() if self._process else None
        else:
            await self._die()
        self._call = None
        answer = replace(answer, errors=self._errors)
        return answer, InvocationCost(seconds, init_seconds, memory_mb)

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _first_start(self) -> float | None:
        began = asyncio.get_running_loop().time()
        try:
            await self.warm()
        except TimeoutError:
            return None
        return asyncio.get_running_loop().time() - began

    async def _start(self) -> None:
        process = RuntimeProcess(self._program, self._launcher, self._line)
        try:
            await process.start()
        except (InitError, Exited):
            self._starts.failed()
            raise
        self._starts.worked()
        self._process = process

    async def _invoke(self, call: ProcessCall, deadline: float) -> InvocationResult:
        assert self._process is not None
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        invocation = RuntimeInvocation(call.request_id, call.event, deadline, reply, call.qualifier)
        got = await self._process.invoke(invocation)
        value = read_response(got.body.decode(errors="replace"))
        if got.is_error:
            return _error(value, call.request_id)
        return InvocationResult("returned", value, request_id=call.request_id)

    async def _die(self) -> None:
        self._has_died = True
        await self.close()

    def _line(self, line: str) -> None:
        if (found := read_line(line)) is not None:
            self._errors[found[0]] = one_line(found[1])
            return
        self._on_line(self._call.request_id if self._call else None, line)


def _error(value: Any, request_id: str) -> InvocationResult:
    fields = value if isinstance(value, dict) else {}
    text = f"{fields.get('errorType')}: {fields.get('errorMessage')}" if fields else json.dumps(value)
    return InvocationResult("error", value, text, request_id)
