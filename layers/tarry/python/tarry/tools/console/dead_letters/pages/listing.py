"""The pages of a queue: its list with a filter, the help while one is typed, its groups; and of all queues."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from tarry import failed
from tarry.failed.groups import GroupBy, causes
from tarry.failed.inspection import MAX_IN_FLIGHT
from tarry.failed.text import shortened
from tarry.failed.usage import UsageError
from tarry.failed.wording import brief_failure, period
from tarry.sqs.refusals import MAX_ENTRIES
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.dead_letters import runs
from tarry.tools.console.dead_letters.filters import Choice, choice_of, problem_of, suggestions
from tarry.tools.console.dead_letters.jobs import JOBS
from tarry.tools.console.dead_letters.pages.jobs import see
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS
from tarry.tools.console.overview import SAMPLER, UNSEEN_SECONDS
from tarry.tools.console.pages import asked, render, sentence
from tarry.tools.story.searching import latest_errors, places_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiohttp import web
    from multidict import MultiMapping

    from tarry.failed import BadFilter, DeadLetterQueue, Group
    from tarry.tools.console.access import Console
    from tarry.tools.console.dead_letters.jobs import QueueJob
    from tarry.tools.console.dead_letters.snapshots import Snapshot
    from tarry.tools.story.searching import LatestErrors

RECENT_SECONDS = UNSEEN_SECONDS + 10
"""How old a reading may be; SQS's own numbers are those of the last minute."""


async def queue_of(request: web.Request) -> DeadLetterQueue:
    """Return the dead-letter queue of an address. Raises `Problem` if it is gone, or not one of this console."""
    try:
        return await console_of(request).in_thread(failed.find, _address(request))
    except failed.UnknownQueue as error:
        raise Problem(f"The dead-letter queue is gone: {error}.", 404) from error


async def scanned_queue_of(request: web.Request) -> DeadLetterQueue:
    """Return the dead-letter queue of an address, without a request to SQS if it was scanned and read lately.

    It has the numbers of messages of the overview's last reading then. The overview reads it again now.
    """
    address, sampler = _address(request), request.app[SAMPLER]
    snapshot, reading = snapshot_of(request, request.match_info["queue"]), sampler.reading(address)
    sampler.look()
    if snapshot is None or reading is None:
        return await queue_of(request)
    jobs = [each for each in request.app[JOBS].all() if each.queue == snapshot.queue.name]
    changed_at = max((each.ended_at or math.inf for each in jobs), default=0.0)
    if reading.at < max(changed_at, time.time() - RECENT_SECONDS):
        return await queue_of(request)
    return snapshot.queue._changed(about=reading.messages, in_flight=reading.in_flight)


def _address(request: web.Request) -> str:
    console, name = console_of(request), request.match_info["queue"]
    queues = console.dead_letter_queues
    if name not in queues:
        names = ", ".join(queues) or "none"
        raise Problem(f"{name!r} is not a dead-letter queue of this console. Its dead-letter queues: {names}.", 404)
    return queues[name]


def snapshot_of(request: web.Request, queue: str) -> Snapshot | None:
    return request.app[SNAPSHOTS].of(queue)


def scanned(request: web.Request, queue: str) -> Snapshot:
    snapshot = snapshot_of(request, queue)
    if snapshot is None:
        raise Problem(f"This needs a scan of {queue}: open its page and scan it first.", 409)
    return snapshot


def chosen(form: MultiMapping[Any], *, shows_bodies: bool) -> Choice:
    """Return the choice of a form. Raises `Problem` if there is none, or it cannot be used."""
    try:
        choice = choice_of(form)
    except UsageError as error:
        raise Problem(sentence(error)) from error
    if choice.is_empty:
        raise Problem("No dead letters are selected. Select some with x, or use a filter or a group.")
    for each in choice.where:
        if (problem := problem_of(each, shows_bodies=shows_bodies)) is not None:
            raise Problem(sentence(problem))
    return choice


def is_older(form: MultiMapping[Any], snapshot: Snapshot) -> bool:
    """Whether a form is that of a preview of an earlier scan."""
    return str(form.get("scan") or snapshot.scan) != snapshot.scan


def about(request: web.Request, queue: DeadLetterQueue) -> dict[str, Any]:
    """Return what the pages of a queue have in common."""
    job = request.app[JOBS].active(queue.name)
    snapshot = snapshot_of(request, queue.name)
    return {
        "queue": queue,
        "snapshot": snapshot,
        "returned": snapshot and request.app[JOBS].returned_since(queue.name, snapshot.began_at),
        "job": job and job.view(),
        "requests": 2 * math.ceil(queue.about / MAX_ENTRIES) + 2,
        "most": MAX_IN_FLIGHT,
    }


ROWS = 100


class Page(NamedTuple):
    """A page of a longer list."""

    rows: Sequence[Any]
    number: int
    pages: int
    first: int
    total: int


def page_number(request: web.Request) -> int:
    text = request.query.get("page", "1")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 1


