"""The live feed of `tarry local`: what its page shows, and what is published when something changes."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tarry.message.outcomes import State
from tarry.testing import Transition
from tarry.tools.console import feed as publishing
from tarry.tools.console.access import WatchedQueue
from tarry.tools.console.feed import publish, values_of
from tarry.tools.console.overview.rows import QueueHistory, QueueReading, rows_of
from tarry.tools.local.show.board import FunctionRow, QueueRow, Scene
from tarry.tools.local.show.timeline import LogLine, MessageTimeline
from tarry.tools.story.events import Story, StoryEvent
from tests.consoles import Visitor, console_at, visiting
from tests.scanned import HOSTILE, scan

NOON = 1_795_348_800.0
NOWHERE = "http://127.0.0.1:1"


def message(name: str, *states: State, why: str = "", lost: str = "") -> MessageTimeline:
    last = len(states) - 1
    delay = 90 if states[last] is State.WAITING_RETRY else None
    steps = [Transition(NOON + place, state, name, "orders", 1) for place, state in enumerate(states[:last])]
    steps.append(Transition(NOON + last, states[last], name, "orders", 1, delay, why))
    return MessageTimeline(name, "orders", steps=steps, lost=lost)


SCENE = Scene(
    "tarry local",
    NOON + 10,
    [QueueRow("orders", 1, 2, 3, 10.0, "orders-dlq", 4)],
    [FunctionRow("Works", 1, 1, 5, 2, 0, "1 message in 3 ms", "old code")],
    [
        message("m-waits/1", *[State.READY, State.IN_FLIGHT] * 6, State.WAITING_RETRY, why=f"app.Timeout: {HOSTILE}"),
        message("m-lost-12", State.READY, lost="it expired"),
    ],
    [LogLine(NOON, "Works", HOSTILE, "red"), LogLine(NOON, "", "http://127.0.0.1:1/open?token=secret")],
    {"COMMITTED": 7, "DEAD_LETTERED": 1},
)


class Local:
    """A running `tarry local` as a console sees it."""

    def __init__(self) -> None:
        self.now = SCENE
        self.board = self

    def scene(self) -> Scene:
        return self.now

    def body(self, message_id: str) -> str | None:
        return f"secret-body {HOSTILE}" if message_id == "m-lost-12" else None

    def story(self, message_id: str) -> Story | None:
        if message_id != "m-lost-12":
            return None
        ended = StoryEvent(NOON, State.DEAD_LETTERED, origin="orders", sent_to="orders-dlq", reason="rejected")
        return Story("m-lost-12", (ended,), "tarry local", NOON)


def visited(work: Callable[[Visitor, Any], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        console = console_at(NOWHERE, local=Local(), **settings)
        async with visiting(console) as visitor:
            return await work(visitor, console)

    return asyncio.run(main())


def test_the_feed_shows_messages_queues_functions_and_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch)

    async def work(visitor: Visitor, console: Any) -> None:
        html = (await visitor.get("/feed")).text
        text = " ".join(re.sub(r"<[^>]*>", " ", html).split())
        for part in (
            "Finished: 7 committed, 1 dead-lettered.",
            "… IN_FLIGHT 1 → READY",
            "→ WAITING_RETRY 1 min 30 s",
            "LOST",
            "orders 1 2 3",
            "4 in orders-dlq",
            "Works 1 1 5 2 old code 1 message in 3 ms",
            "Timeout: \\x1b[31m\\u202e&lt;script&gt;",
        ):
            assert part in text, part
        assert 'href="/message/m-waits%2F1"' in html
        assert "<script>document" not in html
        assert not re.search("[\x1b\u202e]", html)
        assert "token=" not in html
        assert '<a href="/feed" aria-current="page">Live feed</a>' in html

    visited(work)


def test_what_has_changed_is_published_while_a_page_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "FRAME_SECONDS", 0.001)

    async def work(visitor: Visitor, console: Any) -> None:
        task = asyncio.create_task(publish(console, console.local))
        path = f"{visitor.url}/live?topic=feed-messages"
        async with asyncio.timeout(60), visitor.http.get(path) as stream:
            lines = (line async for line in stream.content if line.startswith(b"data:"))
            first = json.loads((await anext(lines))[5:])
            assert first["topic"] == "feed-messages"
            assert "WAITING_RETRY" in first["html"]
            console.local.now = replace(SCENE, messages=[message("m-new", State.READY, State.COMMITTED)])
            second = json.loads((await anext(lines))[5:])
            assert "m-new" in second["html"]
            assert "WAITING_RETRY" not in second["html"]
        task.cancel()

    visited(work)


def test_a_message_of_tarry_local_is_shown_with_its_story_and_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch)

    async def work(visitor: Visitor, console: Any) -> None:
        page = await visitor.get("/message/m-lost-12")
        assert page.status == 200
        assert "secret-body \\x1b[31m\\u202e&lt;script&gt;" in page.text
        assert '<svg class="picture"' in page.text
        assert 'last scan of <a href="/dead-letters/orders-dlq">' in page.text
        assert (await visitor.get("/message/m-lost-12/body.txt")).text == f"secret-body {HOSTILE}"
        console.shows_bodies = False
        for part in ("", "/body", "/body.txt"):
            assert "secret-body" not in (await visitor.get(f"/message/m-lost-12{part}")).text
        assert (await visitor.get("/message/nosuch")).status == 404

    visited(work)


def test_the_same_scene_gives_the_same_page_later() -> None:
    later = replace(SCENE, now=SCENE.now + 1, queues=[replace(SCENE.queues[0], oldest_seconds=11.0)])
    assert values_of(later) | {"queues": []} == values_of(SCENE) | {"queues": []}
    assert values_of(later)["queues"][0][1] == values_of(SCENE)["queues"][0][1]


def test_without_tarry_local_there_is_no_feed() -> None:
    async def main() -> tuple[int, bool]:
        async with visiting(console_at(NOWHERE)) as visitor:
            return (await visitor.get("/feed")).status, "Live feed" in (await visitor.get("/send")).text

    assert asyncio.run(main()) == (404, False)


def test_the_latest_error_of_a_dead_letter_queue_is_named_before_a_scan() -> None:
    local = Local()
    ended = [
        message("m-last", State.IN_FLIGHT, State.DEAD_LETTERED, why="exhausted: app.Timeout: no answer"),
        message("m-before", State.IN_FLIGHT, State.DEAD_LETTERED, why="exhausted: KeyError: 'id'"),
    ]
    local.now = replace(SCENE, messages=[message("m-waits", State.WAITING_RETRY, why="ValueError"), *ended])
    console = console_at(NOWHERE, [WatchedQueue("orders", "orders-dlq")], local=local)
    assert console.latest_errors() == {"orders-dlq": "exhausted: app.Timeout: no answer"}
    history = QueueHistory()
    history.add(QueueReading(NOON, 2, 0, 0))
    found = rows_of(console.queues, {"orders-dlq": history}, NOON, latest_errors=console.latest_errors())
    [concern] = found.rows[0].concerns
    assert concern.text == "2 dead letters wait for a decision. The latest: exhausted: app.Timeout: no answer"
    assert console_at(NOWHERE, console.queues).latest_errors() == {}
