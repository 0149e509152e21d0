"""An HTTP client that connects only to addresses that it has checked."""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import cast

import httpx

from addresses import is_address, is_public
from tarry import Reject

Resolver = Callable[[str], Awaitable[list[str]]]
"""Returns the addresses of a host, best first."""

TIMEOUT = httpx.Timeout(8, connect=3)
"""The seconds for each step of a request: to connect, to send, and to wait for the next bytes of the response."""

LOOK_UP_SECONDS = 3

# httpx logs each request at INFO, with the URL, whose path may be secret.
logging.getLogger("httpx").setLevel(logging.WARNING)

EXCERPT_BYTES = 300
EXCERPT_SECONDS = 1


async def resolve(host: str) -> list[str]:
    """Return the addresses of a host, best first.

    Raises:
        OSError: The host is unknown, or its name servers do not answer in time.
    """
    if is_address(host):
        return [host]
    found: Future[list[str]] = Future()
    # A look-up cannot be cancelled. Each has a thread of its own, so that no other waits for those that take long.
    threading.Thread(target=_look_up, args=(host, found), name="look-up", daemon=True).start()
    try:
        return await asyncio.wait_for(asyncio.wrap_future(found), LOOK_UP_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"its address was not found in {LOOK_UP_SECONDS} s") from None


def _look_up(host: str, found: Future[list[str]]) -> None:
    if not found.set_running_or_notify_cancel():  # from now on, it cannot be cancelled
        return
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except Exception as error:  # noqa: BLE001 the coroutine that waits raises it
        found.set_exception(error)
    else:
        found.set_result(list(dict.fromkeys(str(address[0]) for *_, address in answers)))


def client_of(allow_private: bool, resolver: Resolver = resolve) -> httpx.AsyncClient:
    """Return a client that follows no redirects, keeps no cookies and uses no proxy of the environment."""
    return httpx.AsyncClient(
        transport=CheckedTransport(allow_private, resolver),
        headers={"user-agent": "tarry-webhooks", "accept-encoding": "identity"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        timeout=TIMEOUT,
    )


async def excerpt_of(response: httpx.Response) -> str:
    """Return the beginning of an error's body as one line. The body of a success is not read: it may be endless."""
    content = b""
    if not response.is_success:
        with suppress(httpx.TransportError, TimeoutError):
            body = cast("AsyncGenerator[bytes]", response.aiter_raw())
            async with asyncio.timeout(EXCERPT_SECONDS), aclosing(body) as chunks:
                async for chunk in chunks:
                    content += chunk
                    if len(content) >= EXCERPT_BYTES:
                        break
    text = " ".join(content[:EXCERPT_BYTES].decode(errors="replace").split())
    return "".join(character for character in text if character.isprintable())


class CheckedTransport(httpx.AsyncBaseTransport):
    """A transport that looks up a host, checks all its addresses, and connects to one of these.

    It connects to the address, not to the name, because a second look-up could have another result (DNS rebinding). The
    Host header, SNI and the check of the certificate use the name.
    """

    def __init__(self, allow_private: bool, resolver: Resolver) -> None:
        self._allow_private = allow_private
        self._resolver = resolver
        # Each connection serves one request. Connections are kept by address: another host of the same address would
        # use one whose certificate was checked for the first host. And none is left when Lambda freezes the process.
        self._transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            Reject: An address of the host is not allowed.
            httpx.TransportError: The host is unknown, no address accepts a connection, or the connection fails.
        """
        host = request.url.raw_host.decode()
        addresses = await self._addresses_of(host)
        for address in addresses[:-1]:
            try:
                return await self._send(request, host, address)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._send(request, host, addresses[-1])

    async def _addresses_of(self, host: str) -> list[str]:
        try:
            addresses = await self._resolver(host)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(f"its address cannot be looked up: {error}") from error
        for address in addresses:
            if not self._allow_private and not is_public(address):
                named = host if host == address else f"{host} has the address {address}, which"
                raise Reject(f"{named} is not public; ALLOW_PRIVATE_ADDRESSES=true would allow it")
        return addresses

    async def _send(self, request: httpx.Request, host: str, address: str) -> httpx.Response:
        request.url = request.url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()
