"""The sample functions in virtual time, as users test functions; tests/integration/functions has what they do."""

from pathlib import Path

import pytest
from botocore.stub import Stubber

from tarry.testing import Sandbox

TEMPLATE = Path(__file__).parents[2] / "template.yaml"


@pytest.fixture
def system(sandbox: Sandbox) -> Sandbox:
    sandbox.add_template(TEMPLATE, resources=True)
    return sandbox


def test_an_amendment_without_its_order_is_dead_lettered_after_four_attempts(system: Sandbox) -> None:
    amendment = {"order": "o-1", "version": 2, "customer": "ada", "currency": "EUR"}
    system.send("orders", {**amendment, "lines": [{"article": "tea", "quantity": 2, "price": 450}]})
    system.run()

    [dead_letter] = system.messages("orders-dlq")
    assert dead_letter.failure is not None
    assert (dead_letter.failure.reason, dead_letter.failure.attempts) == ("exhausted", 4)
    assert 3_900 < system.elapsed < 7_830  # 20 s, 10 min and 2 h, or half of it


def test_a_failed_entry_blocks_only_its_account(system: Sandbox) -> None:
    app = system.module("LedgerFunction")
    with Stubber(app.dynamodb) as busy:
        busy.add_client_error("transact_write_items", "ThrottlingException")
        failing = system.send("ledger.fifo", {"entry": "e-1", "account": "ada", "amount": 100}, group_id="ada")
        system.advance(1)
    behind = system.send("ledger.fifo", {"entry": "e-2", "account": "ada", "amount": -100}, group_id="ada")
    other = system.send("ledger.fifo", {"entry": "e-3", "account": "bob", "amount": 10}, group_id="bob")

    states = [system.advance(1).state(each) for each in (failing, behind, other)]
    assert states == ["WAITING_RETRY", "READY", "COMMITTED"]
    assert system.run().count("COMMITTED") == 3
    assert 30 <= system.elapsed < 32
