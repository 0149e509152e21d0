"""The pages of dead letters: scans, groups, the list with its filter, previews, jobs, and the audit."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

from aiohttp import web
from markupsafe import escape

from tarry import failed
from tarry.console.access import Problem, console_of
from tarry.console.dead_letters import runs
from tarry.console.dead_letters.audits import read_audit
from tarry.console.dead_letters.changes import changes
from tarry.console.dead_letters.choices import Choice, choice_of, command
from tarry.console.dead_letters.filters import problem_of, suggestions
from tarry.console.dead_letters.jobs import JOBS, NOUNS, Busy
from tarry.console.dead_letters.previews import planned
from tarry.console.dead_letters.settings import RetryForm, parsed
from tarry.console.dead_letters.snapshots import SNAPSHOTS
from tarry.console.pages import explained, fragment, is_fragment, render
from tarry.errors import TarryError
from tarry.failed.canary import check_can_watch
from tarry.failed.groups import GroupBy
from tarry.failed.inspection import MAX_IN_FLIGHT
from tarry.failed.periods import when
from tarry.failed.wording import attempts_of, brief, brief_failure, origin_name, period
from tarry.sqs.limits import MAX_ENTRIES
from tarry.tooling.audit import audit_file
from tarry.tooling.errors import UsageError
from tarry.tooling.journal import state_folder
from tarry.tooling.queues import queue_name
from tarry.tooling.text import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from multidict import MultiMapping

    from tarry.console.access import Console
    from tarry.console.dead_letters.jobs import QueueJob
    from tarry.console.dead_letters.snapshots import Snapshot
    from tarry.failed import BadFilter, DeadLetterMessage, DeadLetterQueue, Group

T = TypeVar("T")

ROWS = 100
"""The rows of a page of a list."""
COMPARED_WHILE_TYPING = 5_000
"""The most dead letters whose bodies are compared while a condition is being typed."""
GROUPINGS: dict[GroupBy, str] = {
    "fingerprint": "fingerprint",
    "error": "error",
    "type": "type",
    "queue": "origin",
    "reason": "reason",
}
SHOWN_IDS = 20
NO_BODIES = "This console shows no bodies (--no-bodies), so it cannot edit one."
SCANNED_AGAIN = "The queue was scanned again since this page was opened"
OTHER_SETTINGS = "The settings were changed since this preview was shown"
NO_SCAN = "This needs a scan of {queue}: open its page and scan it first."


class Page(NamedTuple):
    """A page of a longer list."""

    rows: Sequence[Any]
    number: int
    pages: int
    first: int
    total: int


class ListRow(NamedTuple):
    """A dead letter in the list."""

    delivery_id: str
    id: str
    when: str
    error: str
    attempts: str
    origin: str


@dataclass(frozen=True)
class GroupRow:
    """A group in the table of groups."""

    count: int
    value: str
    error: str
    period: str
    example: str
    query: str


def page_of(rows: Sequence[T], number: int, size: int = ROWS) -> Page:
    """Return a page of the rows, the nearest one if the number is out of range."""
    pages = max(1, math.ceil(len(rows) / size))
    number = min(max(1, number), pages)
    first = (number - 1) * size
    return Page(rows[first : first + size], number, pages, first + 1 if rows else 0, len(rows))


def row_of(dead_letter: DeadLetterMessage) -> ListRow:
    """Return a dead letter as a row."""
    failure = dead_letter.failure
    return ListRow(
        dead_letter.delivery_id,
        dead_letter.id,
        (when(dead_letter) or "")[:19].replace("T", " "),
        brief(dead_letter),
        "" if failure is None else attempts_of(failure),
        origin_name(dead_letter),
    )


def group_row(group: Group) -> GroupRow:
    """Return a group as a row."""
    error = brief_failure(group.failure)
    value = group.value or "(none)"
    return GroupRow(
        group.count,
        shortened(value, 200),
        "" if group.by == "error" or error == value else error,
        period(group),
        group.example,
        choice_of_group(group).query,
    )


def choice_of_group(group: Group) -> Choice:
    """Return the choice of all dead letters of a group."""
    return Choice(where=group.conditions)


# what the handlers share


async def queue_of(request: web.Request) -> DeadLetterQueue:
    """Return the dead-letter queue of an address. Raises `Problem` if it is gone, or not one of this console."""
    console, name = console_of(request), request.match_info["queue"]
    address = console.dead_letter_queue(name)
    if address is None:
        names = ", ".join(_names(console)) or "none"
        raise Problem(f"{name!r} is not a dead-letter queue of this console. Its dead-letter queues: {names}.", 404)
    try:
        return await console.in_thread(failed.find, address)
    except failed.UnknownQueue as error:
        raise Problem(f"The dead-letter queue is gone: {error}.", 404) from error


def _names(console: Console) -> list[str]:
    return [queue_name(each) for each in console.dead_letter_queues]


def snapshot_of(request: web.Request, queue: str) -> Snapshot | None:
    """Return the last snapshot of a queue."""
    return request.app[SNAPSHOTS].of(queue)


def _scanned(request: web.Request, queue: str) -> Snapshot:
    snapshot = snapshot_of(request, queue)
    if snapshot is None:
        raise Problem(NO_SCAN.format(queue=queue), 409)
    return snapshot


def _number(request: web.Request, name: str = "page") -> int:
    text = request.query.get(name, "1")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 1


def _choice(form: MultiMapping[Any], *, shows_bodies: bool) -> Choice:
    """Return the choice of a form. Raises `Problem` if there is none, or it cannot be used."""
    try:
        choice = choice_of(form)
    except UsageError as error:
        raise Problem(_sentence(error)) from error
    if choice.is_empty:
        raise Problem("No dead letters are selected. Select some with x, or use a filter or a group.")
    for each in choice.where:
        if (problem := problem_of(each, shows_bodies=shows_bodies)) is not None:
            raise Problem(_sentence(problem))
    return choice


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:].rstrip(".") + "."


# queues and groups


async def index(request: web.Request) -> web.Response:
    """Show the dead-letter queues."""
    console = console_of(request)
    answers = await asyncio.gather(
        *(console.in_thread(failed.find, each) for each in console.dead_letter_queues), return_exceptions=True
    )
    rows = []
    for name, answer in zip(_names(console), answers, strict=True):
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
                "snapshot": snapshot_of(request, name),
                "job": job and job.view(),
            }
        )
    return render(request, "dead_letters/index.html", rows=rows)


async def groups(request: web.Request) -> web.Response:
    """Show the groups of a queue's dead letters."""
    queue = await queue_of(request)
    by: GroupBy = request.query.get("by", "fingerprint")  # type: ignore[assignment]
    if by not in get_args(GroupBy):
        raise Problem(f"Dead letters cannot be grouped by {by!r}. Group them by {', '.join(GROUPINGS)}.")
    snapshot, page = snapshot_of(request, queue.name), None
    if snapshot is not None:
        found = await console_of(request).compute(snapshot.groups, by)
        page = page_of(found, _number(request))
        page = page._replace(rows=[group_row(each) for each in page.rows])
    return render(request, "dead_letters/groups.html", **_about(request, queue), by=by, groupings=GROUPINGS, page=page)


