"""The pages of jobs, their progress on all open pages, the start of a job, and the audit of earlier ones."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from aiohttp import web
from markupsafe import escape

from tarry.failed.queue_names import queue_name
from tarry.failed.wording import count_of
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.dead_letters.filters import Choice, problem_of
from tarry.tools.console.dead_letters.jobs import JOBS, NOUNS, Busy
from tarry.tools.console.dead_letters.pages.requested import snapshot_of
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS
from tarry.tools.console.pages import fragment, render

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

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
    return web.HTTPSeeOther(request.app.router["job"].url_for(number=str(job.number)))


@web.middleware
async def busy(request: web.Request, handler: Any) -> web.StreamResponse:
    """Show the job that runs instead of a job that could not start."""
    try:
        return await handler(request)  # type: ignore[no-any-return]
    except JobRuns as error:
        return render(request, "dead_letters/busy.html", status=409, text=error.text, job=error.job.view())


async def jobs(request: web.Request) -> web.Response:
    return render(
        request, "dead_letters/jobs.html", jobs=[each.view() for each in request.app[JOBS].all()], nouns=NOUNS
    )


async def job(request: web.Request) -> web.Response:
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


READ_BYTES = 4 * 1024 * 1024
"""How much of the end of the file is read: a line with a thousand ids has about 40 kB."""
MAX_RUNS = 200
LEFT_OUT = "(a condition on bodies, which this console does not show)"
NOT_SHOWN_APART = frozenset({
    "v", "run", "at", "ended_at", "command", "who", "user", "outcomes", "ids", "more_ids", "queues", "changes",
})  # fmt: skip
ENDS = frozenset({"ended_at", "outcomes", "changes"})
"""The fields of which the last line of a run has one."""
DONE = {
    "tarry failed retry": ("Retried", "retried"),
    "tarry failed remove": ("Removed", "deleted"),
    "tarry failed restore": ("Restored", "restored"),
}
"""The word for a run of a command, and the outcome that it is about."""


class AuditedRun(NamedTuple):
    """A line of the audit."""

    at: str
    command: str
    what: str
    """A sentence about the run, without its point."""
    where: tuple[str, ...]
    """The conditions that chose the dead letters."""
    who: str
    queues: tuple[str, ...]
    outcomes: tuple[tuple[str, int], ...]
    details: tuple[tuple[str, str], ...]
    """The options of the run, and how it ended."""
    ids: tuple[str, ...]
    more_ids: int


class AuditPage(NamedTuple):
    """The last runs, the newest first."""

    runs: tuple[AuditedRun, ...]
    is_cut: bool
    damaged: int


def read_audit(path: Path, *, shows_bodies: bool = True) -> AuditPage:
    """Read the end of an audit file; one that does not exist has no runs. Raises `OSError`.

    Without ``shows_bodies``, conditions that compare bodies are left out: they have parts of them.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - READ_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return AuditPage((), False, 0)
    is_cut = size > READ_BYTES
    runs: list[AuditedRun] = []
    ended: set[str] = set()
    damaged = 0
    for line in reversed(lines[1:] if is_cut else lines):
        if len(runs) >= MAX_RUNS:
            is_cut = True
            break
        found = _fields(line)
        damaged += found is None
        if found is None:
            continue
        if not ENDS.isdisjoint(found):
            ended.add(str(found.get("run")))
        elif str(found.get("run")) in ended:
            continue
        runs.append(_run(found, shows_bodies=shows_bodies))
    return AuditPage(tuple(runs), is_cut, damaged)


def runs_about(path: Path, ids: Iterable[str], *, shows_bodies: bool = True) -> list[AuditedRun]:
    """Return the last runs that acted on one of these messages, the newest first. Raises `OSError`."""
    wanted = frozenset(ids)
    return [each for each in read_audit(path, shows_bodies=shows_bodies).runs if not wanted.isdisjoint(each.ids)]


