"""The page of one message: why it failed, its story (of `tarry local`, its record or logs), its body, its test."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from aiohttp import web

from tarry import failed
from tarry.failed import DeadLetterMessage
from tarry.failed.dead_letters import plain
from tarry.failed.text import (
    ATTRIBUTES,
    EXTRA,
    attempt_of,
    facts_of,
    has_history,
    origin_name,
    seconds_of,
    traceback_of,
)
from tarry.failed.usage import UsageError
from tarry.message.outcomes import State
from tarry.record.attribute import HISTORY_LENGTH, timestamp
from tarry.tools.common.places import is_aws
from tarry.tools.console import pages
from tarry.tools.console.access import Console, Problem, console_of
from tarry.tools.console.dead_letters.pages.jobs import AuditedRun, runs_about
from tarry.tools.console.dead_letters.snapshots import SNAPSHOTS
from tarry.tools.console.json_layout import formatted
from tarry.tools.console.pages import inline, path_of_message, visible_lines
from tarry.tools.local.dead_letter_tests import test_file
from tarry.tools.story.events import Story, StoryEvent, moment
from tarry.tools.story.picture import picture
from tarry.tools.story.searching import LEAST_CHARACTERS, FoundStory, places_of, search_logs
from tarry.tools.story.text import since_text, state_text, why_text

FORMATTED, RAW = "formatted", "raw"
FIRST_LINES, FIRST_CHARACTERS = 300, 20_000
"""The part of a body that is shown before the reader asks for all of it."""
BLOCK_LINES, BLOCK_CHARACTERS = 300, 20_000
"""The text of one block of a page: a browser draws only the blocks that are visible."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n\t]")


class BodyView(NamedTuple):
    """A body as a page shows it."""

    view: str
    """``formatted`` or ``raw``."""
    blocks: Sequence[str]
    """The text to show, with control characters escaped, in parts that end where a line ends if they can."""
    characters: int
    bytes: int
    """The length of the body in UTF-8."""
    is_cut: bool
    """Whether there is more than the text to show."""
    is_json: bool
    note: str
    """Why JSON is not formatted, or what the escapes stand for; empty if there is nothing to say."""


def body_view(body: str, view: str = FORMATTED, *, all_of_it: bool = False) -> BodyView:
    """Return what a page shows of a body: formatted, if it is JSON, or raw. A long one is cut unless ``all_of_it``."""
    found = formatted(body, None if all_of_it else FIRST_CHARACTERS)
    note = found.why_not
    is_formatted = view == FORMATTED and found.text is not None
    text = str(found.text) if is_formatted else body
    # Cut at the end of a line, if there is one.
    first = text if all_of_it else "\n".join(text[:FIRST_CHARACTERS].split("\n", FIRST_LINES)[:FIRST_LINES])
    shown = visible_lines(first) if _UNPRINTABLE.search(first) else first
    if not note and len(shown) != len(first):
        note = "Control characters and marks of direction are shown as escapes, such as \\u202e."
    view, size = FORMATTED if is_formatted else RAW, len(body.encode("utf-8", "surrogatepass"))
    return BodyView(view, [*_blocks(shown)], len(body), size, len(first) < len(text), found.is_json, note)


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
    router.add_get("/message/{id}", _page)
    router.add_get("/message/{id}/body", _body)
    router.add_get("/message/{id}/body.txt", _body_file)
    router.add_get("/message/{id}/event.json", _event_file)
    router.add_get("/message/{id}/test.py", _test_file)
    router.add_get("/message/{id}/test", _test)
    router.add_post("/message/{id}/story", _search)


