"""The console through a proxy that loses, cuts, repeats, throttles and refuses.

``TARRY_FAULTS=50 pytest tests/integration/console/test_faults.py`` runs each action with 50 seeds.
"""

import json
from collections import Counter
from random import Random

import pytest

from tarry.failed.removing import twice_in
from tarry.tools.cli.failed.targets import AwsAccess
from tarry.tools.cli.options import TargetOptions
from tarry.tools.console.access import Console, Place, WatchedQueue
from tests.consoles import visited
from tests.integration.console.sessions import ALL as EVERYTHING
from tests.integration.console.sessions import Session
from tests.integration.failed.test_faults import ALL, COUNT, SEEDS, FaultyShop, faulty
from tests.proxy import Choice, at_random

__all__ = ["faulty"]

ACTIONS = {
    "retry": ("retry/start", EVERYTHING),
    "canary": ("retry/start", {**EVERYTHING, "canary": "5", "within": "1s"}),
    "edit": ("edit/start", {"id": "id-2", "body": '{"id": 2, "edited": true}'}),
    "remove": ("remove/start", EVERYTHING),
}


def page_after(faulty: FaultyShop, action: str, choose: Choice) -> str:
    """Scan all, start an action under faults, and return the page of its job."""
    place = Place("endpoint", "us-east-1", endpoint=faulty.proxy.url)
    account = AwsAccess(TargetOptions(endpoint_url=faulty.proxy.url))
    folder, queues = faulty.shop.folder, [WatchedQueue("orders", "orders-dlq")]
    audit = folder / "audit.jsonl"
    console = Console(account, place, queues, can_write=True, keepalive=1.0, state=folder, audit_path=audit)
    with visited(console) as guest:
        visitor = Session(guest)
        visitor.scan()
        faulty.proxy.choose = choose
        path, form = ACTIONS[action]
        try:
            return visitor.done(path, **form)
        finally:
            faulty.proxy.choose = lambda _: None


@pytest.mark.parametrize("seed", range((SEEDS + 1) // 2))
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_counts_what_was_done_and_what_may_have_been(
    faulty: FaultyShop, action: str, seed: int
) -> None:  # SPEC M6
    faulty.shop.put(COUNT)
    page = page_after(faulty, action, at_random(Random(f"{action} {seed}"), 0.6 if action == "edit" else 0.3))
    left, sent = faulty.counts()
    gone = ALL - left.keys()
    folder = faulty.shop.folder
    archived = {json.loads(line).get("id") for path in folder.rglob("removed/*.jsonl") for line in path.open()}
    assert gone <= (archived if action == "remove" else sent.keys())
    audit = folder / "audit.jsonl"
    outcomes = json.loads(audit.read_text().splitlines()[-1]).get("outcomes", {}) if audit.exists() else {}
    done_count = outcomes.get("deleted" if action == "remove" else "retried", 0)
    assert done_count <= len(gone) <= done_count + outcomes.get("unconfirmed", 0)
    assert max(left.values(), default=1) == 1
    if not faulty.proxy.struck["SendMessageBatch", "repeated"]:  # which no client can see
        for each in (each for each, times in sent.items() if times > 1):
            assert f"{each} retried {twice_in('orders')}" in page or f"{each} unconfirmed " in page


@pytest.mark.parametrize("action", ["retry", "edit"])
def test_the_page_of_a_job_lists_what_may_be_twice_as_the_command_does(faulty: FaultyShop, action: str) -> None:
    """The answer to the first send is lost, and boto3 sends it again. SPEC M6"""
    faulty.shop.put(3)
    answers = iter(["lost"])
    page = page_after(faulty, action, lambda name: next(answers, None) if name == "SendMessageBatch" else None)
    _, sent = faulty.counts()
    assert sent == Counter({"id-2": 2} if action == "edit" else {f"id-{index}": 2 for index in range(3)}), page
    for each in sent:
        assert f"{each} retried {twice_in('orders')}" in page
