"""The live feed of `tarry local`: what happens to each message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tarry.failed.text import brief
from tarry.tools.console import pages
from tarry.tools.console.access import CONSOLE, console_of
from tarry.tools.console.pages import fragment
from tarry.tools.console.security import TOKEN_PATH
from tarry.tools.local.show.timeline import LOST, counted, name_of, stamp, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from tarry.tools.console.access import Console
    from tarry.tools.local.show.board import Outlook, Scene
    from tarry.tools.local.show.timeline import MessageTimeline

FRAME_SECONDS = 0.5
MOST_STEPS = 8
"""The steps of a message that its row shows: the last ones."""
MOST_LINES = 200
OF_TERMINAL = f"{TOKEN_PATH}?token="
"""A part of one-time addresses, which are for the terminal only."""
PARTS: Mapping[str, str] = {
    "feed-messages": "feed/_messages.html",
    "feed-queues": "feed/_queues.html",
    "feed-log": "feed/_log.html",
}
"""The live parts of the page: the topic and the template of each."""


def values_of(scene: Scene) -> dict[str, Any]:
    lines = [(stamp(each.at), each) for each in [*scene.lines][-MOST_LINES:] if OF_TERMINAL not in each.text]
    return {
        "ended": counted(scene.ended),
        "messages": [_shown(each) for each in scene.messages],
        # When the oldest message was sent: an age would change the page each second.
        "queues": [
            (each, "" if each.oldest_seconds is None else stamp(scene.now - each.oldest_seconds))
            for each in scene.queues
        ],
        "functions": scene.functions,
        "lines": lines[::-1],  # the latest first
    }


def _shown(message: MessageTimeline) -> dict[str, Any]:
    """Return a message with what its row says of it in words."""
    steps = [*map(text_of, message.steps), *([LOST] if message.lost else [])]
    return {
        "message": message,
        "name": name_of(message).strip().rpartition(" ")[0],
        "back_at": "" if message.due is None else stamp(message.due),
        "why": brief(message.why),
        "steps": steps[-MOST_STEPS:],
        "are_left_out": len(steps) > MOST_STEPS,
    }


async def publish(console: Console, local: Outlook) -> None:
    """Publish what has changed, twice a second, while a page is open."""
    while True:
        await asyncio.sleep(FRAME_SECONDS)
        if not any(map(console.live.is_watched, PARTS)):
            continue
        values = values_of(local.scene())
        for topic, template in PARTS.items():
            console.live.publish(topic, fragment(template, **values))


def routes(app: web.Application) -> None:
    if app[CONSOLE].local is not None:
        app.router.add_get("/feed", _page)


async def _page(request: web.Request) -> web.Response:
    local = console_of(request).local
    assert local is not None
    return pages.render(request, "feed/page.html", **values_of(local.scene()))
