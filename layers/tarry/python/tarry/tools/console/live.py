"""Server-sent events: fragments of HTML that replace parts of open pages.

A part of a page names its topic: ``<div data-live="scan-orders-dlq">``. `Live.publish` replaces its content in all open
pages; `Live.add` puts an element in front of its content, for feeds.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Iterable

HEARTBEAT_SECONDS = 15.0
MAX_KEPT = 200
"""The most topics whose last fragment is kept for pages that open later."""
MAX_TOPICS = 50
"""The most topics of a page."""
MAX_ADDED = 500
"""The most added fragments that wait for a slow page; older ones are dropped."""
RETRY_MILLISECONDS = 1000
"""The time after which a browser connects again."""


@dataclass(eq=False)
class Subscriber:
    """An open page. Of each topic it gets the last fragment; fragments in between are dropped if it is slow."""

    topics: frozenset[str]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    fragments: dict[str, str] = field(default_factory=dict)
    added: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=MAX_ADDED))

    def taken(self) -> list[str]:
        """Take all that waits, as events in the format of server-sent events."""
        found = [_event(topic, html, adds=False) for topic, html in self.fragments.items()]
        found += [_event(topic, html, adds=True) for topic, html in self.added]
        self.fragments.clear()
        self.added.clear()
        self.wake.clear()
        return found


class Live:
    """The topics of a console, and the pages that listen to them. All methods can be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscribers: set[Subscriber] = set()
        self._last: OrderedDict[str, str] = OrderedDict()
        self._is_closed = False

    def begin(self) -> None:
        """Use the running event loop. Fragments that were published before are dropped."""
        self._loop = asyncio.get_running_loop()

    def publish(self, topic: str, html: str) -> None:
        """Replace the content of the parts with this topic, now, and of pages that open later."""
        self._call(self._publish, topic, html)

    def add(self, topic: str, html: str) -> None:
        """Put an element in front of the content of the parts with this topic, in pages that are open now."""
        self._call(self._add, topic, html)

    def close(self) -> None:
        """End all streams."""
        self._call(self._close)

    def is_watched(self, topic: str) -> bool:
        """Whether a page that shows a topic is open, in a tab that is visible."""
        return any(topic in each.topics for each in self._subscribers)

    def subscribe(self, topics: Iterable[str]) -> Subscriber:
        """Add a page, on the event loop."""
        found = Subscriber(frozenset(topics))
        found.fragments = {topic: self._last[topic] for topic in sorted(found.topics & self._last.keys())}
        if found.fragments or self._is_closed:
            found.wake.set()
        self._subscribers.add(found)
        return found

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a page, on the event loop."""
        self._subscribers.discard(subscriber)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer ``GET /live?topic=...&topic=...`` until the page is closed or the console stops."""
        topics = request.query.getall("topic", [])[:MAX_TOPICS]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        subscriber = self.subscribe(topics)
        try:
            with suppress(ConnectionError):
                await response.prepare(request)
                await response.write(f"retry: {RETRY_MILLISECONDS}\n\n".encode())
                while not self._is_closed:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(HEARTBEAT_SECONDS):
                            await subscriber.wake.wait()
                    events = subscriber.taken() or [": still here\n\n"]
                    await response.write("".join(events).encode("utf-8", "backslashreplace"))
        finally:
            self.unsubscribe(subscriber)
        return response

    def _call(self, function: object, *args: str) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the console has stopped
                self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]

    def _publish(self, topic: str, html: str) -> None:
        self._last[topic] = html
        self._last.move_to_end(topic)
        if len(self._last) > MAX_KEPT:
            self._last.popitem(last=False)
        for each in self._subscribers:
            if topic in each.topics:
                each.fragments[topic] = html
                each.wake.set()

    def _add(self, topic: str, html: str) -> None:
        for each in self._subscribers:
            if topic in each.topics:
                each.added.append((topic, html))
                each.wake.set()

    def _close(self) -> None:
        self._is_closed = True
        for each in self._subscribers:
            each.wake.set()


def _event(topic: str, html: str, *, adds: bool) -> str:
    return f"data: {json.dumps({'topic': topic, 'html': html, 'adds': adds})}\n\n"
