"""A process that runs a function's handler under a Lambda runtime client."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

import tarry.local.functions.client
from tarry.local.functions.launcher import Launcher, kill_marked, signal_group
from tarry.local.functions.runtime_api import Reply, RuntimeApi, RuntimeInvocation
from tarry.simulator.marshalling import exit_status

MAX_LINE_BYTES = 256 * 1024
"""Longer lines come in parts, as in CloudWatch."""
PIPE_BYTES = 64 * 1024


T = TypeVar("T")

Client = Literal["awslambdaric", "own"]
"""Which runtime client runs the handler: AWS's, or `tarry.local.functions.client`."""


class Exited(Exception):
    """The process ended; the text is how Lambda speaks of it, empty for status 0."""


def best_client() -> Client:
    """AWS's own, where it is installed: it has builds for Linux only."""
    return "awslambdaric" if find_spec("awslambdaric") else "own"


@dataclass(frozen=True)
class Program:
    """What is started: a handler, where its code is, and its environment variables."""

    handler: str
    directory: Path
    variables: Mapping[str, str]
    function_arn: str
    client: Client

    @property
    def command(self) -> list[str]:
        # -u: what is printed is out at once. -P: what is beside the client's file is not on the handler's path.
        client = ["-m", "awslambdaric"] if self.client == "awslambdaric" else [tarry.local.functions.client.__file__]
        return [sys.executable, "-uP", *client, self.handler]


class RuntimeProcess:
    """A process and the API that it asks for work. It is frozen while there is none, as on Lambda.

    ``tell`` gets each line that it, or what it starts, writes to stdout or stderr.
    """

    def __init__(self, program: Program, launcher: Launcher, tell: Callable[[str], None]) -> None:
        self._program = program
        self._launcher = launcher
        self._api = RuntimeApi(program.function_arn, self._freeze)
        self._lines: OutputReader
        self._address: str
        self._tell = tell
        self._process: asyncio.subprocess.Process
        self._ended: asyncio.Task[str]
        self._frozen = False

    async def start(self) -> None:
        """Start it, and wait until it asks for work. Cancelled, it is ended.

        Raises:
            InitError: the handler could not be loaded.
            Exited: the process ended before.
        """
        reading, writing = os.pipe()
        self._lines = OutputReader(reading, self._tell)
        try:
            self._address = await self._api.open()
            self._process = await self._launcher.start(
                self._program.command,
                environment={**self._program.variables, "AWS_LAMBDA_RUNTIME_API": self._address},
                directory=self._program.directory,
                output=writing,
            )
        except BaseException as error:
            self._lines.close()
            await self._api.close()
            if isinstance(error, OSError):  # its folder is gone, or there is no room for one more process
                raise Exited(str(error)) from error
            raise
        finally:
            os.close(writing)
        self._ended = asyncio.create_task(self._until_end())
        try:
            await self._or_exit(self._api.ready)
        except BaseException:
            await self.end()
            raise

    async def invoke(self, invocation: RuntimeInvocation) -> Reply:
        """Raises `Exited`."""
        self._thaw()
        self._api.hand(invocation)
        reply = await self._or_exit(invocation.reply)
        self._lines.flush()  # what it wrote before it answered is in the pipe by now
        return reply

    async def end(self) -> None:
        """Kill it, with all that it has started, and wait until it is gone."""
        if not self._ended.done():
            signal_group(self._process.pid, signal.SIGKILL)
        await self._ended

    def peak_memory_mb(self) -> int | None:
        """The most memory it ever had, where that is cheap to know."""
        with contextlib.suppress(OSError, ValueError, StopIteration):
            with open(f"/proc/{self._process.pid}/status", encoding="ascii") as file:
                line = next(line for line in file if line.startswith("VmHWM:"))
            return -(-int(line.split()[1]) // 1024)
        return None

    async def _or_exit(self, future: asyncio.Future[T]) -> T:
        both: list[asyncio.Future[Any]] = [future, self._ended]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        raise Exited(self._ended.result())

    async def _until_end(self) -> str:
        """Wait for it, and leave nothing behind."""
        status = await self._process.wait()
        self._launcher.ended(self._process)
        kill_marked("AWS_LAMBDA_RUNTIME_API", self._address)  # what is in a session of its own: the port is still ours
        self._lines.close()
        await self._api.close()
        return exit_status(status)

    def _freeze(self) -> None:
        """A thread that outlives its invocation wakes up in the next one only: PLATFORM 26."""
        self._frozen = True
        signal_group(self._process.pid, signal.SIGSTOP)

    def _thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            signal_group(self._process.pid, signal.SIGCONT)


class OutputReader:
    """Tells each line that is written to the pipe whose reading end is ``pipe``. Made on the running loop."""

    def __init__(self, pipe: int, tell: Callable[[str], None]) -> None:
        self._pipe = pipe
        self._tell = tell
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._read)

    def flush(self) -> None:
        """Tell what has been written until now, also a last line without an end."""
        room = PIPE_BYTES  # what is written meanwhile has time
        while room > 0 and (got := self._read()):
            room -= got
        if self._rest:
            self._tell_of(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Tell what is left, and read no more."""
        self.flush()
        self._stop()
        os.close(self._pipe)

    def _read(self) -> int:
        try:
            got = os.read(self._pipe, PIPE_BYTES)
        except BlockingIOError:
            return 0
        if not got:
            self._stop()
            return 0
        *lines, self._rest = (self._rest + got).split(b"\n")
        for line in lines:
            self._tell_of(line)
        while len(self._rest) >= MAX_LINE_BYTES:
            self._tell_of(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        return len(got)

    def _tell_of(self, line: bytes) -> None:
        self._tell(line.decode(errors="replace"))

    def _stop(self) -> None:
        self._loop.remove_reader(self._pipe)
