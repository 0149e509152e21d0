"""The pages of jobs, their progress on all open pages, the start of a job, and the audit of earlier ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from aiohttp import web
from markupsafe import escape

from tarry.failed.queue_names import queue_name
from tarry.failed.text import count_of
from tarry.tools.console.access import Console, Problem, console_of
from tarry.tools.console.dead_letters.jobs import JOBS, Busy, QueueJob
from tarry.tools.console.dead_letters.pages.listing import Choice, problem_of
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS
from tarry.tools.console.pages import fragment, render, see


@web.middleware
async def busy(request: web.Request, handler: Any) -> web.StreamResponse:
    """Show the job that runs instead of a job that could not start."""
    try:
        return await handler(request)  # type: ignore[no-any-return]
    except Busy as error:
        return render(request, "dead_letters/busy.html", status=409, text=error.text, job=error.job)


async def jobs(request: web.Request) -> web.Response:
    return render(request, "dead_letters/jobs.html", jobs=[each.view() for each in request.app[JOBS].all()])


async def job(request: web.Request) -> web.Response:
    return render(request, "dead_letters/job.html", job=_job(request).view())


async def stop_job(request: web.Request) -> web.Response:
    found = _job(request)
    found.stop()
    if "HX-Request" in request.headers:
        return web.Response(status=204)
    raise see(f"/jobs/{found.number}")


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
    # A screen reader reads this: it is sent only when it is new.
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
    where: Sequence[str]
    """The conditions that chose the dead letters."""
    who: str
    queues: Sequence[str]
    outcomes: Sequence[tuple[str, int]]
    details: Sequence[tuple[str, str]]
    """The options of the run, and how it ended."""
    ids: Sequence[str]
    more_ids: int


class AuditPage(NamedTuple):
    """The last runs, the newest first."""

    runs: Sequence[AuditedRun]
    is_cut: bool
    damaged: int


def read_audit(path: Path, *, shows_bodies: bool = True) -> AuditPage:
    """Read the end of an audit file, without conditions on bodies unless ``shows_bodies``. Raises `OSError`."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - READ_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return AuditPage((), False, 0)
    is_cut = size > READ_BYTES
    found = [_fields(line) for line in reversed(lines[is_cut:])]
    read = [(each, not ENDS.isdisjoint(each)) for each in found if each is not None]
    ended = {str(each["run"]) for each, is_end in read if is_end and "run" in each}
    kept = [each for each, is_end in read if is_end or str(each.get("run")) not in ended]
    runs = [_run(each, shows_bodies=shows_bodies) for each in kept[:MAX_RUNS]]
    return AuditPage(runs, is_cut or len(kept) > MAX_RUNS, found.count(None))


def runs_about(path: Path, ids: Iterable[str], *, shows_bodies: bool = True) -> list[AuditedRun]:
    """Return the last runs that acted on one of these messages, the newest first. Raises `OSError`."""
    wanted = frozenset(ids)
    return [each for each in read_audit(path, shows_bodies=shows_bodies).runs if not wanted.isdisjoint(each.ids)]


def _what(found: Mapping[str, Any], where: Sequence[str], outcomes: Mapping[str, int]) -> str:
    """Return what a run did, in words."""
    command = str(found["command"])
    if "run" in found and ENDS.isdisjoint(found):
        return f"{command} began and did not end: it was killed, or still runs"
    if command in ("tarry pause", "tarry resume"):
        changed = [each for each in _list(found, "changes") if isinstance(each, dict)]
        names = [f"{each.get('queue')} \u2192 {each.get('function')}" for each in changed]
        return f"{'Paused' if command == 'tarry pause' else 'Resumed'} {', '.join(names) or 'no consumer'}"
    if command not in DONE:
        return command
    word, outcome = DONE[command]
    count, edited = outcomes.get(outcome, 0), outcomes.get("edited", 0)
    text = f"{word} {count_of(count)}"
    if edited:
        text += f", {edited} with an edited body" if count != edited else " with an edited body"
    if found.get("asked_ids"):
        text += ", chosen by id"
    elif where:
        text += f" where {' and '.join(where)}"
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


def _list(found: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list of a line; empty if it has none: other versions of tarry, and other programs, write the file."""
    return found[name] if isinstance(found.get(name), list) else []


def _run(found: dict[str, Any], *, shows_bodies: bool) -> AuditedRun:
    where = [*map(str, _list(found, "where"))]
    if not shows_bodies and where:
        found["where"] = where = [each if problem_of(each, shows_bodies=False) is None else LEFT_OUT for each in where]
    counts = found.get("outcomes")
    counts = counts if isinstance(counts, dict) else {}
    outcomes = {str(name): count for name, count in counts.items() if isinstance(count, int)}
    details = {name: value for name, value in found.items() if name not in NOT_SHOWN_APART and value}
    return AuditedRun(
        at=str(found.get("at", "")),
        command=found["command"],
        what=_what(found, where, outcomes),
        where=where,
        who=str(found.get("who") or found.get("user") or "unknown"),
        queues=[queue_name(str(each)) for each in _list(found, "queues")],
        outcomes=(*outcomes.items(),),
        details=tuple((name.replace("_", " "), _text(value)) for name, value in details.items()),
        ids=[*map(str, _list(found, "ids"))],
        more_ids=found["more_ids"] if isinstance(found.get("more_ids"), int) else 0,
    )


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "; ".join(value)
    return value if isinstance(value, str) else json.dumps(value)


SHOWN_IDS = 50


async def audit(request: web.Request) -> web.Response:
    console = console_of(request)
    path = console.audit_path
    try:
        found = await console.compute(read_audit, path, shows_bodies=console.shows_bodies)
    except OSError as error:
        raise Problem(f"The audit file {path} cannot be read: {error.strerror or error}.", 500) from error
    known = await console.compute(request.app[SNAPSHOTS].ids)
    rows = [(each, Choice(where=(*each.where,)).query) for each in found.runs]
    scanned = [name for name in console.dead_letter_queues if request.app[SNAPSHOTS].of(name) is not None]
    return render(
        request,
        "dead_letters/audit.html",
        path=str(path),
        audit=found,
        rows=rows,
        known=known,
        scanned=scanned,
        most=SHOWN_IDS,
    )
