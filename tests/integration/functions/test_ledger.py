"""The ledger function: entries are applied in order, and a rejected entry does not block its account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from botocore.stub import Stubber

from tests.integration.functions.source_queue import SourceQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mypy_boto3_dynamodb.service_resource import Table
    from mypy_boto3_sqs import SQSClient


@pytest.fixture
def accounts(create_table: Callable[[str, str], Table]) -> Table:
    return create_table("accounts", "account")


@pytest.fixture
def entries(create_table: Callable[[str, str], Table]) -> Table:
    return create_table("entries", "entry_id")


@pytest.fixture
def app(
    load: Callable[[str], ModuleType],
    accounts: Table,
    entries: Table,
    create_table: Callable[[str, str], Table],
    monkeypatch: pytest.MonkeyPatch,
) -> ModuleType:
    for name in ("accounts", "entries", "attempts"):
        monkeypatch.setenv(f"{name.upper()}_TABLE", name)
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


def test_a_redelivered_entry_is_applied_once_even_if_it_would_overdraw_now(
    app: ModuleType, queue: SourceQueue, accounts: Table
) -> None:
    for id, amount in (("e-1", 100), ("e-2", -80)):
        app.apply(app.LedgerEntry(id, "ada", amount))
    for id, amount in (("e-1", 100), ("e-2", -80)):
        queue.send(entry(id, "ada", amount), group="ada")

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
