"""The retry policy of each consumer of the template, as ``tarry plan`` draws it."""

from __future__ import annotations

from aiohttp import web

from tarry.tools.console import pages
from tarry.tools.console.access import CONSOLE, Problem, console_of
from tarry.tools.console.policy.reading import PolicyReader, consumers_of

READER = web.AppKey("policy_reader", PolicyReader)


def routes(app: web.Application) -> None:
    """Add the routes of these pages."""
    app[READER] = PolicyReader(app[CONSOLE])
    app.router.add_get("/policies", _list, name="policy")
    app.router.add_get("/policies/{function}", _page)


async def _list(request: web.Request) -> web.Response:
    console = console_of(request)
    consumers = consumers_of(console.template) if console.template is not None else []
    return pages.render(request, "policy/list.html", consumers=consumers)


async def _page(request: web.Request) -> web.Response:
    template, name = console_of(request).template, request.match_info["function"]
    consumer = next((each for each in consumers_of(template) if each.name == name), None) if template else None
    if template is None or consumer is None:
        raise Problem(f"The template of this console has no function {name!r:.100} with a queue.", 404)
    found = await request.app[READER].read(template, name)
    return pages.render(request, "policy/page.html", consumer=consumer, **found._asdict())
