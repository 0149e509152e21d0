"""The server of the console: one-time addresses, sessions, and the requests that it refuses."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tarry.tools.console import security as assets
from tarry.tools.console import server
from tarry.tools.console.security import NO_SESSION, READ_ONLY, USED, Gate, needs_write
from tests.consoles import Visitor, console_at, visiting

NOWHERE = "http://127.0.0.1:1"


def visited(work: Callable[[Visitor], Awaitable[Any]], **settings: Any) -> Any:
    """Run ``work`` with a session of a console that has no queues."""

    async def main() -> Any:
        async with visiting(console_at(NOWHERE, **settings)) as visitor:
            return await work(visitor)

    return asyncio.run(main())


def served_anew(work: Callable[[server.Served, aiohttp.ClientSession], Awaitable[Any]]) -> Any:
    """Run ``work`` with a console that nobody has opened yet."""

    async def main() -> Any:
        jar = aiohttp.CookieJar(unsafe=True)
        async with server.serve(console_at(NOWHERE)) as served, aiohttp.ClientSession(cookie_jar=jar) as http:
            return await work(served, http)

    return asyncio.run(main())


async def fetched(http: aiohttp.ClientSession, url: str, **settings: Any) -> tuple[int, str]:
    async with http.get(url, **settings) as found:
        return found.status, await found.text()


def test_an_address_opens_one_session_with_a_strict_cookie_for_scripts_invisible() -> None:
    async def work(served: server.Served, http: aiohttp.ClientSession) -> None:
        address = served.address()
        async with http.get(address) as found:
            assert (found.status, 'content="0; url=/"' in await found.text()) == (200, True)
            assert found.headers["Set-Cookie"].endswith("; HttpOnly; Path=/; SameSite=Strict")
        assert (await fetched(http, served.url))[0] == 200
        status, text = await fetched(http, address)
        assert (status, USED in text) == (401, True)
        assert (await fetched(http, served.url))[0] == 200  # the session goes on

    served_anew(work)


def test_a_wrong_token_and_one_that_a_newer_address_replaced_open_nothing() -> None:
    async def work(served: server.Served, http: aiohttp.ClientSession) -> None:
        older, newer = served.address(), served.address()
        for wrong in (older, newer[:-1], newer + "x", served.url + "/open", served.url + "/open?token=%ff%00é"):
            status, text = await fetched(http, wrong)
            assert (status, USED in text) == (401, True), wrong
            assert not [*http.cookie_jar]
        assert (await fetched(http, newer))[0] == 200

    served_anew(work)


@pytest.mark.parametrize("path", ["/", "/live?topic=a", "/nothing"])
def test_without_a_session_no_page_is_shown_but_what_to_do(path: str) -> None:
    async def work(served: server.Served, http: aiohttp.ClientSession) -> None:
        status, text = await fetched(http, served.url + path)
        assert (status, NO_SESSION in text) == (401, True)
        assert "us-east-1" not in text

    served_anew(work)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}"]
)
def test_a_foreign_host_is_refused_even_with_a_session(host: str) -> None:
    async def work(visitor: Visitor) -> None:
        given = host.format(port=visitor.url.rpartition(":")[2])
        answer = await visitor.get("/", Host=given)
        assert answer.status == 403
        assert "does not answer for the host" in answer.text
        assert "us-east-1" not in answer.text

    visited(work)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", ""]
)
def test_a_foreign_origin_is_refused_also_with_the_csrf_token(origin: str) -> None:
    async def work(visitor: Visitor) -> None:
        given = origin.format(port=visitor.url.rpartition(":")[2])
        assert (await visitor.post("/live", Origin=given)).status == 403
        if given:
            assert (await visitor.get("/", Origin=given)).status == 403

    visited(work)


def test_a_page_of_another_port_cannot_load_a_page_as_a_picture_or_in_a_frame() -> None:
    """Its browser sends the cookie, since a port does not make another site, and no Origin."""

    async def work(visitor: Visitor) -> None:
        for site, part, status in (
            ("same-site", "image", 403),
            ("cross-site", "iframe", 403),
            ("same-site", "document", 200),
            ("same-origin", "empty", 200),
            ("none", "document", 200),
        ):
            headers: dict[str, Any] = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": part}
            assert (await visitor.get("/", **headers)).status == status, headers

    visited(work)


def test_a_post_needs_the_csrf_token_of_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    _add_change(monkeypatch)

    async def work(visitor: Visitor) -> None:
        assert (await visitor.post("/change")).text == "changed"
        headed = await visitor.post("/change", {"csrf": ""}, **{"X-CSRF-Token": visitor.csrf})
        assert headed.text == "changed"
        for wrong in ("", visitor.csrf[:-1], "é\ud800".encode("utf-8", "replace").decode()):
            answer = await visitor.post("/change", {"csrf": wrong})
            assert answer.status == 403
            assert "CSRF" in answer.text

    visited(work, can_write=True)


def test_without_write_a_change_is_refused_with_the_option_that_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _add_change(monkeypatch)

    async def work(visitor: Visitor) -> None:
        answer = await visitor.post("/change")
        assert (answer.status, READ_ONLY in answer.text) == (403, True)
        part = await visitor.post("/change", None, **{"HX-Request": "true"})
        assert (part.status, part.headers["HX-Retarget"], "<html" in part.text) == (403, "#problem", False)

    visited(work)


def test_every_response_has_the_security_headers_and_no_page_is_kept_by_the_browser() -> None:
    async def work(visitor: Visitor) -> None:
        for path in ("/", "/nothing", "/static/console.js", "/static/nothing"):
            headers = (await visitor.get(path)).headers
            policy = headers["Content-Security-Policy"]
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Cache-Control"] == ("no-cache" if path.startswith("/static/") else "no-store")

    visited(work)


def test_a_browser_keeps_static_files_whose_address_has_the_hash_of_their_content() -> None:
    """The page with the one-time address loads them already; all style sheets are one file."""

    async def work(served: server.Served, http: aiohttp.ClientSession) -> None:
        opened = (await fetched(http, served.address()))[1]
        addresses = re.findall(r"/static/[\w.?=]+", (await fetched(http, served.url))[1])
        assert [each.partition("?")[0] for each in addresses] == [
            "/static/icon.svg", "/static/styles.css", "/static/htmx.min.js", "/static/console.js",
        ]  # fmt: skip
        assert re.findall(r"/static/[\w.?=]+", opened) == addresses
        for each in addresses:
            async with http.get(served.url + each) as found:
                assert (found.status, found.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
        async with http.get(served.url + addresses[1]) as found:
            assert found.content_type == "text/css"
            text = await found.text()
            assert all(each.read_text() in text for each in assets.FOLDER.glob("*.css"))
        for other in (f"{addresses[1]}0", "/static/styles.css"):
            async with http.get(served.url + other) as found:
                assert (found.status, found.headers["Cache-Control"]) == (200, "no-cache")

    served_anew(work)


def _add_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the console a page that changes something."""

    @needs_write
    async def change(_: web.Request) -> web.Response:
        return web.Response(text="changed")

    class Changing:
        @staticmethod
        def routes(app: web.Application) -> None:
            app.router.add_post("/change", change)

    monkeypatch.setattr(server, "send", Changing)


def test_at_port_80_host_and_origin_have_no_port() -> None:
    gate = Gate()
    gate.port = 80
    assert gate.hosts == {"127.0.0.1", "localhost"}