def _about(request: web.Request, queue: DeadLetterQueue) -> dict[str, Any]:
    """Return what the pages of a queue have in common."""
    job = request.app[JOBS].active(queue.name)
    return {
        "queue": queue,
        "snapshot": snapshot_of(request, queue.name),
        "job": job and job.view(),
        "requests": 2 * math.ceil(queue.about / MAX_ENTRIES) + 2,
        "most": MAX_IN_FLIGHT,
    }


async def start_scan(request: web.Request) -> web.Response:
    """Start a scan."""
    console, queue, snapshots = console_of(request), await queue_of(request), request.app[SNAPSHOTS]
    _start(
        request,
        "scan",
        queue,
        f"Scan of {queue.name}",
        queue.about,
        lambda job: runs.scan(runs.JobRun(console, job, queue), snapshots),
    )
    back = request.app.router["dead_letters_groups"].url_for(queue=queue.name)
    raise web.HTTPSeeOther(back)


# the list


async def listed(request: web.Request) -> web.Response:
    """Show dead letters, filtered, a hundred at a time."""
    console, queue = console_of(request), await queue_of(request)
    snapshot = _scanned(request, queue.name)
    problems = _problems(request, shows_bodies=console.shows_bodies)
    typed, problem = next(iter(problems.items()), ("", None))
    where = tuple(each for each in choice_of(request.query).where if each not in problems)
    choice = Choice(where=where, everything=not where)
    matching = await console.compute(snapshot.matching, choice.selection())
    page = page_of(matching.dead_letters, _number(request))
    return render(
        request,
        "dead_letters/list.html",
        status=200 if problem is None else 400,
        **_about(request, queue),
        choice=choice,
        conditions=[(each, choice.without(each).query) for each in choice.where],
        typed=typed,
        problem=problem and str(problem),
        not_compared=matching.not_compared,
        page=page._replace(rows=[row_of(each) for each in page.rows]),
    )


