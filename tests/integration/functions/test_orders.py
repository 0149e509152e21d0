"""The orders function: orders that it writes, retries, and declines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.functions.batches import deliver
from tests.records import record
from tests.wire import client_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mypy_boto3_dynamodb.service_resource import Table

    from tests.wire import Wire


@pytest.fixture
def table(create_table: Callable[[str, str], Table]) -> Table:
    return create_table("orders", "order_id")


@pytest.fixture
def app(
    load: Callable[[str], ModuleType],
    table: Table,
    create_table: Callable[[str, str], Table],
    monkeypatch: pytest.MonkeyPatch,
) -> ModuleType:
    for name in ("orders", "idempotency", "attempts"):
        monkeypatch.setenv(f"{name.upper()}_TABLE", name)
    create_table("idempotency", "id")
    create_table("attempts", "id")
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
    app: ModuleType, wire: Wire, table: Table,
) -> None:  # fmt: skip
    for each in stored:
        app.save(app.OrderVersion.model_validate(order(version=each)))
    sent = record(order(version=version, quantity=5))
    assert deliver(app, sent) == (["m1"] if failed else [])
    assert wire.sent_entries() == []
    number, total = version_and_total
    assert table.scan()["Items"] == [
        {"order_id": "o-1", "version": number, "customer": "ada", "currency": "EUR", "total": total}
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (order(currency="XTS"), "order o-1: unknown currency 'XTS'"),
        (order(quantity=0), "order o-1: quantity 0 of tea"),
        (order(quantity=2, price=250_001), "order o-1: 5,000.02 is over the limit of 5,000.00"),
    ],
)
def test_a_declined_order_is_dead_lettered_at_once_with_the_reason(
    app: ModuleType, wire: Wire, table: Table, event: object, reason: str
) -> None:
    assert deliver(app, sent := record(event)) == []
    [entry], [envelope] = wire.sent_entries(), wire.envelopes()
    failure = envelope["failure"]
    assert entry["MessageBody"] == sent["body"]
    assert (failure["reason"], failure["message"], failure["attempts"]) == ("fatal", reason, 1)
    assert table.scan()["Items"] == []


@pytest.mark.parametrize(
    ("event", "problems"),
    [
        ({"order": "o-1", "version": 1, "lines": [{}]}, ["customer", "currency", "lines.0.article", "lines.0.price"]),
        (order(version="first"), ["version: Input should be a valid integer"]),
        (order(version=0), ["version: Input should be greater than 0"]),
        (["o-1"], ["Input should be an object"]),
    ],
)
def test_an_invalid_order_is_dead_lettered_with_the_validation_errors(  # SPEC K2
    app: ModuleType, wire: Wire, table: Table, event: object, problems: list[str]
) -> None:
    assert deliver(app, sent := record(event)) == []
    [entry], [envelope] = wire.sent_entries(), wire.envelopes()
    failure = envelope["failure"]
    assert entry["MessageBody"] == sent["body"]
    assert (failure["reason"], failure["type"]) == ("undecodable", "tarry.Undecodable")
    assert all(problem in failure["message"] for problem in problems), failure["message"]
    assert table.scan()["Items"] == []


@pytest.mark.parametrize(
    ("code", "shortest", "longest"), [("ThrottlingException", 60, 60), ("InternalServerError", 1, 59)]
)
def test_an_error_of_the_table_is_retried_and_throttling_with_a_longer_delay_than_the_backoff(
    app: ModuleType, wire: Wire, code: str, shortest: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_item = app.dynamodb.put_item

    def refuse_orders(**request: Any) -> Any:
        if request["TableName"] == "orders":
            raise client_error(code)
        return put_item(**request)

    monkeypatch.setattr(app.dynamodb, "put_item", refuse_orders)
    assert deliver(app, record(order())) == ["m1"]
    assert shortest <= wire.visibilities()["handle-m1"] <= longest
