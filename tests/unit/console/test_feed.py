"""The live feed of `tarry local`: what its page shows, and what is published when something changes."""

import asyncio
import json
import re
import threading
from dataclasses import replace
from typing import Any

import pytest

from tarry.message.outcomes import State
from tarry.testing import Transition
from tarry.tools.console import access as live
from tarry.tools.console import feed as publishing
from tarry.tools.console.access import Console, Live, WatchedQueue
from tarry.tools.console.feed import publish, values_of
from tarry.tools.console.overview.rows import QueueHistory, QueueReading, rows_of
from tarry.tools.local.show.board import FunctionRow, QueueRow, Scene
from tarry.tools.local.show.timeline import LogLine, MessageTimeline
from tarry.tools.story.events import Story, StoryEvent
from tests.consoles import console_at, visited
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


def console_of(local: Local, **settings: Any) -> Console:
    return console_at(NOWHERE, local=local, **settings)


def test_the_feed_shows_messages_queues_functions_and_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch)
    with visited(console_of(Local())) as guest:
        html = guest.page("/feed")
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
    for part in ('href="/message/m-waits%2F1"', '<a href="/feed" aria-current="page">Live feed</a>'):
        assert part in html
    for part in ("<script>document", "\x1b", "\u202e", "token="):
        assert part not in html


def test_what_has_changed_is_published_while_a_page_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "FRAME_SECONDS", 0.001)
    local = Local()
    console = console_of(local)
    with visited(console) as guest, guest.stream("/live?topic=feed-messages") as lines:
        assert console.live._loop is not None
        task = asyncio.run_coroutine_threadsafe(publish(console, console.local), console.live._loop)
        events = (json.loads(line[5:]) for line in lines if line.startswith("data:"))
        first = next(events)
        assert (first["topic"], "WAITING_RETRY" in first["html"]) == ("feed-messages", True)
        local.now = replace(SCENE, messages=[message("m-new", State.READY, State.COMMITTED)])
        second = next(events)["html"]
        task.cancel()
        assert ("m-new" in second, "WAITING_RETRY" in second) == (True, False)


def test_a_message_of_tarry_local_is_shown_with_its_story_and_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    scan(monkeypatch)
    console = console_of(Local())
    with visited(console) as guest:
        page = guest.page("/message/m-lost-12")
        for part in (
            "secret-body \\x1b[31m\\u202e&lt;script&gt;",
            '<svg class="picture"',
            'last scan of <a href="/dead-letters/orders-dlq">',
        ):
            assert part in page
        assert guest.page("/message/m-lost-12/body.txt") == f"secret-body {HOSTILE}"
        console.shows_bodies = False
        for part in ("", "/body", "/body.txt"):
            assert "secret-body" not in guest.get(f"/message/m-lost-12{part}").text
        assert guest.get("/message/nosuch").status == 404


def test_the_same_scene_gives_the_same_page_later() -> None:
    later = replace(SCENE, now=SCENE.now + 1, queues=[replace(SCENE.queues[0], oldest_seconds=11.0)])
    assert values_of(later) | {"queues": []} == values_of(SCENE) | {"queues": []}
    assert values_of(later)["queues"][0][1] == values_of(SCENE)["queues"][0][1]


def test_without_tarry_local_there_is_no_feed() -> None:
    with visited(console_at(NOWHERE)) as guest:
        assert (guest.get("/feed").status, "Live feed" in guest.page("/send")) == (404, False)


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


# live parts of pages


def taken(pages: live.Subscriber) -> list[tuple[str, str]]:
    events = [json.loads(each.removeprefix("data: ")) for each in pages.taken()]
    return [(each["topic"], each["html"]) for each in events]


async def settled() -> None:
    """Let the calls of other threads run."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_page_gets_the_last_fragment_of_its_topics_once_also_if_it_opens_later() -> None:
    """From any thread; what is kept for pages is bounded."""

    async def main() -> None:
        parts = Live()
        parts.begin()
        page = parts.subscribe(["job", "feed"])
        assert parts.is_watched("job")
        for each in ("1 of 9", "2 of 9", "3 of 9"):  # of a page that is slow, only the last one matters
            parts.publish("job", each)
        parts.publish("other", "not of this page")
        await settled()
        assert taken(page) == [("job", "3 of 9")]
        thread = threading.Thread(target=parts.publish, args=("job", "3 of 9"))
        thread.start()
        thread.join()
        await settled()
        assert taken(page) == []
        parts.unsubscribe(page)
        assert not parts.is_watched("job")
        later = parts.subscribe(["job"])
        assert later.wake.is_set()
        assert taken(later) == [("job", "3 of 9")]
        for number in range(live.MAX_KEPT + 1):
            parts.publish(f"job-{number}", "done")
        await settled()
        assert taken(parts.subscribe(["job-0", "job-1"])) == [("job-1", "done")]

    asyncio.run(main())


def test_a_stream_has_any_text_on_one_line_beats_while_it_is_quiet_and_ends_with_the_console(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.01)
    console = console_at(NOWHERE)
    with visited(console) as guest, guest.stream("/live?topic=a%20topic") as lines:
        assert [next(lines) for _ in range(3)] == ["retry: 1000\n", "\n", ": still here\n"]
        console.live.publish("a topic", "<p>two\nlines \ud800 \u202e</p>")
        event = next(line for line in lines if not line.startswith((":", "\n")))
        assert json.loads(event.removeprefix("data: "))["html"] == "<p>two\nlines \ud800 \u202e</p>"
        console.live.close()
        assert not any("data:" in line for line in lines)
