"""The page of one message: why it failed, its story, its body, and its test."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from tarry import failed
from tarry.failed.dead_letters import plain
from tarry.failed.usage import UsageError
from tarry.failed.wording import ATTRIBUTES, EXTRA, brief, facts_of, has_history, traceback_of
from tarry.record.attribute import timestamp
from tarry.tools.console import pages
from tarry.tools.console.access import Problem, console_of
from tarry.tools.console.dead_letters.pages.jobs import runs_about
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS
from tarry.tools.console.json_layout import formatted
from tarry.tools.console.pages import path_of_message, picture_of_story, visible_lines
from tarry.tools.console.stories import known_story, rows_of, searched
from tarry.tools.local.dead_letter_tests import test_file
from tarry.tools.template.model import TemplateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from tarry.failed import DeadLetterMessage
    from tarry.tools.console.access import Console
    from tarry.tools.console.dead_letters.pages.jobs import AuditedRun
    from tarry.tools.story.events import Story

FORMATTED, RAW = "formatted", "raw"
FIRST_LINES, FIRST_CHARACTERS = 300, 20_000
"""The part of a body that is shown before the reader asks for all of it."""
BLOCK_LINES, BLOCK_CHARACTERS = 300, 20_000
"""The text of one block of a page: a browser draws only the blocks that are visible."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n\t]")


@dataclass(frozen=True)
class BodyView:
    """A body as a page shows it."""

    view: str
    """``formatted`` or ``raw``."""
    blocks: tuple[str, ...]
    """The text to show, with control characters escaped, in parts that end where a line ends if they can."""
    characters: int
    bytes: int
    """The length of the body in UTF-8."""
    is_cut: bool
    """Whether there is more than the text to show."""
    is_json: bool
    note: str = ""
    """Why JSON is not formatted, or what the escapes stand for; empty if there is nothing to say."""


def body_view(body: str, view: str = FORMATTED, *, all_of_it: bool = False) -> BodyView:
    """Return what a page shows of a body.

    Args:
        body: The body.
        view: ``formatted``, if it is JSON, or ``raw``.
        all_of_it: Without this, return only the first part of a long body.
    """
    found = formatted(body, None if all_of_it else FIRST_CHARACTERS)
    note = found.why_not
    text = found.text if view == FORMATTED and found.text is not None else body
    first = text if all_of_it else _first(text)
    shown = visible_lines(first) if _UNPRINTABLE.search(first) else first
    if not note and len(shown) != len(first):
        note = "Control characters and marks of direction are shown as escapes, such as \\u202e."
    return BodyView(
        FORMATTED if text is found.text else RAW,
        tuple(_blocks(shown)),
        len(body),
        len(body.encode("utf-8", "surrogatepass")),
        is_cut=len(first) < len(text),
        is_json=found.is_json,
        note=note,
    )


def _first(text: str) -> str:
    """Return the first part of a long text, cut at the end of a line if there is one."""
    lines = text[:FIRST_CHARACTERS].split("\n", FIRST_LINES)
    if len(lines) > FIRST_LINES:
        return "\n".join(lines[:FIRST_LINES])
    return text[:FIRST_CHARACTERS]


def _blocks(text: str) -> Iterator[str]:
    """Yield a text in blocks of some lines; a very long line is cut, without a line break in the page."""
    block: list[str] = []
    size = count = 0
    for line in text.splitlines(keepends=True):
        for begin in range(0, len(line), BLOCK_CHARACTERS):
            part = line[begin : begin + BLOCK_CHARACTERS]
            if block and (size + len(part) > BLOCK_CHARACTERS or count == BLOCK_LINES):
                yield "".join(block)
                block, size, count = [], 0, 0
            block.append(part)
            size, count = size + len(part), count + 1
    if block:
        yield "".join(block)


NO_BODIES = "This console shows no bodies (--no-bodies)."
MAX_EVENT_CHARACTERS = 20_000
"""The part of the event and the test that the page shows; the files have all."""


def routes(app: web.Application) -> None:
    router = app.router
    router.add_get("/message", _find)
    router.add_get("/message/{id}", _page, name="message")
    router.add_get("/message/{id}/body", _body)
    router.add_get("/message/{id}/body.txt", _body_file)
    router.add_get("/message/{id}/event.json", _event_file)
    router.add_get("/message/{id}/test.py", _test_file)
    router.add_get("/message/{id}/test", _test)
    router.add_post("/message/{id}/story", _search)


