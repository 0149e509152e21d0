"""The pages of jobs, their progress on all pages that are open, and the start of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import web
from markupsafe import escape

from tarry.tools.console.access import Problem
from tarry.tools.console.dead_letters.jobs import JOBS, NOUNS, Busy
from tarry.tools.console.pages import fragment, render

if TYPE_CHECKING:
    from tarry.tools.console.access import Console
    from tarry.tools.console.dead_letters.jobs import QueueJob


def start(request: web.Request, *args: Any, **more: Any) -> QueueJob:
    """Start a job. Raises `Problem` if one runs on the queue."""
    kind, queue, *rest = args
    try:
        return request.app[JOBS].start(kind, queue.name, *rest, **more)
    except Busy as error:
        raise JobRuns(error) from error


class JobRuns(Problem):
    """Another job runs on the queue."""

    def __init__(self, error: Busy) -> None:
        super().__init__(str(error), 409)
        self.job = error.job


def see(request: web.Request, job: QueueJob) -> web.HTTPSeeOther:
    """Return the redirection to the page of a job."""
    return web.HTTPSeeOther(request.app.router["job"].url_for(number=str(job.number)))


@web.middleware
async def busy(request: web.Request, handler: Any) -> web.StreamResponse:
    """Show the job that runs instead of a job that could not start."""
    try:
        return await handler(request)  # type: ignore[no-any-return]
    except JobRuns as error:
        return render(request, "dead_letters/busy.html", status=409, text=error.text, job=error.job.view())


async def jobs(request: web.Request) -> web.Response:
    """Show the jobs of this console."""
    return render(
        request, "dead_letters/jobs.html", jobs=[each.view() for each in request.app[JOBS].all()], nouns=NOUNS
    )


async def job(request: web.Request) -> web.Response:
    """Show a job."""
    found = _job(request)
    return render(request, "dead_letters/job.html", job=found.view())


async def stop_job(request: web.Request) -> web.Response:
    """Ask a job to stop after its current dead letters."""
    found = _job(request)
    found.stop()
    if "HX-Request" in request.headers:
        return web.Response(status=204)
    back = request.app.router["job"].url_for(number=str(found.number))
    raise web.HTTPSeeOther(back)


def _job(request: web.Request) -> QueueJob:
    text = request.match_info["number"]
    found = request.app[JOBS].get(int(text))
    if found is None:
        raise Problem(f"There is no job {text}. The console forgets its jobs when it ends; see the audit.", 404)
    return found


def publish(console: Console, job: QueueJob) -> None:
    """Show the state of a job on all pages that are open."""
    view = job.view()
    progress = fragment("dead_letters/progress.html", job=view, can_write=console.can_write)
    console.live.publish(f"job-{job.number}", progress)
    if job.announces(view.state):  # a screen reader reads this: only what is new
        console.live.publish(f"job-{job.number}-said", escape(f"{view.title}: {view.state_text}"))
        if view.kind == "scan" and not view.is_active and not view.error:
            of_queue = f"/dead-letters/{quote(view.queue, safe='')}"
            for part, path in (("found", of_queue), ("listed", "/dead-letters")):  # the pages to show again
                console.live.publish(f"job-{job.number}-{part}", fragment("dead_letters/found.html", path=path))
