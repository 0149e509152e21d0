"""The live feed of `tarry local`: what happens to each message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.tools.console import pages
from tarry.tools.console.access import CONSOLE, console_of
from tarry.tools.console.feed.publishing import values_of

if TYPE_CHECKING:
    from aiohttp import web


def routes(app: web.Application) -> None:
    """Add the page, if the console is that of a running `tarry local`."""
    if app[CONSOLE].local is not None:
        app.router.add_get("/feed", _page, name="feed")


async def _page(request: web.Request) -> web.Response:
    local = console_of(request).local
    assert local is not None
    return pages.render(request, "feed/page.html", **values_of(local.scene()))
