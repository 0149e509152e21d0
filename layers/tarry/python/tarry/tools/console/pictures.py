"""Pictures of tarry in a page: the SVG of a story or a plan, with its style sheet as a file of its own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from aiohttp import web
from markupsafe import Markup

from tarry.tools.story.svg import style

if TYPE_CHECKING:
    from tarry.tools.story.events import Story

STYLE_SHEET = "/pictures.css"
"""Inline styles do not run in the console: see the Content-Security-Policy in `tarry.tools.console.security`."""


def routes(app: web.Application) -> None:
    """Add the style sheet."""
    app.router.add_get(STYLE_SHEET, _style_sheet, name="pictures")


def inline(svg: str) -> Markup:
    """Return a picture for a page. Its texts are escaped already."""
    before, _, rest = svg.partition("<style>")
    after = rest.partition("</style>\n")[2]
    return Markup((before + after).replace("<svg ", '<svg class="picture" ', 1))


def picture_of_story(story: Story) -> Markup:
    """Return the picture of a story for a page."""
    from tarry.tools.story.picture import picture

    return inline(picture(story))


@cache
def style_sheet() -> str:
    """Return the rules of pictures, which hold within pictures only."""
    return f".picture {{\n{style()}\n}}\n"


async def _style_sheet(request: web.Request) -> web.Response:
    return web.Response(text=style_sheet(), content_type="text/css")
