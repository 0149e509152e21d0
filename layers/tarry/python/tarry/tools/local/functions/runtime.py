"""A process that runs the handler of a function under a Lambda runtime client."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tarry.tools.local.functions.launcher import Launcher, kill_marked, signal_group
from tarry.tools.simulator.invocations import exit_status, qualified_arn
from tarry.tools.template.code import is_node, node

VERSION = "/2018-06-01/runtime/"
HOST = "127.0.0.1"
MAX_RESPONSE_BYTES = 6 * 1024 * 1024 + 100
"""The limit of Lambda: 6291556 bytes."""

_log = logging.getLogger(__name__)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Whether a log record is not about a garbled request, as two forks of a handler on one connection make."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log.addFilter(_is_worth_logging)


class InitError(Exception):
    """The handler could not be loaded. ``error`` is the error that the runtime client reported."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('errorType')}: {error.get('errorMessage')}")
        self.error = error


@dataclass(frozen=True)
class Reply:
    """The reply to an invocation: the encoded return value of the handler, or its error."""

    body: bytes
    is_error: bool = False


@dataclass
class RuntimeInvocation:
    """An invocation for the environment. ``deadline`` is in epoch seconds."""

    request_id: str
    event: bytes
    deadline: float
    reply: asyncio.Future[Reply]
    qualifier: str = ""
    """The alias or version that is invoked."""


class RuntimeApi:
    """A Runtime API for one process, on a port of its own. It does not enforce timeouts.

    ``on_idle`` is called when the process asks for an invocation and none is waiting.
    """

    def __init__(self, function_arn: str, on_idle: Callable[[], None]) -> None:
        self._arn = function_arn
        self._on_idle = on_idle
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        """Set at the first request for an invocation, or to `InitError`."""
        self._asking: asyncio.Future[RuntimeInvocation] | None = None
        self._waiting: RuntimeInvocation | None = None
        self._current: RuntimeInvocation | None = None
        self._web = web.Server(self._serve, access_log=None, logger=_log)
        self._server: asyncio.Server | None = None

    async def open(self) -> str:
        """Start to listen; return the address for AWS_LAMBDA_RUNTIME_API."""
        self._server = await asyncio.get_running_loop().create_server(self._web, HOST, 0)
        return f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening; requests that still wait are not answered."""
        if self._server is not None:
            self._server.close()
        if self._asking is not None:
            self._asking.cancel()
        await self._web.shutdown(timeout=1)  # 0 means no timeout

    def submit(self, invocation: RuntimeInvocation) -> None:
        """Set the next invocation for the process; the previous one must have ended."""
        if self._asking is not None and not self._asking.done():
            self._asking.set_result(invocation)
        else:
            self._waiting = invocation

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.removeprefix(VERSION)
        match request.method, path.split("/"):
            case "GET", ["invocation", "next"]:
                return await self._next()
            case "POST", ["invocation", request_id, "response"]:
                return await self._reply(request, request_id, is_error=False)
            case "POST", ["invocation", request_id, "error"]:
                return await self._reply(request, request_id, is_error=True)
            case "POST", ["init", "error"]:
                return await self._init_error(request)
        return _refused(404, "NotFound", f"{request.method} {request.path}")

    async def _next(self) -> web.StreamResponse:
        if not self.ready.done():
            self.ready.set_result(None)
        invocation, self._waiting = self._waiting, None
        if invocation is None:
            self._asking = asyncio.get_running_loop().create_future()
            self._on_idle()
            invocation = await self._asking
        self._current = invocation
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
            "Lambda-Runtime-Deadline-Ms": str(int(invocation.deadline * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": qualified_arn(self._arn, invocation.qualifier),
            "Lambda-Runtime-Trace-Id": _trace(invocation.request_id),
        }
        return web.Response(body=invocation.event, headers=headers, content_type="application/json")

    async def _reply(self, request: web.BaseRequest, request_id: str, *, is_error: bool) -> web.StreamResponse:
        body = await _body(request)
        invocation = self._current
        if invocation is None or invocation.request_id != request_id:
            return _refused(400, "InvalidRequestID", f"{request_id} is not being handled")
        self._current = None
        if invocation.reply.done():
            return _refused(400, "InvalidRequestID", f"{request_id} is over")
        # A response that is too large is accepted: the client of AWS would exit if it were refused.
        invocation.reply.set_result(Reply(_too_large(), is_error=True) if body is None else Reply(body, is_error))
        return _accepted()

    async def _init_error(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await _body(request) or b"{}"
        if not self.ready.done():
            self.ready.set_exception(InitError(json.loads(body)))
        return _accepted()


def _trace(request_id: str) -> str:
    """Return a trace header. AWS SDKs send it with each request; its lineage is the invocation."""
    return f"Root=1-{int(time.time()):08x}-{uuid.uuid4().hex[:24]};Sampled=0;Lineage={request_id}"


async def _body(request: web.BaseRequest) -> bytes | None:
    """Read the body, chunked or not; return None if it is too large."""
    parts, size = [], 0
    async for part in request.content.iter_any():
        size += len(part)
        if size <= MAX_RESPONSE_BYTES:
            parts.append(part)
    return b"".join(parts) if size <= MAX_RESPONSE_BYTES else None


def _too_large() -> bytes:
    error = {
        "errorMessage": "Response payload size exceeded maximum allowed payload size (6291556 bytes).",
        "errorType": "Function.ResponseSizeTooLarge",
    }
    return json.dumps(error).encode()


def _accepted() -> web.Response:
    return web.json_response({"status": "OK"}, status=202)


def _refused(status: int, kind: str, text: str) -> web.Response:
    return web.json_response({"errorType": kind, "errorMessage": text}, status=status)


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

        Raises `InitError` if the handler could not be loaded, `Exited` if the process ended before that.
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
