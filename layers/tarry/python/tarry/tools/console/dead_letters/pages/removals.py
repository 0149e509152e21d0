"""The preview of a removal, and its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
)
from tarry.tools.console.pages import render

if TYPE_CHECKING:
    from aiohttp import web
    from multidict import MultiMapping

    from tarry.tools.console.access import Console
    from tarry.tools.console.dead_letters.choices import Choice


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
    """Start a removal."""
    console, form = console_of(request), await request.post()
    queue = await queue_of(request)
    snapshot = scanned(request, queue.name)
    choice = chosen(form, shows_bodies=console.shows_bodies)
    if _asks_for_name(console, choice) and (typed := str(form.get("name", "")).strip()) != queue.name:
        problem = f"{typed!r} is not {queue.name}: no dead letter was removed. Type the name of the queue."
        return await _remove_preview(request, form, problem)
    if is_older(form, snapshot):
        return await _remove_preview(request, form, changed=SCANNED_AGAIN)
    selection = snapshot.seen(choice.selection())
    count = len((await console.compute(snapshot.matching, selection)).dead_letters)
    title = f"Removal of {choice.words(count, queue.name)}"
    job = start(
        request,
        "remove",
        queue,
        title,
        count,
        lambda job: runs.remove(runs.JobRun(console, job, queue, snapshot), selection),
    )
    raise see(request, job)
