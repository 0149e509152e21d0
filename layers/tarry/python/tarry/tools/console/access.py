"""The console as its pages use it: queues, clients, permissions, threads for requests, and parts sent to open pages."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from aiohttp import web

from tarry.failed.journal import state_folder
from tarry.failed.queue_names import queue_name
from tarry.tools.common.audit import audit_file
from tarry.tools.common.explaining import has_expired
from tarry.world import World, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tarry.tools.common.audit import Account
    from tarry.tools.local.show.board import Outlook
    from tarry.tools.template import Template

HEARTBEAT_SECONDS = 15.0
MAX_KEPT = 200
"""The most topics whose last fragment is kept for pages that open later."""
MAX_TOPICS = 50
RETRY_MILLISECONDS = 1000
"""The time after which a browser connects again."""


@dataclass(eq=False)
class Subscriber:
    """An open page. Of each topic it gets the last fragment; fragments in between are dropped if it is slow."""

    topics: frozenset[str]
    fragments: dict[str, str]
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def taken(self) -> list[str]:
        """Take all that waits, as events in the format of server-sent events."""
        found = [f"data: {json.dumps({'topic': topic, 'html': html})}\n\n" for topic, html in self.fragments.items()]
        self.fragments.clear()
        self.wake.clear()
        return found


class Live:
    """The topics of a console, and the pages that listen to them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscribers: set[Subscriber] = set()
        self._last: OrderedDict[str, str] = OrderedDict()
        self._is_closed = False

    def begin(self) -> None:
        """Use the running event loop. Fragments that were published before are dropped."""
        self._loop = asyncio.get_running_loop()

    def publish(self, topic: str, html: str) -> None:
        """Replace, from any thread, what parts with this topic show now and in pages that open later, if it is new."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the console has stopped
                self._loop.call_soon_threadsafe(self._publish, topic, html)

    def close(self) -> None:
        """End all streams, on the event loop."""
        self._is_closed = True
        for each in self._subscribers:
            each.wake.set()

    def is_watched(self, topic: str) -> bool:
        """Whether a page that shows a topic is open, in a tab that is visible."""
        return any(topic in each.topics for each in self._subscribers)

    def subscribe(self, topics: Iterable[str]) -> Subscriber:
        """Add a page, on the event loop."""
        wanted = frozenset(topics)
        found = Subscriber(wanted, {topic: self._last[topic] for topic in sorted(wanted & self._last.keys())})
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

    def _publish(self, topic: str, html: str) -> None:
        if self._last.get(topic) == html:
            return
        self._last[topic] = html
        self._last.move_to_end(topic)
        if len(self._last) > MAX_KEPT:
            self._last.popitem(last=False)
        for each in self._subscribers:
            if topic in each.topics:
                each.fragments[topic] = html
                each.wake.set()


P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8
"""The most requests of pages at once. Jobs have threads of their own, so that they block no page."""
COMPUTING = 4
"""The most computations of pages at once: those that need no request, such as a filter of what a scan has found."""
DEFAULT_KEEPALIVE_SECONDS = 60.0


class Problem(Exception):
    """A page cannot do what it was asked to. The text says in whole sentences what is wrong and what to do."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


@dataclass(frozen=True)
class Place:
    """The place of the queues, as every page shows it."""

    name: str
    """``AWS``, ``tarry local``, or the endpoint URL of another SQS."""
    region: str | None
    account: str | None = None
    """The account id; None if it is not known, or not at AWS."""
    endpoint: str | None = None


@dataclass(frozen=True)
class WatchedQueue:
    """A queue with its consumers and its dead-letter queue."""

    address: str | None
    """The URL or name of the queue; None if only the dead-letter queue is known."""
    dead_letters: str | None = None
    """The URL or name of its dead-letter queue; None if it has none."""
    functions: tuple[str, ...] = ()
    """The names of the functions that consume it, if they are known."""

    @property
    def name(self) -> str | None:
        return None if self.address is None else queue_name(self.address)

    @property
    def dead_letter_queue(self) -> str | None:
        return None if self.dead_letters is None else queue_name(self.dead_letters)


