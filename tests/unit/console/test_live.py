"""Live parts of pages: which fragments a page gets, also a slow one and one that opens later."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tarry.tools.console import access as live
from tarry.tools.console.access import Live
from tests.consoles import Visitor, console_at, visiting

PATIENCE_SECONDS = 60.0


def taken(pages: live.Subscriber) -> list[tuple[str, str]]:
    events = [json.loads(each.removeprefix("data: ")) for each in pages.taken()]
    return [(each["topic"], each["html"]) for each in events]


async def settled() -> None:
    """Let the calls of other threads run."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_page_gets_the_last_fragment_of_its_topics_once() -> None:
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
        parts.publish("job", "3 of 9")
        await settled()
        assert taken(page) == []
        parts.unsubscribe(page)
        assert not parts.is_watched("job")

    asyncio.run(main())


def test_a_page_that_opens_later_gets_what_was_published_last_from_any_thread() -> None:
    async def main() -> None:
        parts = Live()
        parts.begin()
        thread = threading.Thread(target=parts.publish, args=("job", "done"))
        thread.start()
        thread.join(PATIENCE_SECONDS)
        await settled()
        page = parts.subscribe(["job"])
        assert page.wake.is_set()
        assert taken(page) == [("job", "done")]

    asyncio.run(main())


def test_what_is_kept_for_pages_is_bounded() -> None:
    async def main() -> None:
        parts = Live()
        parts.begin()
        for number in range(live.MAX_KEPT + 1):
            parts.publish(f"job-{number}", "done")
        await settled()
        assert taken(parts.subscribe(["job-0", "job-1"])) == [("job-1", "done")]

    asyncio.run(main())


@asynccontextmanager
async def streamed(visitor: Visitor, query: str) -> AsyncIterator[Any]:
    async with asyncio.timeout(PATIENCE_SECONDS), visitor.http.get(f"{visitor.url}/live?{query}") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert await answer.content.readline() == b"retry: 1000\n"
        await answer.content.readline()
        yield answer.content


def test_a_stream_has_any_text_on_one_line_beats_while_it_is_quiet_and_ends_with_the_console(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.01)
    console = console_at("http://127.0.0.1:1")

    async def main() -> bytes:
        async with visiting(console) as visitor, streamed(visitor, "topic=a%20topic") as lines:
            assert await lines.readline() == b": still here\n"
            console.live.publish("a topic", "<p>two\nlines \ud800 \u202e</p>")
            while (line := await lines.readline()).startswith((b":", b"\n")):
                pass
            assert json.loads(line.removeprefix(b"data: "))["html"] == "<p>two\nlines \ud800 \u202e</p>"
            console.live.close()
            return bytes(await lines.read())

    assert b"data:" not in asyncio.run(main())
