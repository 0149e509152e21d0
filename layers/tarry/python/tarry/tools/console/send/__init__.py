"""The form that sends a message."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import web

from tarry.errors import TarryError
from tarry.failed.usage import UsageError
from tarry.tools.console import pages
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.pages import explained
from tarry.tools.console.security import needs_write
from tarry.tools.console.send.form import SAMPLES_FOLDER, SYNTAX, MessageForm, at_queue, sample_files, sample_form
from tarry.tools.local.aws.sending import send

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tarry.tools.console.access import Console

MAX_DELAY_SECONDS = 43_200
MAX_REMEMBERED = 100
"""The forms that are remembered, so that a double click or a reload does not send a message twice."""
SENDS = web.AppKey("sends", dict[tuple[str, MessageForm], "asyncio.Task[str]"])


def routes(app: web.Application) -> None:
    """Add the routes of these pages."""
    app[SENDS] = {}
    app.router.add_get("/send", _page, name="send")
    app.router.add_post("/send", _send)


def addresses_of(console: Console) -> dict[str, str]:
    """Return the addresses of the queues that a message can be sent to, by name: none of a dead-letter queue."""
    dead = {each.dead_letter_queue for each in console.queues}
    return {each.name: each.address for each in console.queues if each.name and each.address and each.name not in dead}


async def _page(request: web.Request) -> web.Response:
    console, query = console_of(request), request.query
    names, hints = list(addresses_of(console)), list[str]()
    form = MessageForm.of(query)
    if sample := query.get("sample"):
        form, hints = await console.compute(sample_form, _folder(console), sample)
    return await _rendered(request, at_queue(form, names), names, hints=hints, sample=sample or "")


@needs_write
async def _send(request: web.Request) -> web.Response:
    addresses = addresses_of(console_of(request))
    given = await request.post()
    form = MessageForm.of(given)
    if form.queue not in addresses:
        if console_of(request).dead_letter_queue(form.queue) is not None:
            raise Problem(f"{form.queue} is a dead-letter queue: this form sends no messages to one.", 400)
        raise Problem(f"This console has no queue {form.queue!r:.100}.", 404)
    try:
        message_id = await _sent_once(request, str(given.get("once", "")), addresses[form.queue], form)
    except (UsageError, TarryError, ValueError, TypeError) as error:
        text = explained(error) or _sentence(str(error))
        return await _rendered(request, form, list(addresses), problem=text, status=400)
    path = f"/message/{quote(message_id, safe='')}"
    return await _rendered(request, form, list(addresses), sent=message_id, path=path)


async def _sent_once(request: web.Request, once: str, address: str, form: MessageForm) -> str:
    """Send the message of a form, unless the same form was sent already; return the id of the message."""
    console, sends, key = console_of(request), request.app[SENDS], (once, form)
    if not once or key not in sends or (sends[key].done() and sends[key].exception()):
        while len(sends) >= MAX_REMEMBERED:
            sends.pop(next(iter(sends)))
        sends[key] = asyncio.create_task(console.in_thread(_sent, console, address, form))
    return await asyncio.shield(sends[key])


def _sent(console: Console, address: str, form: MessageForm) -> str:
    """Send a message; return its id. Raises the errors of `tarry.Queue.send`."""
    client = console.client("sqs")
    [message_id] = send(
        client,
        address,
        form.body,
        delay=form.delay_seconds,
        group_id=form.group or None,
        attributes=form.attribute_values,
    )
    return message_id


async def _rendered(
    request: web.Request, form: MessageForm, names: Sequence[str], *, status: int = 200, **values: Any
) -> web.Response:
    console = console_of(request)
    files = await console.compute(sample_files, _folder(console))
    shown = {"hints": [], "sample": "", "sent": "", "path": "", "problem": "", **values}
    return pages.render(
        request,
        "send/page.html",
        status=status,
        form=form,
        queues=names,
        fifo=[each.name for each in console.queues if each.name and each.name.endswith(".fifo")],
        files=files,
        syntax=SYNTAX,
        max_delay=MAX_DELAY_SECONDS,
        once=secrets.token_urlsafe(8),
        **shown,
    )


def _folder(console: Console) -> Path | None:
    return None if console.template is None else console.template.path.parent / SAMPLES_FOLDER


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
