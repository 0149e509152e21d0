"""The orders function: orders that it writes, retries, and declines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.stub import Stubber

from tarry import Retry
from tests.integration.functions.source_queue import SourceQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mypy_boto3_dynamodb.service_resource import Table
    from mypy_boto3_sqs import SQSClient


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


@pytest.fixture
def queue(sqs: SQSClient) -> SourceQueue:
    return SourceQueue(sqs, "orders", "", max_receive_count=13)


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
    app: ModuleType, queue: SourceQueue, table: Table,
) -> None:  # fmt: skip
    for each in stored:
        app.save(app.OrderVersion.model_validate(order(version=each)))
    queue.send(order(version=version, quantity=5))

    assert queue.deliver(app.handler) == ([order(version=version, quantity=5)] if failed else [])
    assert queue.dead_letters() == []
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
    app: ModuleType, queue: SourceQueue, table: Table, event: object, reason: str
) -> None:
    queue.send(event)

    assert queue.deliver(app.handler) == []
    [(body, failure)] = queue.dead_letters()
    assert body == event
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
    app: ModuleType, queue: SourceQueue, table: Table, event: object, problems: list[str]
) -> None:
    queue.send(event)

    assert queue.deliver(app.handler) == []
    [(body, failure)] = queue.dead_letters()
    assert body == event
    assert (failure["reason"], failure["type"]) == ("undecodable", "tarry.Undecodable")
    assert all(problem in failure["message"] for problem in problems), failure["message"]
    assert table.scan()["Items"] == []


def test_a_throttled_table_is_retried_with_a_longer_delay_than_the_backoff(app: ModuleType) -> None:
    with Stubber(app.dynamodb) as stub:
        stub.add_client_error("put_item", "ThrottlingException")
        with pytest.raises(Retry) as retry:
            app.save(app.OrderVersion.model_validate(order()))

    assert retry.value.delay == 60


def test_other_errors_of_the_table_are_retried_by_the_policy(app: ModuleType, queue: SourceQueue) -> None:
    queue.send(order())
    with Stubber(app.dynamodb) as stub:
        stub.add_client_error("put_item", "InternalServerError")

        assert queue.deliver(app.handler) == [order()]