class Asked(NamedTuple):
    """The message of an address, as far as a scan has it."""

    console: Console
    id: str
    """A stable id, or that of a delivery."""
    dead_letter: DeadLetterMessage | None
    is_whole: bool
    """Whether the body, the attributes and the traceback of the dead letter are there."""

    @property
    def stable_id(self) -> str:
        return self.dead_letter.id if self.dead_letter else self.id

    @property
    def body(self) -> str | None:
        """The body of a dead letter, or of a message that a running `tarry local` knows."""
        if self.dead_letter is not None and self.is_whole:
            return self.dead_letter.body
        return None if self.console.local is None else self.console.local.board.body(self.id)

    def whole(self) -> DeadLetterMessage:
        """Return the dead letter. Raises `Problem` if it is not there, or may not be seen."""
        if not self.console.shows_bodies:
            raise Problem(NO_BODIES, 403)
        if self.dead_letter is None:
            raise Problem("No scan of this console has this dead letter. Scan its queue again.", 404)
        if not self.is_whole:
            raise Problem("The body of this dead letter is not in memory any more. Scan its queue again.", 404)
        return self.dead_letter

    async def view(self, text: str, query: Mapping[str, str]) -> BodyView | None:
        """Return a body as the page shows it; None if it may not be seen."""
        if not self.console.shows_bodies:
            return None
        view = RAW if query.get("view") == RAW else FORMATTED
        return await self.console.compute(body_view, text, view, all_of_it=query.get("all") == "1")


async def _asked(request: web.Request) -> Asked:
    console, message_id = console_of(request), request.match_info["id"]
    return Asked(console, message_id, *await console.compute(request.app[SNAPSHOTS].find, message_id))


async def _text(request: web.Request) -> tuple[Asked, str]:
    """Return the message of an address, and its body. Raises `Problem`."""
    asked = await _asked(request)
    text = asked.body if asked.console.shows_bodies else None
    return asked, asked.whole().body if text is None else text


async def _page(request: web.Request) -> web.Response:
    asked = await _asked(request)
    console, dead_letter = asked.console, asked.dead_letter
    story = await known_story(console, asked.stable_id, dead_letter)
    runs = await _runs(request, asked, story)
    if dead_letter is None and story is None:
        path = path_of_message(asked.id)
        return pages.render(request, "message/unknown.html", status=404, id=asked.id, path=path, runs=runs)
    text = asked.body
    shows_attributes = asked.is_whole and console.shows_bodies
    left_out = (ATTRIBUTES,) if console.shows_bodies else (ATTRIBUTES, EXTRA)
    return pages.render(
        request,
        "message/page.html",
        id=asked.stable_id if dead_letter or story is None else story.id,
        path=path_of_message(dead_letter.delivery_id if dead_letter else asked.id),
        dead_letter=dead_letter,
        runs=runs,
        is_whole=asked.is_whole,
        facts=[each for each in facts_of(dead_letter) if each[0] not in left_out] if dead_letter else [],
        history=dead_letter.history if dead_letter and has_history(dead_letter) else [],
        traceback=traceback_of(dead_letter.failure) if dead_letter else "",
        attributes=_attributes(dead_letter) if dead_letter and shows_attributes else [],
        has_body=text is not None,
        body=None if text is None else await asked.view(text, request.query),
        **_story_values(story, can_search=console.stack is not None),
    )


async def _runs(request: web.Request, asked: Asked, story: Story | None) -> list[AuditedRun]:
    """Return the runs of the audit that acted on the message, after the scan that has it; none without the file."""
    console, dead_letter, snapshots = asked.console, asked.dead_letter, request.app[SNAPSHOTS]
    ids = {asked.id, story.id if story else None, snapshots.gone(asked.id)}
    since = ""
    if dead_letter is not None:
        ids |= {dead_letter.id, dead_letter.delivery_id}
        snapshot = snapshots.of(dead_letter.queue)
        since = "" if snapshot is None else timestamp(snapshot.began_at)
    try:
        known = filter(None, ids)
        found = await console.compute(runs_about, console.audit_path, known, shows_bodies=console.shows_bodies)
    except OSError:
        return []
    return [each for each in found if each.at >= since]


def _attributes(dead_letter: DeadLetterMessage) -> list[tuple[str, str, str]]:
    """Return the name, the type and the value of each attribute; a binary value as base64."""
    given = dead_letter.record["messageAttributes"]
    values = plain(dead_letter.attributes).items()
    return [(name, str(given.get(name, {}).get("dataType", "")), str(value)) for name, value in values]


