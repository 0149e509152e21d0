"""The output of `sam build`, run by the runtime client of Lambda."""

import json
from pathlib import Path
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBServiceResource
from mypy_boto3_dynamodb.service_resource import Table
from mypy_boto3_s3 import S3Client

from tests.acceptance.runtime import Start
from tests.acceptance.runtime_api import FunctionError

EVENTS = Path(__file__).parents[2] / "events"


@pytest.fixture
def orders(dynamodb: DynamoDBServiceResource) -> Table:
    return dynamodb.create_table(
        TableName="orders",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "order_id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "order_id", "KeyType": "HASH"}],
    )


def sample(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return event


def test_the_layer_contains_the_runtime_and_no_development_tools(build: Path) -> None:
    package = build / "TarryLayer" / "python" / "tarry"

    assert (package / "__init__.py").exists()
    assert (package / "py.typed").exists()
    names = {path.name for path in package.rglob("*")}
    tools = {"template", "simulator", "testing", "local", "lint", "scaffold", "cli", "tooling"}
    assert not names & {*tools, "__pycache__"}


def test_a_built_function_contains_only_its_own_file(build: Path) -> None:
    for name in ("OrdersFunction", "LedgerFunction", "DigestFunction"):
        assert [path.name for path in (build / name).iterdir()] == ["app.py"]


def test_the_built_function_handles_its_sample_event(start: Start, aws: str, orders: Table) -> None:
    with start("OrdersFunction", AWS_ENDPOINT_URL=aws, ORDERS_TABLE="orders") as api:
        assert api.invoke(sample("all-well")) == {"batchItemFailures": []}

    rows = orders.scan()["Items"]
    assert {row["order_id"]: row["version"] for row in rows} == {"o-2001": 2, "o-2002": 1, "o-2003": 1}


def test_a_built_function_reports_failed_messages_and_handles_the_next_batch(
    start: Start, aws: str, orders: Table
) -> None:
    event = sample("orders")
    with start("OrdersFunction", AWS_ENDPOINT_URL=aws, ORDERS_TABLE="orders") as api:
        first = api.invoke(event)
        second = api.invoke(sample("all-well"))

    order_of = {record["messageId"]: json.loads(record["body"]) for record in event["Records"]}
    failed = [order_of[failure["itemIdentifier"]] for failure in first["batchItemFailures"]]
    # The queues do not exist, so messages that would be dead-lettered are reported as failed.
    assert [(order["order"], order["version"]) for order in failed] == [
        ("o-1003", 4),
        ("o-1003", 3),
        ("o-1003", 2),
        ("o-1004", 1),
        ("o-1005", 2),
    ]
    assert second == {"batchItemFailures": []}


def test_a_built_batch_function_writes_one_object_and_reports_the_other_messages(
    start: Start, aws: str, s3: S3Client
) -> None:
    s3.create_bucket(Bucket="digests")
    event = sample("digest")
    with start("DigestFunction", AWS_ENDPOINT_URL=aws, DIGEST_BUCKET="digests") as api:
        response = api.invoke(event)

    number_of = {record["messageId"]: number for number, record in enumerate(event["Records"], start=1)}
    # The second scan of a parcel, and messages that would be dead-lettered.
    assert [number_of[failure["itemIdentifier"]] for failure in response["batchItemFailures"]] == [4, 5, 6]
    [found] = s3.list_objects_v2(Bucket="digests")["Contents"]
    lines = s3.get_object(Bucket="digests", Key=found["Key"])["Body"].read().splitlines()
    assert [number_of[json.loads(line)["message"]] for line in lines] == [1, 2, 3, 7]


def test_a_function_without_a_model_does_not_need_powertools(start: Start, aws: str) -> None:
    with start("LedgerFunction", AWS_ENDPOINT_URL=aws, ACCOUNTS_TABLE="accounts", ENTRIES_TABLE="entries") as api:
        assert api.invoke({"Records": []}) == {"batchItemFailures": []}


def test_an_event_that_is_not_from_sqs_is_a_function_error(start: Start, aws: str) -> None:
    with (
        start("OrdersFunction", AWS_ENDPOINT_URL=aws, ORDERS_TABLE="orders") as api,
        pytest.raises(FunctionError, match="InvalidEvent"),
    ):
        api.invoke(sample("not-sqs"))


def test_a_function_that_cannot_be_loaded_is_a_function_error(start: Start) -> None:
    with (
        start("OrdersFunction") as api,
        pytest.raises(FunctionError, match="ORDERS_TABLE"),
    ):
        api.invoke(sample("all-well"))
