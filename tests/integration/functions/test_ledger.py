"""The ledger function: entries are applied in order, and a rejected entry does not block its account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.functions.batches import dead, deliver
from tests.records import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mypy_boto3_dynamodb.service_resource import Table

    from tests.wire import Wire


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


def entry(id: str, account: str, amount: object) -> dict[str, Any]:
    return record({"entry": id, "account": account, "amount": amount}, id, "ledger.fifo", group=account)


def balances(accounts: Table) -> dict[object, object]:
    return {row["account"]: row["balance"] for row in accounts.scan()["Items"]}


def test_entries_change_the_balance(app: ModuleType, wire: Wire, accounts: Table) -> None:
    assert deliver(app, *(entry(id, "ada", amount) for id, amount in (("e-1", 100), ("e-2", -30), ("e-3", 5)))) == []
    assert balances(accounts) == {"ada": 75}


def test_a_redelivered_entry_is_applied_once_even_if_it_would_overdraw_now(
    app: ModuleType, wire: Wire, accounts: Table
) -> None:
    batch = [entry(id, "ada", amount) for id, amount in (("e-1", 100), ("e-2", -80))]
    for _ in range(2):
        assert deliver(app, *batch) == []
    assert wire.sent_entries() == []
    assert balances(accounts) == {"ada": 20}


def test_an_entry_that_overdraws_is_dead_lettered_and_the_next_one_is_applied(
    app: ModuleType, wire: Wire, accounts: Table, entries: Table
) -> None:
    sent = (("e-1", "ada", 100), ("e-2", "ada", -101), ("e-3", "ada", -40), ("e-4", "bob", -1))
    assert deliver(app, *(entry(*each) for each in sent)) == []
    assert balances(accounts) == {"ada": 60}
    assert {row["entry_id"] for row in entries.scan()["Items"]} == {"e-1", "e-3"}
    assert dead(wire) == [
        ("rejected", "entry e-2 of -101 would overdraw account ada"),
        ("rejected", "entry e-4 of -1 would overdraw account bob"),
    ]


@pytest.mark.parametrize("body", [{"account": "ada", "amount": 1}, entry("e-1", "ada", "all of it")["body"], None])
def test_an_invalid_entry_is_rejected(app: ModuleType, wire: Wire, body: object) -> None:
    assert deliver(app, record(body, "m1", "ledger.fifo", group="ada")) == []
    [(reason, message)] = dead(wire)
    assert reason == "rejected"
    assert message.startswith("not a ledger entry: ")


def test_a_transaction_conflict_blocks_only_its_account(
    app: ModuleType, wire: Wire, accounts: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    conflict = {"Error": {"Code": "TransactionCanceledException", "Message": ""}}
    reasons = [{"Code": "None"}, {"Code": "TransactionConflict"}]
    error = app.dynamodb.exceptions.TransactionCanceledException({**conflict, "CancellationReasons": reasons}, "any")
    apply = app.dynamodb.transact_write_items

    def refuse_ada(**request: Any) -> Any:
        if "ada" in str(request):
            raise error
        return apply(**request)

    monkeypatch.setattr(app.dynamodb, "transact_write_items", refuse_ada)
    batch = [entry("e-1", "ada", 100), entry("e-2", "ada", 200), entry("e-3", "bob", 1)]
    assert deliver(app, *batch) == ["e-1", "e-2"]
    assert balances(accounts) == {"bob": 1}
