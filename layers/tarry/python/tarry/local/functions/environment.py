"""An execution environment: a process that handles one invocation at a time, and is started again after its death."""

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tarry.local.functions.launcher import Launcher
from tarry.local.functions.runtime_api import InitError, Reply, RuntimeInvocation
from tarry.local.functions.runtime_process import Exited, Program, RuntimeProcess
from tarry.simulator.invocations import InvocationResult, exited, timed_out
from tarry.simulator.marshalling import read_response

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0


class Starts:
    """Lets a function's environments start, after a failed start only when a pause is over, which doubles each time.

    A handler that does not import would else be started as fast as its queue has messages. Made on the running loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pause = 0.0
        self._free = asyncio.Event()
        self._free.set()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until there may be another start."""
        await self._free.wait()

    def failed(self) -> None:
        """A start has failed. Those that were under way together count once."""
        if self._free.is_set():
            self._pause = min(MAX_PAUSE_SECONDS, self._pause * 2 or FIRST_PAUSE_SECONDS)
            self._free.clear()
            self._timer = self._loop.call_later(self._pause, self._free.set)

    def worked(self) -> None:
        """All is well, or may be: the code has changed."""
        self._pause = 0.0
        self._free.set()
        if self._timer is not None:
            self._timer.cancel()


MAX_INIT_SECONDS = 10.0
"""What Lambda gives a handler to load; then it starts over, within the time of the invocation."""


@dataclass
class ProcessCall:
    """One invocation."""

    event: bytes
    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True)
class InvocationCost:
    """What an invocation took. ``init_seconds`` is the cold start's, if there was one that cost it nothing."""

    seconds: float
    init_seconds: float | None
    memory_mb: int | None


class ProcessEnvironment:
    """Runs one invocation after the other. Its first start costs them nothing, one after its death their own time.

    ``tell`` gets the request id of the invocation at hand, if there is one, and a line of the log.
    """

    def __init__(
        self,
        program: Program,
        timeout_seconds: float,
        launcher: Launcher,
        starts: Starts,
        tell: Callable[[str | None, str], None],
    ) -> None:
        self._program = program
        self._timeout_seconds = timeout_seconds
        self._launcher = launcher
        self._starts = starts
        self._tell = tell
        self._process: RuntimeProcess | None = None
        self._has_died = False
        self._call: ProcessCall | None = None

    @property
    def is_cold(self) -> bool:
        """Whether its next invocation starts a process."""
        return self._process is None

    async def warm(self) -> None:
        """Start the process, within the time that Lambda gives it.

        Raises:
            InitError: the handler could not be loaded.
            Exited: the process ended.
            TimeoutError: it took too long.
        """
        try:
            async with asyncio.timeout(MAX_INIT_SECONDS):
                await self._start()
        except BaseException:
            self._has_died = True
            raise

    async def run(self, call: ProcessCall) -> tuple[InvocationResult, InvocationCost]:
        """The answer to an invocation, whatever becomes of it."""
        self._call = call
        loop = asyncio.get_running_loop()
        began, init_seconds, memory_mb = loop.time(), None, None
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
        if answer.kind == "returned" or answer.kind == "error":
            memory_mb = self._process.peak_memory_mb() if self._process else None
        else:
            await self._die()
        self._call = None
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
        got = await self._process.invoke(RuntimeInvocation(call.request_id, call.event, deadline, reply))
        value = read_response(got.body.decode(errors="replace"))
        if got.is_error:
            return _error(value, call.request_id)
        return InvocationResult("returned", value, request_id=call.request_id)

    async def _die(self) -> None:
        self._has_died = True
        await self.close()

    def _line(self, line: str) -> None:
        self._tell(self._call.request_id if self._call else None, line)


def _error(value: Any, request_id: str) -> InvocationResult:
    said = value if isinstance(value, dict) else {}
    text = f"{said.get('errorType')}: {said.get('errorMessage')}" if said else json.dumps(value)
    return InvocationResult("error", value, text, request_id)
