"""The preview of a retry, and the start of a retry or of its dry run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry import failed
from tarry.console.access import console_of
from tarry.console.dead_letters import runs
from tarry.console.dead_letters.choices import command
from tarry.console.dead_letters.pages.jobs import see, start
from tarry.console.dead_letters.pages.requested import (
    SCANNED_AGAIN,
    about,
    chosen,
    form_of,
    is_older,
    place_options,
    queue_of,
    scanned,
    sentence,
    until_of,
)
from tarry.console.dead_letters.pages.rows import SHOWN_IDS, row_of
from tarry.console.dead_letters.previews import planned
from tarry.console.dead_letters.settings import RetryForm, parsed
from tarry.console.pages import is_fragment, render
from tarry.errors import TarryError
from tarry.failed.canary import check_can_watch
from tarry.tooling.errors import UsageError

if TYPE_CHECKING:
    from aiohttp import web
    from multidict import MultiMapping

    from tarry.console.access import Console
    from tarry.console.dead_letters.jobs import QueueJob
    from tarry.failed import DeadLetterMessage, DeadLetterQueue

OTHER_SETTINGS = "The settings were changed since this preview was shown"


async def retry(request: web.Request) -> web.Response:
    """Show exactly what a retry of the chosen dead letters does, with its settings."""
    return await _retry_preview(request, await form_of(request))


async def _retry_preview(
    request: web.Request, form: MultiMapping[Any], problem: str = "", changed: str = ""
) -> web.Response:
    console, queue = console_of(request), await queue_of(request)
    snapshot = scanned(request, queue.name)
    choice = chosen(form, shows_bodies=console.shows_bodies)
    settings = RetryForm()
    try:
        settings = parsed(form, by_id=bool(choice.ids))
    except (UsageError, TarryError) as error:
        problem = problem or sentence(error)
    until = until_of(form, snapshot, choice)
    matching = await console.compute(snapshot.matching, choice.selection(until))
    plan = None
    if not problem:
        try:
            plan = await console.in_thread(_plan, console, queue, matching.dead_letters, settings, bool(choice.ids))
        except TarryError as error:
            problem = sentence(error)
    return render(
        request,
        "dead_letters/retry.html",
        status=(400 if problem else 409 if changed else 200) if not is_fragment(request) else 200,
        changed=changed,
        **about(request, queue),
        choice=choice,
        until=until,
        words=choice.words(len(matching.dead_letters), queue.name),
        count=len(matching.dead_letters),
        not_compared=matching.not_compared,
        plan=plan,
        settings=settings,
        form={name: str(form.get(name, "")) for name in ("canary", "within", "rate", "max_return", "to")},
        problem=problem,
        command=command("retry", queue.name, [*choice.options(until), *settings.options, *place_options(console)]),
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
    selection = snapshot.seen(choice.selection(until_of(form, snapshot, choice)))
    count = len((await console.compute(snapshot.matching, selection)).dead_letters)
    words = choice.words(count, queue.name)

    def work(job: QueueJob) -> None:
        run = runs.JobRun(console, job, queue, snapshot)
        if is_dry:
            runs.dry_run(run, selection, settings)
        else:
            runs.retry(run, selection, settings)

    title = f"Dry run of a retry of {words}" if is_dry else f"Retry of {words}"
    raise see(request, start(request, "dry run" if is_dry else "retry", queue, title, count, work))
