"""The Lambda Runtime API, as one environment sees it: `python -m awslambdaric` asks it for invocations."""

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

VERSION = "/2018-06-01/runtime/"
HOST = "127.0.0.1"
MAX_RESPONSE_BYTES = 6 * 1024 * 1024 + 100
"""Lambda's own number, in its own words: 6291556 bytes."""

_log = logging.getLogger(__name__)


def _is_worth_a_word(record: logging.LogRecord) -> bool:
    """A handler that forks has two processes at one connection: what they garble is refused, and no error of ours."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log.addFilter(_is_worth_a_word)


class InitError(Exception):
    """The function could not be loaded; ``error`` is what its runtime client said."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('errorType')}: {error.get('errorMessage')}")
        self.error = error


@dataclass(frozen=True)
class Reply:
    """What came back for an invocation: what the handler returned, as it was written, or its error."""

    body: bytes
    is_error: bool = False


@dataclass
class RuntimeInvocation:
    """What is handed to the environment. ``deadline`` is epoch seconds."""

    request_id: str
    event: bytes
    deadline: float
    reply: asyncio.Future[Reply]


class RuntimeApi:
    """Serves one process on a port of its own, one invocation at a time. It ends nobody who is late.

    ``on_idle`` is called when the process asks for an invocation and there is none yet.
    """

    def __init__(self, function_arn: str, on_idle: Callable[[], None]) -> None:
        self._arn = function_arn
        self._on_idle = on_idle
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done with the first request for an invocation. Raises `InitError`."""
        self._asking: asyncio.Future[RuntimeInvocation] | None = None
        self._waiting: RuntimeInvocation | None = None
        self._current: RuntimeInvocation | None = None
        self._web = web.Server(self._serve, access_log=None, logger=_log)
        self._server: asyncio.Server | None = None

    async def open(self) -> str:
        """Listen; answers the address for AWS_LAMBDA_RUNTIME_API."""
        self._server = await asyncio.get_running_loop().create_server(self._web, HOST, 0)
        return f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Listen no more; requests that still wait are not answered."""
        if self._server is not None:
            self._server.close()
        if self._asking is not None:
            self._asking.cancel()
        await self._web.shutdown(timeout=1)  # 0 is for ever

    def hand(self, invocation: RuntimeInvocation) -> None:
        """The next invocation for the process; the one before is over."""
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
            "Lambda-Runtime-Invoked-Function-Arn": self._arn,
            "Lambda-Runtime-Trace-Id": f"Root=1-{int(time.time()):08x}-{uuid.uuid4().hex[:24]};Sampled=0",
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
        # What is too long is accepted: AWS's client ends when refused, and would take the next invocation with it.
        invocation.reply.set_result(Reply(_too_large(), is_error=True) if body is None else Reply(body, is_error))
        return _accepted()

    async def _init_error(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await _body(request) or b"{}"
        if not self.ready.done():
            self.ready.set_exception(InitError(json.loads(body)))
        return _accepted()


async def _body(request: web.BaseRequest) -> bytes | None:
    """What was sent, chunked or not; None if it is too much, which is read to its end to be answered."""
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
