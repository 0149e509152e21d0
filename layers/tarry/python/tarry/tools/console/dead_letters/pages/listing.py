"""The list of dead letters with its filter, the help while a condition is typed, and the groups of dead letters."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry import failed
from tarry.failed.groups import causes
from tarry.failed.text import shortened
from tarry.failed.wording import brief_failure, period
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.dead_letters import runs
from tarry.tools.console.dead_letters.filters import Choice, choice_of, problem_of, suggestions
from tarry.tools.console.dead_letters.jobs import JOBS
from tarry.tools.console.dead_letters.pages.jobs import see
from tarry.tools.console.dead_letters.pages.requested import (
    about,
    page_number,
    queue_of,
    scanned,
    scanned_queue_of,
    snapshot_of,
)
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS
from tarry.tools.console.pages import asked, render
from tarry.tools.story.searching import latest_errors, places_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiohttp import web

    from tarry.failed import BadFilter, DeadLetterQueue, Group
    from tarry.failed.groups import GroupBy
    from tarry.tools.console.access import Console
    from tarry.tools.console.dead_letters.snapshots import Snapshot
    from tarry.tools.story.searching import LatestErrors

ROWS = 100


class Page(NamedTuple):
    """A page of a longer list."""

    rows: Sequence[Any]
    number: int
    pages: int
    first: int
    total: int


def page_of(rows: Sequence[Any], number: int) -> Page:
    """Return a page of the rows, the nearest one if the number is out of range."""
    pages = max(1, math.ceil(len(rows) / ROWS))
    number = min(max(1, number), pages)
    first = (number - 1) * ROWS
    return Page(rows[first : first + ROWS], number, pages, first + 1 if rows else 0, len(rows))


def query_of(group: Group) -> str:
    """Return the query of the address that lists the dead letters of a group."""
    return Choice(where=group.conditions).query


def titles(group: Group) -> tuple[str, str]:
    """Return the title of a group, and what stands under it."""
    error, value = brief_failure(group.failure), shortened(group.value or "(none)", 200)
    if group.by == "fingerprint":  # an error tells a person more
        return error, f"fingerprint {value}" if group.value else ""
    return value, "" if group.by == "error" or error == value else error


@dataclass(frozen=True)
class CauseRow:
    """The dead letters of several queues that have the same error."""

    count: int
    title: str
    groups: tuple[tuple[str, int, str], ...]
    """The queue of each group, its count, and the query of its dead letters in the list; the largest first."""


def cause_rows(snapshots: Iterable[Snapshot]) -> list[CauseRow]:
    """Return the causes of the dead letters of several queues as rows, the largest first."""
    return [
        CauseRow(
            cause.count,
            titles(cause.groups[0][1])[0],
            tuple((name, group.count, query_of(group)) for name, group in cause.groups),
        )
        for cause in causes((each.queue.name, each.groups("fingerprint")) for each in snapshots)
    ]


COMPARED_WHILE_TYPING = 5_000
"""The most dead letters whose bodies are compared while a condition is being typed."""


async def listed(request: web.Request) -> web.Response:
    """Show dead letters, filtered, a hundred at a time."""
    console, queue = console_of(request), await scanned_queue_of(request)
    snapshot = scanned(request, queue.name)
    problems = _problems(request, shows_bodies=console.shows_bodies)
    typed, problem = next(iter(problems.items()), ("", None))
    where = tuple(each for each in choice_of(request.query).where if each not in problems)
    choice = Choice(where=where, everything=not where)
    matching = await console.compute(snapshot.matching, choice.selection())
    page = page_of(matching.dead_letters, page_number(request))
    return render(
        request,
        "dead_letters/list.html",
        status=200 if problem is None else 400,
        **about(request, queue),
        choice=choice,
        conditions=[(each, choice.without(each).query) for each in choice.where],
        typed=typed,
        problem=str(problem or ""),
        not_compared=matching.not_compared,
        page=page,
    )


def _problems(request: web.Request, *, shows_bodies: bool) -> dict[str, BadFilter]:
    """Return why conditions of the address cannot be used, by the condition."""
    found = {each: problem_of(each, shows_bodies=shows_bodies) for each in choice_of(request.query).where}
    return {each: problem for each, problem in found.items() if problem is not None}


async def condition(request: web.Request) -> web.Response:
    """Say what a condition that is being typed would do: an error, how many it matches, what can come next."""
    console = console_of(request)
    name = request.match_info["queue"]
    snapshot = scanned(request, name)
    problems = _problems(request, shows_bodies=console.shows_bodies)
    choice = Choice(where=tuple(each for each in choice_of(request.query).where if each not in problems))
    typed = request.query.getall("where", [""])[-1]
    problem = problems.get(typed.strip())
    found = await console.compute(suggestions, typed, snapshot, shows_bodies=console.shows_bodies)
    count, is_slow = None, False
    if problem is None and typed.strip():
        conditions, is_large = choice.selection().conditions, len(snapshot) > COMPARED_WHILE_TYPING
        # A regular expression that is not complete can take for ever, in which no other page is answered.
        is_slow = any(each.operator == "~" or (each.needs_body and is_large) for each in conditions)
    if problem is None and typed.strip() and not is_slow:
        count = len((await console.compute(snapshot.matching, choice.selection())).dead_letters)
    return render(
        request,
        "dead_letters/condition.html",
        problem=problem and str(problem),
        count=count,
        is_slow=is_slow,
        total=len(snapshot),
        suggestions=found,
    )


MAX_CAUSES = 20
GROUPINGS: dict[GroupBy, str] = {
    "fingerprint": "fingerprint",
    "error": "error",
    "type": "type",
    "queue": "origin",
    "reason": "reason",
}


async def index(request: web.Request) -> web.Response:
    console, jobs = console_of(request), request.app[JOBS]
    latest, rows = console.latest_errors(), []
    for name, (queue, problem) in (await _queues_found(console)).items():
        job = jobs.active(name)
        rows.append(
            {
                "name": name,
                "about": queue and queue.about,
                "problem": problem,
                "latest": latest.get(name),
                "snapshot": snapshot_of(request, name),
                "job": job and job.view(),
            }
        )
    scans = [found for name in console.dead_letter_queues if (found := snapshot_of(request, name))]
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
    found, problem = await asked(console, _searched, console)
    console.searched = problem
    if found is not None:
        console.known_errors = found.errors
        count = len(set(console.dead_letter_queues) & found.errors.keys())
        have = f"the latest errors of {count:,} dead-letter queue{'s'[: count != 1]}" if count else "no error"
        console.searched = f"The logs of the last 24 hours have {have}. {found.cost}"
    raise see("/dead-letters")


def _searched(console: Console) -> LatestErrors:
    place = places_of(console.client, console.account.region, console.stack, functions=console.functions)
    return latest_errors(console.client("logs"), place)


async def groups(request: web.Request) -> web.Response:
    queue = await scanned_queue_of(request)
    by: GroupBy = request.query.get("by", "fingerprint")  # type: ignore[assignment]
    if by not in GROUPINGS:
        raise Problem(f"Dead letters cannot be grouped by {by!r}. Group them by {', '.join(GROUPINGS)}.")
    snapshot, page = snapshot_of(request, queue.name), None
    if snapshot is not None:
        page = page_of(await console_of(request).compute(snapshot.groups, by), page_number(request))
        page = page._replace(rows=[(each, *titles(each), period(each), query_of(each)) for each in page.rows])
    return render(request, "dead_letters/groups.html", **about(request, queue), by=by, groupings=GROUPINGS, page=page)


async def start_scan(request: web.Request) -> web.Response:
    queue = await queue_of(request)
    _start_scan(request, queue)
    raise see(f"/dead-letters/{queue.name}")


async def start_scans(request: web.Request) -> web.Response:
    """Start a scan of each queue that has messages and no job."""
    for queue, _ in (await _queues_found(console_of(request))).values():
        if queue is not None and queue.about and not request.app[JOBS].active(queue.name):
            _start_scan(request, queue)
    raise see("/dead-letters")


async def _queues_found(console: Console) -> dict[str, tuple[DeadLetterQueue | None, str]]:
    """Return the dead-letter queues by name, each with its number of messages, or why SQS does not tell it."""
    queues = console.dead_letter_queues
    found = await asyncio.gather(*(asked(console, failed.find, each) for each in queues.values()))
    return dict(zip(queues, found, strict=True))


def _start_scan(request: web.Request, queue: DeadLetterQueue) -> None:
    console, snapshots = console_of(request), request.app[SNAPSHOTS]
    request.app[JOBS].start(
        "scan",
        queue.name,
        f"Scan of {queue.name}",
        queue.about,
        lambda job: runs.scan(runs.JobRun(console, job, queue), snapshots),
    )
