"""A receiver of webhooks: an HTTP server on loopback that answers as a test says, misbehaviour included."""

import asyncio
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PATIENCE_SECONDS = 30.0
"""The limit that ends a hanging server. No test needs this long, even on a busy machine."""


@dataclass(frozen=True)
class Request:
    """A request as it was received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: str = "", **headers: str) -> Behaviour:
    """Answer with a status; names of headers have underscores for hyphens."""

    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"HTTP/1.1 {status} Reason", f"content-length: {len(body.encode())}", *lines])
        writer.write(f"{head}\r\n\r\n{body}".encode())

    return write


async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close the connection without an answer."""


async def cut_in_the_headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-le")


async def silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Do not answer, until the client closes the connection."""
    await reader.read()


def endless(status: int) -> Behaviour:
    """Answer with a status, and a body that ends only when the client closes the connection."""

    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Reason\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        while not writer.is_closing():
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()

    return write


@dataclass
class Receiver:
    """A running server, which answers 204 unless it is told otherwise."""

    address: str
    port: int
    requests: list[Request] = field(default_factory=list)
    behaviours: dict[str, list[Behaviour]] = field(default_factory=lambda: defaultdict(list))
    """By path: what it does at each request; the last is repeated."""
    in_flight: int = 0
    most_in_flight: int = 0
    hold_until: int = 0
    """Answer no request until so many are in flight at once."""
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def of(self, path: str) -> list[Request]:
        """Return the requests for a path, oldest first."""
        return [request for request in self.requests if request.path == path]

    def does(self, path: str, *behaviours: Behaviour) -> None:
        self.behaviours[path] = list(behaviours)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await self._answer(await self._request(reader), reader, writer)
                await writer.drain()
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> Request:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Request(method, path, headers, body, time.time())

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self.in_flight >= self.hold_until:
            self._released.set()
        await self._released.wait()
        behaviours = self.behaviours[request.path]
        behaviour = behaviours.pop(0) if len(behaviours) > 1 else (behaviours or [answer(204)])[0]
        try:
            await behaviour(reader, writer)
        finally:
            self.in_flight -= 1


@contextmanager
def receiver(address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Serve until the end of the block."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Receiver]] = Future()

    async def main() -> None:
        here = Receiver(address, port)
        server = await asyncio.start_server(here.serve, address, port, ssl=tls)
        here.port = server.sockets[0].getsockname()[1]
        end = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), end, here))
        await end.wait()
        server.close()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # the port is taken
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        loop, end, here = started.result(PATIENCE_SECONDS)
        try:
            yield here
        finally:
            loop.call_soon_threadsafe(end.set)
    finally:
        thread.join(PATIENCE_SECONDS)
