"""The Lambda Runtime API of one environment, from which `python -m awslambdaric` gets invocations."""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tarry.tools.simulator.invocations import qualified_arn

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
