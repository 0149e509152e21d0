"""The Lambda Runtime API over HTTP, from which `python -m awslambdaric` gets invocations.

    with FakeRuntimeApi() as api:
        # start `python -m awslambdaric app.handler` with AWS_LAMBDA_RUNTIME_API=api.address
        response = api.invoke({"Records": []}, timeout=30)

It sends events and receives results. Like the real API, it does not enforce the timeout: `invoke` raises TimeoutError,
and the caller kills the process.
"""

import json
import queue
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import subprocess

VERSION = "/2018-06-01/runtime"
START_SECONDS = 120
"""The limit on the start of a process; it only ends a test that hangs."""


class FunctionError(Exception):
    """The function raised an exception, or could not be loaded."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('errorType')}: {error.get('errorMessage')}")
        self.error = error


class ProcessEnded(Exception):
    """The process of the function ended without a result."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


@dataclass
class FakeInvocation:
    """An invocation with its result."""

    event: Any
    timeout: float
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    began: float | None = None
    """When the process took the invocation (monotonic clock); as on Lambda, its start does not count."""
    answer: Any = None
    error: dict[str, Any] | None = None
    done: threading.Event = field(default_factory=threading.Event)


class FakeRuntimeApi:
    """A Runtime API for one function, on a free local port."""

    def __init__(self, function_arn: str = "arn:aws:lambda:us-east-1:123456789012:function:function") -> None:
        self.function_arn = function_arn
        self.init_error: dict[str, Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        """The process of the function, once started."""
        self.ready = threading.Event()
        """The process has loaded the function and asked for an invocation, or could not load it."""
        self._waiting: queue.SimpleQueue[FakeInvocation | None] = queue.SimpleQueue()
        self._running: dict[str, FakeInvocation] = {}
        self._server = QuietServer(("127.0.0.1", 0), type("Handler", (_RuntimeApiHandler,), {"api": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def address(self) -> str:
        """The value of the environment variable AWS_LAMBDA_RUNTIME_API."""
        return f"127.0.0.1:{self._server.server_port}"

    def invoke(self, event: Any, timeout: float = 30) -> Any:
        """Invoke the function; return its result.

        Raises:
            FunctionError: the function raised an exception or could not be loaded.
            ProcessEnded: its process ended.
            TimeoutError: there was no result within ``timeout`` seconds.
        """
        invocation = FakeInvocation(event, timeout)
        self._running[invocation.id] = invocation
        self._waiting.put(invocation)
        put_at = time.monotonic()
        while self.init_error is None and not invocation.done.wait(0.01):
            exit_code = None if self.process is None else self.process.poll()
            if exit_code is not None and not invocation.done.wait(0.1):
                raise ProcessEnded(exit_code)
            ends_at = put_at + START_SECONDS if invocation.began is None else invocation.began + timeout
            if time.monotonic() > ends_at:
                raise TimeoutError(f"no result within {timeout} s")
        if error := self.init_error or invocation.error:
            raise FunctionError(error)
        return invocation.answer

    def next(self) -> FakeInvocation | None:
        """Wait for the next invocation; return None when the server stops."""
        self.ready.set()
        invocation = self._waiting.get()
        if invocation is None:
            self._waiting.put(None)  # for other waiting threads
        else:
            invocation.began = time.monotonic()
        return invocation

    def finish(self, invocation_id: str, *, answer: Any = None, error: dict[str, Any] | None = None) -> bool:
        """Set the result of an invocation; return False if it is unknown or already has one."""
        invocation = self._running.pop(invocation_id, None)
        if invocation is None:
            return False
        invocation.answer, invocation.error = answer, error
        invocation.done.set()
        return True

    def fail_init(self, error: dict[str, Any]) -> None:
        """Fail all invocations: the function could not be loaded."""
        self.init_error = error
        self.ready.set()
        for invocation in list(self._running.values()):
            invocation.done.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._waiting.put(None)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class QuietServer(ThreadingHTTPServer):
    """A server that prints no errors about closed connections."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Print the error, unless a connection was closed by a process that ended."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class QuietHandler(BaseHTTPRequestHandler):
    """A handler of requests with a body, whose answers are JSON. It writes no access log."""

    protocol_version = "HTTP/1.1"
    # Without these two, each response is sent in several small packets and takes 40 ms longer.
    wbufsize = -1
    disable_nagle_algorithm = True

    def body(self) -> bytes:
        """Read the body of the request. Raises `ConnectionError` if its process was killed while it sent it."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            body = self.rfile.read(size := int(self.headers.get("Content-Length", 0)))
            if len(body) < size:
                raise ConnectionError("the process was killed while it sent the request")
            return body
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def reply(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No access log."""


class _RuntimeApiHandler(QuietHandler):
    api: FakeRuntimeApi

    def do_GET(self) -> None:
        if self.path != f"{VERSION}/invocation/next":
            return self.reply(404, {"errorType": "NotFound", "errorMessage": self.path})
        invocation = self.api.next()
        if invocation is None:
            self.close_connection = True
            return None
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.id,
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + invocation.timeout) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": self.api.function_arn,
            "Lambda-Runtime-Trace-Id": "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=0",
        }
        return self.reply(200, invocation.event, headers)

    def do_POST(self) -> None:
        body = json.loads(self.body() or b"null")
        known = True
        match self.path.removeprefix(f"{VERSION}/").split("/"):
            case ["invocation", invocation_id, "response"]:
                known = self.api.finish(invocation_id, answer=body)
            case ["invocation", invocation_id, "error"]:
                known = self.api.finish(invocation_id, error=body)
            case ["init", "error"]:
                self.api.fail_init(body)
            case _:
                known = False
        self.reply(202 if known else 404, {"status": "OK" if known else "unknown"})
