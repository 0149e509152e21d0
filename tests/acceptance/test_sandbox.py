"""The sample functions in the sandbox, as users test functions, with tables and buckets in moto."""

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from tarry.testing import Sandbox

TEMPLATE = Path(__file__).parents[2] / "template.yaml"


@pytest.fixture
def system(sandbox: Sandbox) -> Sandbox:
    sandbox.add_template(TEMPLATE, resources=True)
    return sandbox


def rows(table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = boto3.resource("dynamodb").Table(table).scan()["Items"]
    return found


def order(id: str, version: int = 1, **changed: Any) -> dict[str, Any]:
    lines = [{"article": "tea", "quantity": 2, "price": 450}]
    return {"order": id, "version": version, "customer": "ada", "currency": "EUR", "lines": lines, **changed}


def test_the_latest_version_of_an_order_is_written(system: Sandbox) -> None:
    for version in (3, 2, 1):
        system.send("orders", order("o-1", version))

    report = system.run()

    assert report.count("COMMITTED") == 3
    assert [row["version"] for row in rows("OrdersTable")] == [3]


def test_an_amendment_without_its_order_is_dead_lettered_after_four_attempts(system: Sandbox) -> None:
    system.send("orders", order("o-1", version=2))

    system.run()

    [dead_letter] = system.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert (dead_letter.failure.reason, dead_letter.failure.attempts) == ("exhausted", 4)
    assert 3_900 < system.elapsed < 7_830  # 20 s, 10 min and 2 h, or half of it


def test_a_declined_order_is_dead_lettered_and_the_others_are_committed(system: Sandbox) -> None:
    good = system.send("orders", order("o-1"))
    bad = system.send("orders", order("o-2", currency="XTS"))
    broken = system.send("orders", "{")

    report = system.run()

    assert [report.state(each) for each in (good, bad, broken)] == ["COMMITTED", "DEAD_LETTERED", "DEAD_LETTERED"]
    assert {each.id: each.failure and each.failure.reason for each in system.messages("orders-dlq")} == {
        bad: "fatal",
        broken: "undecodable",
    }


def test_with_a_throttled_table_a_message_is_retried_after_a_minute(system: Sandbox) -> None:
    app = system.module("OrdersFunction")
    sent = system.send("orders", order("o-1"))
    with Stubber(app.dynamodb) as throttled:
        throttled.add_response("put_item", {})  # the idempotency record
        throttled.add_client_error("put_item", "ThrottlingException")
        throttled.add_response("delete_item", {})  # so that the message may run again
        report = system.advance(10)

    assert report.story(sent)[-1].delay == 60
    assert system.run().state(sent) == "COMMITTED"


def test_no_order_is_lost_when_sqs_fails(system: Sandbox) -> None:
    """Responses are lost, requests throttled, processes crash, messages are duplicated; `run` checks for losses."""
    system.faults.add("lost_answer", operation="SendMessageBatch")
    system.faults.add("throttle", times=5, chance=0.5)
    system.faults.add("crash", queue="orders", seconds=0.001)
    system.faults.add("duplicate", queue="orders", times=3, seconds=1)
    for number in range(20):
        system.send("orders", order(f"o-{number}", currency="EUR" if number % 5 else "XTS"))

    report = system.run()

    assert report.settled
    assert len(rows("OrdersTable")) == 16
    assert len({dead_letter.json()["order"] for dead_letter in system.messages("orders-dlq")}) == 4


def entry(id: str, account: str, amount: int) -> dict[str, Any]:
    return {"entry": id, "account": account, "amount": amount}


def test_an_entry_that_overdraws_its_account_does_not_block_it(system: Sandbox) -> None:
    for number, amount in enumerate((100, -500, -30)):
        system.send("ledger.fifo", entry(f"e-{number}", "ada", amount), group_id="ada")

    report = system.run()

    assert (report.count("COMMITTED"), report.count("DEAD_LETTERED")) == (2, 1)
    assert [row["balance"] for row in rows("AccountsTable")] == [70]


def test_a_failed_entry_blocks_only_its_account(system: Sandbox) -> None:
    app = system.module("LedgerFunction")
    with Stubber(app.dynamodb) as busy:
        busy.add_client_error("transact_write_items", "ThrottlingException")
        failing = system.send("ledger.fifo", entry("e-1", "ada", 100), group_id="ada")
        system.advance(1)
    behind = system.send("ledger.fifo", entry("e-2", "ada", -100), group_id="ada")
    other = system.send("ledger.fifo", entry("e-3", "bob", 10), group_id="bob")

    states = [system.advance(1).state(each) for each in (failing, behind, other)]
    assert states == ["WAITING_RETRY", "READY", "COMMITTED"]
    assert system.run().count("COMMITTED") == 3
    assert 30 <= system.elapsed < 32


def scan(parcel: str, minute: int = 0, carrier: str = "dhl") -> dict[str, str]:
    return {"parcel": parcel, "carrier": carrier, "status": "in_transit", "at": f"2027-01-15T08:{minute:02}:00Z"}


def test_a_digest_has_at_most_one_scan_of_a_parcel(system: Sandbox) -> None:
    for parcel, minute in (("p-1", 0), ("p-2", 0), ("p-1", 1)):
        system.send("scans", scan(parcel, minute))
    unknown = system.send("scans", scan("p-3", carrier="owl"))

    report = system.run()

    [bucket] = [each for each in boto3.resource("s3").buckets.all() if "digest" in each.name]
    digests = [found.get()["Body"].read().decode().splitlines() for found in bucket.objects.all()]
    parcels = sorted(sorted(json.loads(line)["parcel"] for line in digest) for digest in digests)
    assert parcels == [["p-1"], ["p-1", "p-2"]]
    assert report.state(unknown) == "DEAD_LETTERED"
