"""The live feed of `tarry local`: what happens to each message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.failed.text import brief
from tarry.message.outcomes import State
from tarry.tools.console import pages
from tarry.tools.console.access import CONSOLE, console_of
from tarry.tools.console.pages import fragment
from tarry.tools.console.security import TOKEN_PATH
from tarry.tools.local.show.log import stamp
from tarry.tools.local.show.timeline import LOST, counted, name_of, text_of
from tarry.tools.story.events import ENDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiohttp import web

    from tarry.tools.console.access import Console
    from tarry.tools.local.session import LocalRun
    from tarry.tools.local.show.board import QueueRow, Scene
    from tarry.tools.local.show.timeline import MessageTimeline

FRAME_SECONDS = 0.5
MOST_STEPS = 8
"""The steps of a message that its row shows: the last ones."""
MOST_LINES = 200
PARTS: Mapping[str, str] = {
    "feed-messages": "feed/_messages.html",
    "feed-queues": "feed/_queues.html",
    "feed-log": "feed/_log.html",
}
"""The live parts of the page: the topic and the template of each."""
KINDS: Mapping[str, str] = {
    State.COMMITTED: "badge-good",
    State.WAITING_RETRY: "badge-warn",
    State.DEAD_LETTERED: "badge-bad",
    LOST: "badge-bad",
}
"""The classes of badges, beside the names of the states."""


class MessageRow(NamedTuple):
    """A message of the feed."""

    id: str
    name: str
    path: str
    queue: str
    state: str
    kind: str
    attempt: str
    back_at: str
    why: str
    steps: list[str]
    left_out: int
    """The number of earlier steps."""


class FeedLine(NamedTuple):
    """A line of the log."""

    at: str
    function: str
    text: str
    kind: str


def values_of(scene: Scene) -> dict[str, Any]:
    return {
        "ended": counted(scene.ended),
        "messages": [_message(each) for each in scene.messages],
        "queues": [(each, _begin_of(each, scene.now)) for each in scene.queues],
        "functions": scene.functions,
        "lines": _lines(scene),
    }


def _message(message: MessageTimeline) -> MessageRow:
    waits = message.due is not None and message.state not in ENDS
    steps = [text_of(step) for step in message.steps]
    if message.lost:
        steps.append(LOST)
    return MessageRow(
        message.id,
        name_of(message).strip().rpartition(" ")[0],
        pages.path_of_message(message.id),
        message.queue,
        message.state,
        KINDS.get(message.state, ""),
        str(message.attempt or ""),
        stamp(message.due) if waits and message.due else "",
        brief(message.why),
        steps[-MOST_STEPS:],
        max(0, len(steps) - MOST_STEPS),
    )


def _begin_of(queue: QueueRow, now: float) -> str:
    """Return when the oldest message was sent: an age would change the page each second."""
    return "" if queue.oldest_seconds is None else stamp(now - queue.oldest_seconds)


def _lines(scene: Scene) -> Sequence[FeedLine]:
    """Return the last lines, the latest first."""
    found = [
        FeedLine(stamp(each.at), each.function, each.text, "bad" if "red" in each.style else "")
        for each in [*scene.lines][-MOST_LINES:]
        if f"{TOKEN_PATH}?token=" not in each.text  # one-time addresses are for the terminal
    ]
    return found[::-1]


async def publish(console: Console, local: LocalRun) -> None:
    """Publish what has changed, twice a second, while a page is open."""
    shown: dict[str, str] = {}
    while True:
        await asyncio.sleep(FRAME_SECONDS)
        if not any(map(console.live.is_watched, PARTS)):
            continue
        values = values_of(local.scene())
        for topic, template in PARTS.items():
            html = fragment(template, **values)
            if shown.get(topic) != html:
                shown[topic] = html
                console.live.publish(topic, html)


def routes(app: web.Application) -> None:
    """Add the page, if the console is that of a running `tarry local`."""
    if app[CONSOLE].local is not None:
        app.router.add_get("/feed", _page, name="feed")


async def _page(request: web.Request) -> web.Response:
    local = console_of(request).local
    assert local is not None
    return pages.render(request, "feed/page.html", **values_of(local.scene()))
