"""The page of one message in a real browser: hostile bodies, long bodies, the views, the copies, and its test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tarry.tools.console.access import WatchedQueue
from tests.consoles import console_at, running
from tests.scanned import HOSTILE, attribute, project, recorded, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tarry.tools.console import server

    Opened = Callable[..., Page]

expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
NOWHERE = "http://127.0.0.1:1"
LONG = json.dumps({"text": "x" * 1_048_000})
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Served]:
    found = [
        recorded("hostile", HOSTILE, {"tenant": attribute(HOSTILE[5:])}, message=HOSTILE, traceback=HOSTILE),
        recorded("order", '{"order":"o-1","total":12345678901234567890.10}'),
        recorded("long", LONG),
        recorded("deep", DEEP),
    ]
    template = project(tmp_path_factory.mktemp("project"))
    with pytest.MonkeyPatch.context() as patch:
        scan(patch, *found)
        with running(console_at(NOWHERE, [WatchedQueue("orders")], can_write=True, template=template)) as served:
            yield served


def test_hostile_text_does_nothing_and_is_visible(console: server.Served, opened: Opened) -> None:
    page = opened(console.address())
    page.goto(f"{console.url}/message/hostile-1")
    expect(page).to_have_title("Message hostile · tarry console")
    expect(page.locator("pre.body")).to_have_text(HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e"))
    assert page.locator("img, main script").count() == 0
    assert not set("\x1b\u202e") & set(page.locator("body").inner_text())
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("#body").get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == HOSTILE  # not the escapes
    page.get_by_role("link", name="Show the event and the test").click()
    expect(page.get_by_role("heading", name="pytest file")).to_be_visible()
    page.get_by_role("button", name="Copy the event").click()
    expect(page.locator("#test").get_by_role("button", name="Copied")).to_be_visible()
    event = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert event["Records"][0]["body"] == HOSTILE
    with page.expect_download() as download:
        page.get_by_role("link", name="Download test_hostile.py").click()
    test = Path(download.value.path()).read_text("utf-8")
    assert "def test_dead_letter_hostile(monkeypatch):" in test
    expect(page).to_have_title("Message hostile · tarry console")


def test_a_body_can_be_seen_formatted_raw_and_whole(console: server.Served, opened: Opened) -> None:
    page = opened(console.address())
    page.goto(f"{console.url}/message/order-1")
    body = page.locator("pre.body")
    expect(body).to_contain_text('{\n  "order": "o-1",\n  "total": 12345678901234567890.10\n}')
    page.get_by_role("link", name="Raw").click()
    expect(body).to_have_text('{"order":"o-1","total":12345678901234567890.10}')
    assert page.url == f"{console.url}/message/order-1"  # only the body was replaced
    for name, text, view in (("long", LONG, "Raw"), ("deep", DEEP, None)):
        page.goto(f"{console.url}/message/{name}-1")
        if view:
            page.get_by_role("link", name=view).click()
            expect(page.get_by_role("link", name=view)).to_have_attribute("aria-current", "true")
        page.get_by_role("link", name=f"Show all {len(text):,} characters").click()
        expect(page.get_by_role("link", name="Show all")).to_have_count(0)
        assert page.locator("pre.body").evaluate("each => each.textContent.length") == len(text)
        page.keyboard.press("?")  # the page still answers
        expect(page.get_by_role("dialog")).to_be_visible()


def test_the_story_is_a_picture_with_its_own_colours_and_a_table(console: server.Served, opened: Opened) -> None:
    page = opened(console.address())
    page.emulate_media(color_scheme="dark")
    page.goto(f"{console.url}/message/order-1")
    picture = page.get_by_role("img", name="message order: Dead-lettered after 5 attempts")
    paper = picture.locator(".paper")
    assert paper.evaluate("each => getComputedStyle(each).fill") == "rgb(13, 17, 23)"
    page.emulate_media(color_scheme="light")
    assert paper.evaluate("each => getComputedStyle(each).fill") == "rgb(255, 255, 255)"
    page.get_by_text("The events as a table").click()
    expect(page.get_by_role("row", name="DEAD_LETTERED")).to_contain_text("attempt 5: exhausted: CardDeclined: no")


def test_the_page_has_no_barriers_and_fits_a_small_screen(
    console: server.Served, opened: Opened, no_barriers: Callable[..., None]
) -> None:
    page = opened(console.address())
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto(f"{console.url}/message/order-1")
    page.get_by_role("link", name="Show the event and the test").click()
    expect(page.get_by_role("heading", name="pytest file")).to_be_visible()
    page.get_by_text("The events as a table").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    no_barriers(page)
    for path in ("/send", "/policies", "/pending"):
        page.goto(f"{console.url}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        if path == "/policies":
            expect(page.get_by_role("img", name="Works")).to_be_visible()
        no_barriers(page, "dark")


def test_keys_open_the_previews_of_what_can_be_done(console: server.Served, opened: Opened) -> None:
    page = opened(console.address())
    for key, part in (("r", "retry"), ("e", "edit"), ("d", "remove")):
        page.goto(f"{console.url}/message/order-1")
        page.keyboard.press(key)
        page.wait_for_url(f"**/dead-letters/orders-dlq/{part}?id=order-1")
