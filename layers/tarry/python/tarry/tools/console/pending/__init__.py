"""The messages that are being retried, from an attempt store."""

from __future__ import annotations

from contextlib import suppress

from aiohttp import web

from tarry.failed.pending import Record, is_due, pending, tables_of_stack, why
from tarry.failed.usage import UsageError
from tarry.tools.console import pages
from tarry.tools.console.access import Console, console_of

MAX_ROWS = 500
"""The most messages of a page: those that are tried next."""


def routes(app: web.Application) -> None:
    app.router.add_get("/pending", _page)


async def _page(request: web.Request) -> web.Response:
    console, queue = console_of(request), request.query.get("queue") or None
    tables, found = await console.in_thread(_pending, console)
    shown = [record for record in found if queue in (None, record["queue"])]
    return pages.render(
        request,
        "pending/page.html",
        tables=tables,
        queues=sorted({str(record["queue"]) for record in found}),
        chosen=queue,
        records=shown,
        is_due=is_due,
        why=why,
        most=MAX_ROWS,
    )


def _pending(console: Console) -> tuple[tuple[str, ...], list[Record]]:
    """Return the tables, and the messages in them. Raises `UsageError` if a table does not exist."""
    tables = tuple(console.attempt_tables)
    if not tables and console.stack is not None:
        with suppress(UsageError):  # it has none
            tables = tables_of_stack(console.client("cloudformation"), console.stack)
    return tables, pending(tables, console.client("dynamodb")) if tables else []
