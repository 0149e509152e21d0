"""The shipped functions, as the template deploys them, while SQS, Lambda, the network and DynamoDB or S3 fail.

`Sandbox.run` checks the rules for every consumer. These tests check the purpose of each function: no order, entry,
scan or webhook is lost, and none takes effect twice.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError

from tarry.testing import Sandbox
from tarry.tools.template import read_template
from tests.simulation.scenario import draw_faults, draw_realism

TEMPLATE = read_template(Path(__file__).parents[2] / "template.yaml")
TROUBLE_SECONDS = 1_800
CLIENTS = {"orders": "dynamodb", "ledger": "dynamodb", "digest": "s3"}
"""The name of each function's client in its module."""

Bodies = list[dict[str, Any]]
SEEDS = range(2)


@contextmanager
def deployed(name: str, seed: int) -> Iterator[Sandbox]:
    """Provide one function of the template with its queues, and the resources it writes to, in moto."""
    random = Random(f"shipped {name} {seed}")
    [mapping] = [each for each in TEMPLATE.mappings if name in TEMPLATE.functions[each.function].name.lower()]
    of_function = replace(TEMPLATE, mappings=(mapping,))
    with Sandbox.from_template(of_function, resources=True, seed=seed, realism=draw_realism(random)) as sandbox:
        if name in CLIENTS:
            client = getattr(sandbox.module(mapping.function), CLIENTS[name])
            client.meta.events.register(
                "before-call", lambda **_: _throttled(random) if sandbox.elapsed < TROUBLE_SECONDS else None
            )
        for fault in draw_faults(random, timeout=30):
            sandbox.faults.add(fault)
        yield sandbox


def _throttled(random: Random) -> None:
    if random.random() < 0.2:
        error = {"Error": {"Code": random.choice(["ThrottlingException", "SlowDown", "InternalServerError"])}}
        raise ClientError(error, "PutItem")  # type: ignore[arg-type]


def play(sandbox: Sandbox, queue: str, bodies: Bodies, group: str | None = None) -> Bodies:
    """Send all bodies within some minutes, run until all have settled, and return the bodies of the dead letters."""
    random = Random(sandbox.seed)
    for body in bodies:
        sandbox.send(queue, body, group_id=body[group] if group else None)
        sandbox.advance(random.choice([0, 0, 1, 30]))
    sandbox.run(for_=TROUBLE_SECONDS)
    sandbox.faults.clear()
    assert sandbox.run().settled
    dead_letter_queue = queue.replace(".fifo", "-dlq.fifo") if queue.endswith(".fifo") else f"{queue}-dlq"
    return [json.loads(dead_letter.body) for dead_letter in sandbox.messages(dead_letter_queue)]


def rows(table: str) -> list[dict[str, Any]]:
    resource: Any = boto3.resource("dynamodb", region_name="us-east-1")
    [name] = [each.name for each in resource.tables.all() if table in each.name]
    return list(resource.Table(name).scan()["Items"])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_version_of_an_order_is_written_or_dead(seed: int) -> None:
    sent = [
        {"order": f"o-{n}", "version": version, "customer": "ada", "currency": "EUR" if n else "XXX", "lines": []}
        for n in range(5)
        for version in (2, 1, 3)
    ]
    with deployed("orders", seed) as sandbox:
        dead = play(sandbox, "orders", sent)
        written = {row["order_id"]: row["version"] for row in rows("OrdersTable")}
    missing = [each for each in sent if each["version"] > written.get(each["order"], 0) and each not in dead]
    assert missing == []
    assert written
    assert "o-0" not in written


def test_an_amendment_without_its_order_is_dead_lettered_after_four_attempts() -> None:
    with deployed("orders", 0) as sandbox:
        sandbox.faults.clear()
        sandbox.send("orders", {"order": "o-1", "version": 2, "customer": "ada", "currency": "EUR", "lines": []})
        sandbox.run()
        [dead] = sandbox.messages("orders-dlq")
        assert dead.failure is not None
        assert (dead.failure.reason, dead.failure.attempts) == ("exhausted", 4)
        assert 3_900 < sandbox.elapsed < 7_830  # 20 s, 10 min and 2 h, or half of it


@pytest.mark.parametrize("seed", SEEDS)
def test_every_entry_is_in_its_balance_once_or_dead(seed: int) -> None:
    sent = [{"entry": f"e-{n}", "account": f"a-{n % 2}", "amount": [50, 20, -40, -60, 10][n % 5]} for n in range(15)]
    with deployed("ledger", seed) as sandbox:
        dead = play(sandbox, "ledger.fifo", sent, group="account")
        applied = {row["entry_id"]: row for row in rows("Entries")}
        balances = {row["account"]: row["balance"] for row in rows("Accounts")}
    assert [each for each in sent if each["entry"] not in applied and each not in dead] == []
    assert balances
    for account, balance in balances.items():
        assert balance == sum(row["amount"] for row in applied.values() if row["account"] == account) >= 0