async def _find(request: web.Request) -> web.Response:
    """Go to the message with the id of a form."""
    message_id = request.query.get("id", "").strip()
    if not message_id:
        raise Problem("Give the id of a message: its stable id, or an id that SQS gave to a copy of it.")
    raise web.HTTPSeeOther(path_of_message(message_id))


async def _page(request: web.Request) -> web.Response:
    console, message_id = console_of(request), request.match_info["id"]
    dead_letter, is_whole = await _dead_letter(request, message_id)
    story = await known_story(console, dead_letter.id if dead_letter else message_id, dead_letter)
    runs = await _runs(request, message_id, dead_letter, story)
    if dead_letter is None and story is None:
        return pages.render(
            request, "message/unknown.html", status=404, id=message_id, path=path_of_message(message_id), runs=runs
        )
    text = _body_of(console, dead_letter if is_whole else None, message_id)
    return pages.render(
        request,
        "message/page.html",
        id=dead_letter.id if dead_letter else story.id if story else message_id,
        path=path_of_message(dead_letter.delivery_id if dead_letter else message_id),
        dead_letter=dead_letter,
        runs=runs,
        is_whole=is_whole,
        why=brief(dead_letter) if dead_letter else "",
        facts=_facts(dead_letter, shows_bodies=console.shows_bodies) if dead_letter else [],
        history=_history(dead_letter) if dead_letter else [],
        traceback=traceback_of(dead_letter.failure) if dead_letter else "",
        attributes=_attributes(dead_letter) if dead_letter and is_whole and console.shows_bodies else [],
        has_body=text is not None,
        body=None if text is None else await _view(console, text, request.query),
        **_story_values(story, can_search=console.stack is not None),
    )


async def _dead_letter(request: web.Request, message_id: str) -> tuple[DeadLetterMessage | None, bool]:
    """Return a dead letter of a scan, and whether its body, attributes and traceback are there."""
    snapshots = request.app[SNAPSHOTS]
    console = console_of(request)
    whole = await console.compute(snapshots.get, message_id)
    if whole is not None:
        return whole, True
    return await console.compute(snapshots.part, message_id), False


async def _runs(
    request: web.Request, message_id: str, dead_letter: DeadLetterMessage | None, story: Story | None
) -> list[AuditedRun]:
    """Return the runs of the audit that acted on the message, after the scan that has it; none without the file."""
    console, gone = console_of(request), request.app[SNAPSHOTS].gone(message_id)
    ids = {message_id, *([story.id] if story else []), *([gone] if gone else [])}
    since = ""
    if dead_letter is not None:
        ids |= {dead_letter.id, dead_letter.delivery_id}
        snapshot = request.app[SNAPSHOTS].of(dead_letter.queue)
        since = "" if snapshot is None else timestamp(snapshot.began_at)
    try:
        found = await console.compute(runs_about, console.audit_path, ids, shows_bodies=console.shows_bodies)
    except OSError:
        return []
    return [each for each in found if each.at >= since]


def _facts(dead_letter: DeadLetterMessage, *, shows_bodies: bool) -> list[tuple[str, str]]:
    left_out = (ATTRIBUTES,) if shows_bodies else (ATTRIBUTES, EXTRA)
    return [(name, value) for name, value in facts_of(dead_letter) if name not in left_out]


def _history(dead_letter: DeadLetterMessage) -> list[Mapping[str, Any]]:
    names = ("at", "attempt", "error", "delay")
    if not has_history(dead_letter):
        return []
    return [{name: entry.get(name, "") for name in names} for entry in dead_letter.history]


def _attributes(dead_letter: DeadLetterMessage) -> list[tuple[str, str, str]]:
    """Return the name, the type and the value of each attribute; a binary value as base64."""
    kinds = {name: str(each.get("dataType", "")) for name, each in dead_letter.record["messageAttributes"].items()}
    return [(name, kinds.get(name, ""), str(value)) for name, value in plain(dead_letter.attributes).items()]


def _story_values(story: Story | None, *, can_search: bool) -> dict[str, Any]:
    shown = {"picture": picture_of_story(story), "rows": [*rows_of(story)]} if story else {}
    return {"story": story, "can_search": can_search, **shown}


# the body


def _body_of(console: Console, dead_letter: DeadLetterMessage | None, message_id: str) -> str | None:
    """Return the body of a dead letter, or of a message that a running `tarry local` knows."""
    if dead_letter is not None:
        return dead_letter.body
    return None if console.local is None else console.local.body(message_id)


