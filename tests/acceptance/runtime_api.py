"""The Lambda Runtime API over HTTP: what `python -m awslambdaric` asks for its invocations.

    with RuntimeApi() as api:
        # start `python -m awslambdaric app.handler` with AWS_LAMBDA_RUNTIME_API=api.address
        response = api.invoke({"Records": []}, timeout=30)

It hands over events and takes answers. Like the real one it enforces nothing: killing a late function is for the
caller, who gets a TimeoutError.
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
"""How long a process may take to ask for its first invocation; this only ends what hangs."""


class FunctionError(Exception):
    """The function, or the start of its process, ended in an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('errorType')}: {error.get('errorMessage')}")
        self.error = error


class ProcessDied(Exception):
    """The process that runs the function ended, and gave no answer."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


@dataclass
class Invocation:
    event: Any
    timeout: float
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    began: float | None = None
    """By the monotonic clock, when the process took it: its start is not on its time, as on Lambda."""
    answer: Any = None
    error: dict[str, Any] | None = None
    done: threading.Event = field(default_factory=threading.Event)


class RuntimeApi:
    """Serves one function, one invocation at a time, on a free port of this machine."""

    def __init__(self, function_arn: str = "arn:aws:lambda:us-east-1:123456789012:function:function") -> None:
        self.function_arn = function_arn
        self.init_error: dict[str, Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        """What runs the function, when it is started."""
        self._waiting: queue.SimpleQueue[Invocation | None] = queue.SimpleQueue()
        self._running: dict[str, Invocation] = {}
        self._server = Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def address(self) -> str:
        """For the environment variable AWS_LAMBDA_RUNTIME_API."""
        return f"127.0.0.1:{self._server.server_port}"

    def invoke(self, event: Any, timeout: float = 30) -> Any:
        """What the function returned, within `timeout` seconds of its own.

        Raises FunctionError if it raised or could not be loaded, ProcessDied if its process ended, TimeoutError if no
        answer came.
        """
        invocation = Invocation(event, timeout)
        self._running[invocation.id] = invocation
        self._waiting.put(invocation)
        put_at = time.monotonic()
        while self.init_error is None and not invocation.done.wait(0.01):
            exit_code = None if self.process is None else self.process.poll()
            if exit_code is not None and not invocation.done.wait(0.1):
                raise ProcessDied(exit_code)
            ends_at = put_at + START_SECONDS if invocation.began is None else invocation.began + timeout
            if time.monotonic() > ends_at:
                raise TimeoutError(f"no answer within {timeout} s")
        if error := self.init_error or invocation.error:
            raise FunctionError(error)
        return invocation.answer

    def next(self) -> Invocation | None:
        """The next invocation, as soon as there is one; None when the server stops."""
        invocation = self._waiting.get()
        if invocation is None:
            self._waiting.put(None)  # for whoever waits beside
        else:
            invocation.began = time.monotonic()
        return invocation

    def finish(self, invocation_id: str, *, answer: Any = None, error: dict[str, Any] | None = None) -> bool:
        """Takes the answer to an invocation; False if it is unknown or was answered before."""
        invocation = self._running.pop(invocation_id, None)
        if invocation is None:
            return False
        invocation.answer, invocation.error = answer, error
        invocation.done.set()
        return True

    def fail_init(self, error: dict[str, Any]) -> None:
        """The function could not be loaded: no invocation will be answered."""
        self.init_error = error
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


class Server(ThreadingHTTPServer):
    """One that says nothing of clients that are gone."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of a connection that ended with its process, and everything of a bug in here."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    api: RuntimeApi
    protocol_version = "HTTP/1.1"
    # Without these two each answer is several small packets, and waits 40 ms for an acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path != f"{VERSION}/invocation/next":
            return self._reply(404, {"errorType": "NotFound", "errorMessage": self.path})
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
        return self._reply(200, invocation.event, headers)

    def do_POST(self) -> None:
        body = json.loads(self._body() or b"null")
        match self.path.removeprefix(f"{VERSION}/").split("/"):
            case ["invocation", invocation_id, "response"]:
                known = self.api.finish(invocation_id, answer=body)
            case ["invocation", invocation_id, "error"]:
                known = self.api.finish(invocation_id, error=body)
            case ["init", "error"]:
                self.api.fail_init(body)
                known = True
            case _:
                known = False
        self._reply(202 if known else 404, {"status": "OK" if known else "unknown"})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _reply(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No access log."""