def test_an_entry_that_kills_the_process_is_dead_lettered_and_those_behind_it_are_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC C9
    mappings = tuple(each for each in TEMPLATE.mappings if each.function == "LedgerFunction")
    with Sandbox.from_template(replace(TEMPLATE, mappings=mappings), resources=True) as sandbox:
        ledger = sandbox.module("LedgerFunction")
        apply = ledger.apply
        monkeypatch.setattr(ledger, "apply", lambda entry: apply(entry) if entry.id != "e-0" else os._exit(1))
        for number in range(10):
            sandbox.send("ledger.fifo", {"entry": f"e-{number}", "account": "a", "amount": 1}, group_id="a")
        sandbox.run()
        [dead] = sandbox.messages("ledger-dlq.fifo")
        applied = {row["entry_id"] for row in rows("Entries")}
        blocked_minutes = sandbox.elapsed / 60
    assert json.loads(dead.body)["entry"] == "e-0"
    assert dead.failure is not None
    assert (dead.failure.reason, dead.failure.attempts, dead.failure.type) == (
        "exhausted",
        40,
        "tarry.ProcessCrashed",
    )
    assert applied == {f"e-{number}" for number in range(1, 10)}
    assert blocked_minutes < 10


@pytest.mark.parametrize("seed", SEEDS)
def test_every_scan_is_in_a_digest_or_dead_and_no_digest_has_a_package_twice(seed: int) -> None:
    sent = [
        {"parcel": f"p-{n % 9}", "carrier": "dhl" if n % 7 else "owl", "status": "in_transit", "at": at(n)}
        for n in range(30)
    ]
    with deployed("digest", seed) as sandbox:
        dead = play(sandbox, "scans", sent)
        digests = list(written_digests())
    seen = {(scan["parcel"], scan["at"]) for digest in digests for scan in digest}
    assert [each for each in sent if (each["parcel"], each["at"]) not in seen and each not in dead] == []
    for digest in digests:
        assert len({scan["parcel"] for scan in digest}) == len(digest)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_webhook_is_delivered_under_one_id_or_dead(seed: int) -> None:
    sent = [{"url": "https://93.184.216.34/hook", "payload": n} for n in range(20)]
    random, delivered = Random(seed), dict[int, set[str]]()

    def receive(request: httpx.Request) -> httpx.Response:
        status = random.choice([200, 404, 429, 500, 503]) if sandbox.elapsed < TROUBLE_SECONDS else 200
        if status == 200:
            delivered.setdefault(json.loads(request.content), set()).add(request.headers["webhook-id"])
        elif status != 404 and random.random() < 0.1:
            raise httpx.ReadTimeout("")
        headers = {"retry-after": "7"} if status == 429 else {}
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(b"why"))

    with deployed("webhooks", seed) as sandbox:
        app: Any = sandbox.module("WebhooksFunction")
        app.client = httpx.AsyncClient(transport=httpx.MockTransport(receive))
        dead = play(sandbox, "webhooks", sent)
    assert [each for each in sent if each["payload"] not in delivered and each not in dead] == []
    assert delivered
    assert dead
    assert all(len(ids) == 1 for ids in delivered.values())


def test_a_webhook_waits_for_a_missing_signing_key_for_as_long_as_it_is_missing_and_loses_no_attempt() -> None:
    with deployed("webhooks", 0) as sandbox:
        sandbox.faults.clear()
        app: Any = sandbox.module("WebhooksFunction")
        app.client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200)))
        key, app.signing_key = app.signing_key, app.SigningKey("secretsmanager:missing")
        webhook = sandbox.send("webhooks", {"url": "https://93.184.216.34/hook", "payload": 1})
        sandbox.run(for_=43_200)
        app.signing_key = key
        report = sandbox.run()
    story = report.story(webhook)
    assert sum(step.state == "DEFERRED" for step in story) > 40
    assert (story[-1].state, {step.attempt for step in story} - {None}) == ("COMMITTED", {1})


def test_the_webhooks_of_a_host_that_is_down_wait_and_lose_no_attempt_while_others_are_delivered() -> None:
    tried, delivered = list[float](), dict[int, float]()

    def receive(request: httpx.Request) -> httpx.Response:
        is_down = request.url.host == "93.184.216.34" and sandbox.elapsed < 300
        if is_down:
            tried.append(sandbox.elapsed)
        else:
            delivered[json.loads(request.content)] = sandbox.elapsed
        return httpx.Response(503 if is_down else 200, stream=httpx.ByteStream(b""))

    with deployed("webhooks", 0) as sandbox:
        sandbox.faults.clear()
        app: Any = sandbox.module("WebhooksFunction")
        app.client = httpx.AsyncClient(transport=httpx.MockTransport(receive))
        ids = []
        for n in range(20):
            host = "93.184.216.34" if n % 2 else "93.184.216.35"
            ids.append(sandbox.send("webhooks", {"url": f"https://{host}/hook", "payload": n}))
            sandbox.advance(2)
        report = sandbox.run()
    assert set(delivered) == set(range(20))
    assert max(delivered[n] for n in range(0, 20, 2)) < 60
    assert len(tried) <= 5 + 300 / 30  # then one request every 30 seconds
    attempts = [max(step.attempt or 0 for step in report.story(ids[n])) for n in range(1, 20, 2)]
    assert sum(attempts) == 10 + len(tried)
    assert sum("circuit_open" in str(step) for n in range(1, 20, 2) for step in report.story(ids[n])) > 10


def at(minute: int) -> str:
    return f"2027-01-15T08:{minute:02}:00Z"


def written_digests() -> Iterator[Bodies]:
    resource: Any = boto3.resource("s3", region_name="us-east-1")
    for bucket in resource.buckets.all():
        for each in bucket.objects.all():
            yield [json.loads(line) for line in each.get()["Body"].read().decode().splitlines()]
