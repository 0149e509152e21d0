"""A receiver of webhooks: `/busy` asks for one retry, `/gone` refuses for good, everything else is accepted."""

import base64
import hmac
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

RETRY_AFTER_SECONDS = 3


@dataclass(frozen=True)
class Webhook:
    """A request that the receiver got, and its response."""

    path: str
    id: str
    timestamp: str
    signature: str
    body: bytes
    status: int
    answered_at: float

    def is_signed_with(self, secret: str) -> bool:
        """Return whether the signature is that of Standard Webhooks for this secret."""
        content = f"{self.id}.{self.timestamp}.".encode() + self.body
        expected = hmac.digest(base64.b64decode(secret), content, "sha256")
        return self.signature == f"v1,{base64.b64encode(expected).decode()}"


class Receiver:
    """An HTTP server, for the block that it is entered with."""

    def __init__(self) -> None:
        self.webhooks: list[Webhook] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, path: str) -> list[Webhook]:
        """Return the webhooks that were sent to a path, oldest first."""
        return [webhook for webhook in self.webhooks if webhook.path == path]

    def _status(self, path: str) -> int:
        if path == "/gone":
            return 410
        return 503 if path == "/busy" and not self.of("/busy") else 200

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                id, timestamp, signature = (
                    self.headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature")
                )
                status = receiver._status(self.path)
                webhook = Webhook(self.path, id, timestamp, signature, body, status, time.time())
                receiver.webhooks.append(webhook)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if status == 503:
                    self.send_header("Retry-After", str(RETRY_AFTER_SECONDS))
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler
