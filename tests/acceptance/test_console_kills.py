"""`tarry console` as a process, killed in the middle of a bulk retry, and ended by a signal during a scan."""

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp

from tests.command import Command
from tests.consoles import Visitor, visitor_at
from tests.processes import PATIENCE_SECONDS
from tests.shop import ServedShop

COUNT = 200
IN_DOUBT = 40
"""The most messages that a retry of the console is sending at once."""
PAGE = "/dead-letters/orders-dlq"


@contextmanager
def console(shop: ServedShop) -> Iterator[Command]:
    options = ["--no-open", "--write", "--keepalive", "1", "--audit", str(shop.folder / "audit.jsonl")]
    with shop.running("console", *options) as process:
        yield process


@asynccontextmanager
async def opened(process: Command) -> AsyncIterator[Visitor]:
    assert process.stdout is not None
    address = (await asyncio.to_thread(process.stdout.readline)).strip()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        yield await visitor_at(address, http)


async def until_ended(visitor: Visitor, number: int) -> str:
    ends_at = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while 'id="stop-' in (answer := await visitor.get(f"/jobs/{number}")).text:
        assert asyncio.get_running_loop().time() < ends_at
        await asyncio.sleep(0.05)
    return answer.text


def test_a_console_that_is_killed_in_the_middle_of_a_retry_loses_no_message(shop: ServedShop) -> None:
    """At most the messages that it is sending are in both queues; a console started again retries the others."""
    shop.put(COUNT)

    async def retries(process: Command, *, is_killed: bool) -> None:
        async with opened(process) as visitor:
            await visitor.post(f"{PAGE}/scan")
            await until_ended(visitor, 1)
            assert (await visitor.post(f"{PAGE}/retry/start", {"all": "1"})).status == 303
            if is_killed:
                await asyncio.to_thread(shop.until, lambda: len(shop.bodies("orders")) > COUNT // 4)
                process.kill()
            else:
                assert re.search(r"count-retried.>\d", await until_ended(visitor, 2))

    with console(shop) as process:
        asyncio.run(retries(process, is_killed=True))
        assert process.wait() == -signal.SIGKILL
    left, sent = shop.at_one_moment()
    assert set(left) | set(sent) == set(range(COUNT))
    assert 0 < len(sent) < COUNT
    assert len(left) + len(sent) - COUNT <= IN_DOUBT
    shop.until(lambda: shop.in_flight() == 0)  # their visibility timeouts end
    with console(shop) as process:
        asyncio.run(retries(process, is_killed=False))
    assert shop.bodies("orders-dlq") == []
    received = Counter(shop.bodies("orders"))
    assert set(received) == set(range(COUNT))
    assert received.total() - COUNT <= IN_DOUBT
    audit = [json.loads(line) for line in (shop.folder / "audit.jsonl").read_text().splitlines()]
    assert ["ended_at" in line for line in audit] == [False, False, True]  # the killed run, then the other
    assert audit[0]["run"] != audit[1]["run"] == audit[2]["run"]


def test_a_console_that_is_ended_by_a_signal_releases_the_messages_of_its_scan(shop: ServedShop) -> None:
    shop.put(1_000)

    async def scans(process: Command) -> None:
        async with opened(process) as visitor:
            await visitor.post(f"{PAGE}/scan")
            await asyncio.to_thread(shop.until, lambda: shop.in_flight() > 100)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 0, shop.guidance()

    with console(shop) as process:
        asyncio.run(scans(process))
    assert (shop.in_flight(), len(shop.bodies("orders-dlq"))) == (0, 1_000)