def _problems(request: web.Request, *, shows_bodies: bool) -> dict[str, BadFilter]:
    """Return why conditions of the address cannot be used, by the condition."""
    found = {each: problem_of(each, shows_bodies=shows_bodies) for each in choice_of(request.query).where}
    return {each: problem for each, problem in found.items() if problem is not None}


async def condition(request: web.Request) -> web.Response:
    """Say what a condition that is being typed would do: an error, how many it matches, what can come next."""
    console = console_of(request)
    name = request.match_info["queue"]
    snapshot = _scanned(request, name)
    problems = _problems(request, shows_bodies=console.shows_bodies)
    choice = Choice(where=tuple(each for each in choice_of(request.query).where if each not in problems))
    typed = request.query.getall("where", [""])[-1]
    problem = problems.get(typed.strip())
    found = await console.compute(suggestions, typed, snapshot, shows_bodies=console.shows_bodies)
    count, is_slow = None, False
    if problem is None and typed.strip():
        is_slow = len(snapshot) > COMPARED_WHILE_TYPING and any(
            each.needs_body for each in choice.selection().conditions
        )
    if problem is None and typed.strip() and not is_slow:
        count = len((await console.compute(snapshot.matching, choice.selection())).dead_letters)
    others = choice.without(typed.strip())
    return render(
        request,
        "dead_letters/condition.html",
        queue_name=name,
        typed=typed,
        problem=problem and str(problem),
        count=count,
        is_slow=is_slow,
        total=len(snapshot),
        suggestions=[(each, others._replace(where=(*others.where, each.text)).query) for each in found],
    )


# retries


async def retry(request: web.Request) -> web.Response:
    """Show exactly what a retry of the chosen dead letters does, with its settings."""
    return await _retry_preview(request, await _form(request))


async def _form(request: web.Request) -> MultiMapping[Any]:
    return request.query if request.method == "GET" else await request.post()


async def _retry_preview(
    request: web.Request, form: MultiMapping[Any], problem: str = "", changed: str = ""
) -> web.Response:
    console, queue = console_of(request), await queue_of(request)
    snapshot = _scanned(request, queue.name)
    choice = _choice(form, shows_bodies=console.shows_bodies)
    settings = RetryForm()
    try:
        settings = parsed(form, by_id=bool(choice.ids))
    except (UsageError, TarryError) as error:
        problem = problem or _sentence(error)
    until = _until(form, snapshot, choice)
    matching = await console.compute(snapshot.matching, choice.selection(until))
    plan = None
    if not problem:
        try:
            plan = await console.in_thread(_plan, console, queue, matching.dead_letters, settings, bool(choice.ids))
        except TarryError as error:
            problem = _sentence(error)
    return render(
        request,
        "dead_letters/retry.html",
        status=(400 if problem else 409 if changed else 200) if not is_fragment(request) else 200,
        changed=changed,
        **_about(request, queue),
        choice=choice,
        until=until,
        words=choice.words(len(matching.dead_letters), queue.name),
        count=len(matching.dead_letters),
        not_compared=matching.not_compared,
        plan=plan,
        settings=settings,
        form={name: str(form.get(name, "")) for name in ("canary", "within", "rate", "max_return", "to")},
        problem=problem,
        command=command("retry", queue.name, [*choice.options(until), *settings.options, *_place(console)]),
        examples=[row_of(each) for each in matching.dead_letters[:SHOWN_IDS]],
        in_doubt=min(settings.in_doubt, len(matching.dead_letters)),
    )


def _plan(
    console: Console,
    queue: DeadLetterQueue,
    dead_letters: list[DeadLetterMessage],
    settings: RetryForm,
    by_id: bool,
) -> Any:
    routes = failed.Routes(queue, settings.to, console.known)
    if settings.canary is not None:
        with failed.opened(queue) as inspection:
            check_can_watch(inspection)
    return planned(dead_letters, routes.target, by_id=by_id)


def _until(form: MultiMapping[Any], snapshot: Snapshot, choice: Choice) -> str | None:
    """Return the time until which dead letters are chosen: that of the scan."""
    if choice.ids:
        return None
    return ("" if _is_older(form, snapshot) else str(form.get("until") or "")) or snapshot.until


def _is_older(form: MultiMapping[Any], snapshot: Snapshot) -> bool:
    """Whether a form is that of a preview of an earlier scan."""
    return str(form.get("scan") or snapshot.scan) != snapshot.scan


def _place(console: Console) -> list[str]:
    return ["--endpoint-url", console.account.endpoint] if console.account.endpoint else []