async def _view(console: Console, text: str, query: Mapping[str, str]) -> BodyView | None:
    """Return the body as the page shows it; None if it may not be seen."""
    if not console.shows_bodies:
        return None
    view = RAW if query.get("view") == RAW else FORMATTED
    return await console.compute(body_view, text, view, all_of_it=query.get("all") == "1")


async def _text(request: web.Request) -> str:
    """Return the body of the message of a request. Raises `Problem`."""
    console, message_id = console_of(request), request.match_info["id"]
    if console.shows_bodies and console.local is not None:
        dead_letter, is_whole = await _dead_letter(request, message_id)
        text = _body_of(console, dead_letter if is_whole else None, message_id)
        if text is not None:
            return text
    return (await _whole(request)).body


async def _body(request: web.Request) -> web.Response:
    """Show the body alone: formatted or raw, the first part or all of it."""
    text, message_id = await _text(request), request.match_info["id"]
    body = await _view(console_of(request), text, request.query)
    return pages.render(request, "message/body.html", body=body, id=message_id, path=path_of_message(message_id))


async def _whole(request: web.Request) -> DeadLetterMessage:
    """Return the dead letter of a request, whole. Raises `Problem`."""
    if not console_of(request).shows_bodies:
        raise Problem(NO_BODIES, 403)
    dead_letter, is_whole = await _dead_letter(request, request.match_info["id"])
    if dead_letter is None:
        raise Problem("No scan of this console has this dead letter. Scan its queue again.", 404)
    if not is_whole:
        raise Problem("The body of this dead letter is not in memory any more. Scan its queue again.", 404)
    return dead_letter


# files


async def _body_file(request: web.Request) -> web.Response:
    return _file(await _text(request), f"{_safe(request.match_info['id'])}.txt", "text/plain")


async def _event_file(request: web.Request) -> web.Response:
    dead_letter = await _whole(request)
    return _file(event_text(dead_letter), f"{_safe(dead_letter.id)}.json", "application/json")


async def _test_file(request: web.Request) -> web.Response:
    dead_letter = await _whole(request)
    text = await console_of(request).in_thread(test_text, console_of(request), dead_letter)
    return _file(text, f"test_{_safe(dead_letter.id).replace('-', '_')}.py", "text/x-python")


async def _test(request: web.Request) -> web.Response:
    """Show the message as a test: the event that a function would get, and a pytest file."""
    dead_letter = await _whole(request)
    console = console_of(request)
    problem = test = ""
    try:
        test = await console.in_thread(test_text, console, dead_letter)
    except (UsageError, TemplateError) as error:
        problem = pages.explained(error) or ""
    event = await console.compute(event_text, dead_letter)
    most = MAX_EVENT_CHARACTERS
    return pages.render(
        request,
        "message/test.html",
        id=dead_letter.id,
        path=path_of_message(dead_letter.delivery_id),
        event=event[:most],
        event_is_cut=len(event) > most,
        test=test[:most],
        test_is_cut=len(test) > most,
        problem=problem,
        name=f"test_{_safe(dead_letter.id).replace('-', '_')}.py",
    )


def event_text(dead_letter: DeadLetterMessage) -> str:
    """Return the SQS event of a dead letter as JSON, as ``tarry failed show --event`` does."""
    return json.dumps(failed.as_event([dead_letter]), indent=2) + "\n"


def test_text(console: Console, dead_letter: DeadLetterMessage) -> str:
    """Return the test file of a dead letter, as ``tarry failed show --pytest`` does. Raises `UsageError`."""
    return test_file([dead_letter], console.template, console.template_names)


def _safe(text: str) -> str:
    """Return the beginning of an id as part of a file name."""
    return re.sub(r"[^A-Za-z0-9-]", "_", text)[:80]


def _file(text: str, name: str, content_type: str) -> web.Response:
    return web.Response(
        body=text.encode("utf-8", "backslashreplace"),
        content_type=content_type,
        charset="utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


# the search in logs


async def _search(request: web.Request) -> web.Response:
    """Search the logs for the story. It is a POST because AWS bills it."""
    console, message_id = console_of(request), request.match_info["id"]
    dead_letter, _ = await _dead_letter(request, message_id)
    wanted = dead_letter.id if dead_letter else message_id
    found = await console.in_thread(searched, console, wanted)
    return pages.render(
        request,
        "message/searched.html",
        id=wanted,
        path=path_of_message(message_id),
        cost=found.cost,
        not_found=found.not_found,
        is_complete=found.is_complete,
        **_story_values(found.story, can_search=False),
    )
