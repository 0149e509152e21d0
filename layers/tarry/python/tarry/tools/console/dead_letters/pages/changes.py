"""The pages that retry and remove dead letters: which ones, the preview, the question."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry import failed
from tarry.errors import TarryError
from tarry.failed import NowhereToGo
from tarry.failed.pacing import check_can_watch
from tarry.failed.usage import UsageError
from tarry.tools.console.access import console_of
from tarry.tools.console.dead_letters import runs
from tarry.tools.console.dead_letters.filters import command
from tarry.tools.console.dead_letters.pages.jobs import see, start
from tarry.tools.console.dead_letters.pages.listing import SHOWN_IDS, row_of
from tarry.tools.console.dead_letters.pages.requested import (
    SCANNED_AGAIN,
    about,
    chosen,
    form_of,
    is_older,
    queue_of,
    scanned,
    until_of,
)
from tarry.tools.console.dead_letters.runs import NAMES, RetryForm, parsed
from tarry.tools.console.pages import is_fragment, render, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiohttp import web
    from multidict import MultiMapping

    from tarry.failed import DeadLetterMessage, DeadLetterQueue, Selection
    from tarry.support.values import QueueArn
    from tarry.tools.console.access import Console
    from tarry.tools.console.dead_letters.filters import Choice
    from tarry.tools.console.dead_letters.jobs import Kind, QueueJob
    from tarry.tools.console.dead_letters.snapshots import Matching, Snapshot


@dataclass(frozen=True)
class Chosen:
    """The dead letters of a scan that a form chooses."""

    queue: DeadLetterQueue
    snapshot: Snapshot
    choice: Choice
    until: str | None
    """The time until which they are chosen; None if they are chosen by id."""
    matching: Matching

    @property
    def count(self) -> int:
        return len(self.matching.dead_letters)

    def values(self, request: web.Request, verb: str, options: Sequence[str] = ()) -> dict[str, Any]:
        """Return the values of a preview. ``verb`` and ``options`` are those of the same command of `tarry failed`."""
        place = console_of(request).place_options
        return {
            **about(request, self.queue),
            "choice": self.choice,
            "until": self.until,
            "words": self.choice.words(self.count, self.queue.name),
            "count": self.count,
            "not_compared": self.matching.not_compared,
            "command": command(verb, self.queue.name, [*self.choice.options(self.until), *options, *place]),
            "examples": [row_of(each) for each in self.matching.dead_letters[:SHOWN_IDS]],
        }


async def chosen_of(request: web.Request, form: MultiMapping[Any]) -> Chosen:
    """Return the dead letters that a form chooses. Raises `Problem`."""
    console, queue = console_of(request), await queue_of(request)
    snapshot = scanned(request, queue.name)
    choice = chosen(form, shows_bodies=console.shows_bodies)
    until = until_of(form, snapshot, choice)
    return Chosen(queue, snapshot, choice, until, await console.compute(snapshot.matching, choice.selection(until)))


def status_of(problem: str, changed: str) -> int:
    """Return the status of a preview with a problem, or of one that was shown again because something has changed."""
    return 400 if problem else 409 if changed else 200


REPEATED = "another dead letter with the same id is sent first: retry again after it"
UNDECODABLE = "the body cannot be decoded: edit it first"


@dataclass(frozen=True)
class Counted:
    """The number of dead letters that go to one queue, or that stay for one reason."""

    text: str
    count: int


class Plan(NamedTuple):
    """The effect of a retry on the dead letters that are chosen. The largest counts come first."""

    destinations: tuple[Counted, ...]
    hindered: tuple[Counted, ...]

    @property
    def sent(self) -> int:
        return sum(each.count for each in self.destinations)

    @property
    def stay(self) -> int:
        return sum(each.count for each in self.hindered)


def planned(
    dead_letters: Iterable[DeadLetterMessage], target: Callable[[DeadLetterMessage], QueueArn], *, by_id: bool = False
) -> Plan:
    """Return what a retry does. ``target`` returns the queue to send one to; it is asked once for each origin.

    It raises `NowhereToGo` for an unknown one. ``by_id``: the dead letters are selected one by one.
    """
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
    return Plan(
        tuple(Counted(text, count) for (text, is_sent), count in found if is_sent),
        tuple(Counted(text, count) for (text, is_sent), count in found if not is_sent),
    )


async def remove(request: web.Request) -> web.Response:
    """Show exactly what a removal of the chosen dead letters does."""
    return await _remove_preview(request, await form_of(request))


async def _remove_preview(
    request: web.Request, form: MultiMapping[Any], problem: str = "", changed: str = ""
) -> web.Response:
    console, found = console_of(request), await chosen_of(request, form)
    return render(
        request,
        "dead_letters/remove.html",
        status=status_of(problem, changed),
        **found.values(request, "remove"),
        changed=changed,
        problem=problem,
        asks_for_name=_asks_for_name(console, found.choice),
        folder=str(console.state / "removed"),
    )


def _asks_for_name(console: Console, choice: Choice) -> bool:
    """Whether the name of the queue must be typed: as for the command, if a queue at AWS is emptied."""
    return choice.everything and console.account.is_aws


async def start_removal(request: web.Request) -> web.StreamResponse:
    form, queue = await request.post(), await queue_of(request)
    choice = chosen(form, shows_bodies=console_of(request).shows_bodies)
    typed = str(form.get("name", "")).strip()
    if _asks_for_name(console_of(request), choice) and typed != queue.name:
        problem = f"{typed!r} is not {queue.name}: no dead letter was removed. Type the name of the queue."
        return await _remove_preview(request, form, problem)
    if is_older(form, scanned(request, queue.name)):
        return await _remove_preview(request, form, changed=SCANNED_AGAIN)
    raise await _started(request, queue, choice, "remove", "Removal", runs.remove)


async def _started(
    request: web.Request,
    queue: DeadLetterQueue,
    choice: Choice,
    kind: Kind,
    title: str,
    work: Callable[[runs.JobRun, Selection], None],
    *,
    again: Iterable[tuple[str, str]] = (),
) -> web.HTTPSeeOther:
    """Start a job on the dead letters that are chosen; return the redirection to its page. Raises `Problem`."""
    console, snapshot = console_of(request), scanned(request, queue.name)
    selection = snapshot.seen(choice.selection())
    count = len((await console.compute(snapshot.matching, selection)).dead_letters)

    def run(job: QueueJob) -> None:
        work(runs.JobRun(console, job, queue, snapshot), selection)

    return see(
        request, start(request, kind, queue, f"{title} of {choice.words(count, queue.name)}", count, run, again=again)
    )


FIELDS = (*NAMES, "id", "where", "all", "scan", "until", "previewed")
"""The fields that choose dead letters and settings. A dry run keeps them for the retry itself."""
OTHER_SETTINGS = "The settings were changed since this preview was shown"


async def retry(request: web.Request) -> web.Response:
    """Show exactly what a retry of the chosen dead letters does, with its settings."""
    return await _retry_preview(request, await form_of(request))


async def _retry_preview(
    request: web.Request, form: MultiMapping[Any], problem: str = "", changed: str = ""
) -> web.Response:
    console, found = console_of(request), await chosen_of(request, form)
    by_id, dead_letters = bool(found.choice.ids), found.matching.dead_letters
    typed, plan = RetryForm(), None
    try:
        typed = parsed(form, by_id=by_id)
        if not problem:
            plan = await console.in_thread(_plan, console, found.queue, dead_letters, typed, by_id)
    except (UsageError, TarryError) as error:
        problem = problem or sentence(error)
    return render(
        request,
        "dead_letters/retry.html",
        status=200 if is_fragment(request) else status_of(problem, changed),
        **found.values(request, "retry", typed.options),
        changed=changed,
        problem=problem,
        plan=plan,
        settings=typed,
        canary=typed.settings.canary,
        form={name: str(form.get(name, "")) for name in NAMES},
        in_doubt=min(typed.in_doubt, found.count),
    )


def _plan(
    console: Console,
    queue: DeadLetterQueue,
    dead_letters: list[DeadLetterMessage],
    typed: RetryForm,
    by_id: bool,
) -> Plan:
    routes = failed.Routes(queue, typed.to, console.known)
    if typed.settings.canary is not None:
        with failed.opened(queue) as inspection:
            check_can_watch(inspection)
    return planned(dead_letters, routes.target, by_id=by_id)


async def start_retry(request: web.Request) -> web.StreamResponse:
    return await _start_retry(request, "retry", "Retry", runs.retry)


async def start_dry_run(request: web.Request) -> web.StreamResponse:
    """Start a dry run of a retry, which changes nothing."""
    return await _start_retry(request, "dry run", "Dry run of a retry", runs.dry_run)


async def _start_retry(
    request: web.Request, kind: Kind, title: str, work: Callable[[runs.JobRun, Selection, RetryForm], None]
) -> web.StreamResponse:
    form, queue = await request.post(), await queue_of(request)
    snapshot = scanned(request, queue.name)
    choice = chosen(form, shows_bodies=console_of(request).shows_bodies)
    try:
        typed = parsed(form, by_id=bool(choice.ids))
    except (UsageError, TarryError) as error:
        return await _retry_preview(request, form, sentence(error))
    if is_older(form, snapshot):
        return await _retry_preview(request, form, changed=SCANNED_AGAIN)
    if str(form.get("previewed", typed.text)) != typed.text:
        return await _retry_preview(request, form, changed=OTHER_SETTINGS)
    again = [
        (name, text) for name, text in form.items() if kind == "dry run" and name in FIELDS and isinstance(text, str)
    ]
    raise await _started(request, queue, choice, kind, title, lambda run, found: work(run, found, typed), again=again)
