"""The pages of a queue: its list with a filter, the help while one is typed, its groups; and of all queues."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args
from urllib.parse import urlencode

from aiohttp import web
from multidict import MultiMapping

from tarry import failed
from tarry.failed import DeadLetterMessage, DeadLetterQueue, Group, Selection
from tarry.failed.conditions import FIELDS, document
from tarry.failed.groups import GroupBy, as_value, causes, period
from tarry.failed.inspection import MAX_IN_FLIGHT
from tarry.failed.text import brief_failure, count_of, shortened
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import MAX_ENTRIES
from tarry.tools.console.access import Console, Problem, console_of
from tarry.tools.console.dead_letters import runs
from tarry.tools.console.dead_letters.jobs import JOBS, QueueJob
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS, Snapshot
from tarry.tools.console.overview import SAMPLER, UNSEEN_SECONDS
from tarry.tools.console.pages import asked, render, see, sentence
from tarry.tools.story.searching import LatestErrors, latest_errors, places_of

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


def _conditions(request: web.Request) -> tuple[tuple[str, ...], dict[str, failed.BadFilter]]:
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


# which dead letters: the choice, and its filter

MAX_IDS = 1_000
"""The most dead letters to choose one by one: SQS has no look-up by id, so each is searched for in the whole queue."""


class Choice(NamedTuple):
    """The chosen dead letters of one queue. Ids exclude conditions."""

    ids: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    everything: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.ids or self.where or self.everything)

    def selection(self, until: str | None = None) -> Selection:
        """Return the selection, without dead letters that came after ``until``, a scan. Raises `BadFilter`."""
        if self.ids:
            return failed.select(self.ids)
        return failed.select(where=self.where, everything=self.everything and not self.where, until=until)

    @property
    def query(self) -> str:
        """The choice as the query of an address."""
        fields = [("id", each) for each in self.ids] or [("where", each) for each in self.where]
        return urlencode(fields or ([("all", "1")] if self.everything else []))

    def words(self, count: int, queue: str) -> str:
        """Return what is chosen, as text."""
        if self.ids:
            return f"{count_of(count)} of {queue} that you selected"
        if self.where:
            return f"{count_of(count)} of {queue} where {' and '.join(self.where)}"
        return f"all {count_of(count)} of {queue}"

    def options(self, until: str | None) -> list[str]:
        """Return the options of `tarry failed` that choose the same."""
        if self.ids:
            return list(self.ids)
        chosen = [part for each in self.where for part in ("--where", each)] or ["--all"]
        return chosen + (["--until", until] if until else [])


def choice_of(query: MultiMapping[str]) -> Choice:
    """Return the choice in the query of an address or in a form. Raises `UsageError`."""
    ids = tuple(dict.fromkeys(filter(None, query.getall("id", []))))
    where = tuple(dict.fromkeys(text for each in query.getall("where", []) if (text := each.strip())))
    if len(ids) > MAX_IDS:
        raise UsageError(
            f"{len(ids):,} dead letters are selected one by one, and {MAX_IDS:,} is the most: use a filter instead"
        )
    return Choice(ids, () if ids else where, everything=not ids and bool(query.get("all")))


def command(verb: str, queue: str, options: Sequence[str]) -> str:
    """Return the command of `tarry failed` that does the same."""
    return shlex.join(["tarry", "failed", verb, "--queue", queue, *options])


SAMPLE = 200
"""The dead letters whose bodies and attributes are read for the names of their fields."""
MAX_SUGGESTIONS = 12
MAX_DEPTH = 3
MAX_VALUE_CHARACTERS = 120
IN_BODIES = ("body", "attributes", "extra")
OPERATORS = {
    "=": "is",
    "!=": "is not",
    "~": "matches the regular expression",
    ">": "more, or later",
    "<": "less, or earlier",
    ">=": "at least",
    "<=": "at most",
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_FIELD = re.compile(r"\s*([\w.\[\]\"-]*)\Z")
_OPERATOR = re.compile(r"\s*([\w.\[\]\"-]+)\s+\Z")
_VALUE = re.compile(r"\s*([\w.\[\]\"-]+)\s*(=|!=)\s*(.*)\Z", re.DOTALL)


class Suggestion(NamedTuple):
    """A text that can take the place of what was typed."""

    text: str
    about: str
    is_complete: bool
    """Whether it is a condition."""


def problem_of(text: str, *, shows_bodies: bool) -> failed.BadFilter | None:
    """Return why a condition cannot be used; None if it can, or if nothing was typed."""
    if not text.strip():
        return None
    try:
        parsed = failed.condition(text)
    except failed.BadFilter as error:
        return error
    if parsed.needs_body and not shows_bodies:
        return failed.BadFilter(
            text, 1, "this console shows no bodies (--no-bodies): a condition can use other fields, and no functions"
        )
    return None


def suggestions(text: str, snapshot: Snapshot, *, shows_bodies: bool) -> list[Suggestion]:
    """Return what can be typed next: fields, operators, or values of the dead letters, the most frequent first."""
    if found := _VALUE.match(text):
        field, operator, typed = found.groups()
        is_shown = problem_of(f"{field} = 1", shows_bodies=shows_bodies) is None
        return _values(snapshot, field, operator, typed) if is_shown else []
    if found := _OPERATOR.match(text):
        return [Suggestion(f"{found[1]} {each} ", about, False) for each, about in OPERATORS.items()]
    if (found := _FIELD.match(text)) is None:
        return []
    typed = found[1].lower()
    names = dict.fromkeys((each for each in FIELDS if shows_bodies or each not in IN_BODIES), "")
    if shows_bodies and "." in typed:
        names |= _paths(snapshot.some(SAMPLE))
    fitting = [each for each in names if each.lower().startswith(typed)] or [each for each in names if typed in each]
    return [Suggestion(f"{each} ", names[each], False) for each in fitting[:MAX_SUGGESTIONS]]


def _values(snapshot: Snapshot, field: str, operator: str, typed: str) -> list[Suggestion]:
    read = failed.condition(f"{field} = 1")
    dead_letters: Iterable[DeadLetterMessage] = snapshot.some(SAMPLE) if read.needs_body else snapshot.parts()
    counts = Counter(
        text for each in dead_letters if (text := _value_of(read.field, each)) and typed.lower() in text.lower()
    )
    more = " or more" if read.needs_body else ""
    return [
        Suggestion(f"{field} {operator} {value}", f"{count:,}{more}", True)
        for value, count in counts.most_common(MAX_SUGGESTIONS)
        if len(value) <= MAX_VALUE_CHARACTERS
    ]


def _value_of(field: str, dead_letter: DeadLetterMessage) -> str | None:
    """Return the value of a field, as a condition has it; None for a list, an object, or no value."""
    first, *rest = field.split(".")
    found: Any = document(dead_letter).get(first) if first in IN_BODIES else getattr(dead_letter.failure, first, None)
    if first == "origin":
        found = (dead_letter.origin or "").rpartition(":")[2] or None
    for each in rest:
        found = found.get(each.strip('"')) if isinstance(found, dict) else None
    if found is None or isinstance(found, (dict, list)):
        return None
    return as_value(found) if isinstance(found, str) else json.dumps(found)


def _paths(dead_letters: Iterable[DeadLetterMessage]) -> dict[str, str]:
    """Return the names of fields within bodies and attributes, and in how many of the sample each is."""
    found = [document(each) for each in dead_letters]
    counts = Counter(path for each in found for name in IN_BODIES for path in _names(each.get(name), name, MAX_DEPTH))
    return {path: f"in {count:,} of {len(found):,}" for path, count in counts.most_common()}


def _names(value: Any, path: str, depth: int) -> Iterator[str]:
    for name, inner in value.items() if isinstance(value, dict) and depth else ():
        inner_path = f"{path}.{name if _NAME.fullmatch(name) else json.dumps(name)}"
        yield inner_path
        yield from _names(inner, inner_path, depth - 1)
