"""Draw the pictures of the guide of the console with Chromium: ``python -m docs.generator.pictures``.

The overview has an hour of numbers; dead letters are scanned from a served SQS.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch
from uuid import UUID

from playwright.sync_api import Page, sync_playwright

from tarry.tools.console import overview
from tarry.tools.console.access import Console, Place, WatchedQueue
from tarry.tools.console.overview import Sampler
from tarry.tools.console.overview.rows import QueueReading
from tests.browser.conftest import launched
from tests.consoles import EndpointAccount, running
from tests.served import Served, served
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGES = Path(__file__).parents[2] / "docs/images"
WIDTH = 1280
MINUTES = 60
random = Random(4)


class Hour(NamedTuple):
    """The numbers of a queue by the minute of the last hour, and the age of its oldest message in seconds."""

    function: str
    ready: Callable[[float], float]
    arrived: Callable[[float], float]
    left: Callable[[float], float]
    dead_letters: Callable[[float], float]
    oldest: float


def about(number: float, spread: float) -> float:
    return max(0.0, number + spread * (random.random() - 0.5))


HOURS = {
    "orders": Hour(
        "shop-orders",
        lambda minute: about(12, 6) if minute < 40 else 12 + (minute - 40) * 31,
        lambda _: about(210, 50),
        lambda minute: about(208, 50) if minute < 40 else about(178, 30),
        lambda minute: max(0.0, minute - 42) * 7.1,
        742,
    ),
    "payments": Hour(
        "shop-payments", lambda _: about(4, 6), lambda _: about(64, 20), lambda _: about(64, 20), lambda _: 2, 3
    ),
    "invoice-mails": Hour(
        "shop-mails",
        lambda minute: 0 if minute < 47 else 38,
        lambda minute: 3 if 45 < minute < 48 else 0,
        lambda _: 0,
        lambda _: 0,
        790,
    ),
    "webhooks": Hour(
        "shop-webhooks",
        lambda minute: about(30, 30) + 25 * math.sin(minute / 9),
        lambda _: about(420, 90),
        lambda _: about(420, 90),
        lambda _: 0,
        1,
    ),
    "ledger.fifo": Hour(
        "shop-ledger", lambda _: about(2, 4), lambda _: about(22, 9), lambda _: about(22, 9), lambda _: 0, 0.4
    ),
}
QUEUES = {name: name.removesuffix(".fifo") + "-dlq" + ".fifo" * name.endswith(".fifo") for name in HOURS}


class KnownHour(Sampler):
    """Readings of the last hour, which were not made."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._note = ""
        now = time.time()
        for name, hour in HOURS.items():
            own, dead = self._histories[name], self._histories[QUEUES[name]]
            times = [(now - (MINUTES - half / 2) * 60, half / 2) for half in range(2 * MINUTES + 1)]
            for at, minute in times:
                own.add(QueueReading(at, int(hour.ready(minute)), int(about(8, 6)), 2, oldest=hour.oldest))
                dead.add(QueueReading(at, int(hour.dead_letters(minute)), 0, 0))
            own.metrics = {
                "arrived": tuple((at, hour.arrived(minute)) for at, minute in times),
                "left": tuple((at, hour.left(minute)) for at, minute in times),
            }
        self.rows = self._known()

    async def run(self) -> None:
        await asyncio.Event().wait()


class Failure(NamedTuple):
    """A way to fail, and how many messages failed so."""

    messages: int
    type: str
    message: str
    fingerprint: str
    line: int
    code: str
    reason: str = "exhausted"


FAILURES = (
    Failure(84, "payments.GatewayTimeout", "no answer in 3 s", "9f2c61d0a4be", 41, "gateway.charge(order)"),
    Failure(27, "payments.CardDeclined", "insufficient funds", "51aa03b8c7d2", 44, "raise CardDeclined(answer.reason)"),
    Failure(12, "KeyError", "'vat_id'", "aa10c2b3d4e5", 18, 'invoice(order["customer"]["vat_id"])', "rejected"),
    Failure(4, "orders.UnknownArticle", "article 'tea-500' is not in the catalog", "0d77e1f29b63", 27, "article(line)"),
)
DELAYS = (30, 60, 120, 240)