def _what(found: dict[str, Any]) -> str:
    """Return what a run did, in words."""
    if "run" in found and ENDS.isdisjoint(found):
        return f"{found['command']} began and did not end: it was killed, or still runs"
    command, outcomes = found["command"], found.get("outcomes") if isinstance(found.get("outcomes"), dict) else {}
    changes: Any = found.get("changes")
    if command in ("tarry pause", "tarry resume"):
        changed = [each for each in changes if isinstance(each, dict)] if isinstance(changes, list) else []
        names = [f"{each.get('queue')} \u2192 {each.get('function')}" for each in changed]
        return f"{'Paused' if command == 'tarry pause' else 'Resumed'} {', '.join(names) or 'no consumer'}"
    if command not in DONE:
        return str(command)
    word, outcome = DONE[command]
    count = outcomes.get(outcome, 0) if isinstance(outcomes, dict) else 0
    text = f"{word} {count_of(count) if isinstance(count, int) else 'dead letters'}"
    if isinstance(outcomes, dict) and outcomes.get("edited"):
        text += f", {outcomes['edited']} with an edited body" if count != outcomes["edited"] else " with an edited body"
    where = found.get("where")
    if found.get("asked_ids"):
        text += ", chosen by id"
    elif isinstance(where, list) and where:
        text += f" where {' and '.join(map(str, where))}"
    elif found.get("all"):
        text += ": all that were found"
    if found.get("came_back"):
        text += "; ended because messages came back"
    elif found.get("stopped") or found.get("signal"):
        text += "; stopped before the end"
    return text


def _fields(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("command"), str) else None


def _run(found: dict[str, Any], *, shows_bodies: bool) -> AuditedRun:
    if not shows_bodies and isinstance(found.get("where"), list):
        found["where"] = [
            each if problem_of(str(each), shows_bodies=False) is None else LEFT_OUT for each in found["where"]
        ]
    outcomes = found.get("outcomes")
    ids, queues = found.get("ids"), found.get("queues")
    details = {name: value for name, value in found.items() if name not in NOT_SHOWN_APART and value}
    return AuditedRun(
        at=str(found.get("at", "")),
        command=found["command"],
        what=_what(found),
        where=tuple(map(str, found["where"])) if isinstance(found.get("where"), list) else (),
        who=str(found.get("who") or found.get("user") or "unknown"),
        queues=tuple(map(str, queues)) if isinstance(queues, list) else (),
        outcomes=tuple((str(name), int(count)) for name, count in outcomes.items() if isinstance(count, int))
        if isinstance(outcomes, dict)
        else (),
        details=tuple((name.replace("_", " "), _text(value)) for name, value in details.items()),
        ids=tuple(map(str, ids)) if isinstance(ids, list) else (),
        more_ids=found["more_ids"] if isinstance(found.get("more_ids"), int) else 0,
    )


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "; ".join(value)
    return value if isinstance(value, str) else json.dumps(value)


SHOWN_IDS = 50


class AuditRow(NamedTuple):
    """A run with the pages of what it acted on, where they still exist."""

    run: AuditedRun
    queues: tuple[tuple[str, str], ...]
    """The name and the path of each queue; an empty path if it is no dead-letter queue of this console."""
    matching: str
    """The path of the dead letters of the last scan that its conditions match; empty without conditions or a scan."""
    ids: tuple[tuple[str, bool], ...]
    """The first ids, each with whether a scan has it."""
    more: int


async def audit(request: web.Request) -> web.Response:
    """Show what was done to queues."""
    console = console_of(request)
    path = console.audit_path
    try:
        found = await console.compute(read_audit, path, shows_bodies=console.shows_bodies)
    except OSError as error:
        raise Problem(f"The audit file {path} cannot be read: {error.strerror or error}.", 500) from error
    known = await console.compute(request.app[SNAPSHOTS].ids)
    rows = [_row(request, each, known) for each in found.runs]
    return render(request, "dead_letters/audit.html", path=str(path), audit=found, rows=rows)


def _row(request: web.Request, run: AuditedRun, known: frozenset[str]) -> AuditRow:
    own, names = console_of(request).dead_letter_queues, [queue_name(each) for each in run.queues]
    queues = tuple((each, f"/dead-letters/{each}" if each in own else "") for each in names)
    is_scanned = len(names) == 1 and names[0] in own and snapshot_of(request, names[0]) is not None
    matching = f"{queues[0][1]}/list?{Choice(where=run.where).query}" if run.where and is_scanned else ""
    ids = tuple((each, each in known) for each in run.ids[:SHOWN_IDS])
    return AuditRow(run, queues, matching, ids, len(run.ids) - len(ids) + run.more_ids)
