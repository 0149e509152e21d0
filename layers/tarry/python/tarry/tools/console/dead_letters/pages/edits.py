"""The form to edit a body, its check while it is typed, and the start of the retry with the new body."""

from __future__ import annotations

import json
from difflib import unified_diff
from typing import TYPE_CHECKING, NamedTuple

from tarry import failed
from tarry.failed.wording import brief
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.dead_letters import runs
from tarry.tools.console.dead_letters.jobs import JOBS
from tarry.tools.console.dead_letters.pages.jobs import see
from tarry.tools.console.dead_letters.pages.requested import about, queue_of, scanned, snapshot_of
from tarry.tools.console.json_layout import editable, restored
from tarry.tools.console.pages import render, sentence

if TYPE_CHECKING:
    from aiohttp import web

    from tarry.failed import DeadLetterMessage, DeadLetterQueue
    from tarry.tools.console.access import Console

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
    lines = (
        [*_of_one_line(old[0], new[0])] if len(old) == len(new) == 1 else [*unified_diff(old, new, n=1, lineterm="")]
    )
    lines = [each for each in lines if not each.startswith(("---", "+++", "@@"))]
    return Changes(True, is_same, tuple(lines[:MAX_LINES]), len(lines) > MAX_LINES)


def _of_one_line(before: str, after: str) -> tuple[str, str]:
    """Return the part of a line that differs, before and after, with some text around it."""
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    return "-" + _around(before, start, len(before) - end), "+" + _around(after, start, len(after) - end)


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
        return failed.Routes(queue).target(dead_letter).name
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
    job = request.app[JOBS].start(
        "edit",
        queue.name,
        f"Retry of {dead_letter.id} with an edited body",
        1,
        lambda job: runs.edit_and_retry(
            runs.JobRun(console, job, queue, snapshot), dead_letter.delivery_id, dead_letter.body, body
        ),
    )
    raise see(f"/jobs/{job.number}")
