"""The page of the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tarry.failed.queue_names import queue_name
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.dead_letters.audits import AuditedRun, read_audit
from tarry.tools.console.dead_letters.choices import Choice
from tarry.tools.console.dead_letters.pages.requested import names_of_queues, snapshot_of
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS
from tarry.tools.console.pages import render

if TYPE_CHECKING:
    from aiohttp import web

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
    """The number of the others."""


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
    own, names = names_of_queues(console_of(request)), [queue_name(each) for each in run.queues]
    queues = tuple((each, f"/dead-letters/{each}" if each in own else "") for each in names)
    is_scanned = len(names) == 1 and names[0] in own and snapshot_of(request, names[0]) is not None
    matching = f"{queues[0][1]}/list?{Choice(where=run.where).query}" if run.where and is_scanned else ""
    ids = tuple((each, each in known) for each in run.ids[:SHOWN_IDS])
    return AuditRow(run, queues, matching, ids, len(run.ids) - len(ids) + run.more_ids)
