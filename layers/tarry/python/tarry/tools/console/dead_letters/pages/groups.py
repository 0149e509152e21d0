"""The pages of the dead-letter queues and of a queue's groups, and the start of a scan."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, get_args

from aiohttp import web

from tarry import failed
from tarry.failed.groups import GroupBy
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.dead_letters import runs
from tarry.tools.console.dead_letters.jobs import JOBS
from tarry.tools.console.dead_letters.pages.jobs import start
from tarry.tools.console.dead_letters.pages.requested import (
    about,
    names_of_queues,
    page_number,
    queue_of,
    scanned_queue_of,
    snapshot_of,
)
from tarry.tools.console.dead_letters.pages.rows import cause_rows, group_row, page_of
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS
from tarry.tools.console.pages import explained, render
from tarry.tools.story.searching import latest_errors, places_of

if TYPE_CHECKING:
    from tarry.tools.console.access import Console
    from tarry.tools.story.searching import LatestErrors

MAX_CAUSES = 20
GROUPINGS: dict[GroupBy, str] = {
    "fingerprint": "fingerprint",
    "error": "error",
    "type": "type",
    "queue": "origin",
    "reason": "reason",
}


async def index(request: web.Request) -> web.Response:
    """Show the dead-letter queues."""
    console, latest = console_of(request), console_of(request).latest_errors()
    rows = []
    for name, answer in zip(names_of_queues(console), await _queues_found(console), strict=True):
        problem = ""
        if isinstance(answer, BaseException):
            if not isinstance(answer, Exception) or (text := explained(answer)) is None:
                raise answer
            problem = text
        job = request.app[JOBS].active(name)
        rows.append(
            {
                "name": name,
                "about": None if isinstance(answer, BaseException) else answer.about,
                "in_flight": 0 if isinstance(answer, BaseException) else answer.in_flight,
                "problem": problem,
                "latest": latest.get(name),
                "snapshot": snapshot_of(request, name),
                "job": job and job.view(),
            }
        )
    scans = [found for name in names_of_queues(console) if (found := snapshot_of(request, name))]
    by_cause = await console.compute(cause_rows, scans) if len(scans) > 1 else []
    return render(
        request,
        "dead_letters/index.html",
        rows=rows,
        to_scan=sum(bool(row["about"]) and not row["job"] for row in rows),
        causes=by_cause[:MAX_CAUSES],
        total=sum(map(len, scans)),
        scans=len(scans),
        has_logs=bool(console.stack or console.functions),
    )


async def search_errors(request: web.Request) -> web.Response:
    """Search the logs for the latest error of each queue, for all pages. It is a POST because AWS bills it."""
    console = console_of(request)
    try:
        found = await console.in_thread(_searched, console)
    except Exception as error:
        if (text := explained(error)) is None:
            raise
        console.searched = text
    else:
        console.known_errors = found.errors
        names = set(names_of_queues(console)) & found.errors.keys()
        count = (
            f"the latest errors of {len(names):,} dead-letter queue{'s'[: len(names) != 1]}" if names else "no error"
        )
        console.searched = f"The logs of the last 24 hours have {count}. {found.cost}"
    raise web.HTTPSeeOther(request.app.router["dead_letters"].url_for())


def _searched(console: Console) -> LatestErrors:
    place = places_of(console.client, console.account.region, console.stack, functions=console.functions)
    return latest_errors(console.client("logs"), place)


async def groups(request: web.Request) -> web.Response:
    """Show the groups of a queue's dead letters."""
    queue = await scanned_queue_of(request)
    by: GroupBy = request.query.get("by", "fingerprint")  # type: ignore[assignment]
    if by not in get_args(GroupBy):
        raise Problem(f"Dead letters cannot be grouped by {by!r}. Group them by {', '.join(GROUPINGS)}.")
    snapshot, page = snapshot_of(request, queue.name), None
    if snapshot is not None:
        found = await console_of(request).compute(snapshot.groups, by)
        page = page_of(found, page_number(request))
        page = page._replace(rows=[group_row(each) for each in page.rows])
    return render(request, "dead_letters/groups.html", **about(request, queue), by=by, groupings=GROUPINGS, page=page)


async def start_scan(request: web.Request) -> web.Response:
    """Start a scan."""
    queue = await queue_of(request)
    _start_scan(request, queue)
    back = request.app.router["dead_letters_groups"].url_for(queue=queue.name)
    raise web.HTTPSeeOther(back)


async def start_scans(request: web.Request) -> web.Response:
    """Start a scan of each queue that has messages and no job."""
    for found in await _queues_found(console_of(request)):
        if isinstance(found, failed.DeadLetterQueue) and found.about and not request.app[JOBS].active(found.name):
            _start_scan(request, found)
    raise web.HTTPSeeOther(request.app.router["dead_letters"].url_for())


async def _queues_found(console: Console) -> list[failed.DeadLetterQueue | BaseException]:
    """Return the dead-letter queues, each with its number of messages, or the error of asking SQS for it."""
    return await asyncio.gather(
        *(console.in_thread(failed.find, each) for each in console.dead_letter_queues), return_exceptions=True
    )


def _start_scan(request: web.Request, queue: failed.DeadLetterQueue) -> None:
    console, snapshots = console_of(request), request.app[SNAPSHOTS]
    start(
        request,
        "scan",
        queue,
        f"Scan of {queue.name}",
        queue.about,
        lambda job: runs.scan(runs.JobRun(console, job, queue), snapshots),
    )
