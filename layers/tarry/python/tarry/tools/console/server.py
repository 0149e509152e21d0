"""The web server of the console: the routes of all pages, on loopback only."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tarry.tools.console import dead_letters, feed, message, overview, pages, pending, policy, security, send
from tarry.tools.console.access import CONSOLE, Console
from tarry.tools.console.security import GATE, TOKEN_PATH, Gate, add_headers, guard
from tarry.tools.simulator.http.server import PortTaken, is_our_fault

HOST = "127.0.0.1"
MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""An edited body of 1 MiB may be three times as long in a form."""
SHUTDOWN_SECONDS = 1.0

_log = logging.getLogger(f"{__name__}.aiohttp")
_log.addFilter(is_our_fault)


def application(console: Console, gate: Gate) -> web.Application:
    """Return the application with all pages."""
    app = web.Application(middlewares=[pages.problems, guard], client_max_size=MAX_REQUEST_BYTES)
    app[CONSOLE] = console
    app[GATE] = gate
    app.on_response_prepare.append(add_headers)
    app.on_shutdown.append(_end)
    app.router.add_get("/live", console.live.stream)
    for each in (security, overview, dead_letters, message, pending, policy, feed, send, pages):
        each.routes(app)
    return app


class Served:
    """A running console."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.url = f"http://{HOST}:{gate.port}"

    def address(self) -> str:
        """Return a new one-time address; an earlier one that was not opened ends."""
        return f"{self.url}{TOKEN_PATH}?token={self._gate.issue()}"


@asynccontextmanager
async def serve(console: Console, port: int = 0) -> AsyncIterator[Served]:
    """Serve the console on the running event loop within the context; port 0 is a free one. Raises `PortTaken`."""
    gate = Gate()
    runner = web.AppRunner(application(console, gate), access_log=None, logger=_log, shutdown_timeout=SHUTDOWN_SECONDS)
    console.live.begin()
    pages.prepare()
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            why = os.strerror(error.errno).lower() if error.errno else error
            raise PortTaken(f"cannot listen at port {port} of {HOST}: {why}") from None
        gate.port = runner.addresses[0][1]
        yield Served(gate)
    finally:
        await runner.cleanup()


async def _end(app: web.Application) -> None:
    app[CONSOLE].live.close()
