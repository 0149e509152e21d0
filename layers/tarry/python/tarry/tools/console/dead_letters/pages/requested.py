"""The queue, the scan and the dead letters that a request names, and the values that all pages of a queue show."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from tarry import failed
from tarry.failed.inspection import MAX_IN_FLIGHT
from tarry.failed.usage import UsageError
from tarry.sqs.limits import MAX_ENTRIES
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.dead_letters.filters import Choice, choice_of, problem_of
from tarry.tools.console.dead_letters.jobs import JOBS
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS
from tarry.tools.console.overview import SAMPLER
from tarry.tools.console.overview.sampling import UNSEEN_SECONDS
from tarry.tools.console.pages import sentence

if TYPE_CHECKING:
    from aiohttp import web
    from multidict import MultiMapping

    from tarry.failed import DeadLetterQueue
    from tarry.tools.console.dead_letters.snapshots import Snapshot

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

    Its numbers of messages are those of the last reading of the overview, which reads it again now.
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


def page_number(request: web.Request) -> int:
    text = request.query.get("page", "1")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 1


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


def until_of(form: MultiMapping[Any], snapshot: Snapshot, choice: Choice) -> str | None:
    """Return the time until which dead letters are chosen: that of the scan."""
    if choice.ids:
        return None
    return ("" if is_older(form, snapshot) else str(form.get("until") or "")) or snapshot.until


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