def _story_values(story: Story | None, *, can_search: bool) -> dict[str, Any]:
    shown = {"picture": inline(picture(story)), "rows": [*rows_of(story)]} if story else {}
    return {"story": story, "can_search": can_search, **shown}


async def _body(request: web.Request) -> web.Response:
    """Show the body alone: formatted or raw, the first part or all of it."""
    asked, text = await _text(request)
    body = await asked.view(text, request.query)
    return pages.render(request, "message/body.html", body=body, id=asked.id, path=path_of_message(asked.id))


# files


async def _body_file(request: web.Request) -> web.Response:
    asked, text = await _text(request)
    return _file(text, f"{_safe(asked.id)}.txt", "text/plain")


async def _event_file(request: web.Request) -> web.Response:
    dead_letter = (await _asked(request)).whole()
    return _file(event_text(dead_letter), f"{_safe(dead_letter.id)}.json", "application/json")


async def _test_file(request: web.Request) -> web.Response:
    console, dead_letter = console_of(request), (await _asked(request)).whole()
    return _file(await console.in_thread(_test_text, console, dead_letter), _test_name(dead_letter), "text/x-python")


async def _test(request: web.Request) -> web.Response:
    """Show the message as a test: the event that a function would get, and a pytest file."""
    console, dead_letter = console_of(request), (await _asked(request)).whole()
    test, problem = await pages.asked(console, _test_text, console, dead_letter)
    return pages.render(
        request,
        "message/test.html",
        id=dead_letter.id,
        path=path_of_message(dead_letter.delivery_id),
        event=await console.compute(event_text, dead_letter),
        test=test or "",
        problem=problem,
        most=MAX_EVENT_CHARACTERS,
        name=_test_name(dead_letter),
    )


def event_text(dead_letter: DeadLetterMessage) -> str:
    """Return the SQS event of a dead letter as JSON, as ``tarry failed show --event`` does."""
    return json.dumps(failed.as_event([dead_letter]), indent=2) + "\n"


def _test_text(console: Console, dead_letter: DeadLetterMessage) -> str:
    """Return the test file of a dead letter, as ``tarry failed show --pytest`` does. Raises `UsageError`."""
    return test_file([dead_letter], console.template, console.template_names)


def _test_name(dead_letter: DeadLetterMessage) -> str:
    return f"test_{_safe(dead_letter.id).replace('-', '_')}.py"


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


async def _search(request: web.Request) -> web.Response:
    """Search the logs for the story. It is a POST because AWS bills it."""
    asked = await _asked(request)
    found = await asked.console.in_thread(searched, asked.console, asked.stable_id)
    return pages.render(
        request,
        "message/searched.html",
        id=asked.stable_id,
        path=path_of_message(asked.id),
        cost=found.cost,
        not_found=found.not_found,
        **_story_values(found.story, can_search=False),
    )


# stories

SOURCE = "its failure record"


def story_of_record(dead_letter: DeadLetterMessage, now: float) -> Story | None:
    """Return what the failure record tells about a message; None without a record that has times."""
    events = sorted(_events(dead_letter), key=lambda event: event.at)
    if not any(event.state is State.DEAD_LETTERED for event in events):
        return None
    return Story(dead_letter.id, tuple(events), SOURCE, now, is_whole=False, notes=tuple(_notes(dead_letter)))


def _events(dead_letter: DeadLetterMessage) -> Iterator[StoryEvent]:
    failure, queue = dead_letter.failure, origin_name(dead_letter)
    if (sent := seconds_of(dead_letter.sent_at)) is not None:
        yield StoryEvent(sent, State.READY, origin=queue)
    if failure is None:
        return
    failed = seconds_of(failure.failed_at)
    for entry in dead_letter.history:
        at = seconds_of(str(entry.get("at")))
        if at is None or (at == failed and entry.get("delay") is None):
            continue  # the last failure, which is the dead letter itself
        delay = entry.get("delay")
        yield StoryEvent(
            at,
            State.WAITING_RETRY,
            origin=queue,
            attempt=attempt_of(entry),
            delay=float(delay) if isinstance(delay, int | float) else None,
            error=str(entry.get("error") or ""),
        )
    if failed is not None:
        yield StoryEvent(
            failed,
            State.DEAD_LETTERED,
            origin=queue,
            sent_to=dead_letter.queue,
            attempt=_last_attempt(dead_letter),
            reason=failure.reason or "",
            error=": ".join(filter(None, (failure.type, failure.message))),
            function=failure.function or "",
            delivery_id=dead_letter.delivery_id,
            request_id=failure.request_id or "",
        )


