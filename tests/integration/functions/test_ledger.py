"""The ledger function: entries are applied in order, and a rejected entry does not block its account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.stub import Stubber

from tests.integration.functions.source_queue import SourceQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mypy_boto3_dynamodb.service_resource import Table
    from mypy_boto3_sqs import SQSClient


def create_table(name: str, key: str) -> Table:
    return boto3.resource("dynamodb").create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
    )


@pytest.fixture
def accounts() -> Table:
    return create_table("accounts", "account")


@pytest.fixture
def entries() -> Table:
    return create_table("entries", "entry_id")


@pytest.fixture
def app(
    load: Callable[[str], ModuleType], accounts: Table, entries: Table, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    monkeypatch.setenv("ACCOUNTS_TABLE", "accounts")
    monkeypatch.setenv("ENTRIES_TABLE", "entries")
    monkeypatch.setenv("ATTEMPTS_TABLE", "attempts")
    create_table("attempts", "id")
    return load("ledger")


@pytest.fixture
def queue(sqs: SQSClient) -> SourceQueue:
    return SourceQueue(sqs, "ledger", ".fifo", max_receive_count=405)


def entry(id: str, account: str, amount: object) -> dict[str, object]:
    return {"entry": id, "account": account, "amount": amount}


def balances(accounts: Table) -> dict[object, object]:
    return {row["account"]: row["balance"] for row in accounts.scan()["Items"]}


def test_entries_change_the_balance(app: ModuleType, queue: SourceQueue, accounts: Table) -> None:
    for id, amount in (("e-1", 100), ("e-2", -30), ("e-3", 5)):
        queue.send(entry(id, "ada", amount), group="ada")

    assert queue.deliver(app.handler) == []
    assert balances(accounts) == {"ada": 75}


def test_a_redelivered_entry_is_applied_once(app: ModuleType, queue: SourceQueue, accounts: Table) -> None:
    app.apply(app.LedgerEntry("e-1", "ada", 100))
    queue.send(entry("e-1", "ada", 100), group="ada")

    assert queue.deliver(app.handler) == []
    assert balances(accounts) == {"ada": 100}


def test_a_redelivered_entry_is_not_rejected_if_it_would_overdraw_now(
    app: ModuleType, queue: SourceQueue, accounts: Table
) -> None:
    for id, amount in (("e-1", 100), ("e-2", -80)):
        app.apply(app.LedgerEntry(id, "ada", amount))
    queue.send(entry("e-2", "ada", -80), group="ada")

    assert queue.deliver(app.handler) == []
    assert queue.dead_letters() == []
    assert balances(accounts) == {"ada": 20}


def test_an_entry_that_overdraws_is_dead_lettered_and_the_next_one_is_applied(
    app: ModuleType, queue: SourceQueue, accounts: Table, entries: Table
) -> None:
    for id, account, amount in (("e-1", "ada", 100), ("e-2", "ada", -101), ("e-3", "ada", -40), ("e-4", "bob", -1)):
        queue.send(entry(id, account, amount), group=account)

    assert queue.deliver(app.handler) == []
    assert balances(accounts) == {"ada": 60}
    assert {row["entry_id"] for row in entries.scan()["Items"]} == {"e-1", "e-3"}
    reasons = {body["entry"]: (failure["reason"], failure["message"]) for body, failure in queue.dead_letters()}
    assert reasons == {
        "e-2": ("rejected", "entry e-2 of -101 would overdraw account ada"),
        "e-4": ("rejected", "entry e-4 of -1 would overdraw account bob"),
    }


@pytest.mark.parametrize("body", [{"account": "ada", "amount": 1}, entry("e-1", "ada", "all of it"), None])
def test_an_invalid_entry_is_rejected(app: ModuleType, queue: SourceQueue, body: object) -> None:
    queue.send(body, group="ada")

    assert queue.deliver(app.handler) == []
    [(_, failure)] = queue.dead_letters()
    assert failure["reason"] == "rejected"
    assert failure["message"].startswith("not a ledger entry: ")


def test_a_transaction_conflict_blocks_only_its_account(app: ModuleType, queue: SourceQueue) -> None:
    queue.send(entry("e-1", "ada", 100), group="ada")
    queue.send(entry("e-2", "ada", 200), group="ada")
    with Stubber(app.dynamodb) as stub:
        stub.add_client_error(
            "transact_write_items",
            "TransactionCanceledException",
            modeled_fields={"CancellationReasons": [{"Code": "None"}, {"Code": "TransactionConflict"}]},
        )

        assert queue.deliver(app.handler) == [entry("e-1", "ada", 100), entry("e-2", "ada", 200)]
