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
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page, Playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LIGHT_AND_DARK = ("light", "dark")
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


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Open an address in a browser profile of its own; errors in the page's script or security policy fail the test."""
    pages: list[Page] = []
    problems: list[str] = []

    def open_page(address: str, width: int = 1280, height: int = 800, **settings: Any) -> Page:
        size: Any = {"width": width, "height": height}
        context = chromium.new_context(viewport=size, reduced_motion="reduce", **settings)  # colours do not fade
        context.set_default_timeout(MILLISECONDS)
        page = context.new_page()
        pages.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None)
        response = page.goto(address)
        if response is not None and response.ok and "/open?" in address:
            page.wait_for_url("**/")  # the page that sets the cookie goes on to the overview
        return page

    yield open_page
    for each in pages:
        each.context.close()
    assert not problems


@pytest.fixture
def no_barriers() -> Callable[..., None]:
    """Check with axe-core that a page has no barriers, in light and dark."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

    def check(page: Page, *schemes: Any) -> None:
        for scheme in schemes or LIGHT_AND_DARK:
            page.emulate_media(color_scheme=scheme)
            found = axe.Axe().run(page).response["violations"]
            assert not found, [(each["id"], each["help"], [node["html"] for node in each["nodes"]]) for each in found]

    return check
