"""`tarry failed remove` and `restore`, killed at random places.

KILLS=50 pytest tests/acceptance/test_kills.py makes fifty of each.
"""

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

from tests.command import rest_of, some_lines
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
