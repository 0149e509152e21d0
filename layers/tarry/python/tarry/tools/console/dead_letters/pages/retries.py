"""The preview of a retry, and the start of a retry or of its dry run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry import failed
from tarry.errors import TarryError
from tarry.failed.canary import check_can_watch
from tarry.failed.usage import UsageError
from tarry.tools.console.access import console_of
from tarry.tools.console.dead_letters import runs
from tarry.tools.console.dead_letters.pages.chosen import chosen_of, status_of
from tarry.tools.console.dead_letters.pages.jobs import see, start
from tarry.tools.console.dead_letters.pages.requested import (
    SCANNED_AGAIN,
    chosen,
    form_of,
    is_older,
    queue_of,
    scanned,
    sentence,
)
from tarry.tools.console.dead_letters.previews import planned
from tarry.tools.console.dead_letters.settings import NAMES, RetryForm, parsed
from tarry.tools.console.pages import is_fragment, render

if TYPE_CHECKING:
    from aiohttp import web
    from multidict import MultiMapping

    from tarry.failed import DeadLetterMessage, DeadLetterQueue
    from tarry.tools.console.access import Console
    from tarry.tools.console.dead_letters.jobs import QueueJob

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
    settings, plan = RetryForm(), None
    try:
        settings = parsed(form, by_id=by_id)
        if not problem:
            plan = await console.in_thread(_plan, console, found.queue, dead_letters, settings, by_id)
    except (UsageError, TarryError) as error:
        problem = problem or sentence(error)
    return render(
        request,
        "dead_letters/retry.html",
        status=200 if is_fragment(request) else status_of(problem, changed),
        **found.values(request, "retry", settings.options),
        changed=changed,
        problem=problem,
        plan=plan,
        settings=settings,
        form={name: str(form.get(name, "")) for name in NAMES},
        in_doubt=min(settings.in_doubt, found.count),
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


async def start_retry(request: web.Request) -> web.StreamResponse:
    """Start a retry."""
    return await _start_retry(request, is_dry=False)


async def start_dry_run(request: web.Request) -> web.StreamResponse:
    """Start a dry run of a retry, which changes nothing."""
    return await _start_retry(request, is_dry=True)


async def _start_retry(request: web.Request, *, is_dry: bool) -> web.StreamResponse:
    console, form = console_of(request), await request.post()
    queue = await queue_of(request)
    snapshot = scanned(request, queue.name)
    choice = chosen(form, shows_bodies=console.shows_bodies)
    try:
        settings = parsed(form, by_id=bool(choice.ids))
    except (UsageError, TarryError) as error:
        return await _retry_preview(request, form, sentence(error))
    if is_older(form, snapshot):
        return await _retry_preview(request, form, changed=SCANNED_AGAIN)
    if str(form.get("previewed", settings.text)) != settings.text:
        return await _retry_preview(request, form, changed=OTHER_SETTINGS)
    selection = snapshot.seen(choice.selection())
    count = len((await console.compute(snapshot.matching, selection)).dead_letters)
    words = choice.words(count, queue.name)

    def work(job: QueueJob) -> None:
        run = runs.JobRun(console, job, queue, snapshot)
        if is_dry:
            runs.dry_run(run, selection, settings)
        else:
            runs.retry(run, selection, settings)

    title = f"Dry run of a retry of {words}" if is_dry else f"Retry of {words}"
    again = [(name, text) for name, text in form.items() if is_dry and name in FIELDS and isinstance(text, str)]
    kind = "dry run" if is_dry else "retry"
    raise see(request, start(request, kind, queue, title, count, work, again=again))