def _notes(dead_letter: DeadLetterMessage) -> Iterator[str]:
    failure = dead_letter.failure
    known = [attempt_of(entry) for entry in dead_letter.history]
    entries = sum(each is not None and each != before for each, before in zip(known, [None, *known], strict=False))
    missing = 0 if failure is None or failure.attempts is None else failure.attempts - max(1, entries)
    if missing > 0:
        have = "has" if missing == 1 else "have"
        why = "retries in place write none" + f", and it keeps {HISTORY_LENGTH}" * (len(known) >= HISTORY_LENGTH)
        yield f"{missing:,} attempt{'s'[: missing != 1]} {have} no entry in the record: {why}."


def _last_attempt(dead_letter: DeadLetterMessage) -> int | None:
    """Return the number of the last attempt, which begins anew with each redrive as those of the history do."""
    failure, last = dead_letter.failure, dead_letter.history[-1] if dead_letter.history else {}
    is_of_failure = failure is not None and seconds_of(str(last.get("at"))) == seconds_of(failure.failed_at)
    own = attempt_of(last) if is_of_failure else None
    return own if own is not None or failure is None else failure.attempts


MAX_EVENTS = 300
"""The most events of a page; the first and the last ones of more."""
SEARCHED_SECONDS = 14 * 86_400.0
"""SQS keeps no message for longer."""


async def known_story(console: Console, message_id: str, dead_letter: DeadLetterMessage | None) -> Story | None:
    """Return the story that is known without a search in logs: that of `tarry local`, or of the failure record."""
    found, endpoint = None, console.place.endpoint
    if console.local is not None:
        found = console.local.story(message_id)
    elif endpoint is not None:
        found = await console.in_thread(_story_at, endpoint, message_id)
    if found is None and dead_letter is not None:
        found = story_of_record(dead_letter, time.time())
    return found


def _story_at(endpoint: str, message_id: str) -> Story | None:
    """Ask the `tarry local` at an endpoint; None if there is none."""
    from tarry.tools.local.stories import ask

    if is_aws(endpoint):
        return None
    with suppress(OSError, UnicodeEncodeError):  # another SQS, such as moto; or an id that no address can have
        return ask(endpoint, message_id)
    return None


def searched(console: Console, message_id: str) -> FoundStory:
    """Search for the story in the logs of the stack. Raises `UsageError` and `ClientError`."""
    if console.stack is None:
        raise UsageError("logs are searched by stack: start tarry console with --stack NAME")
    if len(message_id) < LEAST_CHARACTERS:
        raise UsageError(f"the id {message_id!r} is too short to search logs for it: {LEAST_CHARACTERS} characters")
    place = places_of(console.client, console.account.region, console.stack)
    if not place.groups:
        raise UsageError(f"stack {console.stack} has no function with a log group: no function of it was ever invoked")
    return search_logs(console.client("logs"), place, message_id, time.time() - SEARCHED_SECONDS)


def rows_of(story: Story) -> Iterator[Mapping[str, str] | int]:
    """Yield the events as rows, the first and the last of many; a number is how many are left out there."""
    for event, before, left_out in story.listed(MAX_EVENTS):
        if left_out:
            yield left_out
        words = ": ".join(filter(None, (event.words(before), why_text(event))))
        at = moment(event.at).replace("T", " ").replace("Z", "")
        since = since_text(event, story)
        yield {"at": at, "since": since, "state": state_text(event), "words": words, "queue": event.place}
