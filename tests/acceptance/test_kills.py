"""`tarry failed` and `tarry console` as processes, killed in the middle, and ended by a signal during a scan.

KILLS=50 pytest tests/acceptance/test_kills.py kills the command at fifty random places.
"""

import asyncio
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from tests.command import Command, rest_of, some_lines
from tests.consoles import Visitor, visitor_at
from tests.processes import PATIENCE_SECONDS
from tests.served import served
from tests.shop import ServedShop

KILLS = int(os.environ.get("KILLS", "2"))
COUNT, AT_ONCE = 60, 10


def killed(shop: ServedShop, chance: random.Random, *arguments: str) -> bool:
    """Run a command, and kill it after some of its lines and a moment; return whether it was still running."""
    with shop.started(*arguments, "--json") as process:
        some_lines(process, chance.randrange(COUNT))
        time.sleep(chance.random() * 0.02)
        process.kill()
        return process.wait() != 0


def archived(path: Path) -> list[int]:
    """Return the ids of the archived messages; the last line may be incomplete."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return [json.loads(line["record"]["body"])["id"] for line in lines if "record" in line]


def killed_twice(shop: ServedShop, chance: random.Random) -> None:
    """Kill a remove, then a restore of its archive; finish the restore; check after each."""
    archive = shop.folder / "removed.jsonl"
    progress = shop.folder / "removed.jsonl.restored"
    shop.put(COUNT)
    killed(shop, chance, "remove", "--all", "--force", "--archive", str(archive), "--keepalive", "1")
    left = shop.bodies("orders-dlq")
    assert set(left) | set(archived(archive)) == set(range(COUNT))
    assert len(left) + len(archived(archive)) - COUNT <= AT_ONCE
    if not archived(archive):
        return
    killed(shop, chance, "restore", str(archive))
    sent = len(shop.bodies("orders-dlq")) - len(left)
    confirmed = progress.read_text().count('{"restored":') if progress.exists() else 0
    assert confirmed <= sent <= confirmed + AT_ONCE
    with shop.started("restore", str(archive)) as process:
        rest_of(process)
    assert max(Counter(shop.bodies("orders-dlq")).values()) == 1  # no kill doubles one unasked
    with shop.started("restore", str(archive), "--force") as process:
        rest_of(process)
    is_cut_off = not archive.read_bytes().endswith(b"\n")  # named as damaged; its message was not deleted
    assert process.returncode == int(is_cut_off), shop.guidance()
    restored = Counter(shop.bodies("orders-dlq"))
    assert set(restored) == set(range(COUNT))
    assert restored.total() - COUNT <= 2 * AT_ONCE  # in flight at each of the two kills


def test_a_remove_or_restore_that_is_killed_loses_nothing_and_doubles_at_most_those_in_flight(
    tmp_path: Path,
) -> None:  # SPEC M3
    chance = random.Random(os.environ.get("SEED", "1"))
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with served() as sqs:
            killed_twice(ServedShop(sqs, folder), chance)


# the console

MANY = 200
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
    shop.put(MANY)

    async def retries(process: Command, *, is_killed: bool) -> None:
        async with opened(process) as visitor:
            await visitor.post(f"{PAGE}/scan")
            await until_ended(visitor, 1)
            assert (await visitor.post(f"{PAGE}/retry/start", {"all": "1"})).status == 303
            if is_killed:
                await asyncio.to_thread(shop.until, lambda: len(shop.bodies("orders")) > MANY // 4)
                process.kill()
            else:
                assert re.search(r"count-retried.>\d", await until_ended(visitor, 2))

    with console(shop) as process:
        asyncio.run(retries(process, is_killed=True))
        assert process.wait() == -signal.SIGKILL
    left, sent = shop.at_one_moment()
    assert set(left) | set(sent) == set(range(MANY))
    assert 0 < len(sent) < MANY
    assert len(left) + len(sent) - MANY <= IN_DOUBT
    shop.until(lambda: shop.in_flight() == 0)  # their visibility timeouts end
    with console(shop) as process:
        asyncio.run(retries(process, is_killed=False))
    assert shop.bodies("orders-dlq") == []
    received = Counter(shop.bodies("orders"))
    assert set(received) == set(range(MANY))
    assert received.total() - MANY <= IN_DOUBT
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
