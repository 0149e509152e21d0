"""The shipped consumers on moto: orders that are written and declined, entries of a ledger, digests of scans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.stub import Stubber

from tests.integration.functions.conftest import dead, deliver
from tests.records import record
from tests.wire import client_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mypy_boto3_dynamodb.service_resource import Table
    from mypy_boto3_s3 import S3Client

    from tests.wire import Wire

TABLES = {"orders": "order_id", "idempotency": "id", "attempts": "id", "accounts": "account", "entries": "entry_id"}
"""The tables and their keys."""


@pytest.fixture
def tables(create_table: Callable[[str, str], Table], monkeypatch: pytest.MonkeyPatch) -> dict[str, Table]:
    """The tables of orders and ledger, whose names are in the environment."""
    for name in TABLES:
        monkeypatch.setenv(f"{name.upper()}_TABLE", name)
    return {name: create_table(name, key) for name, key in TABLES.items()}


# orders


@pytest.fixture
def orders(load: Callable[[str], ModuleType], tables: dict[str, Table]) -> ModuleType:
    return load("orders")


def order(version: object = 1, quantity: int = 2, price: int = 450, **changed: object) -> dict[str, Any]:
    lines = [{"article": "tea", "quantity": quantity, "price": price}]
    return {"order": "o-1", "version": version, "customer": "ada", "currency": "EUR", "lines": lines, **changed}


@pytest.mark.parametrize(
    ("stored", "version", "failed", "version_and_total"),
    [
        pytest.param([], 1, False, (1, 2250), id="a new order is written"),
        pytest.param([1], 2, False, (2, 2250), id="an amendment replaces the previous version"),
        pytest.param([1, 2, 3], 1, False, (3, 900), id="a redelivered order changes nothing"),
        pytest.param([1, 2, 3], 2, False, (3, 900), id="a redelivered amendment changes nothing"),
        pytest.param([1], 3, True, (1, 900), id="an amendment that arrives before another is retried"),
    ],
)
def test_versions_of_an_order_are_written_in_their_order(
    stored: list[int], version: int, failed: bool, version_and_total: tuple[int, int],
    orders: ModuleType, wire: Wire, tables: dict[str, Table],
) -> None:  # fmt: skip
    for each in stored:
        orders.save(orders.OrderVersion.model_validate(order(version=each)))
    assert deliver(orders, record(order(version=version, quantity=5))) == (["m1"] if failed else [])
    assert wire.sent_entries() == []
    number, total = version_and_total
    assert tables["orders"].scan()["Items"] == [
        {"order_id": "o-1", "version": number, "customer": "ada", "currency": "EUR", "total": total}
    ]


@pytest.mark.parametrize(
    ("event", "reason", "texts"),
    [
        (order(currency="XTS"), "fatal", ["order o-1: unknown currency 'XTS'"]),
        (order(quantity=0), "fatal", ["order o-1: quantity 0 of tea"]),
        (order(quantity=2, price=250_001), "fatal", ["order o-1: 5,000.02 is over the limit of 5,000.00"]),
        ({"order": "o-1", "version": 1, "lines": [{}]}, "undecodable",
         ["customer", "currency", "lines.0.article", "lines.0.price"]),
        (order(version="first"), "undecodable", ["version: Input should be a valid integer"]),
        (order(version=0), "undecodable", ["version: Input should be greater than 0"]),
        (["o-1"], "undecodable", ["Input should be an object"]),
    ],
)  # fmt: skip
def test_a_declined_or_invalid_order_is_dead_lettered_at_once_with_the_reason(  # SPEC K2
    orders: ModuleType, wire: Wire, tables: dict[str, Table], event: object, reason: str, texts: list[str]
) -> None:
    assert deliver(orders, sent := record(event)) == []
    [entry], [envelope] = wire.sent_entries(), wire.envelopes()
    failure = envelope["failure"]
    assert entry["MessageBody"] == sent["body"]
    assert (failure["reason"], failure["attempts"]) == (reason, 1)
    if reason == "fatal":
        assert failure["message"] == texts[0]
    else:
        assert failure["type"] == "tarry.Undecodable"
        assert all(text in failure["message"] for text in texts), failure["message"]
    assert tables["orders"].scan()["Items"] == []


@pytest.mark.parametrize(
    ("code", "shortest", "longest"), [("ThrottlingException", 60, 60), ("InternalServerError", 1, 59)]
)
def test_an_error_of_the_table_is_retried_and_throttling_with_a_longer_delay_than_the_backoff(
    orders: ModuleType, wire: Wire, code: str, shortest: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_item = orders.dynamodb.put_item

    def refuse_orders(**request: Any) -> Any:
        if request["TableName"] == "orders":
            raise client_error(code)
        return put_item(**request)

    monkeypatch.setattr(orders.dynamodb, "put_item", refuse_orders)
    assert deliver(orders, record(order())) == ["m1"]
    assert shortest <= wire.visibilities()["handle-m1"] <= longest


# ledger


@pytest.fixture
def ledger(load: Callable[[str], ModuleType], tables: dict[str, Table]) -> ModuleType:
    return load("ledger")


def entry(id: str, account: str, amount: object) -> dict[str, Any]:
    return record({"entry": id, "account": account, "amount": amount}, id, "ledger.fifo", group=account)


def balances(tables: dict[str, Table]) -> dict[object, object]:
    return {row["account"]: row["balance"] for row in tables["accounts"].scan()["Items"]}


def test_entries_change_the_balance_and_a_redelivered_one_is_applied_once_even_if_it_would_overdraw_now(
    ledger: ModuleType, wire: Wire, tables: dict[str, Table]
) -> None:
    batch = [entry(id, "ada", amount) for id, amount in (("e-1", 100), ("e-2", -80), ("e-3", 5))]
    for _ in range(2):
        assert deliver(ledger, *batch) == []
    assert wire.sent_entries() == []
    assert balances(tables) == {"ada": 25}


def test_an_entry_that_overdraws_is_dead_lettered_and_the_next_one_is_applied(
    ledger: ModuleType, wire: Wire, tables: dict[str, Table]
) -> None:
    sent = (("e-1", "ada", 100), ("e-2", "ada", -101), ("e-3", "ada", -40), ("e-4", "bob", -1))
    assert deliver(ledger, *(entry(*each) for each in sent)) == []
    assert balances(tables) == {"ada": 60}
    assert {row["entry_id"] for row in tables["entries"].scan()["Items"]} == {"e-1", "e-3"}
    assert dead(wire) == [
        ("rejected", "entry e-2 of -101 would overdraw account ada"),
        ("rejected", "entry e-4 of -1 would overdraw account bob"),
    ]


@pytest.mark.parametrize("body", [{"account": "ada", "amount": 1}, entry("e-1", "ada", "all of it")["body"], None])
def test_an_invalid_entry_is_rejected(ledger: ModuleType, wire: Wire, body: object) -> None:
    assert deliver(ledger, record(body, "m1", "ledger.fifo", group="ada")) == []
    [(reason, message)] = dead(wire)
    assert reason == "rejected"
    assert message.startswith("not a ledger entry: ")


def test_a_transaction_conflict_blocks_only_its_account(
    ledger: ModuleType, wire: Wire, tables: dict[str, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    conflict = {"Error": {"Code": "TransactionCanceledException", "Message": ""}}
    reasons = [{"Code": "None"}, {"Code": "TransactionConflict"}]
    error = ledger.dynamodb.exceptions.TransactionCanceledException({**conflict, "CancellationReasons": reasons}, "any")
    apply = ledger.dynamodb.transact_write_items

    def refuse_ada(**request: Any) -> Any:
        if "ada" in str(request):
            raise error
        return apply(**request)

    monkeypatch.setattr(ledger.dynamodb, "transact_write_items", refuse_ada)
    batch = [entry("e-1", "ada", 100), entry("e-2", "ada", 200), entry("e-3", "bob", 1)]
    assert deliver(ledger, *batch) == ["e-1", "e-2"]
    assert balances(tables) == {"bob": 1}


# digest


@pytest.fixture
def digest(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    boto3.client("s3").create_bucket(Bucket="digests")
    monkeypatch.setenv("DIGEST_BUCKET", "digests")
    return load("digest")


def scan(message_id: str, parcel: str, hour: int = 8, carrier: str = "dhl", receives: int = 1) -> dict[str, Any]:
    body = {"parcel": parcel, "carrier": carrier, "status": "in_transit", "at": f"2026-07-25T{hour:02}:00:00Z"}
    return record(body, message_id, "scans", receives=receives)


def digests() -> list[list[dict[str, Any]]]:
    """Return the lines of each object in the bucket."""
    s3: S3Client = boto3.client("s3")
    keys = [found["Key"] for found in s3.list_objects_v2(Bucket="digests").get("Contents", [])]
    bodies = (s3.get_object(Bucket="digests", Key=key)["Body"].read() for key in keys)
    return [[json.loads(line) for line in body.splitlines()] for body in bodies]


def messages_of_digests() -> list[list[str]]:
    return sorted([line["message"] for line in lines] for lines in digests())


def test_a_batch_becomes_one_object_in_the_order_of_the_scans_also_if_it_is_redelivered_in_another(
    digest: ModuleType, wire: Wire
) -> None:
    batch = [scan("m1", "p-1", hour=9), scan("m2", "p-2", hour=8, carrier="gls")]
    assert deliver(digest, *batch) == []
    assert deliver(digest, *reversed(batch)) == []
    [lines] = digests()
    assert lines == [
        {"message": "m2", "parcel": "p-2", "carrier": 3, "status": "in_transit", "at": "2026-07-25T08:00:00Z"},
        {"message": "m1", "parcel": "p-1", "carrier": 1, "status": "in_transit", "at": "2026-07-25T09:00:00Z"},
    ]
    assert wire.requests == []


def test_the_second_scan_of_a_parcel_is_retried_for_another_digest(digest: ModuleType, wire: Wire) -> None:
    later, earlier = scan("m1", "p-1", hour=9), scan("m2", "p-1", hour=8)
    assert deliver(digest, later, earlier, scan("m3", "p-2")) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 2}
    assert deliver(digest, scan("m1", "p-1", hour=9, receives=2)) == []
    assert messages_of_digests() == [["m1"], ["m2", "m3"]]


def test_a_scan_that_is_invalid_or_of_an_unknown_carrier_is_dead_lettered_and_the_others_are_written(
    digest: ModuleType, wire: Wire
) -> None:
    assert deliver(digest, scan("m0", "p-0", carrier="albatross")) == []
    assert digests() == []  # without a valid scan, none is written
    wire.requests.clear()
    invalid = record({"parcel": "p-3", "carrier": "dhl", "status": "lost", "at": "2026-07-25T08:00"}, "m3", "scans")
    assert deliver(digest, scan("m1", "p-1", carrier="albatross"), scan("m2", "p-2"), invalid) == []
    assert messages_of_digests() == [["m2"]]
    failures = {envelope["id"]: envelope["failure"] for envelope in wire.envelopes()}
    assert {id: failure["reason"] for id, failure in failures.items()} == {"m1": "fatal", "m3": "undecodable"}
    assert failures["m1"]["message"] == "parcel p-1: unknown carrier 'albatross'"
    assert "status: Input should be" in failures["m3"]["message"]
    assert "at: Input should have timezone info" in failures["m3"]["message"]


def test_a_busy_s3_delays_the_digest_and_keeps_the_other_verdicts(digest: ModuleType, wire: Wire) -> None:
    with Stubber(digest.s3) as stub:
        stub.add_client_error("put_object", "SlowDown", http_status_code=503)
        twice, unknown = scan("m3", "p-1", hour=9), scan("m4", "p-4", carrier="albatross")
        assert deliver(digest, scan("m1", "p-1"), scan("m2", "p-2"), twice, unknown) == ["m1", "m2", "m3"]
    assert wire.visibilities() == {"handle-m1": 300, "handle-m2": 300, "handle-m3": 2}
    assert [envelope["id"] for envelope in wire.envelopes()] == ["m4"]


def test_other_errors_of_s3_are_retried_by_the_policy_and_the_last_one_is_in_the_dead_letter(
    digest: ModuleType, wire: Wire
) -> None:
    with Stubber(digest.s3) as stub:
        stub.add_client_error("put_object", "AccessDenied", "Not you.", http_status_code=403)
        assert deliver(digest, scan("m1", "p-1")) == ["m1"]
        stub.add_client_error("put_object", "SlowDown", "Please reduce your request rate.", http_status_code=503)
        assert deliver(digest, scan("m2", "p-2", receives=5)) == []
    assert 15 <= wire.visibilities()["handle-m1"] <= 30
    [envelope] = wire.envelopes()
    assert (envelope["failure"]["reason"], envelope["failure"]["attempts"]) == ("exhausted", 5)
    assert "Please reduce your request rate." in envelope["failure"]["message"]
