"""A process that runs the handler of a function under a Lambda runtime client."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from tarry.tools.local.functions.launcher import Launcher, kill_marked, signal_group
from tarry.tools.local.functions.runtime_api import Reply, RuntimeApi, RuntimeInvocation
from tarry.tools.simulator.marshalling import exit_status
from tarry.tools.template.runtimes import is_node, node

MAX_LINE_BYTES = 256 * 1024
"""Longer lines are split, as in CloudWatch."""
PIPE_BYTES = 64 * 1024


T = TypeVar("T")

Client = Literal["awslambdaric", "own"]
"""The runtime client that runs a handler in Python: that of AWS, or `tarry.tools.local.functions.client`."""
CLIENTS = {"awslambdaric": "aws_client.py", "own": "client.py"}


class Exited(Exception):
    """The process ended. The text is that of Lambda; empty for status 0."""


def best_client() -> Client:
    """Return the client of AWS if it is installed; it has builds only for Linux."""
    return "awslambdaric" if find_spec("awslambdaric") else "own"


@dataclass(frozen=True)
class Program:
    """The program of a process: a handler, the directory of its code, and its environment variables."""

    handler: str
    directory: Path
    variables: Mapping[str, str]
    function_arn: str
    client: Client
    runtime: str | None = None

    @property
    def command(self) -> list[str]:
        if is_node(self.runtime):
            client = _node_client(self.directory) or Path(__file__).with_name("client.mjs")
            return [node() or "node", str(client), self.handler]
        # -u: unbuffered output. -P: the directory of the client is not on the import path of the handler.
        return [sys.executable, "-uP", str(Path(__file__).with_name(CLIENTS[self.client])), self.handler]


def _node_client(directory: Path) -> Path | None:
    """Return AWS's client for Node.js, if a function can import it and its native part is compiled."""
    for folder in (directory, *directory.parents):
        package = folder / "node_modules" / "aws-lambda-ric"
        try:
            program = json.loads((package / "package.json").read_bytes())["bin"]["aws-lambda-ric"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        return package / program if any(package.rglob("*.node")) else None
    return None


class RuntimeProcess:
    """A process and the Runtime API from which it gets invocations. Between them it is frozen, as on Lambda.

    ``on_line`` is called with each line that it, or a process it starts, writes to stdout or stderr.
    """

    def __init__(self, program: Program, launcher: Launcher, on_line: Callable[[str], None]) -> None:
        self._program = program
        self._launcher = launcher
        self._api = RuntimeApi(program.function_arn, self._freeze)
        self._lines: OutputReader
        self._address: str
        self._on_line = on_line
        self._process: asyncio.subprocess.Process
        self._ended: asyncio.Task[str]
        self._frozen = False
        self._idle = asyncio.Event()

    async def start(self) -> None:
        """Start the process and wait until it asks for an invocation. End it when cancelled.

        Raises:
            InitError: the handler could not be loaded.
            Exited: the process ended before that.
        """
        reading, writing = os.pipe()
        self._lines = OutputReader(reading, self._on_line)
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
            if isinstance(error, OSError):  # the directory is missing, or there are too many processes
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
        """Run an invocation. Raises `Exited` if the process ends before it replies."""
        self._thaw()
        self._idle.clear()
        self._api.submit(invocation)
        reply = await self._or_exit(invocation.reply)
        if reply.is_error:  # after an error that is not caught, Node.js ends the process
            idle = asyncio.ensure_future(self._idle.wait())
            with contextlib.suppress(Exited):
                await self._or_exit(idle)
            idle.cancel()
        if not self.has_ended:
            self._lines.flush()  # output before the response is in the pipe now
        return reply

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._ended.done()

    async def end(self) -> None:
        """Kill the process and all that it started, and wait until it has ended."""
        if not self._ended.done():
            signal_group(self._process.pid, signal.SIGKILL)
        await self._ended

    def peak_memory_mb(self) -> int | None:
        """Return the peak memory in MB, where the system provides it."""
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
        """Wait for the end of the process and clean up; return the exit status as text."""
        status = await self._process.wait()
        self._launcher.ended(self._process)
        kill_marked(
            "AWS_LAMBDA_RUNTIME_API", self._address
        )  # processes in sessions of their own; the port is still in use here
        self._lines.close()
        await self._api.close()
        return exit_status(status)

    def _freeze(self) -> None:
        """Freeze the process: a thread that outlives its invocation runs on only in the next one (PLATFORM 26)."""
        self._frozen = True
        self._idle.set()
        signal_group(self._process.pid, signal.SIGSTOP)

    def _thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            signal_group(self._process.pid, signal.SIGCONT)


class OutputReader:
    """A reader that calls ``on_line`` with each line written to a pipe. Made on the running loop."""

    def __init__(self, pipe: int, on_line: Callable[[str], None]) -> None:
        self._pipe = pipe
        self._on_line = on_line
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._read)

    def flush(self) -> None:
        """Read all output up to now, including a last line without a newline."""
        room = PIPE_BYTES  # later output can wait
        while room > 0 and (got := self._read()):
            room -= got
        if self._rest:
            self._emit(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Read the remaining output and close the pipe."""
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
            self._emit(line)
        while len(self._rest) >= MAX_LINE_BYTES:
            self._emit(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        return len(got)

    def _emit(self, line: bytes) -> None:
        self._on_line(line.decode(errors="replace"))

    def _stop(self) -> None:
        self._loop.remove_reader(self._pipe)
