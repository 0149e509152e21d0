"""A process that runs the handler of a function under a Lambda runtime client."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from aiohttp import web

from tarry.tools.local.functions.code import FunctionCode
from tarry.tools.simulator.http.server import HOST, log_of_aiohttp
from tarry.tools.simulator.invocations import exit_status, qualified_arn
from tarry.tools.template import TemplateFunction
from tarry.tools.template.code import is_node, node

VERSION = "/2018-06-01/runtime/"
MAX_RESPONSE_BYTES = 6 * 1024 * 1024 + 100
"""The limit of Lambda: 6291556 bytes."""


class InitError(Exception):
    """The handler could not be loaded. ``error`` is the error that the runtime client reported."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('errorType')}: {error.get('errorMessage')}")
        self.error = error


class Reply(NamedTuple):
    """The reply to an invocation: the encoded return value of the handler, or its error."""

    body: bytes
    is_error: bool


@dataclass(eq=False)
class RuntimeInvocation:
    """An invocation of a function, made on the running loop. ``qualifier`` is the alias or version that is invoked."""

    event: bytes
    qualifier: str = ""
    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    deadline: float = 0.0
    """In epoch seconds; known when its time begins."""
    reply: asyncio.Future[Reply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


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
        # Two forks of a handler on one connection garble their requests: that is not logged.
        self._web = web.Server(self._serve, access_log=None, logger=log_of_aiohttp)
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
            case "POST", ["invocation", request_id, "response" | "error" as kind]:
                return await self._reply(request, request_id, is_error=kind == "error")
            case "POST", ["init", "error"]:
                body = await _body(request) or b"{}"
                if not self.ready.done():
                    self.ready.set_exception(InitError(json.loads(body)))
                return web.json_response({"status": "OK"}, status=202)
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
        request_id, root = invocation.request_id, f"1-{int(time.time()):08x}-{uuid.uuid4().hex[:24]}"
        headers = {
            "Lambda-Runtime-Aws-Request-Id": request_id,
            "Lambda-Runtime-Deadline-Ms": str(int(invocation.deadline * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": qualified_arn(self._arn, invocation.qualifier),
            # AWS SDKs send it with each request; its lineage is the invocation.
            "Lambda-Runtime-Trace-Id": f"Root={root};Sampled=0;Lineage={request_id}",
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
        if body is None:  # it is accepted: the client of AWS would exit if it were refused
            text = "Response payload size exceeded maximum allowed payload size (6291556 bytes)."
            error = {"errorMessage": text, "errorType": "Function.ResponseSizeTooLarge"}
            body, is_error = json.dumps(error).encode(), True
        invocation.reply.set_result(Reply(body, is_error))
        return web.json_response({"status": "OK"}, status=202)


async def _body(request: web.BaseRequest) -> bytes | None:
    """Read the body, chunked or not; return None if it is too large."""
    parts, size = [], 0
    async for part in request.content.iter_any():
        size += len(part)
        if size <= MAX_RESPONSE_BYTES:
            parts.append(part)
    return b"".join(parts) if size <= MAX_RESPONSE_BYTES else None


def _refused(status: int, kind: str, text: str) -> web.Response:
    return web.json_response({"errorType": kind, "errorMessage": text}, status=status)


WARDEN = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
"""A program that tracks the running process groups, and kills them when its input ends: when this process ends.

PR_SET_PDEATHSIG does not reach the children of a child, and exists only on Linux.
"""


class Launcher:
    """A launcher of processes, each as the leader of a session, so that it can be ended with all that it started."""

    _warden: subprocess.Popen[bytes] | None = None

    async def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], directory: Path, output: int
    ) -> asyncio.subprocess.Process:
        """Start a process with exactly this environment, and with stdout and stderr to the file ``output``."""
        self._send("")  # the warden starts first
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        self._send(f"+{process.pid}\n")
        return process

    def ended(self, process: asyncio.subprocess.Process) -> None:
        """Clean up after a process that has ended: kill the processes that it left behind."""
        signal_group(process.pid, signal.SIGKILL)
        self._send(f"-{process.pid}\n")

    def close(self) -> None:
        """Kill all processes that still run."""
        if self._warden is not None:
            self._warden.communicate()
            self._warden = None

    def _send(self, line: str) -> None:
        if self._warden is None:
            command, nothing = [sys.executable, "-I", "-S", "-c", WARDEN], subprocess.DEVNULL
            self._warden = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True
            )
        assert self._warden.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the program was killed; this process can still end its own
            self._warden.stdin.write(line.encode())
            self._warden.stdin.flush()


PROC = Path("/proc")
EXEC_SECONDS = 1.0


def kill_marked(name: str, value: str) -> None:
    """Kill all processes with this environment variable, in any session (only on Linux).

    During its execve, a process shows an empty environment: it is read again, for up to a second.
    """
    mark = f"{name}={value}".encode()
    environments, until = list(PROC.glob("[0-9]*/environ")), time.monotonic() + EXEC_SECONDS
    while environments:
        empty: list[Path] = []
        for environment in environments:
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if not (variables := environment.read_bytes()):
                    empty.append(environment)
                elif mark in variables.split(b"\0"):
                    os.kill(int(environment.parent.name), signal.SIGKILL)
        environments = empty if time.monotonic() < until else []
        if environments:
            time.sleep(0.01)


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a process and all that it started, if any are left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises it for a group of zombies
        os.killpg(leader, number)


MAX_LINE_BYTES = 256 * 1024
"""Longer lines are split, as in CloudWatch."""
PIPE_BYTES = 64 * 1024


T = TypeVar("T")

Client = Literal["awslambdaric", "own"]
"""The runtime client that runs a handler in Python: that of AWS, or `tarry.tools.local.functions.client`."""
CLIENTS = {"awslambdaric": "aws_client.py", "own": "client.py"}


class Exited(Exception):
    """The process ended. The text is that of Lambda; empty for status 0."""


def command_of(function: TemplateFunction, client: Client) -> list[str]:
    """Return the command that runs the handler of a function."""
    handler, directory = function.handler or "", (function.code or Path()).resolve()
    if is_node(function.runtime):
        return [node() or "node", str(_node_client(directory) or Path(__file__).with_name("client.mjs")), handler]
    # -u: unbuffered output. -P: the directory of the client is not on the import path of the handler.
    return [sys.executable, "-uP", str(Path(__file__).with_name(CLIENTS[client])), handler]


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

    def __init__(self, code: FunctionCode, client: Client, launcher: Launcher, on_line: Callable[[str], None]) -> None:
        self._code = code
        self._client = client
        self._launcher = launcher
        self._api = RuntimeApi(code.function.arn, self._freeze)
        self._on_line = on_line
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
                command_of(self._code.function, self._client),
                environment={**self._code.variables, "AWS_LAMBDA_RUNTIME_API": self._address},
                directory=(self._code.function.code or Path()).resolve(),
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
        if self._frozen:
            self._frozen = False
            signal_group(self._process.pid, signal.SIGCONT)
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
        return self._ended.done()

    async def end(self) -> None:
        """Kill the process and all that it started, and wait until it has ended."""
        if not self.has_ended:
            signal_group(self._process.pid, signal.SIGKILL)
        await self._ended

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
        # Processes in sessions of their own; the port is still in use here.
        kill_marked("AWS_LAMBDA_RUNTIME_API", self._address)
        self._lines.close()
        await self._api.close()
        return exit_status(status)

    def _freeze(self) -> None:
        """Freeze the process: a thread that outlives its invocation runs on only in the next one (PLATFORM 26)."""
        self._frozen = True
        self._idle.set()
        signal_group(self._process.pid, signal.SIGSTOP)


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
            self._on_line(self._rest.decode(errors="replace"))
            self._rest = b""

    def close(self) -> None:
        """Read the remaining output and close the pipe."""
        self.flush()
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)

    def _read(self) -> int:
        try:
            got = os.read(self._pipe, PIPE_BYTES)
        except BlockingIOError:
            return 0
        if not got:
            self._loop.remove_reader(self._pipe)
            return 0
        *lines, self._rest = (self._rest + got).split(b"\n")
        while len(self._rest) >= MAX_LINE_BYTES:
            lines.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        for line in lines:
            self._on_line(line.decode(errors="replace"))
        return len(got)