@dataclass(eq=False)
class Console:
    """The queues, the clients and the permissions of the pages. Made once, by the command."""

    account: Account
    place: Place
    queues: Sequence[WatchedQueue]
    template: Template | None = None
    """The template, if there is one: for policies and handlers."""
    template_names: Mapping[str, str] = field(default_factory=dict)
    """The queue names of the template by the names in the stack, where they differ."""
    can_write: bool = False
    """Whether pages may change something."""
    shows_bodies: bool = True
    """Whether pages may show bodies and message attributes."""
    keepalive: float = DEFAULT_KEEPALIVE_SECONDS
    """The longest time to hold messages, in seconds."""
    audit_path: Path = field(default_factory=audit_file)
    state: Path = field(default_factory=state_folder)
    """The directory of archives."""
    attempt_tables: Sequence[str] = ()
    """The names of the DynamoDB tables of ``attempts=``."""
    stack: str | None = None
    """The name of the stack, for logs and tables."""
    local: Outlook | None = None
    """The live feed, with `tarry local --console`."""

    def __post_init__(self) -> None:
        self.world = World(client_factory=lambda: self.client("sqs"))
        self.live = Live()
        self.known_errors: dict[str, str] = {}
        """The latest errors of a running `tarry local`, or of the last search in logs."""
        self.searched = ""
        """The result and the cost of the last search for them in logs, or why it failed; empty without one."""
        self._clients: dict[str, Any] = {}
        self._making = threading.Lock()
        self._slots = asyncio.Semaphore(THREADS)
        self._own_slots = asyncio.Semaphore(COMPUTING)

    @property
    def place_options(self) -> list[str]:
        """The options of a command that acts at the same place."""
        if self.account.endpoint:
            return ["--endpoint-url", self.account.endpoint]
        return ["--aws"] if self.account.is_aws else []

    @property
    def dead_letter_queues(self) -> dict[str, str]:
        """The URLs or names of all dead-letter queues, by name."""
        return {queue_name(each.dead_letters): each.dead_letters for each in self.queues if each.dead_letters}

    def latest_errors(self) -> dict[str, str]:
        """Return why the latest message came to each dead-letter queue, by its name, where it is known."""
        return self.known_errors if self.local is None else self.local.scene().latest_errors

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that consume the queues, by the names that they have at AWS; none if these are not known."""
        is_known = self.account.is_aws and self.template is None
        return tuple(dict.fromkeys(each for queue in self.queues for each in queue.functions)) if is_known else ()

    def client(self, service: str) -> Any:
        """Return the boto3 client of a service, made at the first call. Can be called from any thread."""
        with self._making:  # boto3 cannot make two at once
            if service not in self._clients:
                self._clients[service] = self.account.client(service)
            return self._clients[service]

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that makes requests in a thread, in the world of this console; return its result."""
        return await self._in_slot(self._slots, function, *args, **kwargs)

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that makes no requests in a thread; return its result. An SQS that hangs does not delay it."""
        return await self._in_slot(self._own_slots, function, *args, **kwargs)

    async def _in_slot(
        self, slots: asyncio.Semaphore, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()  # a page that is left does not cancel it: the request is on its way

        def work() -> None:
            try:
                answer.set_result(self.run(function, *args, **kwargs))
            except BaseException as error:  # noqa: BLE001 raised where the result is awaited
                answer.set_exception(error)

        async with slots:
            # A daemon: a request that hangs does not keep the stopped console alive, as a thread of an executor would.
            threading.Thread(target=work, daemon=True).start()
            return await asyncio.wrap_future(answer)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the world of this console, in the calling thread."""
        try:
            with use(self.world):
                return function(*args, **kwargs)
        except Exception as error:
            if has_expired(error):
                with self._making:  # boto3 reads a credentials file once; a new login may have changed it
                    self.account.renew()
                    self._clients = {}
            raise


CONSOLE = web.AppKey("console", Console)


def console_of(request: web.Request) -> Console:
    return request.app[CONSOLE]