async def start_retry(request: web.Request) -> web.StreamResponse:
    """Start a retry."""
    return await _start_retry(request, is_dry=False)


async def start_dry_run(request: web.Request) -> web.StreamResponse:
    """Start a dry run of a retry, which changes nothing."""
    return await _start_retry(request, is_dry=True)


async def _start_retry(request: web.Request, *, is_dry: bool) -> web.StreamResponse:
    console, form = console_of(request), await request.post()
    queue = await queue_of(request)
    snapshot = _scanned(request, queue.name)
    choice = _choice(form, shows_bodies=console.shows_bodies)
    try:
        settings = parsed(form, by_id=bool(choice.ids))
    except (UsageError, TarryError) as error:
        return await _retry_preview(request, form, _sentence(error))
    if _is_older(form, snapshot):
        return await _retry_preview(request, form, changed=SCANNED_AGAIN)
    if str(form.get("previewed", settings.text)) != settings.text:
        return await _retry_preview(request, form, changed=OTHER_SETTINGS)
    selection = snapshot.seen(choice.selection(_until(form, snapshot, choice)))
    count = len((await console.compute(snapshot.matching, selection)).dead_letters)
    words = choice.words(count, queue.name)

    def work(job: QueueJob) -> None:
        run = runs.JobRun(console, job, queue, snapshot)
        if is_dry:
            runs.dry_run(run, selection, settings)
        else:
            runs.retry(run, selection, settings)

    title = f"Dry run of a retry of {words}" if is_dry else f"Retry of {words}"
    raise _see(request, _start(request, "dry run" if is_dry else "retry", queue, title, count, work))


# removals


async def remove(request: web.Request) -> web.Response:
    """Show exactly what a removal of the chosen dead letters does."""
    return await _remove_preview(request, await _form(request))


async def _remove_preview(
    request: web.Request, form: MultiMapping[Any], problem: str = "", changed: str = ""
) -> web.Response:
    console, queue = console_of(request), await queue_of(request)
    snapshot = _scanned(request, queue.name)
    choice = _choice(form, shows_bodies=console.shows_bodies)
    until = _until(form, snapshot, choice)
    matching = await console.compute(snapshot.matching, choice.selection(until))
    return render(
        request,
        "dead_letters/remove.html",
        status=400 if problem else 409 if changed else 200,
        changed=changed,
        **_about(request, queue),
        choice=choice,
        until=until,
        words=choice.words(len(matching.dead_letters), queue.name),
        count=len(matching.dead_letters),
        not_compared=matching.not_compared,
        asks_for_name=_asks_for_name(console, choice),
        folder=str(state_folder() / "removed"),
        problem=problem,
        command=command("remove", queue.name, [*choice.options(until), *_place(console)]),
        examples=[row_of(each) for each in matching.dead_letters[:SHOWN_IDS]],
    )


def _asks_for_name(console: Console, choice: Choice) -> bool:
    """Whether the name of the queue must be typed: as for the command, if a queue at AWS is emptied."""
    return choice.everything and console.account.is_aws


async def start_removal(request: web.Request) -> web.StreamResponse:
    """Start a removal."""
    console, form = console_of(request), await request.post()
    queue = await queue_of(request)
    snapshot = _scanned(request, queue.name)
    choice = _choice(form, shows_bodies=console.shows_bodies)
    if _asks_for_name(console, choice) and (typed := str(form.get("name", "")).strip()) != queue.name:
        problem = f"{typed!r} is not {queue.name}: no dead letter was removed. Type the name of the queue."
        return await _remove_preview(request, form, problem)
    if _is_older(form, snapshot):
        return await _remove_preview(request, form, changed=SCANNED_AGAIN)
    selection = snapshot.seen(choice.selection(_until(form, snapshot, choice)))
    count = len((await console.compute(snapshot.matching, selection)).dead_letters)
    title = f"Removal of {choice.words(count, queue.name)}"
    job = _start(
        request,
        "remove",
        queue,
        title,
        count,
        lambda job: runs.remove(runs.JobRun(console, job, queue, snapshot), selection),
    )
    raise _see(request, job)


# editing


async def edit(request: web.Request) -> web.Response:
    """Show the form to edit a body."""
    return await _edit_page(request, request.query.get("id", ""))


async def _edit_page(request: web.Request, given: str, body: str | None = None, problem: str = "") -> web.Response:
    console, queue = console_of(request), await queue_of(request)
    dead_letter = await _whole(request, queue.name, given)
    return render(
        request,
        "dead_letters/edit.html",
        status=400 if problem else 200,
        **_about(request, queue),
        dead_letter=dead_letter,
        error=brief(dead_letter),
        body=dead_letter.body if body is None else body,
        problem=problem,
        target=await console.in_thread(_target, console, queue, dead_letter),
    )


