"""A console for tests, and clients with a session of it."""

from __future__ import annotations

import asyncio
import re
import string
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from html import unescape
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, Request, build_opener

import aiohttp

from tarry.tools.console.access import Console, Place, WatchedQueue
from tarry.tools.console.server import Served, serve
from tarry.tools.local.aws.client import client_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence


PATIENCE_SECONDS = 60.0
"""The limit that ends a hanging server. No test needs this long, even on a busy machine."""


@dataclass(frozen=True)
class EndpointAccount:
    """The account of an endpoint."""

    endpoint: str | None
    region: str | None = "us-east-1"

    @property
    def is_aws(self) -> bool:
        return self.endpoint is None

    def client(self, service: str) -> Any:
        return client_at(self.endpoint, service)

    def identity(self) -> str:
        raise AssertionError("an endpoint has no identity")

    def renew(self) -> None:
        pass


def console_at(url: str, queues: Sequence[WatchedQueue] = (), **settings: Any) -> Console:
    """Return a console for the SQS at a URL."""
    return Console(EndpointAccount(url), Place("tarry local", "us-east-1", endpoint=url), queues, **settings)


@dataclass
class Answer:
    """The response of a page."""

    status: int
    headers: Any
    text: str


def text_of(html: str) -> str:
    """Return the text of the main part of a page, with single spaces."""
    html = re.sub(r"</?(?:strong|code|a|kbd|time)\b[^>]*>", "", html.partition("<main")[2] or html)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


class _Stays(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Show redirects to the test."""


class Guest:
    """A client with a session of a console that runs; without an address it has none."""

    def __init__(self, url: str, address: str = "") -> None:
        self.url = url
        self.cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self.cookies), _Stays)
        self.csrf = ""
        if address:
            assert self.get(address.removeprefix(url)).status == 200
            self.csrf = _csrf_of(self.get("/").text)

    def get(self, path: str, **headers: str) -> Answer:
        return self._answer(path, None, headers)

    def post(self, path: str, fields: dict[str, Any] | None = None, **headers: str) -> Answer:
        data = urlencode({"csrf": self.csrf, **(fields or {})}, doseq=True).encode()
        return self._answer(path, data, {"Origin": self.url, **headers})

    def page(self, path: str) -> str:
        """Return the HTML of a page that must be there."""
        answer = self.get(path)
        assert answer.status == 200, answer.text
        return answer.text

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[str]]:
        """Yield the lines of an answer that does not end."""
        with self._opener.open(self.url + path, timeout=PATIENCE_SECONDS) as found:
            yield (line.decode() for line in found)

    def _answer(self, path: str, data: bytes | None, headers: dict[str, str]) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(quote(self.url + path, safe=string.punctuation), data, given)
        try:
            found = self._opener.open(request, timeout=PATIENCE_SECONDS)
        except HTTPError as error:
            found = error
        with found:
            return Answer(found.status, found.headers, found.read().decode())


class Visitor:
    """A client with a session, which sends what a browser sends with forms."""

    def __init__(self, url: str, http: aiohttp.ClientSession, csrf: str) -> None:
        self.url = url
        self.http = http
        self.csrf = csrf

    async def get(self, path: str, **headers: str) -> Answer:
        async with self.http.get(self.url + path, headers=headers, allow_redirects=False) as found:
            return Answer(found.status, found.headers, await found.text())

    async def post(self, path: str, fields: dict[str, Any] | None = None, **headers: str) -> Answer:
        given = {"Origin": self.url, **headers}
        data = {"csrf": self.csrf, **(fields or {})}
        async with self.http.post(self.url + path, data=data, headers=given, allow_redirects=False) as found:
            return Answer(found.status, found.headers, await found.text())


@contextmanager
def running(console: Console) -> Iterator[Served]:
    """Serve a console from a thread of its own until the end of the block."""
    started: Future[tuple[Served, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        try:
            async with serve(console) as served:
                end = asyncio.Event()
                started.set_result((served, asyncio.get_running_loop(), end))
                await end.wait()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    served, loop, end = started.result(PATIENCE_SECONDS)
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE_SECONDS)


@contextmanager
def visited(console: Console) -> Iterator[Guest]:
    """Serve a console from a thread of its own, and open a session with it."""
    with running(console) as served:
        yield Guest(served.url, served.address())


@asynccontextmanager
async def visiting(console: Console) -> AsyncIterator[Visitor]:
    """Serve a console, and open a session with it."""
    async with (
        serve(console) as served,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http,
    ):
        yield await visitor_at(served.address(), http)


async def visitor_at(address: str, http: aiohttp.ClientSession) -> Visitor:
    """Open a one-time address."""
    url = address.partition("/open")[0]
    async with http.get(address) as found:
        assert found.status == 200
    async with http.get(url) as found:
        return Visitor(url, http, _csrf_of(await found.text()))


def _csrf_of(html: str) -> str:
    found = re.search(r'<meta name="csrf" content="([^"]*)"', html)
    return unescape(found[1]) if found else ""
