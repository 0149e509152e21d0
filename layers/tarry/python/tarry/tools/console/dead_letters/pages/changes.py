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
from tarry.tools.console.dead_letters.jobs import JOBS
from tarry.tools.console.dead_letters.pages.jobs import see
from tarry.tools.console.dead_letters.pages.requested import about, chosen, is_older, queue_of, scanned, until_of
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
    from tarry.tools.console.dead_letters.jobs import Kind
    from tarry.tools.console.dead_letters.snapshots import Matching, Snapshot

SHOWN_EXAMPLES = 20
SCANNED_AGAIN = "The queue was scanned again since this page was opened"
OTHER_SETTINGS = "The settings were changed since this preview was shown"
REPEATED = "another dead letter with the same id is sent first: retry again after it"
UNDECODABLE = "the body cannot be decoded: edit it first"
FIELDS = (*NAMES, "id", "where", "all", "scan", "until", "previewed")
"""The fields that choose dead letters and settings. A dry run keeps them for the retry itself."""


@dataclass(frozen=True)
class Chosen:
    """A form, and the dead letters of a scan that it chooses."""

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

    def values(self, request: web.Request, verb: str, options: Sequence[str] = ()) -> dict[str, Any]:
        """Return the values of a preview. ``verb`` and ``options`` are those of the same command of `tarry failed`."""
        place = console_of(request).place_options
        return {
            **about(request, self.queue),
            "choice": self.choice,
            "until": self.until,
            "words": self.words,
            "count": self.count,
            "not_compared": self.matching.not_compared,
            "command": command(verb, self.queue.name, [*self.choice.options(self.until), *options, *place]),
            "examples": self.matching.dead_letters[:SHOWN_EXAMPLES],
        }


async def _chosen(request: web.Request) -> Chosen:
    """Return the dead letters that the form of a request chooses. Raises `Problem`."""
    form: MultiMapping[Any] = request.query if request.method == "GET" else await request.post()
    console, queue = console_of(request), await queue_of(request)
    snapshot = scanned(request, queue.name)
    choice = chosen(form, shows_bodies=console.shows_bodies)
    until = until_of(form, snapshot, choice)
    matching = await console.compute(snapshot.matching, choice.selection(until))
    return Chosen(form, queue, snapshot, choice, until, matching)


def _started(
    request: web.Request,
    found: Chosen,
    kind: Kind,
    title: str,
    work: Callable[[runs.JobRun, Selection], None],
    again: Iterable[tuple[str, str]] = (),
) -> web.HTTPSeeOther:
    """Start a job on the dead letters that are chosen; return the redirection to its page. Raises `Busy`."""
    console, queue, snapshot = console_of(request), found.queue, found.snapshot
    selection = snapshot.seen(found.choice.selection())
    job = request.app[JOBS].start(
        kind,
        queue.name,
        f"{title} of {found.words}",
        found.count,
        lambda job: work(runs.JobRun(console, job, queue, snapshot), selection),
        again=again,
    )
    return see(f"/jobs/{job.number}")


def _status_of(problem: str, changed: str) -> int:
    """Return the status of a preview with a problem, or of one that was shown again because something has changed."""
    return 400 if problem else 409 if changed else 200


# removals


async def remove(request: web.Request) -> web.Response:
    """Show exactly what a removal of the chosen dead letters does."""
    return _remove_preview(request, await _chosen(request))


def _remove_preview(request: web.Request, found: Chosen, problem: str = "", changed: str = "") -> web.Response:
    console = console_of(request)
    return render(
        request,
        "dead_letters/remove.html",
        status=_status_of(problem, changed),
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
    found = await _chosen(request)
    name, typed = found.queue.name, str(found.form.get("name", "")).strip()
    if _asks_for_name(console_of(request), found.choice) and typed != name:
        problem = f"{typed!r} is not {name}: no dead letter was removed. Type the name of the queue."
        return _remove_preview(request, found, problem)
    if is_older(found.form, found.snapshot):
        return _remove_preview(request, found, changed=SCANNED_AGAIN)
    raise _started(request, found, "remove", "Removal", runs.remove)


# retries


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
    sent, hindered = (
        tuple(Counted(text, count) for (text, is_sent), count in found if is_sent == wanted) for wanted in (True, False)
    )
    return Plan(sent, hindered)


async def retry(request: web.Request) -> web.Response:
    """Show exactly what a retry of the chosen dead letters does, with its settings."""
    return await _retry_preview(request, await _chosen(request))


async def _retry_preview(request: web.Request, found: Chosen, problem: str = "", changed: str = "") -> web.Response:
    typed, plan = RetryForm(), None
    try:
        typed = parsed(found.form, by_id=bool(found.choice.ids))
        if not problem:
            plan = await console_of(request).in_thread(_plan, found, typed)
    except (UsageError, TarryError) as error:
        problem = problem or sentence(error)
    return render(
        request,
        "dead_letters/retry.html",
        status=200 if is_fragment(request) else _status_of(problem, changed),
        **found.values(request, "retry", typed.options),
        changed=changed,
        problem=problem,
        plan=plan,
        settings=typed,
        canary=typed.settings.canary,
        form={name: str(found.form.get(name, "")) for name in NAMES},
        in_doubt=min(typed.in_doubt, found.count),
    )


def _plan(found: Chosen, typed: RetryForm) -> Plan:
    routes = failed.Routes(found.queue, typed.to)
    if typed.settings.canary is not None:
        with failed.opened(found.queue) as inspection:
            check_can_watch(inspection)
    return planned(found.matching.dead_letters, routes.target, by_id=bool(found.choice.ids))


async def start_retry(request: web.Request) -> web.StreamResponse:
    return await _start_retry(request, "retry", "Retry", runs.retry)


async def start_dry_run(request: web.Request) -> web.StreamResponse:
    """Start a dry run of a retry, which changes nothing."""
    return await _start_retry(request, "dry run", "Dry run of a retry", runs.dry_run)


async def _start_retry(
    request: web.Request, kind: Kind, title: str, work: Callable[[runs.JobRun, Selection, RetryForm], None]
) -> web.StreamResponse:
    found = await _chosen(request)
    form = found.form
    try:
        typed = parsed(form, by_id=bool(found.choice.ids))
    except (UsageError, TarryError) as error:
        return await _retry_preview(request, found, sentence(error))
    if is_older(form, found.snapshot):
        return await _retry_preview(request, found, changed=SCANNED_AGAIN)
    if str(form.get("previewed", typed.text)) != typed.text:
        return await _retry_preview(request, found, changed=OTHER_SETTINGS)
    kept = FIELDS if kind == "dry run" else ()
    again = [(name, text) for name, text in form.items() if name in kept and isinstance(text, str)]
    raise _started(request, found, kind, title, lambda run, selection: work(run, selection, typed), again)
