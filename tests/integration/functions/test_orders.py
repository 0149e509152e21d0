"""The orders function: what it writes, what it retries, what it declines."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from mypy_boto3_dynamodb.service_resource import Table
from mypy_boto3_sqs import SQSClient

from tarry import Retry
from tests.integration.functions.source import Source


@pytest.fixture
def table() -> Table:
    return boto3.resource("dynamodb").create_table(
        TableName="orders",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "order_id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "order_id", "KeyType": "HASH"}],
    )


@pytest.fixture
def app(load: Callable[[str], ModuleType], table: Table, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("ORDERS_TABLE", "orders")
    return load("orders")


@pytest.fixture
def queue(sqs: SQSClient) -> Source:
    return Source(sqs, "orders", "", max_receive_count=13)


def order(version: object = 1, quantity: int = 2, price: int = 450, **changed: object) -> dict[str, Any]:
    lines = [{"article": "tea", "quantity": quantity, "price": price}]
    return {"order": "o-1", "version": version, "customer": "ada", "currency": "EUR", "lines": lines, **changed}


def test_a_new_order_is_written(app: ModuleType, queue: Source, table: Table) -> None:
    queue.send(order(quantity=3))

    assert queue.deliver(app.handler) == []
    assert table.scan()["Items"] == [
        {"order_id": "o-1", "version": 1, "customer": "ada", "currency": "EUR", "total": 1350}
    ]


def test_an_amendment_replaces_the_version_before_it(app: ModuleType, queue: Source, table: Table) -> None:
    app.save(app.Order.model_validate(order(version=1)))
    queue.send(order(version=2, quantity=5))

    assert queue.deliver(app.handler) == []
    assert [(row["version"], row["total"]) for row in table.scan()["Items"]] == [(2, 2250)]


@pytest.mark.parametrize("version", [1, 2])
def test_an_event_that_comes_twice_is_acknowledged_and_changes_nothing(
    app: ModuleType, queue: Source, table: Table, version: int
) -> None:
    for stored in (1, 2, 3):
        app.save(app.Order.model_validate(order(version=stored)))
    queue.send(order(version=version, quantity=99))

    assert queue.deliver(app.handler) == []
    assert [(row["version"], row["total"]) for row in table.scan()["Items"]] == [(3, 900)]


def test_an_amendment_that_overtook_another_waits_for_it(app: ModuleType, queue: Source, table: Table) -> None:
    app.save(app.Order.model_validate(order(version=1)))
    queue.send(order(version=3))

    assert queue.deliver(app.handler) == [order(version=3)]
    assert queue.dead_letters() == []
    assert [row["version"] for row in table.scan()["Items"]] == [1]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (order(currency="XTS"), "order o-1: unknown currency 'XTS'"),
        (order(quantity=0), "order o-1: 0 of tea"),
        (order(quantity=2, price=250_001), "order o-1: 5,000.02 is over the limit of 5,000.00"),
    ],
)
def test_a_declined_order_is_dead_lettered_at_once_with_the_reason(
    app: ModuleType, queue: Source, table: Table, event: object, reason: str
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
def test_what_is_no_order_is_dead_lettered_with_where_and_why(  # SPEC K2
    app: ModuleType, queue: Source, table: Table, event: object, problems: list[str]
) -> None:
    queue.send(event)

    assert queue.deliver(app.handler) == []
    [(body, failure)] = queue.dead_letters()
    assert body == event
    assert (failure["reason"], failure["type"]) == ("undecodable", "tarry.Undecodable")
    assert all(problem in failure["message"] for problem in problems), failure["message"]
    assert table.scan()["Items"] == []


def test_a_throttled_table_is_given_more_time_than_the_policy_would(app: ModuleType) -> None:
    with Stubber(app.dynamodb) as stub:
        stub.add_client_error("put_item", "ThrottlingException")
        with pytest.raises(Retry) as retry:
            app.save(app.Order.model_validate(order()))

    assert retry.value.delay == 60


def test_any_other_error_of_the_table_is_left_to_the_policy(app: ModuleType, queue: Source) -> None:
    queue.send(order())
    with Stubber(app.dynamodb) as stub:
        stub.add_client_error("put_item", "InternalServerError")

        assert queue.deliver(app.handler) == [order()]
