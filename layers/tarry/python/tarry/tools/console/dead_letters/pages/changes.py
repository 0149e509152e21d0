"""The pages that retry, edit and remove dead letters: which ones, the preview, the form, the question."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any, NamedTuple

from aiohttp import web
from multidict import MultiMapping

from tarry import failed
from tarry.errors import TarryError
from tarry.failed import DeadLetterMessage, DeadLetterQueue, NowhereToGo, Selection
from tarry.failed.pacing import check_can_watch
from tarry.failed.usage import UsageError
from tarry.support.values import QueueArn
from tarry.tools.console.access import Console, Problem, console_of
from tarry.tools.console.dead_letters import runs
from tarry.tools.console.dead_letters.jobs import JOBS, Kind, QueueJob
from tarry.tools.console.dead_letters.pages.listing import Choice, about, chosen, command, is_older, queue_of, scanned
from tarry.tools.console.dead_letters.runs import NAMES, RetryForm, parsed
from tarry.tools.console.dead_letters.snapshots import Matching, Snapshot
from tarry.tools.console.json_layout import editable, restored
from tarry.tools.console.pages import is_fragment, render, see, sentence

SelectionWork = Callable[[runs.JobRun, Selection], None]


SHOWN_EXAMPLES = 20
SCANNED_AGAIN = "The queue was scanned again since this page was opened"
OTHER_SETTINGS = "The settings were changed since this preview was shown"
REPEATED = "another dead letter with the same id is sent first: retry again after it"
UNDECODABLE = "the body cannot be decoded: edit it first"
FIELDS = (*NAMES, "id", "where", "all", "scan", "until", "previewed")
"""The fields that choose dead letters and settings. A dry run keeps them for the retry itself."""


@dataclass(frozen=True)
class Chosen:
    """The form of a request, and the dead letters of a scan that it chooses."""

    request: web.Request
    form: MultiMapping[Any]
    queue: DeadLetterQueue
    snapshot: Snapshot
    choice: Choice
    until: str | None
    """The time until which they are chosen; None if they are chosen by id."""
    matching: Matching

    @property
    def count(self) -> int:
        return len(self.matching.dead_letters)

    @property
    def words(self) -> str:
        return self.choice.words(self.count, self.queue.name)

    def preview(
        self, verb: str, problem: str, changed: str, options: Sequence[str] = (), **values: Any
    ) -> web.Response:
        """Show what a command of `tarry failed` with options would do, with what was wrong or has changed since."""
        request, place = self.request, console_of(self.request).place_options
        return render(
            request,
            f"dead_letters/{verb}.html",
            status=200 if is_fragment(request) else 400 if problem else 409 if changed else 200,
            **about(request, self.queue),
            problem=problem,
            changed=changed,
            choice=self.choice,
            until=self.until,
            words=self.words,
            count=self.count,
            not_compared=self.matching.not_compared,
            command=command(verb, self.queue.name, [*self.choice.options(self.until), *options, *place]),
            examples=self.matching.dead_letters[:SHOWN_EXAMPLES],
            **values,
        )


async def _form_of(request: web.Request) -> MultiMapping[Any]:
    return request.query if request.method == "GET" else await request.post()


async def _chosen(request: web.Request) -> Chosen:
    """Return the dead letters that the form of a request chooses. Raises `Problem`."""
    console, queue, form = console_of(request), await queue_of(request), await _form_of(request)
    snapshot = scanned(request, queue.name)
    choice = chosen(form, shows_bodies=console.shows_bodies)
    until = None if choice.ids else snapshot.until
    if until and not is_older(form, snapshot):
        until = str(form.get("until") or until)
    matching = await console.compute(snapshot.matching, choice.selection(until))
    return Chosen(request, form, queue, snapshot, choice, until, matching)


def _started(
    found: Chosen, kind: Kind, title: str, work: SelectionWork, again: Iterable[tuple[str, str]] = ()
) -> web.HTTPSeeOther:
    """Start a job on the dead letters that are chosen; return the redirection to its page. Raises `Busy`."""
    console, queue, snapshot = console_of(found.request), found.queue, found.snapshot
    selection, title = snapshot.seen(found.choice.selection()), f"{title} of {found.words}"

    def run(job: QueueJob) -> None:
        work(runs.JobRun(console, job, queue, snapshot), selection)

    job = found.request.app[JOBS].start(kind, queue.name, title, found.count, run, again=again)
    return see(f"/jobs/{job.number}")


# removals


async def remove(
    request: web.Request, found: Chosen | None = None, problem: str = "", changed: str = ""
) -> web.Response:
    """Show exactly what a removal of the chosen dead letters does, or why it was not started."""
    console, found = console_of(request), found or await _chosen(request)
    asks, folder = _asks_for_name(console, found.choice), str(console.state / "removed")
    return found.preview("remove", problem, changed, asks_for_name=asks, folder=folder)


def _asks_for_name(console: Console, choice: Choice) -> bool:
    """Whether the name of the queue must be typed: as for the command, if a queue at AWS is emptied."""
    return choice.everything and console.account.is_aws


async def start_removal(request: web.Request) -> web.StreamResponse:
    found = await _chosen(request)
    name, typed = found.queue.name, str(found.form.get("name", "")).strip()
    if _asks_for_name(console_of(request), found.choice) and typed != name:
        problem = f"{typed!r} is not {name}: no dead letter was removed. Type the name of the queue."
        return await remove(request, found, problem)
    if is_older(found.form, found.snapshot):
        return await remove(request, found, changed=SCANNED_AGAIN)
    raise _started(found, "remove", "Removal", runs.remove)


# retries


class Plan(NamedTuple):
    """The effect of a retry on the dead letters that are chosen: how many go where, and stay for which reason."""

    destinations: Sequence[tuple[str, int]]
    """The largest number comes first."""
    hindered: Sequence[tuple[str, int]]

    @property
    def sent(self) -> int:
        return sum(count for _, count in self.destinations)


def planned(
    dead_letters: Iterable[DeadLetterMessage], target: Callable[[DeadLetterMessage], QueueArn], *, by_id: bool = False
) -> Plan:
    """Return what a retry does. ``target`` is asked once an origin; it raises `NowhereToGo` for an unknown one."""
    answers: dict[str | None, tuple[str, bool]] = {}
    ids: set[str] = set()
    counts: Counter[tuple[str, bool]] = Counter()
    for each in dead_letters:
        if each.id in ids and not by_id:
            counts[REPEATED, False] += 1
            continue
        ids.add(each.id)
        if each.is_undecodable:
            counts[UNDECODABLE, False] += 1
            continue
        if each.origin not in answers:
            try:
                answers[each.origin] = target(each).name, True
            except NowhereToGo as error:
                answers[each.origin] = str(error), False
        counts[answers[each.origin]] += 1
    found = counts.most_common()
    return Plan(*([(text, count) for (text, is_sent), count in found if is_sent == each] for each in (True, False)))


async def retry(
    request: web.Request, found: Chosen | None = None, problem: str = "", changed: str = ""
) -> web.Response:
    """Show exactly what a retry of the chosen dead letters does, with its settings, or why it was not started."""
    found = found or await _chosen(request)
    typed, plan = RetryForm(), None
    try:
        typed = parsed(found.form, by_id=bool(found.choice.ids))
        if not problem:
            plan = await console_of(request).in_thread(_plan, found, typed)
    except (UsageError, TarryError) as error:
        problem = problem or sentence(error)
    form = {name: str(found.form.get(name, "")) for name in NAMES}
    return found.preview("retry", problem, changed, typed.options, plan=plan, settings=typed, form=form)


def _plan(found: Chosen, typed: RetryForm) -> Plan:
    routes = failed.Routes(found.queue, typed.to)
    if typed.settings.canary is not None:
        with failed.opened(found.queue) as inspection:
            check_can_watch(inspection)
    return planned(found.matching.dead_letters, routes.target, by_id=bool(found.choice.ids))


async def start_retry(request: web.Request) -> web.StreamResponse:
    return await _start_retry(request, "retry", "Retry", runs.retry)


async def start_dry_run(request: web.Request) -> web.StreamResponse:
    return await _start_retry(request, "dry run", "Dry run of a retry", runs.dry_run)


async def _start_retry(
    request: web.Request, kind: Kind, title: str, work: Callable[[runs.JobRun, Selection, RetryForm], None]
) -> web.StreamResponse:
    found = await _chosen(request)
    form = found.form
    try:
        typed = parsed(form, by_id=bool(found.choice.ids))
    except (UsageError, TarryError) as error:
        return await retry(request, found, sentence(error))
    if is_older(form, found.snapshot):
        return await retry(request, found, changed=SCANNED_AGAIN)
    if str(form.get("previewed", typed.text)) != typed.text:
        return await retry(request, found, changed=OTHER_SETTINGS)
    kept = FIELDS if kind == "dry run" else ()
    again = [(name, text) for name, text in form.items() if name in kept and isinstance(text, str)]
    raise _started(found, kind, title, lambda run, selection: work(run, selection, typed), again)


# edits

MAX_COMPARED_CHARACTERS = 64 * 1024
MAX_COMPARED_LINES = 2_000
MAX_LINES = 60
AROUND_CHARACTERS = 40


class Changes(NamedTuple):
    """The changes of a body. ``lines`` are those of a unified diff."""

    is_changed: bool
    is_same_value: bool
    """Whether both are JSON of the same value, so that only spaces, line ends or the order of keys differ."""
    lines: tuple[str, ...]
    is_cut: bool
    """Whether there are more lines, or the bodies are too long to be compared."""


def changes(before: str, after: str) -> Changes:
    if before == after:
        return Changes(False, True, (), False)
    is_same = _is_same_value(before, after)
    old, new = before.splitlines(), after.splitlines()
    if max(len(before), len(after)) > MAX_COMPARED_CHARACTERS or max(len(old), len(new)) > MAX_COMPARED_LINES:
        return Changes(True, is_same, (), True)
    if len(old) == len(new) == 1:
        lines = _of_one_line(old[0], new[0])
    else:
        diff = unified_diff(old, new, n=1, lineterm="")
        lines = [each for each in diff if not each.startswith(("---", "+++", "@@"))]
    return Changes(True, is_same, tuple(lines[:MAX_LINES]), len(lines) > MAX_LINES)


def _of_one_line(before: str, after: str) -> list[str]:
    """Return the part of a line that differs, before and after, with some text around it."""
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    return [f"{sign}{_around(text, start, len(text) - end)}" for sign, text in (("-", before), ("+", after))]


def _common(before: str, after: str) -> int:
    """Return the number of characters that both begin with."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(before), len(after)))