def put(sqs: Served) -> None:
    """Put the dead letters of the last 18 minutes into orders-dlq."""
    now, number = time.time(), 0
    for failure in FAILURES:
        for index in range(failure.messages):
            number += 1
            failed_at = now - 20 - index * 1050 / failure.messages
            put_one(sqs, failure, number, failed_at)


def put_one(sqs: Served, failure: Failure, number: int, failed_at: float) -> None:
    message_id = str(UUID(int=random.getrandbits(128), version=4))
    order = {"order": f"o-{10400 + number}", "customer": f"c-{number % 37:03}", "country": "CH", "total": "49.00"}
    body = json.dumps(order)
    is_rejected = failure.reason == "rejected"
    attempts = 1 if is_rejected else len(DELAYS) + 1
    times = [failed_at - sum(DELAYS[attempt:]) for attempt in range(len(DELAYS) + 1)][-attempts:]
    error = f"{failure.type}: {failure.message}"
    history: list[dict[str, Any]] = [
        {"attempt": index + 1, "at": iso(at), "error": error, "delay": DELAYS[index]}
        for index, at in enumerate(times[:-1])
    ]
    history.append({"attempt": attempts, "at": iso(times[-1]), "error": error})
    record = envelope_of(
        body,
        message_id,
        origin="orders",
        reason=failure.reason,
        attempts=attempts,
        type=failure.type,
        message=failure.message,
        fingerprint=failure.fingerprint,
        failed_at=iso(failed_at),
        first_failed_at=iso(times[0]),
        function="shop-orders",
        request_id="1c2f7f6a",
        traceback="Traceback (most recent call last):\n"
        f'  File "/var/task/orders.py", line {failure.line}, in handler\n    {failure.code}\n'
        f"{error}",
        history=history,
    )
    record["sent"] = iso(times[0] - 3)
    attributes = {"Tarry": {"DataType": "String", "StringValue": json.dumps(record)}}
    sqs.on_the_loop(
        lambda: sqs.sqs.call(
            "SendMessage",
            {"QueueUrl": sqs.sqs.url("orders-dlq"), "MessageBody": body, "MessageAttributes": attributes},
        )
    )


def iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03}Z"


def take(page: Page, name: str, height: int) -> None:
    """Write a picture of the page's top."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    path = IMAGES / f"console-{name}.png"
    page.screenshot(path=path)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def draw_overview(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_url("**/")
    page.get_by_text("Needs attention").wait_for()
    take(page, "overview", 612)


def draw_dead_letters(page: Page, url: str) -> None:
    page.goto(f"{url}/dead-letters/orders-dlq")
    page.keyboard.press("s")
    page.locator("tbody tr[data-row]").first.wait_for()
    page.reload()
    for key in "jj":
        page.keyboard.press(key)
    take(page, "groups", 612)
    page.goto(f"{url}/dead-letters/orders-dlq/list?where=type+%3D+payments.GatewayTimeout")
    page.locator("tbody a[data-open]").first.click()
    page.get_by_role("img", name="message").wait_for()
    take(page, "message", 1092)


def main() -> None:
    queues = [WatchedQueue(name, dead_letters, (HOURS[name].function,)) for name, dead_letters in QUEUES.items()]
    with served() as sqs, patch.object(overview, "Sampler", KnownHour), sync_playwright() as playwright:
        for name, dead_letters in QUEUES.items():
            sqs.queue(dead_letters)
            target = json.dumps({"deadLetterTargetArn": arn(dead_letters), "maxReceiveCount": 5})
            sqs.queue(name, RedrivePolicy=target)
        put(sqs)
        place = Place("AWS", "eu-west-1", "123456789012")
        console = Console(EndpointAccount(sqs.url), place, queues)
        with running(console) as found, launched(playwright) as browser:
            page = browser.new_page(viewport={"width": WIDTH, "height": 800}, reduced_motion="reduce")
            draw_overview(page, found.address())
            console.can_write = True
            draw_dead_letters(page, found.url)


if __name__ == "__main__":
    main()
