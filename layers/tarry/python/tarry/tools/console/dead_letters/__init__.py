"""Dead letters: scans, groups, a list with a filter, retries, edits and removals as jobs, and the audit."""

from __future__ import annotations

import asyncio

from aiohttp import web

from tarry.tools.console.access import CONSOLE
from tarry.tools.console.dead_letters.jobs import JOBS, QueueJobs
from tarry.tools.console.dead_letters.pages import changes, jobs, listing
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS, Snapshots
from tarry.tools.console.pages import explained
from tarry.tools.console.security import needs_write

QUEUE = "/dead-letters/{queue}"


def routes(app: web.Application) -> None:
    console = app[CONSOLE]
    app[SNAPSHOTS] = Snapshots()
    app[JOBS] = QueueJobs(console.run, explained)
    app[JOBS].changed = lambda job: jobs.publish(console, job)
    app.on_shutdown.insert(0, _stop)
    app.middlewares.append(jobs.busy)
    app.router.add_get("/dead-letters", listing.index)
    app.router.add_post("/dead-letters", listing.start_scans)
    app.router.add_post("/latest-errors", listing.search_errors)
    app.router.add_get(QUEUE, listing.groups)
    app.router.add_post(f"{QUEUE}/scan", listing.start_scan)
    app.router.add_get(f"{QUEUE}/list", listing.listed)
    app.router.add_get(f"{QUEUE}/condition", listing.condition)
    for method in ("GET", "POST"):  # many ids do not fit into an address
        app.router.add_route(method, f"{QUEUE}/retry", changes.retry)
        app.router.add_route(method, f"{QUEUE}/remove", changes.remove)
    app.router.add_post(f"{QUEUE}/retry/dry-run", changes.start_dry_run)
    app.router.add_post(f"{QUEUE}/retry/start", needs_write(changes.start_retry))
    app.router.add_post(f"{QUEUE}/remove/start", needs_write(changes.start_removal))
    app.router.add_get(f"{QUEUE}/edit", changes.edit)
    app.router.add_post(f"{QUEUE}/edit/changes", changes.check_edit)
    app.router.add_post(f"{QUEUE}/edit/start", needs_write(changes.start_edit))
    app.router.add_get("/jobs", jobs.jobs)
    app.router.add_get(r"/jobs/{number:\d{1,9}}", jobs.job)
    app.router.add_post(r"/jobs/{number:\d{1,9}}/stop", jobs.stop_job)
    app.router.add_get("/audit", jobs.audit)


async def _stop(app: web.Application) -> None:
    """Stop the jobs, and wait until they have released what they hold."""
    await asyncio.to_thread(app[JOBS].close)
