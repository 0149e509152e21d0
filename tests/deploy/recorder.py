"""A proxy before MiniStack: it records the requests of functions, and can refuse or hold some.

It also tells MiniStack that the requests came over TLS, which the policies of the queues demand.
"""

import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tests.deploy.aws import KEYS

if TYPE_CHECKING:
    from email.message import Message

OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "expect", "server"}
"""Headers that say how a message is transferred. They are not passed on."""


@dataclass(frozen=True)
class Request:
    """A request of a function, with its response."""

    operation: str
    """As `ChangeMessageVisibilityBatch`; for S3, the method and the path."""
    body: dict[str, Any]
    status: int
    response: dict[str, Any]
    asked_at: float
    answered_at: float


@dataclass
class Refusal:
    """A response that the next request with this text in its body gets, instead of MiniStack's."""

    operation: str
    text: str
    response: dict[str, Any]
    status: int = 400


@dataclass
class Hold:
    """A request, with this text in its body, that waits for `released`: meanwhile its function runs."""

    operation: str
    text: str
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


Rule = TypeVar("Rule", Refusal, Hold)


class Recorder:
    """The proxy, on a port of its own, for the block that it is entered with.

    Args:
        port: The port of MiniStack.
    """

    def __init__(self, port: int) -> None:
        self.requests: list[Request] = []
        self._target = port
        self._refusals: list[Refusal] = []
        self._holds: list[Hold] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for hold in self._holds:
            hold.released.set()
        self._server.shutdown()
        self._server.server_close()

    def refuse(self, refusal: Refusal) -> None:
        """Refuse one request."""
        with self._lock:
            self._refusals.append(refusal)

    def hold(self, hold: Hold) -> Hold:
        """Hold one request."""
        with self._lock:
            self._holds.append(hold)
        return hold

    def of(self, *operations: str) -> list[Request]:
        """Return the requests of these operations that were answered so far, oldest first."""
        return [request for request in list(self.requests) if request.operation in operations]

    def _respond(self, method: str, path: str, headers: "Message[str, str]", body: bytes) -> "_Response":
        asked_at = time.time()
        target = headers.get("X-Amz-Target", "")
        operation = target.partition(".")[2] or f"{method} {path.partition('?')[0]}"
        content = json.loads(body) if target else {}
        with self._lock:
            refusal = _first(self._refusals, operation, body)
            hold = _first(self._holds, operation, body)
            if refusal:
                self._refusals.remove(refusal)
        if hold:
            hold.reached.set()
            hold.released.wait()
        if refusal:
            response = _Response(refusal.status, [("Content-Type", "application/x-amz-json-1.0")], refusal.response)
        else:
            response = self._forward(method, path, headers, body)
        if f"Credential={KEYS['AWS_ACCESS_KEY_ID']}/" not in headers.get("Authorization", ""):
            answer = (response.status, response.json())
            self.requests.append(Request(operation, content, *answer, asked_at, time.time()))
        return response

    def _forward(self, method: str, path: str, headers: "Message[str, str]", body: bytes) -> "_Response":
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in OF_THE_CONNECTION:
                    connection.putheader(name, value)
            connection.putheader("X-Forwarded-Proto", "https")
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in OF_THE_CONNECTION]
            return _Response(answer.status, kept, answer.read())
        finally:
            connection.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1
            disable_nagle_algorithm = True

            def handle_expect_100(self) -> bool:
                super().handle_expect_100()
                self.wfile.flush()  # otherwise botocore waits a second for it
                return True

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                response = recorder._respond(self.command, self.path, self.headers, body)
                self.send_response_only(response.status)
                for name, value in response.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(response.content)))
                self.end_headers()
                self.wfile.write(response.content)

            def log_message(self, *_: object) -> None:
                pass

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _serve  # noqa: N815

        return Handler


class _Response:
    def __init__(self, status: int, headers: list[tuple[str, str]], content: bytes | dict[str, Any]) -> None:
        self.status = status
        self.headers = headers
        self.content = content if isinstance(content, bytes) else json.dumps(content).encode()

    def json(self) -> dict[str, Any]:
        try:
            content = json.loads(self.content)
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}


def _first(rules: list[Rule], operation: str, body: bytes) -> Rule | None:
    return next((rule for rule in rules if rule.operation == operation and rule.text.encode() in body), None)