def page_of(rows: Sequence[Any], number: int) -> Page:
    """Return a page of the rows, the nearest one if the number is out of range."""
    pages = max(1, math.ceil(len(rows) / ROWS))
    number = min(max(1, number), pages)
    first = (number - 1) * ROWS
    return Page(rows[first : first + ROWS], number, pages, first + 1 if rows else 0, len(rows))


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
            tuple((name, group.count, Choice(where=group.conditions).query) for name, group in cause.groups),
        )
        for cause in causes((each.queue.name, each.groups("fingerprint")) for each in snapshots)
    ]


COMPARED_WHILE_TYPING = 5_000
"""The most dead letters whose bodies are compared while a condition is being typed."""


async def listed(request: web.Request) -> web.Response:
    """Show dead letters, filtered, a hundred at a time."""
    console, queue = console_of(request), await scanned_queue_of(request)
    snapshot = scanned(request, queue.name)
    where, problems = _conditions(request)
    typed, problem = next(iter(problems.items()), ("", None))
    choice = Choice(where=where, everything=not where)
    matching = await console.compute(snapshot.matching, choice.selection())
    page = page_of(matching.dead_letters, page_number(request))
    return render(
        request,
        "dead_letters/list.html",
        status=200 if problem is None else 400,
        **about(request, queue),
        choice=choice,
        conditions=[(each, Choice(where=(*(other for other in where if other != each),)).query) for each in where],
        typed=typed,
        problem=str(problem or ""),
        not_compared=matching.not_compared,
        page=page,
    )


def _conditions(request: web.Request) -> tuple[tuple[str, ...], dict[str, BadFilter]]:
    """Return the conditions of the address that can be used, and why the others cannot, by the condition."""
    where, shows_bodies = choice_of(request.query).where, console_of(request).shows_bodies
    problems = {each: found for each in where if (found := problem_of(each, shows_bodies=shows_bodies))}
    return tuple(each for each in where if each not in problems), problems


async def condition(request: web.Request) -> web.Response:
    """Say what a condition that is being typed would do: an error, how many it matches, what can come next."""
    console, snapshot = console_of(request), scanned(request, request.match_info["queue"])
    where, problems = _conditions(request)
    typed = request.query.getall("where", [""])[-1]
    problem = problems.get(typed.strip())
    found = await console.compute(suggestions, typed, snapshot, shows_bodies=console.shows_bodies)
    count, is_slow = None, False
    if problem is None and typed.strip():
        selection, is_large = Choice(where=where).selection(), len(snapshot) > COMPARED_WHILE_TYPING
        # A regular expression that is not complete can take for ever, in which no other page is answered.
        is_slow = any(each.operator == "~" or (each.needs_body and is_large) for each in selection.conditions)
        if not is_slow:
            count = len((await console.compute(snapshot.matching, selection)).dead_letters)
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
GROUPINGS: dict[GroupBy, str] = {each: "origin" if each == "queue" else each for each in get_args(GroupBy)}


async def index(request: web.Request) -> web.Response:
    console, jobs = console_of(request), request.app[JOBS]
    rows = []
    for name, (queue, problem) in (await _queues_found(console)).items():
        job = jobs.active(name)
        rows.append((name, queue, problem, snapshot_of(request, name), job and job.view()))
    scans = [snapshot for _, _, _, snapshot, _ in rows if snapshot]
    by_cause = await console.compute(cause_rows, scans) if len(scans) > 1 else []
    return render(
        request,
        "dead_letters/index.html",
        rows=rows,
        latest=console.latest_errors(),
        to_scan=sum(bool(queue and queue.about and not job) for _, queue, _, _, job in rows),
        causes=by_cause[:MAX_CAUSES],
        total=sum(map(len, scans)),
        scans=len(scans),
        has_logs=bool(console.stack or console.functions),
    )


async def search_errors(request: web.Request) -> web.Response:
    """Search the logs for the latest error of each queue, for all pages. It is a POST because AWS bills it."""
    console = console_of(request)

    def search() -> LatestErrors:
        place = places_of(console.client, console.account.region, console.stack, functions=console.functions)
        return latest_errors(console.client("logs"), place)

    found, problem = await asked(console, search)
    console.searched = problem
    if found is not None:
        console.known_errors = found.errors
        count = len(set(console.dead_letter_queues) & found.errors.keys())
        have = f"the latest errors of {count:,} dead-letter queue{'s'[: count != 1]}" if count else "no error"
        console.searched = f"The logs of the last 24 hours have {have}. {found.cost}"
    raise see("/dead-letters")


async def groups(request: web.Request) -> web.Response:
    queue = await scanned_queue_of(request)
    by: GroupBy = request.query.get("by", "fingerprint")  # type: ignore[assignment]
    if by not in GROUPINGS:
        raise Problem(f"Dead letters cannot be grouped by {by!r}. Group them by {', '.join(GROUPINGS)}.")
    snapshot, page = snapshot_of(request, queue.name), None
    if snapshot is not None:
        page = page_of(await console_of(request).compute(snapshot.groups, by), page_number(request))
        rows = [(each, *titles(each), period(each), Choice(where=each.conditions).query) for each in page.rows]
        page = page._replace(rows=rows)
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

    def run(job: QueueJob) -> None:
        runs.scan(runs.JobRun(console, job, queue), snapshots)

    request.app[JOBS].start("scan", queue.name, f"Scan of {queue.name}", queue.about, run)
