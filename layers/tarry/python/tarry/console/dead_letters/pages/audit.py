"""The page of the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.console.access import Problem, console_of
from tarry.console.dead_letters.audits import read_audit
from tarry.console.pages import render

if TYPE_CHECKING:
    from aiohttp import web


async def audit(request: web.Request) -> web.Response:
    """Show what was done to queues."""
    console = console_of(request)
    path = console.audit_path
    try:
        found = await console.compute(read_audit, path, shows_bodies=console.shows_bodies)
    except OSError as error:
        raise Problem(f"The audit file {path} cannot be read: {error.strerror or error}.", 500) from error
    return render(request, "dead_letters/audit.html", path=str(path), audit=found)
