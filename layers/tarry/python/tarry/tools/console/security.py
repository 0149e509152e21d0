"""The access to the console: a one-time token becomes a cookie; Host, Origin and a CSRF token are checked.

The console listens on loopback only, but every page that the same browser has open can send requests there.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import cache, wraps
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from tarry.tools.console.access import Problem, console_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


STATIC = "/static/"
FOLDER = Path(__file__).parent / "static"
STYLES = "styles.css"
"""All style sheets as one file: the page waits for one request instead of three."""
KEPT = "public, max-age=31536000, immutable"
"""The caching of an address with the hash of its content, which never changes."""


class Asset(NamedTuple):
    """A static file."""

    content: bytes
    type: str
    hash: str


@cache
def assets() -> dict[str, Asset]:
    found = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.is_file()}
    first = ["console.css"]  # the others build on it
    others = [name for name in found if name.endswith(".css") and name not in first]
    found[STYLES] = b"\n".join(found[name] for name in first + others)
    return {
        name: Asset(content, guess_type(name)[0] or "text/plain", sha256(content).hexdigest()[:12])
        for name, content in found.items()
    }


def address(name: str) -> str:
    """Return the path of a static file, which changes with its content: no browser keeps that of an older tarry."""
    return f"{STATIC}{name}?v={assets()[name].hash}"


def routes(app: web.Application) -> None:
    app.router.add_get(STATIC + "{name}", _asset)


async def _asset(request: web.Request) -> web.Response:
    asset = assets().get(request.match_info["name"])
    if asset is None:
        raise web.HTTPNotFound
    kept = {"Cache-Control": KEPT} if request.query.get("v") == asset.hash else None
    return web.Response(body=asset.content, content_type=asset.type, headers=kept)


CSRF_FIELD = "csrf"
CSRF_HEADER = "X-CSRF-Token"
TOKEN_PATH = "/open"
SAFE_METHODS = frozenset({"GET", "HEAD"})
FOREIGN = frozenset({"cross-site", "same-site"})
"""The values of Sec-Fetch-Site for requests of other pages: another port is the same site, but another page."""
MAX_SESSIONS = 100
HTTP_PORT = 80
"""The port that browsers leave out of Host and Origin."""
HEADERS = {
    # Neither inline scripts nor inline styles run, so text that is not escaped by mistake can do nothing.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send "Origin: null" with a form
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
READ_ONLY = "This console is read-only. Start it with --write."
NO_SESSION = (
    "This browser has no session with this console. Open the one-time address that tarry console printed in its "
    "terminal. Press Enter there for another one."
)
USED = (
    "This address does not work: its token is wrong, or was used before, or a newer address has replaced it. Press "
    "Enter in the terminal of tarry console for another one."
)


class RefusedRequest(Problem):
    """A request is refused before it reaches a page, and is shown nothing of the console. The text says why."""


class Gate:
    """The tokens and sessions of a console."""

    def __init__(self) -> None:
        self._token: str | None = None
        self._sessions: OrderedDict[str, str] = OrderedDict()
        """The CSRF tokens of the browsers that have opened a one-time address, by session id."""
        self.port = 0
        """The port that the console listens at, once it does."""

    def issue(self) -> str:
        """Return a new one-time token. An earlier one that was not used ends."""
        self._token = secrets.token_urlsafe(32)
        return self._token

    def redeem(self, token: str) -> str | None:
        """Return the id of a new session for a token; None if the token is wrong or was used."""
        if self._token is None or not hmac.compare_digest(self._token.encode(), token.encode("utf-8", "replace")):
            return None
        self._token = None
        session = secrets.token_urlsafe(32)
        self._sessions[session] = secrets.token_urlsafe(32)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    @property
    def cookie(self) -> str:
        """The name of the cookie. Browsers send a cookie to all ports of a host, so the port is in its name."""
        return f"tarry_console_{self.port}"

    @property
    def hosts(self) -> frozenset[str]:
        """The values of Host that are this console; other names could be those of a foreign page (DNS rebinding)."""
        end = "" if self.port == HTTP_PORT else f":{self.port}"
        return frozenset({f"127.0.0.1{end}", f"localhost{end}"})

    def check_address(self, request: web.Request) -> None:
        """Check the headers Host and Origin. Raises `RefusedRequest`."""
        host = request.headers.get("Host", "")
        if host not in self.hosts:
            raise RefusedRequest(
                f"The console does not answer for the host {host!r:.100}. Use http://127.0.0.1:{self.port}/.", 403
            )
        origin = request.headers.get("Origin")
        if origin is None and request.method in SAFE_METHODS:
            # To other ports of a host, browsers send strict cookies, and with an <img> no Origin.
            site, part = request.headers.get("Sec-Fetch-Site"), request.headers.get("Sec-Fetch-Dest", "document")
            if site in FOREIGN and part != "document":
                raise RefusedRequest("The request comes from another page. It was refused.", 403)
            return
        if origin != f"http://{host}":
            raise RefusedRequest(
                f"The request comes from another page ({origin or 'no Origin'!s:.100}). It was refused.", 403
            )

    def csrf_of(self, request: web.Request) -> str:
        """Return the CSRF token of the session of a request. Raises `RefusedRequest`."""
        csrf = self._sessions.get(request.cookies.get(self.cookie, ""))
        if csrf is None:
            raise RefusedRequest(NO_SESSION, 401)
        return csrf


GATE = web.AppKey("gate", Gate)


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a request through to its page only if it comes from a page of this console, in a browser with a session."""
    gate = request.app[GATE]
    gate.check_address(request)
    if request.path == TOKEN_PATH and request.method == "GET":
        return await handler(request)
    if request.path.startswith(STATIC) and request.method in SAFE_METHODS:
        return await handler(request)
    csrf = gate.csrf_of(request)
    if request.method not in SAFE_METHODS:
        given = request.headers.get(CSRF_HEADER) or str((await request.post()).get(CSRF_FIELD, ""))
        if not hmac.compare_digest(csrf.encode(), given.encode("utf-8", "replace")):
            raise RefusedRequest("The request has no valid CSRF token. Reload the page and try again.", 403)
    return await handler(request)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-cache" if request.path.startswith(STATIC) else "no-store")


def needs_write(handler: Handler) -> Handler:
    """Decorate a handler that changes something: with a read-only console it answers 403."""

    @wraps(handler)
    async def checked(request: web.Request) -> web.StreamResponse:
        if not console_of(request).can_write:
            raise Problem(READ_ONLY, 403)
        return await handler(request)

    return checked
