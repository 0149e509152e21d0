"""The server of the console: one-time addresses, sessions, the requests that it refuses, and its templates."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from tarry.tools.console import pages, security, server
from tarry.tools.console.security import NO_SESSION, READ_ONLY, USED, Gate, needs_write
from tests.consoles import Guest, console_at, running, visited

NOWHERE = "http://127.0.0.1:1"
FORM = re.compile(r"<form\b[^>]*\bmethod=\"post\"[^>]*>(.*?)</form>", re.DOTALL | re.IGNORECASE)


@pytest.fixture(scope="module")
def served() -> Iterator[server.Served]:
    """A console that has no queues."""
    with running(console_at(NOWHERE)) as found:
        yield found


@pytest.fixture
def stranger(served: server.Served) -> Guest:
    """A client without a session."""
    return Guest(served.url)


@pytest.fixture
def guest(served: server.Served) -> Guest:
    return Guest(served.url, served.address())


def test_an_address_opens_one_session_with_a_strict_cookie_for_scripts_invisible(
    served: server.Served, guest: Guest, stranger: Guest
) -> None:
    """An earlier session goes on beside it."""
    path = served.address().removeprefix(served.url)
    opened = stranger.get(path)
    assert (opened.status, 'content="0; url=/"' in opened.text) == (200, True)
    assert opened.headers["Set-Cookie"].endswith("; HttpOnly; Path=/; SameSite=Strict")
    again = [stranger.get("/").status, stranger.get(path), stranger.get("/").status]  # the session goes on
    assert (again[0], again[1].status, USED in again[1].text, again[2]) == (200, 401, True, 200)
    assert guest.get("/").status == 200


def test_a_wrong_token_and_one_that_a_newer_address_replaced_open_nothing(
    served: server.Served, stranger: Guest
) -> None:
    older, newer = (served.address().removeprefix(served.url) for _ in range(2))
    for wrong in (older, newer[:-1], newer + "x", "/open", "/open?token=%ff%00é"):
        answer = stranger.get(wrong)
        assert (answer.status, USED in answer.text, [*stranger.cookies]) == (401, True, []), wrong
    assert stranger.get(newer).status == 200


def test_without_a_session_no_page_is_shown_but_what_to_do(stranger: Guest) -> None:
    for path in ("/", "/live?topic=a", "/nothing"):
        answer = stranger.get(path)
        assert (answer.status, NO_SESSION in answer.text, "us-east-1" in answer.text) == (401, True, False)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}"]
)
def test_a_foreign_host_is_refused_even_with_a_session(guest: Guest, host: str) -> None:
    answer = guest.get("/", Host=host.format(port=guest.url.rpartition(":")[2]))
    assert (answer.status, "does not answer for the host" in answer.text) == (403, True)
    assert "us-east-1" not in answer.text


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", ""]
)
def test_a_foreign_origin_is_refused_also_with_the_csrf_token(guest: Guest, origin: str) -> None:
    given = origin.format(port=guest.url.rpartition(":")[2])
    assert guest.post("/live", Origin=given).status == 403
    assert not given or guest.get("/", Origin=given).status == 403


@pytest.mark.parametrize(
    ("site", "part", "status"),
    [
        ("same-site", "image", 403),
        ("cross-site", "iframe", 403),
        ("same-site", "document", 200),
        ("same-origin", "empty", 200),
        ("none", "document", 200),
    ],
)
def test_a_page_of_another_port_cannot_load_a_page_as_a_picture_or_in_a_frame(
    guest: Guest, site: str, part: str, status: int
) -> None:
    """Its browser sends the cookie, since a port does not make another site, and no Origin."""
    assert guest.get("/", Sec_Fetch_Site=site, Sec_Fetch_Dest=part).status == status


@pytest.fixture
def _changing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the console a page that changes something."""

    @needs_write
    async def change(_: web.Request) -> web.Response:
        return web.Response(text="changed")

    class Changing:
        @staticmethod
        def routes(app: web.Application) -> None:
            app.router.add_post("/change", change)

    monkeypatch.setattr(server, "send", Changing)


@pytest.mark.usefixtures("_changing")
def test_a_post_needs_the_csrf_token_of_its_session() -> None:
    with visited(console_at(NOWHERE, can_write=True)) as guest:
        assert guest.post("/change").text == "changed"
        assert guest.post("/change", {"csrf": ""}, X_CSRF_Token=guest.csrf).text == "changed"
        for wrong in ("", guest.csrf[:-1], "é?"):
            answer = guest.post("/change", {"csrf": wrong})
            assert (answer.status, "CSRF" in answer.text) == (403, True)


@pytest.mark.usefixtures("_changing")
def test_without_write_a_change_is_refused_with_the_option_that_allows_it() -> None:
    with visited(console_at(NOWHERE)) as guest:
        answer, part = guest.post("/change"), guest.post("/change", HX_Request="true")
    assert (answer.status, READ_ONLY in answer.text) == (403, True)
    assert (part.status, part.headers["HX-Retarget"], "<html" in part.text) == (403, "#problem", False)


def test_every_response_has_the_security_headers_and_no_page_is_kept_by_the_browser(guest: Guest) -> None:
    for path in ("/", "/nothing", "/static/console.js", "/static/nothing"):
        headers = guest.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert ("script-src 'self';" in policy, "unsafe" in policy, "frame-ancestors 'none'" in policy) == (
            True, False, True,
        )  # fmt: skip
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == ("no-cache" if path.startswith("/static/") else "no-store")


def test_a_browser_keeps_static_files_whose_address_has_the_hash_of_their_content(
    served: server.Served, guest: Guest
) -> None:
    """The page with the one-time address loads them already; all style sheets are one file."""
    addresses = re.findall(r"/static/[\w.?=]+", guest.page("/"))
    assert [each.partition("?")[0] for each in addresses] == [
        "/static/icon.svg", "/static/styles.css", "/static/htmx.min.js", "/static/console.js",
    ]  # fmt: skip
    assert re.findall(r"/static/[\w.?=]+", guest.page(served.address().removeprefix(served.url))) == addresses
    for each in (*addresses, f"{addresses[1]}0", "/static/styles.css"):
        found = guest.get(each)
        kept = "public, max-age=31536000, immutable" if each in addresses else "no-cache"
        assert (found.status, found.headers["Cache-Control"]) == (200, kept)
    styles = guest.get(addresses[1])
    assert styles.headers["Content-Type"].startswith("text/css")
    assert all(each.read_text() in styles.text for each in security.FOLDER.glob("*.css"))


def test_at_port_80_host_and_origin_have_no_port() -> None:
    gate = Gate()
    gate.port = 80
    assert gate.hosts == {"127.0.0.1", "localhost"}


@pytest.mark.parametrize(
    "path", sorted((Path(pages.__file__).parent / "templates").rglob("*.html")), ids=lambda path: path.name
)
def test_a_template_keeps_to_the_security_policy_and_can_be_read_without_a_screen(path: Path) -> None:
    """No script or style that the policy blocks, the field of the token in each form, the scope of each head."""
    pages.environment().get_template(str(path.relative_to(Path(pages.__file__).parent / "templates")))
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|<style|<script(?![^>]*\bsrc=)|\son\w+=|javascript:|https?://", text)
    assert [each for each in FORM.findall(text) if "csrf_field()" not in each] == []
    assert [each for each in re.findall(r"<th\b[^>]*>", text) if "scope=" not in each] == []
