"""The form to edit a body, its check while it is typed, and the start of the retry with the new body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry import failed
from tarry.failed.wording import brief
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.dead_letters import runs
from tarry.tools.console.dead_letters.changes import Changes, changes
from tarry.tools.console.dead_letters.pages.jobs import see, start
from tarry.tools.console.dead_letters.pages.requested import about, queue_of, scanned, sentence, snapshot_of
from tarry.tools.console.json_layout import editable, restored
from tarry.tools.console.pages import render

if TYPE_CHECKING:
    from aiohttp import web

    from tarry.failed import DeadLetterMessage, DeadLetterQueue
    from tarry.tools.console.access import Console

NO_BODIES = "This console shows no bodies (--no-bodies), so it cannot edit one."


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
        **about(request, queue),
        dead_letter=dead_letter,
        error=brief(dead_letter),
        body=await console.compute(editable, dead_letter.body if body is None else body),
        problem=problem,
        target=await console.in_thread(_target, console, queue, dead_letter),
    )


async def _whole(request: web.Request, queue: str, given: str) -> DeadLetterMessage:
    console, snapshot = console_of(request), scanned(request, queue)
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
    body = await console.compute(restored, dead_letter.body, str(form.get("body", "")))
    problem = ""
    try:
        failed.edit(dead_letter, body, console.world.clock.time())
    except failed.CannotEdit as error:
        problem = sentence(error)
    found = await console.compute(_changes, dead_letter.body, body)
    return render(request, "dead_letters/changes.html", problem=problem, changes=found)


def _changes(before: str, after: str) -> Changes:
    """Return the changes of a body as it is edited: with one value a line."""
    return changes(editable(before), editable(after))


async def start_edit(request: web.Request) -> web.StreamResponse:
    """Send a message back with an edited body."""
    console, form = console_of(request), await request.post()
    queue = await queue_of(request)
    given = str(form.get("id", ""))
    dead_letter = await _whole(request, queue.name, given)
    body = await console.compute(restored, dead_letter.body, str(form.get("body", "")))
    try:
        edited = failed.edit(dead_letter, body, console.world.clock.time())
    except failed.CannotEdit as error:
        return await _edit_page(request, given, body, sentence(error))
    if edited is dead_letter:
        return await _edit_page(request, given, body, "You did not change the body. To send it as it is, retry it.")
    snapshot = snapshot_of(request, queue.name)
    job = start(
        request,
        "edit",
        queue,
        f"Retry of {dead_letter.id} with an edited body",
        1,
        lambda job: runs.edit_and_retry(
            runs.JobRun(console, job, queue, snapshot), dead_letter.delivery_id, dead_letter.body, body
        ),
    )
    raise see(request, job)
