"""A Chromium for the tests of this directory; without one they are skipped.

Playwright runs an event loop on the main thread while it is open, so it ends with this directory: tests elsewhere run
loops of their own.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from playwright.sync_api import Browser, Page, Playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LIGHT_AND_DARK = ("light", "dark")
LOOKS = ("color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size")
"""The rules of axe-core that colours or the width of the window decide."""
MILLISECONDS = 60_000
"""The limit of each wait. No test needs this long, even on a busy machine."""


def launched(playwright: Playwright) -> Browser:
    """Start the Chromium of this machine; skip the test if there is none."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("Chromium is not on the PATH: make browser-test says how to get it")
    arguments = ["--disable-dev-shm-usage"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # the sandbox refuses to run as root
    return playwright.chromium.launch(executable_path=path, args=arguments)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """The browser of all tests here."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = launched(playwright)
        api.expect.set_options(timeout=MILLISECONDS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def shared_page(chromium: Browser) -> Page:
    """The page of all tests: a new profile for each test would start other processes."""
    context = chromium.new_context(
        reduced_motion="reduce",  # colours do not fade
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(MILLISECONDS)
    return context.new_page()


@pytest.fixture
def opened(shared_page: Page) -> Iterator[Callable[[str], Page]]:
    """Open an address without cookies of an earlier test; errors in scripts or the security policy fail the test."""
    page, problems = shared_page, list[str]()
    listeners: dict[Any, Any] = {
        "pageerror": lambda error: problems.append(str(error)),
        "console": lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None,
    }

    def open_page(address: str) -> Page:
        page.context.clear_cookies()
        page.set_viewport_size({"width": 1280, "height": 800})
        page.emulate_media(color_scheme="light")
        response = page.goto(address)
        if response is not None and response.ok and "/open?" in address:
            page.wait_for_url("**/")  # the page that sets the cookie goes on to the overview
        return page

    for name, listener in listeners.items():
        page.on(name, listener)
    yield open_page
    for other in page.context.pages[1:]:
        other.close()
    page.goto("about:blank")
    for name, listener in listeners.items():
        page.remove_listener(name, listener)
    assert not problems


@pytest.fixture
def no_barriers() -> Callable[..., None]:
    """Check with axe-core that a page has no barriers, in light and dark or in one of them."""
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")

    def check(page: Page, *schemes: Any, rules: Sequence[str] = ()) -> None:
        if not page.evaluate("typeof axe === 'object'"):
            page.evaluate(axe.AXE_FILE_PATH.read_text("utf-8"))
        for scheme in schemes or LIGHT_AND_DARK:
            page.emulate_media(color_scheme=scheme)
            only = rules if schemes or scheme == "light" else LOOKS
            options = {"resultTypes": ["violations"], **({"runOnly": only} if only else {})}
            found = page.evaluate("options => axe.run(document, options)", options)["violations"]
            assert not found, [(each["id"], each["help"], [node["html"] for node in each["nodes"]]) for each in found]

    return check