async def _whole(request: web.Request, queue: str, given: str) -> DeadLetterMessage:
    console, snapshot = console_of(request), _scanned(request, queue)
    if not console.shows_bodies:
        raise Problem(NO_BODIES, 403)
    delivery_id = snapshot.find(given)
    found = None if delivery_id is None else await console.compute(snapshot.whole, delivery_id)
    if found is not None:
        return found
    if delivery_id is not None:
        raise Problem(
            f"The body of {given} did not fit into the memory of the console. Edit it with tarry failed.", 409
        )
    raise Problem(
        f"Dead letter {given!r:.200} is not in the last scan of {queue}: it was retried or removed, or came later. "
        "Scan again.",
        404,
    )


def _target(console: Console, queue: DeadLetterQueue, dead_letter: DeadLetterMessage) -> str | None:
    try:
        return failed.Routes(queue, None, console.known).target(dead_letter).name
    except failed.NowhereToGo:
        return None


async def check_edit(request: web.Request) -> web.Response:
    """Say what an edit that is being typed changes, or why it cannot be sent."""
    console, form = console_of(request), await request.post()
    dead_letter = await _whole(request, request.match_info["queue"], str(form.get("id", "")))
    body = with_line_ends_of(dead_letter.body, str(form.get("body", "")))
    problem = ""
    try:
        failed.edit(dead_letter, body, console.world.clock.time())
    except failed.CannotEdit as error:
        problem = _sentence(error)
    found = await console.compute(changes, dead_letter.body, body)
    return render(request, "dead_letters/changes.html", problem=problem, changes=found)


async def start_edit(request: web.Request) -> web.StreamResponse:
    """Send a message back with an edited body."""
    console, form = console_of(request), await request.post()
    queue = await queue_of(request)
    given = str(form.get("id", ""))
    dead_letter = await _whole(request, queue.name, given)
    body = with_line_ends_of(dead_letter.body, str(form.get("body", "")))
    try:
        edited = failed.edit(dead_letter, body, console.world.clock.time())
    except failed.CannotEdit as error:
        return await _edit_page(request, given, body, _sentence(error))
    if edited is dead_letter:
        return await _edit_page(request, given, body, "You did not change the body. To send it as it is, retry it.")
    snapshot = snapshot_of(request, queue.name)
    job = _start(
        request,
        "edit",
        queue,
        f"Retry of {dead_letter.id} with an edited body",
        1,
        lambda job: runs.edit_and_retry(
            runs.JobRun(console, job, queue, snapshot), dead_letter.delivery_id, dead_letter.body, body
        ),
    )
    raise _see(request, job)


def with_line_ends_of(before: str, typed: str) -> str:
    """Return a text from a form, whose line ends are CR LF, with the line ends of the text that was edited."""
    typed = typed.replace("\r\n", "\n").replace("\r", "\n")
    if typed == before.replace("\r\n", "\n").replace("\r", "\n"):
        return before
    return typed.replace("\n", "\r\n") if "\r\n" in before else typed


# jobs


def _start(request: web.Request, *args: Any) -> QueueJob:
    """Start a job. Raises `Problem` if one runs on the queue."""
    kind, queue, *rest = args
    try:
        return request.app[JOBS].start(kind, queue.name, *rest)
    except Busy as error:
        raise JobRuns(error) from error


class JobRuns(Problem):
    """Another job runs on the queue."""

    def __init__(self, error: Busy) -> None:
        super().__init__(str(error), 409)
        self.job = error.job


def _see(request: web.Request, job: QueueJob) -> web.HTTPSeeOther:
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
    console.live.publish(f"job-{job.number}", fragment("dead_letters/progress.html", job=view))
    if job.announces(view.state):  # a screen reader reads this: only what is new
        console.live.publish(f"job-{job.number}-said", escape(f"{view.title}: {view.state_text}"))
        if view.kind == "scan" and not view.is_active and not view.error:
            console.live.publish(f"job-{job.number}-found", fragment("dead_letters/found.html", job=view))


async def audit(request: web.Request) -> web.Response:
    """Show what was done to queues."""
    console = console_of(request)
    path = audit_file(console.audit_path)
    try:
        found = await console.compute(read_audit, path, shows_bodies=console.shows_bodies)
    except OSError as error:
        raise Problem(f"The audit file {path} cannot be read: {error.strerror or error}.", 500) from error
    return render(request, "dead_letters/audit.html", path=str(path), audit=found)
