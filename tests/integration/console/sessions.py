"""A session of a console on a served SQS with dead letters."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

from tarry.tools.console.access import WatchedQueue
from tarry.world import World, use
from tests.consoles import PATIENCE_SECONDS, Answer, Guest, console_at, text_of, visited
from tests.shop import ServedShop

PAGE = "/dead-letters/orders-dlq"
ALL = {"all": "1"}


class Session:
    """A guest of the page of orders-dlq: paths without a page of their own begin there."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def get(self, path: str = "", status: int = 200, **headers: str) -> Answer:
        return _with(status, self.guest.get(_whole(path), **headers))

    def post(self, path: str, status: int = 200, **fields: Any) -> Answer:
        return _with(status, self.guest.post(_whole(path), fields))

    def text(self, path: str = "", status: int = 200, **headers: str) -> str:
        return text_of(self.get(path, status, **headers).text)

    def refusal(self, path: str, status: int, **fields: Any) -> str:
        """Return the text of the answer to a form that starts nothing."""
        return text_of(self.post(path, status, **fields).text)

    def started(self, path: str, **fields: Any) -> int:
        """Start a job; return its number."""
        answer = self.post(path, 303, **fields)
        if path == "scan":
            found = re.search(r'href="/jobs/(\d+)', self.get("/jobs").text)
        else:
            found = re.fullmatch(r"/jobs/(\d+)", answer.headers["Location"])
        assert found
        return int(found[1])

    def ended(self, number: int) -> str:
        """Return the text of the page of a job, once it has ended."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while 'id="stop-' in (html := self.get(f"/jobs/{number}").text):
            assert time.monotonic() < ends_at, html
            time.sleep(0.02)
        return text_of(html)

    def done(self, path: str, **fields: Any) -> str:
        return self.ended(self.started(path, **fields))

    def scan(self) -> str:
        return self.done("scan")


def _whole(path: str) -> str:
    return path if path.startswith("/") else PAGE + (path if path[:1] in {"", "?"} else f"/{path}")


def _with(status: int, answer: Answer) -> Answer:
    assert answer.status == status, text_of(answer.text)
    return answer


@contextmanager
def session(shop: ServedShop, *queues: str, **settings: Any) -> Iterator[Session]:
    """Visit a console that may write."""
    given = {"can_write": True, "keepalive": 3.0, "audit_path": shop.folder / "audit.jsonl"} | settings
    watched = [WatchedQueue(each.removesuffix("-dlq"), each) for each in queues or ("orders-dlq",)]
    with visited(console_at(shop.sqs.url, watched, **given)) as guest:
        yield Session(guest)


def delivery_ids(html: str) -> list[str]:
    return re.findall(r'name="id" value="([^"]+)"', html)


def previewed(html: str) -> dict[str, str]:
    """Return the hidden fields of a preview, as a browser sends them: with CR LF for each line end."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', html)
    return {name: unescape(value).replace("\n", "\r\n") for name, value in found if name != "csrf"}


def audit_lines(shop: ServedShop) -> list[dict[str, Any]]:
    """Return the last lines of the audited runs."""
    path = shop.folder / "audit.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert len(lines) == 2 * len({line["run"] for line in lines})  # each has begun
    return [line for line in lines if "ended_at" in line]


@contextmanager
def sqs_answers(shop: ServedShop, answer: Callable[[str, dict[str, Any]], object]) -> Iterator[None]:
    """Call ``answer`` before each request to the model; what it raises is the answer."""
    sqs, before = shop.sqs.sqs, shop.sqs.sqs.call

    def call(operation: str, parameters: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        answer(operation, parameters)
        return before(operation, parameters, *args, **kwargs)

    sqs.call = call  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        sqs.call = before  # type: ignore[method-assign]


@contextmanager
def world_of(shop: ServedShop) -> Iterator[None]:
    """Let `tarry.failed` work on the served SQS."""
    with use(World(client_factory=lambda: shop.sqs.client)):
        yield
