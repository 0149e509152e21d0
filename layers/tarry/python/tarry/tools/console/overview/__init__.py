"""The overview: queues with their consumers, and what needs attention."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

from tarry.tools.console import pages
from tarry.tools.console.access import CONSOLE
from tarry.tools.console.overview.sampling import Sampler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SAMPLER = web.AppKey("sampler", Sampler)


def routes(app: web.Application) -> None:
    app.router.add_get("/", overview, name="overview")
    app.cleanup_ctx.append(_sampling)


async def overview(request: web.Request) -> web.Response:
    """Show what is known about the queues, without a request to SQS; the next reading comes by itself."""
    sampler = request.app[SAMPLER]
    sampler.look()
    return pages.render(request, "overview/page.html", overview=sampler.rows())


async def _sampling(app: web.Application) -> AsyncIterator[None]:
    app[SAMPLER] = sampler = Sampler(app[CONSOLE])
    task = asyncio.create_task(sampler.run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