def _around(text: str, start: int, end: int) -> str:
    first, last = max(0, start - AROUND_CHARACTERS), end + AROUND_CHARACTERS
    return ("\u2026" if first else "") + text[first:last] + ("\u2026" if last < len(text) else "")


def _is_same_value(before: str, after: str) -> bool:
    try:
        return bool(json.loads(before) == json.loads(after))
    except (ValueError, RecursionError):
        return False


NO_BODIES = "This console shows no bodies (--no-bodies), so it cannot edit one."


async def edit(request: web.Request, edited: Edited | None = None) -> web.Response:
    """Show the form to edit a body, or why an edited one was not sent."""
    console, queue = console_of(request), await queue_of(request)
    dead_letter, body, problem = edited or await _edited(request)
    return render(
        request,
        "dead_letters/edit.html",
        status=400 if problem else 200,
        **about(request, queue),
        dead_letter=dead_letter,
        body=await console.compute(editable, body),
        problem=problem,
        target=await console.in_thread(_target, queue, dead_letter),
    )


async def _whole(request: web.Request, given: str) -> DeadLetterMessage:
    queue, console = request.match_info["queue"], console_of(request)
    snapshot = scanned(request, queue)
    if not console.shows_bodies:
        raise Problem(NO_BODIES, 403)
    delivery_id = snapshot.find(given)
    if delivery_id is None:
        raise Problem(
            f"Dead letter {given!r:.200} is not in the last scan of {queue}: it was retried or removed, or came "
            "later. Scan again.",
            404,
        )
    found = await console.compute(snapshot.whole, delivery_id)
    if found is None:
        text = f"The body of {given} did not fit into the memory of the console. Edit it with tarry failed."
        raise Problem(text, 409)
    return found


