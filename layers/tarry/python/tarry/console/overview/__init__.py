"""The overview: queues with their consumers, and what needs a person."""

from aiohttp import web

from tarry.console import pages


def routes(app: web.Application) -> None:
    """Add the routes of these pages."""
    app.router.add_get("/", overview, name="overview")


async def overview(request: web.Request) -> web.Response:
    """Show the queues."""
    return pages.render(request, "overview/page.html")
