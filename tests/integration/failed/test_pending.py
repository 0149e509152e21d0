"""`tarry failed show --pending`: the messages that wait for a retry (SPEC O3)."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from click.testing import Result
from moto import mock_aws
from typer.testing import CliRunner

from tarry import AttemptChange, DynamoDBAttempts
from tarry.tools.cli.app import app

STACK = {
    "Resources": {
        "AttemptsTable": {
            "Type": "AWS::DynamoDB::Table",
            "Properties": {
                "TableName": "shop-attempts",
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            },
        }
    }
}


@pytest.fixture(autouse=True)
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        cloudformation = boto3.client("cloudformation", region_name="us-east-1")
        cloudformation.create_stack(StackName="shop", TemplateBody=json.dumps(STACK))
        cloudformation.create_stack(
            StackName="other", TemplateBody=json.dumps({"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}})
        )
        yield


def write(message: str, queue: str, next_try: float, kind: str = "run", error: str = "no answer in 3 s") -> None:
    failure = {"type": "app.GatewayTimeout", "message": error, "fingerprint": "b45dfe4b2404"}
    fields = {"message": message, "queue": queue, "attempt": 2, "state": "WAITING_RETRY", "next_try": next_try}
    if kind != "seen":
        fields |= {"failure": failure, "history": [{"attempt": 2}]}
    change = AttemptChange(f"{queue}#{message}", 2, kind, fields)  # type: ignore[arg-type]
    DynamoDBAttempts("shop-attempts", client=boto3.client("dynamodb", region_name="us-east-1")).write([change])


def run(*arguments: str, columns: str = "80") -> Result:
    return CliRunner(env={"COLUMNS": columns}).invoke(app, ["failed", "show", "--pending", *arguments])


ID = "636e0ad2-2096-46ab-9069-64496372034"


def test_the_messages_that_wait_are_shown_with_the_next_try_first() -> None:
    write(f"{ID}a", "orders", 4_000_000_000)
    write(f"{ID}b", "ledger.fifo", 1_000_000_000, "seen")
    write(f"{ID}c", "orders", 3_000_000_000, "run")
    write(f"{ID}c", "orders", 0, "end")
    result = run("--stack", "shop", columns="120")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if ID[:8] in line]
    assert [row[1] for row in rows] == ["ledger.fifo", "orders"]
    assert rows[0][2:] == ["2", "waiting_retry", "due"]
    assert rows[1][2:] == ["2", "app.GatewayTimeout:", "no", "answer", "in", "3", "s", "2096-10-02", "07:06:40"]
    assert result.stderr == "AWS 123456789012 us-east-1\nshop-attempts: 2 messages pending\n"


def test_a_queue_and_a_number_select_and_json_has_everything() -> None:
    for index in range(3):
        write(f"{ID}{index}", "orders", 4_000_000_000 + index)
    write(f"{ID}x", "other", 0)
    result = run("--table", "shop-attempts", "--queue", "orders", "--max", "2", "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["id"] for each in found] == [f"{ID}0", f"{ID}1"]
    assert found[0] == {
        "id": f"{ID}0", "queue": "orders", "state": "WAITING_RETRY", "attempt": 2,
        "error": "app.GatewayTimeout: no answer in 3 s", "fingerprint": "b45dfe4b2404",
        "next_try": "2096-10-02T07:06:40.000Z", "history": [{"attempt": 2}],
    }  # fmt: skip
    assert result.stderr == "AWS 123456789012 us-east-1\nshop-attempts: 2 messages pending; 1 more (--max)\n"


def test_control_characters_and_markup_of_an_error_have_no_effect() -> None:
    write(ID, "orders", 0, error="[bold]\x1b[31mred")
    result = run("--table", "shop-attempts", columns="200")
    assert "[bold]" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--pending reads the table of attempts=: name it (--table NAME), or its stack (--stack NAME)"),
        (("--stack", "other"), "stack other has no table with Attempts in its logical id: name the table"),
        (("--table", "t", "--event"), "--pending takes only --table, --stack, --queue, --max and --json"),
        (("--table", "nope"), "there is no table nope in us-east-1: check the name, and --region"),
    ],
)
def test_a_table_that_is_not_known_is_an_error(
    arguments: tuple[str, ...], text: str, tmp_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "item",
    [
        {"next_try": {"S": "soon"}},
        {"next_try": {"N": "1e99"}},
        {"next_try": {"N": "5"}, "failure": {"S": "{"}},
        {"next_try": {"N": "5"}, "failure": {"S": '{"type":7}'}, "message": {"M": {}}},
        {"next_try": {"N": "5"}, "expires": {"N": "7"}},
    ],
    ids=["text", "too late", "no JSON", "a number", "expired"],
)
def test_the_others_are_shown_beside_a_record_of_another_program_and_one_that_expired(item: dict[str, Any]) -> None:
    write(f"{ID}a", "orders", 4_000_000_000)
    boto3.client("dynamodb").put_item(TableName="shop-attempts", Item={"id": {"S": "x"}, **item})
    result = run("--stack", "shop")
    assert result.exit_code == 0, result.output
    assert ID[:8] in result.stdout
    assert ("None" in result.stdout) == ("expires" not in item and item["next_try"] == {"N": "5"})