def _target(queue: DeadLetterQueue, dead_letter: DeadLetterMessage) -> str | None:
    try:
        return failed.Routes(queue).target(dead_letter).name
    except failed.NowhereToGo:
        return None


class Edited(NamedTuple):
    """A dead letter, the body that was typed for it, and why that cannot be sent; empty if it can."""

    dead_letter: DeadLetterMessage
    body: str
    problem: str


async def _edited(request: web.Request) -> Edited:
    """Return what the address of a request names, or its form says."""
    console, form, problem = console_of(request), await _form_of(request), ""
    dead_letter = await _whole(request, str(form.get("id", "")))
    body = dead_letter.body
    if request.method == "POST":
        body = await console.compute(restored, body, str(form.get("body", "")))
    try:
        failed.edit(dead_letter, body, console.world.clock.time())
    except failed.CannotEdit as error:
        problem = sentence(error)
    return Edited(dead_letter, body, problem)


async def check_edit(request: web.Request) -> web.Response:
    """Say what an edit that is being typed changes, or why it cannot be sent."""
    dead_letter, body, problem = await _edited(request)
    # As it is edited: with one value a line.
    found = await console_of(request).compute(lambda: changes(editable(dead_letter.body), editable(body)))
    return render(request, "dead_letters/changes.html", problem=problem, changes=found)


async def start_edit(request: web.Request) -> web.StreamResponse:
    console, queue, edited = console_of(request), await queue_of(request), await _edited(request)
    dead_letter, snapshot = edited.dead_letter, scanned(request, queue.name)
    if edited.body == dead_letter.body:
        edited = edited._replace(problem="You did not change the body. To send it as it is, retry it.")
    if edited.problem:
        return await edit(request, edited)

    def run(job: QueueJob) -> None:
        runs.edit_and_retry(
            runs.JobRun(console, job, queue, snapshot), dead_letter.delivery_id, dead_letter.body, edited.body
        )

    title = f"Retry of {dead_letter.id} with an edited body"
    raise see(f"/jobs/{request.app[JOBS].start('edit', queue.name, title, 1, run).number}")
