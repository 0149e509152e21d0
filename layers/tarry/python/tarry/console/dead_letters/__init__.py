"""Dead letters: scans, groups, a list with a filter, retries, edits and removals as jobs, and the audit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tarry.console.access import CONSOLE
from tarry.console.dead_letters import pages
from tarry.console.dead_letters.jobs import JOBS, QueueJobs
from tarry.console.dead_letters.snapshots import SNAPSHOTS, Snapshots
from tarry.console.pages import explained
from tarry.console.security import needs_write

if TYPE_CHECKING:
    from aiohttp import web

QUEUE = "/dead-letters/{queue}"


def routes(app: web.Application) -> None:
    """Add the routes of these pages."""
    console = app[CONSOLE]
    app[SNAPSHOTS] = Snapshots()
    app[JOBS] = jobs = QueueJobs(console.run, explained)
    jobs.changed = lambda job: pages.publish(console, job)
    app.on_shutdown.insert(0, _stop)
    app.middlewares.append(pages.busy)
    app.router.add_get("/dead-letters", pages.index, name="dead_letters")
    app.router.add_get(QUEUE, pages.groups, name="dead_letters_groups")
    app.router.add_post(f"{QUEUE}/scan", pages.start_scan)
    app.router.add_get(f"{QUEUE}/list", pages.listed)
    app.router.add_get(f"{QUEUE}/condition", pages.condition)
    for method in ("GET", "POST"):  # many ids do not fit into an address
        app.router.add_route(method, f"{QUEUE}/retry", pages.retry)
        app.router.add_route(method, f"{QUEUE}/remove", pages.remove)
    app.router.add_post(f"{QUEUE}/retry/dry-run", pages.start_dry_run)
    app.router.add_post(f"{QUEUE}/retry/start", needs_write(pages.start_retry))
    app.router.add_post(f"{QUEUE}/remove/start", needs_write(pages.start_removal))
    app.router.add_get(f"{QUEUE}/edit", pages.edit)
    app.router.add_post(f"{QUEUE}/edit/changes", pages.check_edit)
    app.router.add_post(f"{QUEUE}/edit/start", needs_write(pages.start_edit))
    app.router.add_get("/jobs", pages.jobs, name="jobs")
    app.router.add_get(r"/jobs/{number:\d{1,9}}", pages.job, name="job")
    app.router.add_post(r"/jobs/{number:\d{1,9}}/stop", pages.stop_job)
    app.router.add_get("/audit", pages.audit, name="audit")


async def _stop(app: web.Application) -> None:
    """Stop the jobs, and wait until they have released what they hold."""
    await asyncio.to_thread(app[JOBS].close)
