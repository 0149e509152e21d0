"""The console through a proxy that loses, cuts, repeats, throttles and refuses.

``TARRY_FAULTS=50 pytest tests/integration/console/test_faults.py`` runs each action with 50 seeds.
"""

import asyncio
import json
from random import Random
from typing import Any

import pytest

from tarry.tools.cli.failed.targets import AwsAccess, TargetOptions
from tarry.tools.console.access import Console, Place, WatchedQueue
from tests.consoles import Visitor, visiting
from tests.integration.console.test_dead_letters import audit_lines, done
from tests.integration.failed.test_faults import ALL, COUNT, SEEDS, FaultyShop, faulty
from tests.proxy import at_random

__all__ = ["faulty"]

DONE = {"retry": "retried", "remove": "deleted"}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("action", DONE)
def test_an_action_on_all_counts_what_was_done_and_what_may_have_been(
    faulty: FaultyShop, action: str, seed: int
) -> None:  # SPEC M6
    faulty.shop.put(COUNT)
    folder = faulty.shop.folder

    async def work(visitor: Visitor) -> None:
        await done(visitor, "/scan")
        faulty.proxy.choose = at_random(Random(f"{action} {seed}"), 0.3)
        try:
            await done(visitor, f"/{action}/start", {"all": "1"})
        finally:
            faulty.proxy.choose = lambda _: None

    async def main() -> None:
        place = Place("endpoint", "us-east-1", endpoint=faulty.proxy.url)
        account = AwsAccess(TargetOptions(endpoint_url=faulty.proxy.url))
        settings: dict[str, Any] = {"can_write": True, "keepalive": 1.0, "state": folder}
        settings["audit_path"] = folder / "audit.jsonl"
        queues = [WatchedQueue("orders", "orders-dlq")]
        async with visiting(Console(account, place, queues, **settings)) as visitor:
            await work(visitor)

    asyncio.run(main())
    left, sent = faulty.counts()
    gone = ALL - left.keys()
    archived = {json.loads(line).get("id") for path in folder.rglob("removed/*.jsonl") for line in path.open()}
    assert gone <= (sent.keys() if action == "retry" else archived)
    outcomes = audit_lines(faulty.shop)[0]["outcomes"] if audit_lines(faulty.shop) else {}
    assert outcomes.get(DONE[action], 0) <= len(gone) <= outcomes.get(DONE[action], 0) + outcomes.get("unconfirmed", 0)
    assert max(left.values(), default=1) == 1
